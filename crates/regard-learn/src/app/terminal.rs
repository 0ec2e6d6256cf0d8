//! The terminal: keys as they are pressed, its size, and its old state when we leave.

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{IsTerminal, Read, stdin, stdout};
use std::sync::mpsc::Sender;

/// Whether both ends are a terminal.
pub fn is_terminal() -> bool {
    stdin().is_terminal() && stdout().is_terminal()
}

/// Rows and columns.
pub fn size() -> (usize, usize) {
    match tcgetwinsize(stdout()) {
        Ok(size) if size.ws_row > 0 => (usize::from(size.ws_row), usize::from(size.ws_col)),
        _ => (24, 80),
    }
}

/// Keys without Enter; the old state comes back when this is dropped.
pub struct Keys {
    old: Option<Termios>,
}

impl Keys {
    /// Sends each key through `send`.
    pub fn listen<T: Send + 'static>(sender: Sender<T>, key: fn(char) -> T) -> Self {
        let old = tcgetattr(stdin()).ok();
        if let Some(mut raw) = old.clone() {
            // Ctrl-C stays a signal.
            raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            let _ = tcsetattr(stdin(), OptionalActions::Now, &raw);
        }
        std::thread::spawn(move || {
            for byte in stdin().lock().bytes() {
                let Ok(byte) = byte else { return };
                if sender.send(key(char::from(byte))).is_err() {
                    return;
                }
            }
        });
        Self { old }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        if let Some(old) = &self.old {
            let _ = tcsetattr(stdin(), OptionalActions::Now, old);
        }
    }
}
