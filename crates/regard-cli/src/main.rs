//! The program `regard`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Experiments call attention in loops: large blocks are reused.
#[global_allocator]
static MEMORY: regard::CachingAllocator = regard::CachingAllocator::new();

fn main() -> ExitCode {
    ExitCode::from(regard_cli::run(std::env::args_os()))
}
