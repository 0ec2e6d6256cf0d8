//! `regard.Mask`: the library's masks, combined by `&`, `|` and `~`.

use crate::arrays;
use crate::dense;
use crate::parse::{count, counts, is_integer, refused, wrong_type};
use ndarray::{Array2, Array3, Array4, Axis, Ix2, Ix3};
use numpy::{IntoPyArray, PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::exceptions::{PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use regard::{Attention, Mask, Stage};
use std::sync::Arc;

/// Which keys each query attends to, as a rule instead of a matrix: ``attention(..., mask=Mask.causal() & Mask.window(128, 0))``.
///
/// Leaves are :meth:`everything`, :meth:`causal`, :meth:`reverse`, :meth:`strictly_future`, :meth:`window`, :meth:`first_keys`,
/// :meth:`key_lengths`, :meth:`documents`, :meth:`blocks` and :meth:`dense`; ``&``, ``|`` and ``~`` combine them. Positions are those of
/// ``q_offset``. Arrays are copied: changing them later changes no mask.
///
/// >>> import numpy as np, regard
/// >>> from regard import Mask
/// >>> x = np.zeros((4, 8), np.float32)
/// >>> sinks_and_window = Mask.causal() & (Mask.first_keys(1) | Mask.window(1, 0))
/// >>> regard.weights(x, x, mask=sinks_and_window).round(2)
/// array([[1.  , 0.  , 0.  , 0.  ],
///        [0.5 , 0.5 , 0.  , 0.  ],
///        [0.33, 0.33, 0.33, 0.  ],
///        [0.33, 0.  , 0.33, 0.33]], dtype=float32)
/// >>> sinks_and_window
/// (causal() & (first_keys(1) | window(1, 0)))
#[pyclass(frozen, weakref, eq, hash, name = "Mask", module = "regard")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct PyMask {
    rule: Arc<Rule>,
    depth: usize,
}

/// Maximum depth of an expression, which is traversed recursively.
const DEEPEST: usize = 200;

#[derive(PartialEq, Eq, Hash)]
enum Rule {
    Everything,
    Causal,
    Reverse,
    StrictlyFuture,
    Window(Option<usize>, Option<usize>),
    FirstKeys(usize),
    KeyLengths(Vec<usize>),
    Documents(Array2<u32>, Array2<u32>),
    Dense(Array4<bool>),
    Blocks(Array3<bool>, usize, usize),
    And(Arc<Rule>, Arc<Rule>),
    Or(Arc<Rule>, Arc<Rule>),
    Not(Arc<Rule>),
}

impl Rule {
    /// The library's mask, which borrows the arrays.
    fn borrowed(&self) -> Mask<'_> {
        match self {
            Self::Everything => Mask::everything(),
            Self::Causal => Mask::causal(),
            Self::Reverse => Mask::reverse(),
            Self::StrictlyFuture => Mask::strictly_future(),
            Self::Window(left, right) => Mask::window(*left, *right),
            Self::FirstKeys(count) => Mask::first_keys(*count),
            Self::KeyLengths(lengths) => Mask::key_lengths(lengths.as_slice()),
            Self::Documents(queries, keys) => Mask::documents(queries.view(), keys.view()),
            Self::Dense(visible) => Mask::dense(visible.view()),
            Self::Blocks(table, q_block, kv_block) => Mask::blocks(table.view(), *q_block, *kv_block),
            Self::And(a, b) => a.borrowed() & b.borrowed(),
            Self::Or(a, b) => a.borrowed() | b.borrowed(),
            Self::Not(a) => !a.borrowed(),
        }
    }

    /// The method of `Mask` that makes this rule, and its arguments.
    fn made_by<'py>(&self, py: Python<'py>) -> PyResult<(&'static str, Bound<'py, PyAny>)> {
        let own = |rule: &Arc<Self>| Bound::new(py, PyMask { rule: Arc::clone(rule), depth: rule.depth() }).map(Bound::into_any);
        macro_rules! given {
            ($($argument:expr),*) => { ($($argument,)*).into_pyobject(py)?.into_any() };
        }
        Ok(match self {
            Self::Everything => ("everything", given!()),
            Self::Causal => ("causal", given!()),
            Self::Reverse => ("reverse", given!()),
            Self::StrictlyFuture => ("strictly_future", given!()),
            Self::Window(left, right) => ("window", given!(*left, *right)),
            Self::FirstKeys(count) => ("first_keys", given!(*count)),
            Self::KeyLengths(lengths) => ("key_lengths", given!(lengths.clone())),
            Self::Documents(queries, keys) => ("documents", given!(queries.clone().into_pyarray(py), keys.clone().into_pyarray(py))),
            Self::Dense(visible) => ("dense", given!(visible.clone().into_pyarray(py))),
            Self::Blocks(table, q_block, kv_block) => ("blocks", given!(table.clone().into_pyarray(py), *q_block, *kv_block)),
            Self::And(a, b) => ("__and__", given!(own(a)?, own(b)?)),
            Self::Or(a, b) => ("__or__", given!(own(a)?, own(b)?)),
            Self::Not(a) => ("__invert__", given!(own(a)?)),
        })
    }

    fn depth(&self) -> usize {
        match self {
            Self::And(a, b) | Self::Or(a, b) => 1 + a.depth().max(b.depth()),
            Self::Not(a) => 1 + a.depth(),
            _ => 1,
        }
    }

    fn text(&self) -> String {
        let side = |side: &Option<usize>| side.map_or_else(|| "None".to_owned(), |n| n.to_string());
        match self {
            Self::Everything => "everything()".to_owned(),
            Self::Causal => "causal()".to_owned(),
            Self::Reverse => "reverse()".to_owned(),
            Self::StrictlyFuture => "strictly_future()".to_owned(),
            Self::Window(left, right) => format!("window({}, {})", side(left), side(right)),
            Self::FirstKeys(count) => format!("first_keys({count})"),
            Self::KeyLengths(lengths) => format!("key_lengths({lengths:?})"),
            Self::Documents(queries, keys) => format!("documents({:?}, {:?})", queries.shape(), keys.shape()),
            Self::Dense(visible) => format!("dense({:?})", visible.shape()),
            Self::Blocks(table, q_block, kv_block) => format!("blocks({:?}, {q_block}, {kv_block})", table.shape()),
            Self::And(a, b) => format!("({} & {})", a.text(), b.text()),
            Self::Or(a, b) => format!("({} | {})", a.text(), b.text()),
            Self::Not(a) => format!("~{}", a.text()),
        }
    }
}

impl PyMask {
    fn leaf(rule: Rule) -> Self {
        Self { rule: Arc::new(rule), depth: 1 }
    }

    fn joined(rule: Rule, depth: usize) -> PyResult<Self> {
        if depth >= DEEPEST {
            return Err(PyValueError::new_err(format!(
                "the mask has more than {DEEPEST} nested operations; combine masks as a balanced tree"
            )));
        }
        Ok(Self { rule: Arc::new(rule), depth: depth + 1 })
    }

    fn both(&self, other: &Bound<'_, PyAny>, join: fn(Arc<Rule>, Arc<Rule>) -> Rule) -> PyResult<Self> {
        let other = other.cast::<Self>().map_err(|_| wrong_type("the other mask", "a Mask (Mask.dense(array) makes one)", other))?.get();
        Self::joined(join(Arc::clone(&self.rule), Arc::clone(&other.rule)), self.depth.max(other.depth))
    }

    pub(crate) fn mask(&self) -> Mask<'_> {
        self.rule.borrowed()
    }
}

#[pymethods]
impl PyMask {
    /// Everything is visible.
    #[staticmethod]
    fn everything() -> Self {
        Self::leaf(Rule::Everything)
    }

    /// No key after the query's own position.
    #[staticmethod]
    fn causal() -> Self {
        Self::leaf(Rule::Causal)
    }

    /// No key before the query's own position.
    #[staticmethod]
    fn reverse() -> Self {
        Self::leaf(Rule::Reverse)
    }

    /// Only keys after the query's own position.
    #[staticmethod]
    fn strictly_future() -> Self {
        Self::leaf(Rule::StrictlyFuture)
    }

    /// At most ``left`` keys before and ``right`` keys after the query's own position; None is unbounded.
    #[staticmethod]
    #[pyo3(signature = (left, right))]
    fn window(left: Option<&Bound<'_, PyAny>>, right: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let side = |name: &str, side: Option<&Bound<'_, PyAny>>| side.map(|n| count(name, n)).transpose();
        Ok(Self::leaf(Rule::Window(side("left", left)?, side("right", right)?)))
    }

    /// The first ``count`` keys.
    #[staticmethod]
    #[pyo3(name = "first_keys", signature = (count))]
    fn first(#[pyo3(from_py_with = first_count)] count: usize) -> Self {
        Self::leaf(Rule::FirstKeys(count))
    }

    /// Only the first ``lengths[b]`` keys of batch entry ``b``.
    #[staticmethod]
    fn key_lengths(lengths: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self::leaf(Rule::KeyLengths(counts("lengths", "one integer per batch entry", lengths)?)))
    }

    /// A query sees the keys of its own document: integers ``[batch, seq]`` or ``[seq]``, for queries and for keys (the same, if not
    /// given).
    #[staticmethod]
    #[pyo3(signature = (queries, keys=None))]
    fn documents(queries: &Bound<'_, PyAny>, keys: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let of_queries = identifiers("queries", queries)?;
        let of_keys = keys.map_or_else(|| Ok(of_queries.clone()), |keys| identifiers("keys", keys))?;
        Ok(Self::leaf(Rule::Documents(of_queries, of_keys)))
    }

    /// One truth value per block of ``q_block`` queries and ``kv_block`` keys: bool ``[heads or 1, q blocks, kv blocks]``, or without the
    /// heads.
    #[staticmethod]
    fn blocks(table: &Bound<'_, PyAny>, q_block: &Bound<'_, PyAny>, kv_block: &Bound<'_, PyAny>) -> PyResult<Self> {
        let table = truths("table", table, 3)?;
        let table = table.index_axis_move(Axis(0), 0).into_dimensionality::<Ix3>().expect("three axes of four are left");
        Ok(Self::leaf(Rule::Blocks(table, count("q_block", q_block)?, count("kv_block", kv_block)?)))
    }

    /// Which keys of each batch entry are tokens and not padding: bool ``[batch, seq_kv]``.
    #[staticmethod]
    fn key_padding(visible: &Bound<'_, PyAny>) -> PyResult<Self> {
        let visible = truths("visible", visible, 2)?;
        let (_, _, batch, keys) = visible.dim();
        Ok(Self::leaf(Rule::Dense(visible.into_shape_with_order((batch, 1, 1, keys)).expect("as many elements"))))
    }

    /// The mask of ``queries`` x ``keys`` as a bool array: True where a query attends to a key. ``[queries, keys]``, and with ``batch``
    /// or ``heads`` ``[batch, heads, queries, keys]``; ``q_offset`` is the position of the first query.
    #[pyo3(signature = (queries, keys = None, *, batch = None, heads = None, q_offset = 0))]
    fn to_dense<'py>(
        &self,
        py: Python<'py>,
        queries: usize,
        keys: Option<usize>,
        batch: Option<usize>,
        heads: Option<usize>,
        q_offset: i64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (flat, keys) = (batch.is_none() && heads.is_none(), keys.unwrap_or(queries));
        let shape = (batch.unwrap_or(1), heads.unwrap_or(1));
        // Scores of zeros: finite where a key is visible. One zero is broadcast: a size that cannot be addressed is an error.
        let zero = Array4::<f32>::zeros((1, 1, 1, 1));
        let too_large = || PyMemoryError::new_err(format!("a mask of {queries} queries and {keys} keys is too large to address"));
        let q = zero.broadcast((shape.0, shape.1, queries, 1)).ok_or_else(too_large)?;
        let k = zero.broadcast((shape.0, 1, keys, 1)).ok_or_else(too_large)?;
        let attention = Attention::new().mask(self.mask()).q_offset(q_offset);
        let scores = py.detach(|| attention.scores(q, k, Stage::Masked)).map_err(refused)?;
        let dense = scores.mapv(|x| x == 0.0);
        if flat {
            return Ok(dense.index_axis_move(Axis(0), 0).index_axis_move(Axis(0), 0).into_pyarray(py).into_any());
        }
        Ok(dense.into_pyarray(py).into_any())
    }

    /// The array of a mask that has one: of :meth:`dense` and :meth:`key_padding`. Others have no size of their own: see :meth:`to_dense`.
    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(&self, py: Python<'py>, dtype: Option<Bound<'py, PyAny>>, copy: Option<bool>) -> PyResult<Bound<'py, PyAny>> {
        let _ = copy;
        let Rule::Dense(visible) = &*self.rule else {
            return Err(PyTypeError::new_err(format!("{} has no size of its own; give one: to_dense(queries, keys)", self.rule.text())));
        };
        let array = visible.clone().into_pyarray(py).into_any();
        dtype.map_or(Ok(array.clone()), |dtype| array.call_method1("astype", (dtype,)))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let class = py.get_type::<Self>();
        let (name, arguments) = self.rule.made_by(py)?;
        Ok((class.getattr(name)?, arguments))
    }

    /// One truth value per pair, broadcastable to ``[batch, heads_q, seq_q, seq_kv]``; True: attend.
    #[staticmethod]
    fn dense(visible: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self::leaf(Rule::Dense(truths("visible", visible, 4)?)))
    }

    fn __and__(&self, other: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.both(other, Rule::And)
    }

    fn __or__(&self, other: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.both(other, Rule::Or)
    }

    fn __invert__(&self) -> PyResult<Self> {
        Self::joined(Rule::Not(Arc::clone(&self.rule)), self.depth)
    }

    fn __bool__(&self) -> PyResult<bool> {
        Err(PyTypeError::new_err("a Mask has no truth value; combine masks with &, | and ~ instead of and, or, not"))
    }

    fn __repr__(&self) -> String {
        self.rule.text()
    }
}

fn first_count(object: &Bound<'_, PyAny>) -> PyResult<usize> {
    count("count", object)
}

/// A copy of a bool array of at most `axes` axes.
fn truths(name: &str, object: &Bound<'_, PyAny>, axes: usize) -> PyResult<Array4<bool>> {
    let array = arrays::array(name, object)?;
    if !arrays::is_bool(&array) {
        return Err(PyTypeError::new_err(format!("{name} is {}; it must be bool (True: attend)", arrays::dtype_name(&array))));
    }
    if array.ndim() > axes {
        return Err(PyValueError::new_err(format!("{name} has shape {:?}; it must have at most {axes} axes", array.shape())));
    }
    let array = dense::truth(&array)?;
    Ok(dense::view(&array).to_owned())
}

/// Document identifiers `[batch or 1, seq]`.
fn identifiers(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Array2<u32>> {
    let array = arrays::array(name, object)?;
    if !is_integer(&array)? {
        return Err(PyTypeError::new_err(format!("{name} must be integers, not {}", arrays::dtype_name(&array))));
    }
    if !(1..=2).contains(&array.ndim()) {
        return Err(PyValueError::new_err(format!("{name} has shape {:?}; it must be [batch, seq] or [seq]", array.shape())));
    }
    let wide = array.call_method1("astype", ("int64",))?;
    let wide = wide.cast::<PyArrayDyn<i64>>()?.try_readonly()?;
    let view = wide.as_array();
    if let Some(n) = view.iter().find(|&&n| u32::try_from(n).is_err()) {
        return Err(PyValueError::new_err(format!("{name} has an entry of {n}; it must be from 0 to 2**32 - 1")));
    }
    let ids = view.mapv(|n| n as u32);
    let ids = if ids.ndim() == 1 { ids.insert_axis(Axis(0)) } else { ids };
    Ok(ids.into_dimensionality::<Ix2>().expect("two axes"))
}
