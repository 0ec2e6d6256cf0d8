//! Named steps with their durations, and the closing count.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;

/// Runs steps one after another, goes on after a failure, and counts.
#[derive(Default)]
pub(crate) struct Steps {
    passed: usize,
    failed: Vec<String>,
}

impl Steps {
    /// Runs one step and says how it went.
    pub(crate) fn step(&mut self, name: &str, work: impl FnOnce() -> Result<()>) {
        println!("==> {name}");
        let start = Instant::now();
        let outcome = work();
        let seconds = start.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => {
                self.passed += 1;
                println!("    ok: {name} ({seconds:.1} s)");
            }
            Err(error) => {
                self.failed.push(name.to_owned());
                println!("    FAILED: {name} ({seconds:.1} s): {error:#}");
            }
        }
    }

    /// Prints the count as the last line; a failure when a step failed or when there was none.
    pub(crate) fn finish(self) -> ExitCode {
        for name in &self.failed {
            println!("failed: {name}");
        }
        println!("{} passed, {} failed", self.passed, self.failed.len());
        if self.failed.is_empty() && self.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Says aloud what is not run and why.
pub(crate) fn skipped(name: &str, why: &str) {
    println!("==> skipped: {name}: {why}");
}

#[cfg(test)]
mod tests {
    use super::{ExitCode, Steps};
    use anyhow::bail;

    #[test]
    fn one_failure_fails_the_whole_and_later_steps_still_run() {
        let mut steps = Steps::default();
        let mut ran = false;
        steps.step("breaks", || bail!("on purpose"));
        steps.step("works", || {
            ran = true;
            Ok(())
        });
        assert!(ran);
        assert_eq!(steps.finish(), ExitCode::FAILURE);
    }

    #[test]
    fn no_step_at_all_is_a_failure() {
        assert_eq!(Steps::default().finish(), ExitCode::FAILURE);
    }

    #[test]
    fn all_good_is_good() {
        let mut steps = Steps::default();
        steps.step("works", || Ok(()));
        assert_eq!(steps.finish(), ExitCode::SUCCESS);
    }
}
