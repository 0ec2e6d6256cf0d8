//! The `tokenizers` library panics on some files that are no tokenizer. What it is asked is asked in here: a panic is an error.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;
use tokenizers::Result;

thread_local! {
    /// Whether panics of this thread are caught and returned as errors.
    static TOLD: Cell<bool> = const { Cell::new(false) };
}

/// Installs a panic hook that is silent for panics caught here and unchanged for others.
fn keep_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            if !TOLD.get() {
                before(info);
            }
        }));
    });
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given")
}

/// What the library makes of it, panics among its errors.
///
/// # Errors
/// The library's, and what it panicked with.
pub fn guarded<R>(work: impl FnOnce() -> Result<R>) -> Result<R> {
    keep_quiet();
    TOLD.set(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    TOLD.set(false);
    result.unwrap_or_else(|panic| Err(format!("the tokenizers library cannot use it: {}", words(panic.as_ref())).into()))
}
