//! One run and one waiting: who types sends a text with every key, and only the last is wanted.

use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// The gate before long computations.
#[derive(Debug)]
pub(crate) struct Gate {
    running: Arc<Semaphore>,
    waiting: Mutex<Option<oneshot::Sender<()>>>,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self { running: Arc::new(Semaphore::new(1)), waiting: Mutex::new(None) }
    }

    /// Wait for one's turn; `None` when somebody came later and took the place.
    pub(crate) async fn enter(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = self.running.clone().try_acquire_owned() {
            return Some(permit);
        }
        let (sender, receiver) = oneshot::channel();
        // Whoever waited before hears that the sender is gone.
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        tokio::select! {
            permit = self.running.clone().acquire_owned() => permit.ok(),
            _ = receiver => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_last_one_waits_and_the_others_go_away() {
        let gate = Arc::new(Gate::new());
        let first = gate.enter().await.expect("nobody is there");
        let come = |gate: &Arc<Gate>| {
            let gate = gate.clone();
            tokio::spawn(async move { gate.enter().await.is_some() })
        };
        let mut waiting = Vec::new();
        for _ in 0..5 {
            waiting.push(come(&gate));
            tokio::task::yield_now().await;
        }
        let last = waiting.pop().expect("five came");
        for other in waiting {
            assert!(!other.await.expect("no panic"), "somebody came later");
        }
        drop(first);
        assert!(last.await.expect("no panic"));
    }
}
