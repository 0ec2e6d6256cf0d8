//! The page: attention live in the browser, served to this machine only.
//!
//! ```text
//! auth      Host, Origin, token and size checks                latest      one computation and one waiting
//! api       routes and handlers                                views       runs as JSON and as arrays
//! run_cache runs of texts, within a limit of memory            standalone  the page with its data in one file
//! page/     HTML, CSS and JavaScript modules, in the program   server      connections and threads
//! ```

#![forbid(unsafe_code)]

mod api;
mod auth;
mod examples;
mod latest;
mod page;
mod run_cache;
mod server;
mod standalone;
mod views;

pub use server::{Server, Stop};
pub use standalone::standalone;
