//! Python bindings: `regard._regard`, which the package `regard` re-exports.
//!
//! ```text
//! Python objects -> options.rs (names), parse.rs, arrays.rs, dense.rs, mask.rs: as views -> settings.rs: an `Attention`
//!     -> interrupt.rs: the library, without the GIL -> NumPy arrays
//! ```
//!
//! `_command` is the command `regard`, which the package installs for the shell.
//!
//! The library computes and checks shapes; this crate checks types, ranks and names, and raises the library's errors as
//! `ValueError`, or `MemoryError` if memory is exhausted.

#![forbid(unsafe_code)]

mod activation_gradients;
mod arrays;
mod attention;
mod dense;
mod gradients;
mod hooks;
mod instruments;
mod interrupt;
mod lab;
mod mask;
mod model;
mod options;
mod parse;
mod plot;
mod reading;
mod run;
mod settings;
mod shared;
mod threads;
mod varlen;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Keeps the memory of released results for later calls.
#[global_allocator]
static MEMORY: regard::CachingAllocator = regard::CachingAllocator::new();

/// The slopes of the ALiBi paper for any number of heads, as ``attention(..., alibi=True)`` uses them.
///
/// >>> import regard
/// >>> regard.alibi_slopes(4)
/// [0.25, 0.0625, 0.015625, 0.00390625]
#[pyfunction]
fn alibi_slopes(heads: i64) -> PyResult<Vec<f64>> {
    const MAX_HEADS: usize = 1 << 20;
    let heads = parse::not_negative("heads", heads)?;
    if heads > MAX_HEADS {
        return Err(PyValueError::new_err(format!("heads is {heads}; it must be at most {MAX_HEADS}")));
    }
    Ok(regard::alibi_slopes(heads))
}

/// The SIMD level that calls use: the environment variable ``REGARD_SIMD``, else the best of this CPU.
///
/// >>> import regard
/// >>> regard.simd_level() in ("portable", "avx2", "avx512", "avx512bf16", "amx")
/// True
#[pyfunction]
fn simd_level() -> PyResult<&'static str> {
    regard::Level::preferred().map(regard::Level::name).map_err(|missing| parse::refused(missing.into()))
}

/// Runs the command ``regard`` with these arguments, the first of which is the program's name; returns the exit code.
#[pyfunction]
fn _command(py: Python<'_>, words: Vec<std::ffi::OsString>) -> u8 {
    py.detach(|| regard_cli::run(words))
}

/// The Python part of ``regard judge``: the source of its harness.
#[pyfunction]
fn _judge_harness() -> &'static str {
    regard_cli::judge_harness()
}

/// The compiled part of the package ``regard``.
#[pymodule]
mod _regard {
    use super::*;

    #[pymodule_export]
    use super::{
        _command, _judge_harness,
        activation_gradients::ActivationGradients,
        alibi_slopes,
        attention::{attention, merge, weights},
        gradients::{_backward, _forward_saved, attention_vjp, gradient_statistics},
        instruments::{column_sums, head_similarity, heat_map, row_states, statistics},
        lab::{_experiment, _experiments, PyFigure, PyTable},
        mask::PyMask,
        model::{Model, load},
        plot::{_plot_grid, _plot_lines, _plot_links, _plot_map},
        run::Run,
        shared::{_backward_shared, _forward_shared, _partition},
        simd_level,
        threads::{_chosen_num_threads, get_num_threads, set_num_threads},
        varlen::{_backward_varlen, _forward_saved_varlen, attention_varlen, attention_varlen_vjp},
    };
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::threads::watch_forks(module)
    }
}
