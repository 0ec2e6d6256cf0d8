//! Training: deterministic, resumable to the bit, and refusing what cannot be right.

use regard_nn::checkpoint::{Checkpoint, save, save_with, write_whole};
use regard_nn::data::{Target, Text};
use regard_nn::optim::OptimConfig;
use regard_nn::params::Layout;
use regard_nn::tokenizer::{Tokenizer, TokenizerKind};
use regard_nn::train::{StepReport, Task, TextTask, TrainConfig, Trainer};
use regard_nn::{Error, LanguageModel, Loss, MaskKind, ModelConfig, stories};
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
        write_whole(&path, &bytes[..cut]).expect("written");
        assert!(line(&path, &model).contains("cut short"), "{}", line(&path, &model));
    }
    let mut spoiled = bytes.clone();
    let end = spoiled.len();
    spoiled[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    write_whole(&path, &spoiled).expect("written");
    assert!(line(&path, &model).contains("has NaN in it"));
}

#[test]
fn failed_write_leaves_the_old_file_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("taken");
    std::fs::create_dir(&target).expect("made");
    std::fs::write(target.join("old"), "old").expect("written");
    // A folder cannot be replaced by a file, so the rename fails after the file was written.
    assert!(matches!(write_whole(&target, b"new"), Err(Error::File { action: "write", .. })));
    assert_eq!(std::fs::read_to_string(target.join("old")).expect("still there"), "old");
    assert_eq!(std::fs::read_dir(folder.path()).expect("listed").count(), 1, "nothing half-written is left");
    assert!(write_whole(&folder.path().join("no/such/place"), b"new").is_err());
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
        save_with(&path, &trainer, model.config(), &("a text", 5)).expect("saved");
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
fn numbers_that_could_not_be_read_back_do_not_replace_a_checkpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let model = LanguageModel::new(small()).expect("valid");
    let mut trainer = Trainer::new(model.layout(), config()).expect("valid");
    save(&path, &trainer, model.config()).expect("saved");
    let before = std::fs::read(&path).expect("there");
    trainer.advance(&mut Broken(model.layout(), 1.0)).expect("a step");
    assert!(matches!(save(&path, &trainer, model.config()), Err(Error::Diverged { step: 1, .. })));
    assert!(std::fs::read(&path).expect("there") == before);
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
