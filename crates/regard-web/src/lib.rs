//! The page: attention live in the browser, served to this machine only.
//!
//! ```text
//! api       requests and answers, without a server             views       runs as JSON and as arrays
//! run_cache runs of texts, within a limit of memory            standalone  the page with its data in one file
//! page/     HTML, CSS and JavaScript modules, in the program
//!
//! With the feature `server`:
//! http      requests over HTTP, the page's files               latest      one computation and one waiting
//! auth      Host, Origin, token and size checks                server      connections and threads
//! ```

#![forbid(unsafe_code)]

pub mod api;
#[cfg(feature = "server")]
mod auth;
mod examples;
#[cfg(feature = "server")]
mod http;
#[cfg(feature = "server")]
mod latest;
mod page;
mod run_cache;
#[cfg(feature = "server")]
mod server;
mod standalone;
mod views;

#[cfg(feature = "server")]
pub use server::{Server, Stop};
pub use standalone::{About, standalone};
