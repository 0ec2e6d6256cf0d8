//! The terminal: keys as they are pressed, its size, and its old state when we leave.

use std::io::{IsTerminal, Read, stdin, stdout};
use std::sync::mpsc::Sender;

/// Whether both ends are a terminal.
pub fn is_terminal() -> bool {
    stdin().is_terminal() && stdout().is_terminal()
}

/// Rows and columns.
pub fn size() -> (usize, usize) {
    match terminal_size::terminal_size() {
        Some((columns, rows)) if rows.0 > 0 => (usize::from(rows.0), usize::from(columns.0)),
        _ => (24, 80),
    }
}

/// Keys without Enter (on Windows with Enter); the old state comes back when this is dropped.
pub struct Keys {
    _unbuffered: Unbuffered,
}

impl Keys {
    /// Sends each key through `send`.
    pub fn listen<T: Send + 'static>(sender: Sender<T>, key: fn(char) -> T) -> Self {
        let unbuffered = Unbuffered::begin();
        std::thread::spawn(move || {
            for byte in stdin().lock().bytes() {
                let Ok(byte) = byte else { return };
                if sender.send(key(char::from(byte))).is_err() {
                    return;
                }
            }
        });
        Self { _unbuffered: unbuffered }
    }
}

#[cfg(unix)]
use termios::Unbuffered;

#[cfg(unix)]
mod termios {
    use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
    use std::io::stdin;

    /// The terminal's old state.
    pub struct Unbuffered(Option<Termios>);

    impl Unbuffered {
        pub fn begin() -> Self {
            let old = tcgetattr(stdin()).ok();
            if let Some(mut raw) = old.clone() {
                // Ctrl-C stays a signal.
                raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
                let _ = tcsetattr(stdin(), OptionalActions::Now, &raw);
            }
            Self(old)
        }
    }

    impl Drop for Unbuffered {
        fn drop(&mut self) {
            if let Some(old) = &self.0 {
                let _ = tcsetattr(stdin(), OptionalActions::Now, old);
            }
        }
    }
}

/// The console keeps its lines: a key counts after Enter.
#[cfg(not(unix))]
struct Unbuffered;

#[cfg(not(unix))]
impl Unbuffered {
    fn begin() -> Self {
        Self
    }
}
