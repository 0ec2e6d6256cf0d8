//! What the documents show is compiled: the Rust of README.md and of the guides are tests of this package.
#![forbid(unsafe_code)]

/// The front page.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// The guide for Rust engineers.
#[cfg(doctest)]
#[doc = include_str!("../../docs/rust.md")]
struct Rust;

/// The front page of the library's own package.
#[cfg(doctest)]
#[doc = include_str!("../../crates/regard/README.md")]
struct Library;
