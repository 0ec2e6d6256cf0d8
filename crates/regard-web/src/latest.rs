//! One computation at a time and one waiting: typing sends a text with every key, and only the latest counts.

use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// One slot; of several waiting requests only the newest is kept.
#[derive(Debug)]
pub(crate) struct LatestOnly {
    running: Arc<Semaphore>,
    waiting: Mutex<Option<oneshot::Sender<()>>>,
}

impl LatestOnly {
    pub(crate) fn new() -> Self {
        Self { running: Arc::new(Semaphore::new(1)), waiting: Mutex::new(None) }
    }

    /// Acquires the slot; `None` if a newer request superseded this one.
    pub(crate) async fn acquire(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = self.running.clone().try_acquire_owned() {
            return Some(permit);
        }
        let (sender, receiver) = oneshot::channel();
        // Dropping the previous sender wakes the request that waited until now.
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
    async fn the_newest_waits_and_the_others_are_superseded() {
        let latest = Arc::new(LatestOnly::new());
        let first = latest.acquire().await.expect("the slot is free");
        let request = |latest: &Arc<LatestOnly>| {
            let latest = latest.clone();
            tokio::spawn(async move { latest.acquire().await.is_some() })
        };
        let mut waiting = Vec::new();
        for _ in 0..5 {
            waiting.push(request(&latest));
            tokio::task::yield_now().await;
        }
        let last = waiting.pop().expect("five requests");
        for other in waiting {
            assert!(!other.await.expect("no panic"), "a newer request came");
        }
        drop(first);
        assert!(last.await.expect("no panic"));
    }
}
