//! Packed sequences: `regard.attention_varlen`, its gradients, and the two passes that `regard.torch` calls.

use crate::arrays::{self, Inputs, Scalar, with_dtype};
use crate::gradients::{SavedArrays, Wanted, give_saved, named};
use crate::interrupt;
use crate::options::{Keywords, function};
use crate::parse::counts;
use crate::settings::Settings;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use regard::CuSeqlens;

/// The checked arguments of a call.
struct Call<'py> {
    inputs: Inputs<'py>,
    settings: Settings<'py>,
    packed: CuSeqlens<'static>,
    /// Multiply-adds of a forward pass, at most.
    work: usize,
}

impl<'py> Call<'py> {
    fn new(
        [q, k, v]: [&Bound<'py, PyAny>; 3],
        [cu_seqlens_q, cu_seqlens_k]: [&Bound<'py, PyAny>; 2],
        keywords: &Keywords<'py>,
    ) -> PyResult<Self> {
        let wanted = "cumulative lengths, [0, len_0, len_0 + len_1, ...]";
        let queries = counts("cu_seqlens_q", wanted, cu_seqlens_q)?;
        let keys = counts("cu_seqlens_k", wanted, cu_seqlens_k)?;
        let inputs = Inputs::packed(q, k, v)?;
        let settings = Settings::of_batch(keywords, &inputs, queries.len().saturating_sub(1))?;
        // Each query sees at most the longest sequence of keys.
        let longest = keys.windows(2).map(|ends| ends[1].saturating_sub(ends[0])).max().unwrap_or(0);
        let work = inputs.work() / inputs.scores_shape()[3].max(1) * longest;
        Ok(Self { inputs, settings, packed: CuSeqlens::new(queries, keys), work })
    }

    /// With the saved state of a forward pass, or after a forward pass of its own.
    fn gradients(
        &self,
        py: Python<'py>,
        dout: &Bound<'py, PyAny>,
        saved: Option<&Bound<'py, PyAny>>,
        wanted: Wanted,
    ) -> PyResult<Bound<'py, PyAny>> {
        with_dtype!(self.inputs.dtype, E => gradients::<E>(py, self, dout, saved, wanted))
    }
}

function! {
    /// Attention for packed sequences of different lengths, without padding.
    ///
    /// q is ``[tokens, heads_q, head_dim]``, k and v are ``[tokens, heads_kv, dim]``: the sequences one after the other. Sequence ``i`` has
    /// the queries ``cu_seqlens_q[i]`` to ``cu_seqlens_q[i + 1]`` and the keys ``cu_seqlens_k[i]`` to ``cu_seqlens_k[i + 1]``, and attends
    /// to itself only. Options are those of :func:`attention` for each sequence; where these have one entry per batch entry, they have one
    /// per sequence here. Masks are described (``causal``, ``window``, a :class:`Mask`), biases are ``alibi`` and ``relative``: an array
    /// with an entry per pair has no shape that suits all sequences.
    ///
    /// Returns ``out``, ``[tokens, heads_q, value_dim]``; with ``return_lse``, also ``[heads_q, tokens]``.
    ///
    /// >>> import numpy as np, regard
    /// >>> x = np.random.default_rng(0).standard_normal((8, 2, 16), np.float32)     # sequences of 3 and 5 tokens
    /// >>> out = regard.attention_varlen(x, x, x, [0, 3, 8], [0, 3, 8], causal=True)
    /// >>> second = x[3:].swapaxes(0, 1)
    /// >>> bool((out[3:].swapaxes(0, 1) == regard.attention(second, second, second, causal=True)).all())
    /// True
    fn attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k; return_lse: bool = false) => forward
}

fn forward<'py>(
    py: Python<'py>,
    [q, k, v, cu_seqlens_q, cu_seqlens_k]: [&Bound<'py, PyAny>; 5],
    return_lse: bool,
    keywords: &Keywords<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    fn run<'py, E: Scalar>(py: Python<'py>, call: &Call<'py>, return_lse: bool) -> PyResult<Bound<'py, PyAny>> {
        let Call { inputs, settings, packed, work } = call;
        let (q, k, v) = (inputs.q::<E>()?, inputs.k::<E>()?, inputs.values::<E>()?);
        let (q, k, v, attention) = (q.view(), k.view(), v.view(), settings.attention());
        let forward = interrupt::run(py, settings, *work, || attention.forward_packed(q, k, v, packed))?;
        let out = inputs.layout.give(py, forward.out);
        if return_lse { (out, inputs.layout.give(py, forward.lse)).into_bound_py_any(py) } else { Ok(out) }
    }
    arrays::no_gradient([("q", q), ("k", k), ("v", v)])?;
    let call = Call::new([q, k, v], [cu_seqlens_q, cu_seqlens_k], keywords)?;
    with_dtype!(call.inputs.dtype, E => run::<E>(py, &call, return_lse))
}

function! {
    /// The gradients of :func:`attention_varlen`, as :func:`attention_vjp` gives them: given ``dout``, ``(dq, dk, dv)``, then those of
    /// slopes, table and sinks where they are given.
    ///
    /// >>> import numpy as np, regard
    /// >>> x = np.zeros((3, 1, 4), np.float32)
    /// >>> regard.attention_varlen_vjp(x, x, x, np.ones_like(x), [0, 1, 3], [0, 1, 3]).dv[:, 0, 0]
    /// array([1., 1., 1.], dtype=float32)
    fn attention_varlen_vjp(
        q, k, v, dout, cu_seqlens_q, cu_seqlens_k; mask_gradient: bool = true, scale_gradient: bool = false
    ) => vjp
}

fn vjp<'py>(
    py: Python<'py>,
    [q, k, v, dout, cu_seqlens_q, cu_seqlens_k]: [&Bound<'py, PyAny>; 6],
    mask_gradient: bool,
    scale_gradient: bool,
    keywords: &Keywords<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let wanted = Wanted { added: mask_gradient, scale: scale_gradient };
    Call::new([q, k, v], [cu_seqlens_q, cu_seqlens_k], keywords)?.gradients(py, dout, None, wanted)
}

fn gradients<'py, E: Scalar>(
    py: Python<'py>,
    call: &Call<'py>,
    dout: &Bound<'py, PyAny>,
    saved: Option<&Bound<'py, PyAny>>,
    wanted: Wanted,
) -> PyResult<Bound<'py, PyAny>> {
    let Call { inputs, settings, packed, work } = call;
    let saved = saved.map(|saved| SavedArrays::<E>::new(saved, inputs)).transpose()?;
    let dout = inputs.companion::<E>("dout", dout)?;
    let (q, k, v) = (inputs.q::<E>()?, inputs.k::<E>()?, inputs.values::<E>()?);
    let (q, k, v, dout, saved) = (q.view(), k.view(), v.view(), dout.view(), saved.as_ref().map(SavedArrays::view));
    let attention = wanted.of(settings);
    let gradients = interrupt::run(py, settings, work.saturating_mul(4), || match saved {
        Some(saved) => attention.backward_packed(q, k, v, saved, dout, packed),
        None => {
            let saved = attention.forward_saved_packed(q, k, v, packed)?;
            attention.backward_packed(q, k, v, &saved, dout, packed)
        }
    })?;
    named(py, inputs, settings, gradients)
}

function! {
    /// :func:`_forward_saved` for packed sequences.
    fn _forward_saved_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k;) => forward_saved
}

fn forward_saved<'py>(
    py: Python<'py>,
    [q, k, v, cu_seqlens_q, cu_seqlens_k]: [&Bound<'py, PyAny>; 5],
    keywords: &Keywords<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    fn run<'py, E: Scalar>(py: Python<'py>, call: &Call<'py>) -> PyResult<Bound<'py, PyAny>> {
        let Call { inputs, settings, packed, work } = call;
        let (q, k, v) = (inputs.q::<E>()?, inputs.k::<E>()?, inputs.values::<E>()?);
        let (q, k, v, attention) = (q.view(), k.view(), v.view(), settings.attention());
        let saved = interrupt::run(py, settings, *work, || attention.forward_saved_packed(q, k, v, packed))?;
        give_saved(py, inputs, saved)
    }
    let call = Call::new([q, k, v], [cu_seqlens_q, cu_seqlens_k], keywords)?;
    with_dtype!(call.inputs.dtype, E => run::<E>(py, &call))
}

function! {
    /// :func:`_backward` for packed sequences.
    fn _backward_varlen(
        q, k, v, dout, saved, cu_seqlens_q, cu_seqlens_k; mask_gradient: bool = true, scale_gradient: bool = false
    ) => backward
}

fn backward<'py>(
    py: Python<'py>,
    [q, k, v, dout, saved, cu_seqlens_q, cu_seqlens_k]: [&Bound<'py, PyAny>; 7],
    mask_gradient: bool,
    scale_gradient: bool,
    keywords: &Keywords<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let wanted = Wanted { added: mask_gradient, scale: scale_gradient };
    Call::new([q, k, v], [cu_seqlens_q, cu_seqlens_k], keywords)?.gradients(py, dout, Some(saved), wanted)
}
