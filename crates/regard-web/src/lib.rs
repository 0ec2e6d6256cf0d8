//! The page: attention live in the browser, served to this machine alone.
//!
//! ```text
//! door      who may come in: Host, Origin, token, sizes        gate     one run and one waiting
//! api       what can be asked, by path                         answers  what is answered
//! runs      runs that were made                                frozen   the page with its data in one file
//! page/     HTML, CSS and JavaScript modules, in the program   server   connections
//! ```

#![forbid(unsafe_code)]

mod answers;
mod api;
mod door;
mod frozen;
mod gate;
mod page;
mod runs;
mod server;

pub use frozen::frozen;
pub use server::{Server, Stop};
