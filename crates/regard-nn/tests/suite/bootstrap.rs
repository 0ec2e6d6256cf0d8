//! Ranks that have neither folder nor text, only what the first one tells them.

use crate::by_exchange::ByExchange;
use regard_dist::{Faults, Local};
use regard_nn::config::ModelConfig;
use regard_nn::training::bootstrap::with_heartbeat;
use regard_nn::training::folder::ModelFolder;
use regard_nn::training::ranks::Ranks;
use regard_nn::training::run::{Journal, Settings, Training, assist};
use regard_nn::training::source::TextSource;
use regard_nn::training::trainer::{StepReport, TrainConfig};
use regard_nn::{Error, Result};
use std::path::Path;
use std::time::Duration;

/// Losses of the steps.
#[derive(Default)]
struct Steps(Vec<f64>);

impl Journal for Steps {
    fn push(&mut self, report: &StepReport, _: Option<f64>) {
        self.0.push(report.loss);
    }

    fn to_csv(&self) -> Vec<u8> {
        Vec::new()
    }
}

fn settings(rate: f64) -> Settings {
    let mut train = TrainConfig { steps: 7, batch: 8, parts: 4, ..TrainConfig::default() };
    train.optim.rate = rate;
    let model = ModelConfig { context: 16, width: 64, heads: 2, dropout: 0.1, ..ModelConfig::default() };
    Settings { text: TextSource::Stories { characters: 6000, seed: 1 }, model, train, ..Settings::default() }
}

fn checkpoint(folder: &Path) -> Vec<u8> {
    std::fs::read(folder.join("model.safetensors")).expect("a checkpoint")
}

/// The first rank has the folder; `leaver` wants to stop after a number of steps. What each ends with.
fn by_ranks(folder: &Path, ranks: usize, resume: bool, leaver: Option<(usize, usize)>) -> Vec<Result<()>> {
    let wish = |rank: usize| {
        let mut left = leaver.filter(|(who, _)| *who == rank).map_or(usize::MAX, |(_, steps)| steps);
        move || {
            left = left.saturating_sub(1);
            left > 0
        }
    };
    Local::run(ranks, |exchange| {
        let (by, mut on) = (ByExchange(&exchange), wish(exchange.rank()));
        if by.rank() > 0 {
            return assist(&by, &mut on);
        }
        let mut training = if resume {
            let (folder, checkpoint) = ModelFolder::open_model(folder)?;
            let settings = Settings::of(&checkpoint)?;
            let source = settings.text.clone();
            Training::resume(folder, checkpoint, settings, &source)?
        } else {
            Training::begin(folder, settings(3e-3), false)?
        };
        training.run_by(&by, 3, &mut Steps::default(), &mut |_| on())
    })
}

#[test]
fn ranks_make_the_bytes_of_one_process() {
    let dir = tempfile::tempdir().expect("a folder");
    let alone = dir.path().join("alone");
    Training::begin(&alone, settings(3e-3), false)
        .and_then(|mut training| training.run(3, &mut Steps::default(), &mut |_| true))
        .expect("trained");
    let right = checkpoint(&alone);
    for ranks in 2..5 {
        let folder = dir.path().join(ranks.to_string());
        by_ranks(&folder, ranks, false, None).into_iter().for_each(|end| end.expect("trained"));
        assert!(checkpoint(&folder) == right, "{ranks} ranks");
    }
    // Stopped by the wish of any rank, and taken up by another number of them, one of which wants to stop again.
    let folder = dir.path().join("stopped");
    for (ranks, leaver) in [(3, Some((2, 1))), (2, Some((0, 2))), (4, None)] {
        by_ranks(&folder, ranks, folder.exists(), leaver).into_iter().for_each(|end| end.expect("trained"));
        assert_eq!(checkpoint(&folder) == right, leaver.is_none(), "{ranks} ranks");
    }
}

#[test]
fn a_loss_that_is_not_finite_is_an_error_of_rank_0_only() {
    let dir = tempfile::tempdir().expect("a folder");
    let ends = Local::run(3, |exchange| {
        let by = ByExchange(&exchange);
        if by.rank() > 0 {
            return assist(&by, &mut || true);
        }
        let mut training = Training::begin(dir.path(), settings(1e30), false)?;
        training.run_by(&by, 3, &mut Steps::default(), &mut |_| true)
    });
    assert!(matches!(ends[0], Err(Error::Diverged { .. } | Error::Gradient { .. })), "{ends:?}");
    assert!(ends[1..].iter().all(Result::is_ok), "{ends:?}");
}

#[test]
fn a_first_rank_that_takes_long_is_waited_for() {
    let faults = Faults { timeout: Duration::from_millis(1500), ..Faults::default() };
    let ends = |every: Duration| {
        let dir = tempfile::tempdir().expect("a folder");
        Local::run_with(2, faults, |exchange| {
            let by = ByExchange(&exchange);
            if by.rank() > 0 {
                return assist(&by, &mut || true);
            }
            let mut training = with_heartbeat(&by, every, || {
                std::thread::sleep(Duration::from_millis(4000));
                Training::begin(dir.path(), settings(3e-3), false)
            })?;
            training.run_by(&by, 3, &mut Steps::default(), &mut |_| true)
        })
    };
    ends(Duration::from_millis(50)).into_iter().for_each(|end| end.expect("trained"));
    let silent = ends(Duration::from_secs(60)).remove(1).expect_err("it gives up").to_string();
    assert!(silent.starts_with("rank 1 waited 1.5 s for the training's state of rank 0"), "{silent}");
}
