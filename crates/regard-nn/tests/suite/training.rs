//! Training: deterministic, resumable to the bit, and refusing what cannot be right.

use crate::by_exchange::ByExchange;
use regard_dist::{Faults, Local};
use regard_nn::checkpoint::{self, Checkpoint};
use regard_nn::data::{Target, Text, Windows};
use regard_nn::optim::OptimConfig;
use regard_nn::random::Draws;
use regard_nn::tensors::layout::Layout;
use regard_nn::tokenizer::{Tokenizer, TokenizerKind};
use regard_nn::training::parts::step_bytes;
use regard_nn::training::ranks::{Ranks, Worker};
use regard_nn::training::trainer::{StepReport, Task, TextTask, TrainConfig, Trainer};
use regard_nn::{Error, IGNORE, LanguageModel, Loss, MaskKind, ModelConfig, stories};
use std::path::Path;

const VOCAB: usize = 64;

fn small() -> ModelConfig {
    ModelConfig { vocab: VOCAB, context: 16, width: 32, heads: 2, ..ModelConfig::default() }
}

fn text(context: usize) -> Text {
    let text = stories::write(20_000, 1);
    let tokenizer = Tokenizer::train(TokenizerKind::Char, &text).expect("trained");
    assert!(tokenizer.vocab() <= VOCAB, "{}", tokenizer.vocab());
    Text::split(tokenizer.encode(&text).expect("encoded"), context).expect("long enough")
}

fn config() -> TrainConfig {
    TrainConfig { steps: 12, batch: 8, ..TrainConfig::default() }
}

fn run(model: &LanguageModel, trainer: &mut Trainer, until: u64) -> Vec<StepReport> {
    let text = text(model.config().context);
    let mut task = TextTask::new(model, &text, MaskKind::Causal, Target::Next);
    let mut reports = Vec::new();
    while trainer.step() < until {
        reports.push(trainer.advance(&mut task).expect("a step"));
    }
    reports
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn training_learns() {
    let model = LanguageModel::new(small()).expect("valid");
    let mut trainer = Trainer::new(model.layout(), TrainConfig { steps: 150, ..config() }).expect("valid");
    let reports = run(&model, &mut trainer, 150);
    assert!((reports[0].loss - (VOCAB as f64).ln()).abs() < 0.5, "{}", reports[0].loss);
    assert!(reports[149].loss < 2.6, "{}", reports[149].loss);
    assert!(reports.iter().all(|r| r.gradient_norm > 0.0 && r.tokens == 128));
}

#[test]
fn windows_are_begun_and_some_are_said_again() {
    let (seq, vocab, bos) = (64, 64, Some(63));
    let tokens: Vec<u32> = (0..500).map(|i| i % 60).collect();
    let plain = Windows::draw(&tokens, 50, seq, Target::Next, &mut Draws::at(1, &[]));
    let begun = plain.clone().begun(bos, seq);
    for (window, (targets, before)) in begun.ids.chunks(seq).zip(begun.targets.chunks(seq).zip(plain.ids.chunks(seq))) {
        assert_eq!((window[0], &window[1..], targets), (63, &before[..seq - 1], before));
    }
    assert_eq!(plain.clone().begun(None, seq), plain);
    let draws = |window: usize| Draws::at(9, &[window as u64]);
    let mut mixed = begun.clone();
    mixed.repeat(0.5, false, seq, vocab, bos, draws);
    let mut said = 0;
    for (number, (window, targets)) in mixed.ids.chunks(seq).zip(mixed.targets.chunks(seq)).enumerate() {
        assert_eq!(&window[1..], &targets[..seq - 1], "a target is the next token");
        if window == &begun.ids[number * seq..(number + 1) * seq] {
            continue;
        }
        said += 1;
        assert_eq!(window[0], 63);
        assert!(!window[1..].contains(&63) && window.iter().all(|token| *token < 64));
        let period = (24..=seq / 2).find(|len| window[1 + len..].iter().zip(&window[1..]).all(|(a, b)| a == b));
        let period = period.unwrap_or_else(|| panic!("{window:?}"));
        let segment: std::collections::HashSet<u32> = window[1..=period].iter().copied().collect();
        assert_eq!(segment.len(), period, "no token is in it twice");
        // Whatever else is in the batch.
        let mut alone = Windows { ids: vec![0; seq], targets: vec![0; seq] };
        alone.repeat(1.0, true, seq, vocab, bos, |_| draws(number));
        assert_eq!(alone.ids, window);
        // Where only what can be looked up counts: what follows the second saying of the first token, and on.
        let first = alone.targets.iter().position(|target| *target != IGNORE).expect("something to look up");
        assert_eq!((window[first], &alone.targets[first..]), (window[1], &targets[first..]));
        assert_eq!(first, period + 1);
    }
    assert!((15..=35).contains(&said), "{said} of 50");
    for repeats in [-0.1, 1.1, f64::NAN] {
        assert!(TrainConfig { repeats, ..config() }.check().is_err());
    }
}

#[test]
fn a_step_in_parts_says_the_same_windows_again() {
    let model = LanguageModel::new(small()).expect("valid");
    let of = |micro_batches, repeats| {
        let mut trainer = Trainer::new(model.layout(), TrainConfig { micro_batches, repeats, ..config() }).expect("valid");
        run(&model, &mut trainer, 2).pop().expect("a step").loss
    };
    let whole = of(1, 0.5);
    assert!(
        (whole - of(4, 0.5)).abs() < 1e-4 && (whole - of(1, 0.0)).abs() > 1e-3,
        "the same windows in parts, and other ones than without"
    );
}

#[test]
fn resumed_training_ends_with_the_bits_of_an_undisturbed_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    for dropout in [0.0, 0.1] {
        let model = LanguageModel::new(ModelConfig { dropout, ..small() }).expect("valid");
        let mut whole = Trainer::new(model.layout(), config()).expect("valid");
        let reports = run(&model, &mut whole, 12);

        let mut first = Trainer::new(model.layout(), config()).expect("valid");
        run(&model, &mut first, 7);
        save(&path, &first, model.config()).expect("saved");
        drop(first);
        let checkpoint = Checkpoint::read(&path).expect("read");
        assert_eq!(checkpoint.model::<ModelConfig>().expect("a model"), *model.config());
        let train = checkpoint.train.clone().expect("settings");
        let mut second = Trainer::resume(model.layout(), train, checkpoint).expect("resumed");
        assert_eq!(second.step(), 7);
        assert_eq!(run(&model, &mut second, 12), reports[7..]);
        assert_eq!(bits(second.params()), bits(whole.params()));
        assert_eq!(bits(&second.adam().second), bits(&whole.adam().second));
    }
    let names: Vec<_> = std::fs::read_dir(folder.path()).expect("listed").map(|f| f.expect("a file").file_name()).collect();
    assert_eq!(names.len(), 2, "nothing is left beside the two files: {names:?}");
}

#[test]
fn threads_do_not_change_a_training() {
    let train = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        pool.install(|| {
            let model = LanguageModel::new(ModelConfig { dropout: 0.1, ..small() }).expect("valid");
            let mut trainer = Trainer::new(model.layout(), TrainConfig { batch: 40, ..config() }).expect("valid");
            run(&model, &mut trainer, 5);
            bits(trainer.params())
        })
    };
    let one = train(1);
    assert!(train(2) == one && train(5) == one);
}

#[test]
fn micro_batches_add_up_to_the_batch() {
    let model = LanguageModel::new(small()).expect("valid");
    let train = |micro_batches| {
        let mut trainer = Trainer::new(model.layout(), TrainConfig { micro_batches, ..config() }).expect("valid");
        let reports = run(&model, &mut trainer, 4);
        (reports, trainer.params().to_vec())
    };
    let ((whole, p), (parts, q)) = (train(1), train(4));
    for (a, b) in whole.iter().zip(&parts) {
        assert!((a.loss - b.loss).abs() < 1e-5 && (a.gradient_norm / b.gradient_norm - 1.0).abs() < 1e-4, "{a:?} {b:?}");
    }
    assert!(p.iter().zip(&q).all(|(a, b)| (a - b).abs() < 1e-3));
    assert!(Trainer::new(model.layout(), TrainConfig { micro_batches: 3, ..config() }).is_err());
    assert!(Trainer::new(model.layout(), TrainConfig { batch: 0, ..config() }).is_err());
}

/// What one rank does of a training up to step `until`; rank 0 writes the checkpoint.
fn one_rank(ranks: &dyn Ranks, begun: Trainer, model: &LanguageModel, until: u64, path: &Path) -> (Vec<StepReport>, Vec<u32>) {
    let text = text(model.config().context);
    let mut trainer = begun.share(ranks, "").expect("they agree");
    let mut task = TextTask::new(model, &text, MaskKind::Causal, Target::Next);
    let mut reports = Vec::new();
    while trainer.step() < until {
        reports.push(trainer.advance_by(&mut task, ranks, false).expect("a step").0);
    }
    if let Some(adam) = trainer.moments(ranks).expect("gathered") {
        checkpoint::save(path, &trainer, &adam, model.config(), &()).expect("saved");
    }
    (reports, bits(trainer.params()))
}

/// A training by several ranks, which are threads, or have an exchange; the last step's report, and the bytes of the checkpoint.
fn by_ranks(model: &LanguageModel, begun: &Trainer, ranks: usize, until: u64, exchange: bool) -> (StepReport, Vec<u8>) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let one = |ranks: &dyn Ranks| one_rank(ranks, begun.clone(), model, until, &path);
    let all = if exchange {
        Local::run(ranks, |exchange| one(&ByExchange(&exchange)))
    } else {
        std::thread::scope(|scope| {
            let ranks: Vec<_> = Worker::team(ranks).into_iter().map(|rank| scope.spawn(move || one(&rank))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("a rank")).collect()
        })
    };
    assert!(all.iter().all(|one| *one == all[0]), "all ranks have the same reports and weights");
    (*all[0].0.last().expect("a step"), std::fs::read(path).expect("read"))
}

#[test]
fn parts_make_the_same_bytes_by_any_number_of_ranks() {
    let model = LanguageModel::new(ModelConfig { dropout: 0.1, width: 64, ..small() }).expect("valid");
    assert!(model.layout().len() > 3 * (1 << 14), "several slices: {}", model.layout().len());
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("alone.safetensors");
    let optim = OptimConfig { weight_decay: 0.1, ..OptimConfig::default() };
    let settings = |parts| TrainConfig { batch: 12, parts, steps: 6, optim, ..config() };
    let begun = Trainer::new(model.layout(), settings(6)).expect("valid");
    let mut alone = begun.clone();
    let last = run(&model, &mut alone, 6).pop().expect("a step");
    save(&path, &alone, model.config()).expect("saved");
    let right = (last, std::fs::read(&path).expect("read"));
    for (ranks, exchange) in [1, 2, 3, 4, 5, 7].into_iter().flat_map(|ranks| [(ranks, false), (ranks, true)]) {
        assert!(by_ranks(&model, &begun, ranks, 6, exchange) == right, "{ranks} ranks make another training");
    }
    // Taken up by another number of ranks.
    std::fs::write(&path, by_ranks(&model, &begun, 3, 2, true).1).expect("written");
    std::fs::remove_file(path.with_extension("json")).expect("removed");
    let resumed = Trainer::resume(model.layout(), settings(6), Checkpoint::read(&path).expect("read")).expect("resumed");
    assert!(resumed.step() == 2 && by_ranks(&model, &resumed, 2, 6, true) == right, "resumed on two ranks, it ends elsewhere");
    // The tree is part of the result.
    let mut other = Trainer::new(model.layout(), settings(3)).expect("valid");
    run(&model, &mut other, 6);
    assert_ne!(bits(other.params()), bits(alone.params()));
    for parts in [0, 5, 24] {
        assert!(Trainer::new(model.layout(), settings(parts)).is_err(), "{parts}");
    }
}

#[test]
fn bytes_of_a_step_are_those_of_the_formula() {
    let model = LanguageModel::new(ModelConfig { width: 128, ..small() }).expect("valid");
    let (text, parameters) = (text(model.config().context), model.layout().len());
    for (ranks, parts) in [(2, 8), (3, 8), (4, 8), (4, 2)] {
        let settings = TrainConfig { batch: 8, parts, ..config() };
        let counted = Local::run(ranks, |exchange| {
            let begun = Trainer::new(model.layout(), settings.clone()).expect("valid");
            let mut trainer = begun.share(&ByExchange(&exchange), "").expect("they agree");
            let before = exchange.bytes_received();
            let mut task = TextTask::new(&model, &text, MaskKind::Causal, Target::Next);
            trainer.advance_by(&mut task, &ByExchange(&exchange), false).expect("a step");
            exchange.bytes_received() - before
        });
        let formula: Vec<_> = (0..ranks).map(|rank| step_bytes(&settings, parameters, ranks, rank)).collect();
        assert_eq!(counted, formula, "{ranks} ranks");
        // A ring's all-reduce, where each rank has one node.
        let ring = 2.0 * (1.0 - 1.0 / ranks as f64) * 4.0 * parameters as f64;
        let mean = formula.iter().sum::<u64>() as f64 / ranks as f64;
        assert!(parts % ranks > 0 || (mean / ring - 1.0).abs() < 0.01, "{mean} bytes, {ring} by a ring");
    }
}

/// Rank 1 disconnects after a number of messages.
#[test]
fn a_rank_that_is_lost_on_the_way_is_named() {
    let model = LanguageModel::new(small()).expect("valid");
    let text = text(model.config().context);
    for after in 1..8 {
        let faults = Faults { lost: Some((1, after)), ..Faults::default() };
        let ends = Local::run_with(3, faults, |exchange| {
            let ranks = ByExchange(&exchange);
            let begun = Trainer::new(model.layout(), TrainConfig { batch: 9, parts: 3, ..config() }).expect("valid");
            let mut task = TextTask::new(&model, &text, MaskKind::Causal, Target::Next);
            begun
                .share(&ranks, "")
                .and_then(|mut trainer| trainer.run_by(&mut task, &ranks, |_, _| Ok(true)))
                .expect_err("it is missed")
                .to_string()
        });
        for rank in [0, 2] {
            let named = ends[rank].starts_with(&format!("rank {rank} needs ")) && ends[rank].contains("which is disconnected");
            assert!(named, "after {after}: {}", ends[rank]);
        }
        assert!([0, 2].iter().any(|rank| ends[*rank].contains(" of rank 1, which is disconnected")), "after {after}: {ends:?}");
    }
}

#[test]
fn ranks_that_differ_or_are_gone_are_named() {
    let model = LanguageModel::new(small()).expect("valid");
    let text = text(model.config().context);
    let (model, text) = (&model, &text);
    let errors = |seed: u64, gone: bool| {
        let mut team = Worker::team(2).into_iter();
        let (first, second) = (team.next().expect("one"), team.next().expect("two"));
        let begun = |seed| Trainer::new(model.layout(), TrainConfig { seed, parts: 2, ..config() }).expect("valid");
        std::thread::scope(|scope| {
            let other = scope.spawn(move || {
                let mut trainer = begun(seed).share(&second, "")?;
                if gone {
                    return Ok(());
                }
                trainer.advance_by(&mut Broken(model.layout(), 1.0), &second, false).map(|_| ())
            });
            let mut task = TextTask::new(model, text, MaskKind::Causal, Target::Next);
            let mine = begun(1).share(&first, "").and_then(|mut trainer| trainer.advance_by(&mut task, &first, false).map(|_| ()));
            [mine, other.join().expect("it ends")].map(|end| end.map_err(|error| error.to_string()))
        })
    };
    let [mine, theirs] = errors(2, false).map(|end| end.expect_err("refused"));
    assert!(mine.starts_with("rank 0 has step 0 of {") && mine.contains("rank 1 has") && mine.contains("the same settings"), "{mine}");
    assert!(theirs.starts_with("rank 1 has"), "{theirs}");
    let [mine, theirs] = errors(1, true);
    theirs.expect("it has just gone");
    let mine = mine.expect_err("it is missed");
    assert!(mine.starts_with("rank 0 needs ") && mine.ends_with("of step 1 of rank 1, which is disconnected"), "{mine}");
    // A gradient that is no number is one for all.
    let both = errors(1, false).map(|end| end.expect_err("no step"));
    assert!(both.iter().all(|error| error.starts_with("the gradient's norm is")), "{both:?}");
}

fn save(path: &Path, trainer: &Trainer, model: &ModelConfig) -> regard_nn::Result<()> {
    checkpoint::save(path, trainer, trainer.adam(), model, &())
}

/// The one line that reading a changed checkpoint gives.
fn line(path: &Path, model: &LanguageModel) -> String {
    let read = Checkpoint::read(path).and_then(|checkpoint| Trainer::resume(model.layout(), config(), checkpoint));
    let line = read.expect_err("refused").to_string();
    assert!(!line.contains('\n') && line.contains("model.safetensors"), "{line}");
    line
}

#[test]
fn bad_checkpoints_are_refused_with_one_clear_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let model = LanguageModel::new(small()).expect("valid");
    let trainer = Trainer::new(model.layout(), config()).expect("valid");
    assert!(line(&path, &model).starts_with("cannot read"));
    save(&path, &trainer, model.config()).expect("saved");
    let bytes = std::fs::read(&path).expect("there");

    let other = LanguageModel::new(ModelConfig { width: 16, ..small() }).expect("valid");
    assert!(line(&path, &other).contains("has shape [64, 32], the model needs [64, 16]"), "{}", line(&path, &other));
    let deeper = LanguageModel::new(ModelConfig { layers: 3, ..small() }).expect("valid");
    assert!(line(&path, &deeper).contains("it has no tensor"));

    for cut in [0, 5, 100, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..cut]).expect("written");
        assert!(line(&path, &model).contains("cut short"), "{}", line(&path, &model));
    }
    let mut spoiled = bytes.clone();
    let end = spoiled.len();
    spoiled[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, &spoiled).expect("written");
    assert!(line(&path, &model).contains("has NaN in it"));
}

#[test]
fn a_reader_beside_a_training_that_saves_every_step_reads_a_consistent_checkpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let model = LanguageModel::new(small()).expect("valid");
    let mut trainer = Trainer::new(model.layout(), config()).expect("valid");
    save(&path, &trainer, model.config()).expect("saved");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Two states in turn: each save replaces the bytes.
            let other = Trainer::new(model.layout(), TrainConfig { seed: 2, ..config() }).expect("valid");
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                save(&path, &other, model.config()).expect("saved");
                save(&path, &trainer, model.config()).expect("saved");
            }
        });
        let read = (0..300).map(|_| Checkpoint::read(&path)).find_map(Result::err);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(read.is_none(), "{read:?}");
    });
    assert_eq!(run(&model, &mut trainer, 1).len(), 1);
}

#[test]
fn same_state_is_saved_as_the_same_bytes_and_settings_come_back_to_the_last_bit() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let model = LanguageModel::new(small()).expect("valid");
    // Numbers of 17 digits, where reading may be one bit off.
    let optim = OptimConfig { rate: 0.1 + 0.2, beta2: 0.989_999_999_999_999_1, eps: 1.234_567_890_123_456_7e-8, ..OptimConfig::default() };
    let trainer = Trainer::new(model.layout(), TrainConfig { optim, ..config() }).expect("valid");
    let saved = || {
        checkpoint::save(&path, &trainer, trainer.adam(), model.config(), &("a text", 5)).expect("saved");
        std::fs::read(&path).expect("there")
    };
    let first = saved();
    assert!((0..8).all(|_| saved() == first));
    let checkpoint = Checkpoint::read(&path).expect("read");
    assert_eq!(checkpoint.train.as_ref(), Some(trainer.config()));
    assert_eq!(checkpoint.origin::<(String, u32)>().expect("an origin"), ("a text".to_owned(), 5));
    assert!(matches!(checkpoint.origin::<u32>(), Err(Error::Checkpoint { .. })));
}

/// Its gradient is no number; its loss is what it is said to be.
struct Broken<'l>(&'l Layout, f64);

impl Task for Broken<'_> {
    fn layout(&self) -> &Layout {
        self.0
    }

    fn gradient(&mut self, _: &[f32], g: &mut [f32], _: &TrainConfig, _: u64, _: usize) -> regard_nn::Result<Loss> {
        g.fill(f32::NAN);
        Ok(Loss { sum: self.1, rows: 1, correct: 0 })
    }
}

#[test]
fn gradient_that_is_no_number_stops_the_training_before_the_update() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let model = LanguageModel::new(small()).expect("valid");
    let mut trainer = Trainer::new(model.layout(), config()).expect("valid");
    let before = bits(trainer.params());
    let refused = trainer.advance(&mut Broken(model.layout(), 1.0)).expect_err("refused");
    assert!(matches!(refused, Error::Gradient { step: 1, .. }), "{refused}");
    assert!(refused.to_string().contains("lower the learning rate or clip gradients"), "{refused}");
    assert!(bits(trainer.params()) == before && trainer.step() == 0);
    assert!(trainer.adam().first.iter().chain(&trainer.adam().second).all(|x| *x == 0.0), "the moments are untouched");
    // The last good state can be saved, and the training goes on from it.
    save(&path, &trainer, model.config()).expect("saved");
    assert_eq!(run(&model, &mut trainer, 1).len(), 1);
}

#[test]
fn one_changed_bit_of_a_checkpoint_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let model = LanguageModel::new(small()).expect("valid");
    let trainer = Trainer::new(model.layout(), config()).expect("valid");
    save(&path, &trainer, model.config()).expect("saved");
    assert!(Checkpoint::read(&path).expect("read").verified());
    let good = std::fs::read(&path).expect("there");
    // The lowest bit of a first weight, a sign, and a digit of the settings.
    let digit = good.windows(12).position(|w| w == br#"\"batch\":8,"#).expect("the settings") + 10;
    for (at, bit) in [(good.len() - 4, 1), ((good.len() / 2) | 3, 0x80), (digit, 1)] {
        let mut bytes = good.clone();
        bytes[at] ^= bit;
        std::fs::write(&path, &bytes).expect("written");
        assert!(line(&path, &model).contains("its checksum is not the one in model.json"), "{}", line(&path, &model));
    }
    // Killed after the summary was written and before the file was replaced: the old file is still good.
    std::fs::write(&path, &good).expect("written");
    let json = path.with_extension("json");
    let text = std::fs::read_to_string(&json).expect("there");
    let sum = text.lines().find_map(|line| line.trim().strip_prefix("\"sha256\": \"")?.strip_suffix("\",")).expect("a sum").to_owned();
    let between = text.replace(&format!("\"sha256\": \"{sum}\""), &format!("\"sha256\": \"new\", \"replaces\": [\"{sum}\"]"));
    std::fs::write(&json, between).expect("written");
    assert!(Checkpoint::read(&path).expect("read").verified());
    // And the next save forgets what was replaced.
    save(&path, &trainer, model.config()).expect("saved");
    assert_eq!(std::fs::read_to_string(&json).expect("there"), text);
    std::fs::remove_file(&json).expect("removed");
    assert!(!Checkpoint::read(&path).expect("read").verified(), "nothing to compare with");
}

#[test]
fn checkpoint_of_another_training_is_not_resumed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let model = LanguageModel::new(small()).expect("valid");
    save(&path, &Trainer::new(model.layout(), config()).expect("valid"), model.config()).expect("saved");
    let resume = |config| Trainer::resume(model.layout(), config, Checkpoint::read(&path).expect("read"));
    assert!(resume(TrainConfig { steps: 99, ..config() }).is_ok(), "more steps are the same training");
    let optim = OptimConfig { rate: 1e-4, ..OptimConfig::default() };
    for (other, words) in [
        (TrainConfig { batch: 4, ..config() }, "it was trained with batch 8, which cannot become 4"),
        (TrainConfig { seed: 2, ..config() }, "seed 1, which cannot become 2"),
        (TrainConfig { parts: 2, ..config() }, "parts 1, which cannot become 2"),
        (TrainConfig { optim, ..config() }, "it was trained with optim"),
    ] {
        let refused = resume(other).expect_err("another training").to_string();
        assert!(refused.contains(words), "{refused}");
    }
}

#[test]
fn loss_that_is_no_number_stops_the_training_before_the_update() {
    let model = LanguageModel::new(small()).expect("valid");
    let mut trainer = Trainer::new(model.layout(), config()).expect("valid");
    let before = bits(trainer.params());
    let refused = trainer.advance(&mut Broken(model.layout(), f64::NAN)).expect_err("refused");
    assert!(matches!(refused, Error::Diverged { step: 1, .. }));
    assert_eq!(bits(trainer.params()), before);
    assert_eq!(trainer.step(), 0);
}
