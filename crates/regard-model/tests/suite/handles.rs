//! Models and runs as handles: cancelled, shared between threads, and generating past the context.

use crate::golden::{Golden, folder};
use regard_model::{Cancel, Edits, Error, Generation, Input, Model, Pool, Run, Sink, Sources};
use regard_nn::stories;
use std::time::{Duration, Instant};

fn none() -> (Edits, Sources) {
    (Edits::default(), Sources::default())
}

/// The outcome of work that is cancelled after 50 ms, and the seconds that it took to end.
fn cancelled<R>(model: &Model, work: impl FnOnce(&Model) -> Result<R, Error>) -> (Result<R, Error>, f64) {
    let cancel = Cancel::new();
    let handle = model.with_cancel(&cancel);
    std::thread::scope(|scope| {
        let stopper = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            cancel.cancel();
            Instant::now()
        });
        let outcome = work(&handle);
        let ended = Instant::now();
        (outcome, ended.duration_since(stopper.join().expect("a thread")).as_secs_f64())
    })
}

#[test]
fn work_ends_soon_after_it_is_cancelled() {
    let model = Model::built_in().expect("the small model");
    let (edits, sources) = none();
    let long = model.ids(Input::Text(&stories::write(120_000, 1))).expect("a text");
    let texts = model.own_texts(64, 256).expect("texts");
    let start = Instant::now();
    let (run, seconds) = cancelled(&model, |model| model.run(&long, &edits, &sources));
    assert!(matches!(run, Err(Error::Stopped)), "{run:?}");
    assert!(seconds < 1.0, "{seconds} s of a pass after it was cancelled");
    let (screen, seconds) = cancelled(&model, |model| model.screen(&texts, &[], |_, _| true));
    assert!(matches!(screen, Err(Error::Stopped)) && seconds < 1.0, "{seconds} s of a screen");
    let (losses, seconds) = cancelled(&model, |model| model.evaluate(&long, Some(1), &edits, &sources, |_, _| {}));
    assert!(matches!(losses, Err(Error::Stopped)) && seconds < 1.0, "{seconds} s of an evaluation");
    let (written, seconds) = cancelled(&model, |model| model.generate(&[5], &Generation::greedy(1 << 20), &edits, &sources, |_| true));
    assert!(matches!(written, Err(Error::Stopped)) && seconds < 1.0, "{seconds} s of writing");
    assert!(start.elapsed().as_secs_f64() < 20.0);
    // The model itself is as before.
    model.run(&long[..50], &edits, &sources).expect("a run");
}

#[test]
fn runs_are_looked_at_by_several_threads_and_survive_panics() {
    let model = Model::built_in().expect("the small model");
    let (edits, sources) = none();
    let ids = model.ids(Input::Text(&stories::write(1500, 1))).expect("a text");
    let run: Run = model.run(&ids, &edits, &sources).expect("a run");
    drop(model);
    let right = run.weights(1, 2).expect("weights");
    let panicked = std::thread::scope(|scope| {
        let view = scope.spawn(|| {
            let _states = run.head_states(1, 2, Sink::Show).expect("states");
            panic!("a view that fails");
        });
        view.join().is_err()
    });
    assert!(panicked);
    std::thread::scope(|scope| {
        for head in 0..4 {
            let (run, right) = (&run, &right);
            scope.spawn(move || {
                let states = run.head_states(1, head, Sink::Show).expect("states");
                let whole = regard::Rectangle { rows: 0..run.len(), keys: 0..run.len() };
                let tile = run.tile(&states, whole, 1, Pool::Mean).expect("a tile");
                assert!(head != 2 || tile == *right);
            });
        }
    });
    let cancel = Cancel::new();
    cancel.cancel();
    assert!(matches!(run.with_cancel(&cancel).weights(0, 0), Err(Error::Stopped)));
    assert_eq!(run.weights(1, 2).expect("weights"), right);
}

#[test]
fn writing_goes_on_past_the_context_with_edits_as_without() {
    let (golden, model) = (Golden::read("gpt2"), Model::load(folder("gpt2")).expect("a model"));
    let sources = Sources::default();
    let count = 2 * model.context() + 5;
    let draw = |edits: &str, cached: bool, temperature: f64| {
        let sampling = regard_nn::generate::Sampling { temperature, seed: 3, ..Default::default() };
        let options = Generation { cached, sampling, ..Generation::greedy(count) };
        model.generate(&golden.ids, &options, &Edits::parse(edits).expect(edits), &sources, |_| true).expect(edits)
    };
    let write = |edits: &str, cached: bool| draw(edits, cached, 0.0);
    let plain = write("", true);
    assert_eq!(plain.len(), count);
    assert_eq!(write("L0.H0=gain:1", true), plain, "an edit that changes nothing");
    assert_eq!(write("", false), plain, "without the cache");
    let edits = "L0=zero/L0-1.mlp=gain:8";
    let edited = draw(edits, true, 1.0);
    assert_eq!((edited.len(), edited == draw("", true, 1.0)), (count, false));
    assert_eq!(draw(edits, false, 1.0), edited);
    // By hand: the older half is dropped when the context is full, and the rest read again.
    let (mut text, mut first) = (golden.ids.clone(), 0);
    for token in &plain {
        if text.len() - first > model.context() {
            first = text.len() - model.context() / 2;
        }
        let run = model.run(&text[first..], &Edits::default(), &sources).expect("a run");
        let logits = run.logits().expect("logits");
        let last = logits.row(text.len() - first - 1).to_vec();
        assert_eq!(regard_nn::generate::argmax(&last) as u32, *token);
        text.push(*token);
    }
}
