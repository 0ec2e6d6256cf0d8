//! Attention of tokens that several processes share, for `regard.torch`: an object of the package with `send` and `receive` carries the
//! messages of `regard_dist` by torch.distributed.

use crate::arrays::{Inputs, Scalar, with_dtype};
use crate::gradients::{SavedArrays, give_saved, named};
use crate::interrupt;
use crate::options::{Keywords, function};
use crate::parse::refused;
use crate::settings::Settings;
use numpy::{IntoPyArray, PyArray1, PyArrayMethods};
use pyo3::exceptions::{PyConnectionError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use regard::Saved;
use regard_dist::{Block, Distributed, Error, Exchange, Failure, Partition, Tag, WireElement};
use std::time::Instant;

/// Bits of a tag for the block; those above are the kind of the message.
const BLOCK_BITS: u32 = 26;

/// The blocks of a partition, ``(start, stop, rank)`` each: one per rank, or blocks of ``block`` tokens in snake order.
#[pyfunction]
pub(crate) fn _partition(tokens: usize, ranks: usize, block: Option<usize>) -> PyResult<Vec<(usize, usize, usize)>> {
    let partition = partition(tokens, ranks, block)?;
    Ok(partition.blocks().iter().map(|Block { tokens, rank }| (tokens.start, tokens.end, *rank)).collect())
}

fn partition(tokens: usize, ranks: usize, block: Option<usize>) -> PyResult<Partition> {
    let made = block.map_or_else(|| Partition::contiguous(tokens, ranks), |block| Partition::snake(tokens, ranks, block));
    made.map_err(raised)
}

/// The exchange of an object with `rank`, `ranks`, `send(to, tag, bytes)` and `receive(from, tag)`.
struct Carrier {
    object: Py<PyAny>,
    rank: usize,
    ranks: usize,
}

impl Carrier {
    fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let number = |name| object.getattr(name)?.extract();
        Ok(Self { rank: number("rank")?, ranks: number("ranks")?, object: object.clone().unbind() })
    }
}

fn tag_number((kind, block): Tag) -> u64 {
    (kind as u64) << BLOCK_BITS | u64::from(block)
}

/// A `TimeoutError` of the object is a timeout; any other exception, a disconnected rank.
fn failure(py: Python<'_>, error: &PyErr, begun: Instant) -> Failure {
    if error.is_instance_of::<PyTimeoutError>(py) { Failure::Timeout(begun.elapsed()) } else { Failure::Disconnected }
}

impl Exchange for Carrier {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn send(&self, to: usize, tag: Tag, bytes: Vec<u8>) -> Result<(), Failure> {
        let begun = Instant::now();
        Python::attach(|py| {
            let sent = self.object.call_method1(py, "send", (to, tag_number(tag), bytes.into_pyarray(py)));
            sent.map(|_| ()).map_err(|error| failure(py, &error, begun))
        })
    }

    fn receive(&self, from: usize, tag: Tag) -> Result<Vec<u8>, Failure> {
        let begun = Instant::now();
        Python::attach(|py| {
            let received = self.object.call_method1(py, "receive", (from, tag_number(tag)));
            let bytes = received.and_then(|bytes| Ok(bytes.bind(py).cast::<PyArray1<u8>>()?.to_vec()?));
            bytes.map_err(|error| failure(py, &error, begun))
        })
    }
}

fn raised(error: Error) -> PyErr {
    match error {
        Error::Attention(error) => refused(error),
        Error::Disconnected { .. } => PyConnectionError::new_err(error.to_string()),
        Error::Timeout { .. } => PyTimeoutError::new_err(error.to_string()),
        _ => PyValueError::new_err(error.to_string()),
    }
}

/// ``(tokens, block)`` of a partition, and the carrier.
fn shared_by(partition_of: &Bound<'_, PyAny>, carrier: &Bound<'_, PyAny>) -> PyResult<(Partition, Carrier)> {
    let ((tokens, block), carrier) = (partition_of.extract::<(usize, Option<usize>)>()?, Carrier::new(carrier)?);
    Ok((partition(tokens, carrier.ranks, block)?, carrier))
}

/// Options and partition of both passes.
struct Call<'c, 'py> {
    inputs: &'c Inputs<'py>,
    settings: &'c Settings<'py>,
    shared: &'c (Partition, Carrier),
}

function! {
    /// :func:`_forward_saved` of all tokens, with the results of this rank's.
    fn _forward_shared(q, k, v, partition, carrier;) => forward
}

fn forward<'py>(
    py: Python<'py>,
    [q, k, v, partition, carrier]: [&Bound<'py, PyAny>; 5],
    keywords: &Keywords<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    fn run<'py, E: Scalar + WireElement>(py: Python<'py>, call: &Call<'_, 'py>) -> PyResult<Bound<'py, PyAny>> {
        let Call { inputs, settings, shared: (partition, carrier) } = call;
        let (q, k, v) = (inputs.q::<E>()?, inputs.k::<E>()?, inputs.values::<E>()?);
        let (q, k, v, attention) = (q.view(), k.view(), v.view(), settings.attention());
        let saved =
            interrupt::run(py, settings, usize::MAX, || Ok(Distributed::new(&attention, carrier, partition).forward_saved(q, k, v)))?;
        give_saved(py, inputs, saved.map_err(raised)?)
    }
    let inputs = Inputs::new(q, k, Some(v))?;
    let (settings, shared) = (Settings::new(keywords, &inputs)?, shared_by(partition, carrier)?);
    let call = Call { inputs: &inputs, settings: &settings, shared: &shared };
    with_dtype!(inputs.dtype, E => run::<E>(py, &call))
}

function! {
    /// :func:`_backward` of all tokens, with the gradients of this rank's; that of sinks is of all tokens.
    fn _backward_shared(q, k, v, dout, saved, partition, carrier;) => backward
}

fn backward<'py>(
    py: Python<'py>,
    [q, k, v, dout, saved, partition, carrier]: [&Bound<'py, PyAny>; 7],
    keywords: &Keywords<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    fn run<'py, E: Scalar + WireElement>(
        py: Python<'py>,
        call: &Call<'_, 'py>,
        [dout, saved]: [&Bound<'py, PyAny>; 2],
    ) -> PyResult<Bound<'py, PyAny>> {
        let Call { inputs, settings, shared: (partition, carrier) } = call;
        let (saved, dout) = (SavedArrays::<E>::new(saved, inputs)?, inputs.companion::<E>("dout", dout)?);
        let (q, k, v) = (inputs.q::<E>()?, inputs.k::<E>()?, inputs.values::<E>()?);
        let (q, k, v, dout, attention) = (q.view(), k.view(), v.view(), dout.view(), settings.attention().bias_gradient(false));
        let view = saved.view();
        let saved = Saved {
            out: view.out.to_owned(),
            out_unrounded: view.out_unrounded.map(|x| x.to_owned()),
            row_max: view.row_max.to_owned(),
            row_sum: view.row_sum.to_owned(),
        };
        let call = || Ok(Distributed::new(&attention, carrier, partition).backward(q, k, v, &saved, dout));
        let gradients = interrupt::run(py, settings, usize::MAX, call)?.map_err(raised)?;
        named(py, inputs, settings, gradients)
    }
    let inputs = Inputs::new(q, k, Some(v))?;
    let (settings, shared) = (Settings::new(keywords, &inputs)?, shared_by(partition, carrier)?);
    let call = Call { inputs: &inputs, settings: &settings, shared: &shared };
    with_dtype!(inputs.dtype, E => run::<E>(py, &call, [dout, saved]))
}
