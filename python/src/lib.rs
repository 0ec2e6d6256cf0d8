//! The Python door: `regard._regard`, which the package `regard` re-exports.
//!
//! ```text
//! Python objects -> arguments.rs, arrays.rs, dense.rs: checked, as views -> the library, without the GIL -> NumPy arrays
//! ```
//!
//! Nothing is computed here. Shapes are the library's business; this crate checks what only Python can get wrong
//! (types, ranks, names) and hands on the library's errors as `ValueError`.

#![forbid(unsafe_code)]

mod arguments;
mod arrays;
mod attention;
mod dense;
mod gradients;
mod instruments;
mod threads;

use pyo3::prelude::*;

/// Results go back to where the next call finds room for its own.
#[global_allocator]
static MEMORY: regard::CachingAllocator = regard::CachingAllocator::new();

/// The slopes of the ALiBi paper for any number of heads, as ``attention(..., alibi=True)`` uses them.
///
/// >>> import regard
/// >>> regard.alibi_slopes(4)
/// [0.25, 0.0625, 0.015625, 0.00390625]
#[pyfunction]
fn alibi_slopes(heads: i64) -> PyResult<Vec<f64>> {
    let heads = arguments::not_negative("heads", heads)?;
    arrays::room_for::<[f64; 4]>(&[heads])?;
    Ok(regard::alibi_slopes(heads))
}

/// The SIMD level that calls use: the environment variable ``REGARD_SIMD``, else the best of this CPU.
///
/// >>> import regard
/// >>> regard.simd_level() in ("portable", "avx2", "avx512")
/// True
#[pyfunction]
fn simd_level() -> PyResult<&'static str> {
    regard::Level::preferred().map(regard::Level::name).map_err(arguments::refused)
}

/// The compiled part of the package ``regard``.
#[pymodule]
mod _regard {
    use super::*;

    #[pymodule_export]
    use super::attention::{attention, merge};
    #[pymodule_export]
    use super::gradients::{_backward, _forward_saved, attention_vjp, gradient_statistics};
    #[pymodule_export]
    use super::instruments::{column_sums, head_similarity, heat_map, statistics};
    #[pymodule_export]
    use super::threads::{_chosen_num_threads, get_num_threads, set_num_threads};
    #[pymodule_export]
    use super::{alibi_slopes, simd_level};
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::threads::watch_forks(module)
    }
}
