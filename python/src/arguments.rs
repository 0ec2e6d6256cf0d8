//! Keywords as Python gives them -> checked values -> [`Attention`].
//!
//! The same keywords describe the attention of every function of the package; they are named once, in [`Keywords`].

use crate::arrays::{self, Inputs};
use crate::dense::{self, Dense, DenseGradient};
use crate::threads;
use numpy::{IntoPyArray, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDict, PySequence, PyString};
use regard::{Attention, Bias, BiasGradient, HeadPosition, Level, Mask, Scale, alibi_slopes};

macro_rules! keywords {
    ($($name:ident),*) => {
        /// What describes an attention, as the user wrote it. `None` is the default.
        #[derive(Default)]
        pub(crate) struct Keywords<'py> {
            $(pub(crate) $name: Option<Bound<'py, PyAny>>),*
        }

        impl<'py> Keywords<'py> {
            /// From the `**options` of a function.
            pub(crate) fn from_dict(function: &str, options: Option<&Bound<'py, PyDict>>) -> PyResult<Self> {
                let mut keywords = Self::default();
                for (name, value) in options.into_iter().flatten() {
                    let value = (!value.is_none()).then_some(value);
                    match name.cast::<PyString>()?.to_cow()?.as_ref() {
                        $(stringify!($name) => keywords.$name = value,)*
                        other => {
                            let text = format!("{function}() got an unexpected keyword argument '{other}'");
                            return Err(PyTypeError::new_err(text));
                        }
                    }
                }
                Ok(keywords)
            }

            /// The same for a function whose results have nothing to do with dropout.
            pub(crate) fn without_dropout(function: &str, options: Option<&Bound<'py, PyDict>>) -> PyResult<Self> {
                let keywords = Self::from_dict(function, options)?;
                for (name, value) in [("dropout_p", &keywords.dropout_p), ("seed", &keywords.seed)] {
                    if value.is_some() {
                        return Err(PyTypeError::new_err(format!("{function}() got an unexpected keyword argument '{name}'")));
                    }
                }
                Ok(keywords)
            }

            fn is_default(&self) -> bool {
                $(self.$name.is_none())&&*
            }
        }
    };
}

keywords!(mask, bias, alibi, causal, window, q_offset, kv_lens, scale, softcap, top_k, sink, dropout_p, seed, threads, level);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Causal {
    Off,
    TopLeft,
    BottomRight,
}

enum Offset {
    Same(i64),
    PerBatch(Vec<i64>),
}

type Sides = (Option<usize>, Option<usize>);

enum AnyBias<'py> {
    Dense(Dense<'py>),
    Alibi(Vec<f64>),
}

/// Checked values, and the arrays that an [`Attention`] borrows.
pub(crate) struct Settings<'py> {
    mask: Option<PyReadonlyArrayDyn<'py, bool>>,
    bias: Option<AnyBias<'py>>,
    /// What the dense bias is the sum of: the float mask, then the bias.
    added: Vec<Bound<'py, PyUntypedArray>>,
    /// Slopes that were given as numbers, which a gradient can be taken of.
    own_slopes: bool,
    causal: Causal,
    window: Option<Sides>,
    q_offset: Option<Offset>,
    kv_lens: Option<Vec<usize>>,
    scale: Scale,
    softcap: Option<f64>,
    top_k: Option<usize>,
    sink: Option<Vec<f64>>,
    dropout: Option<(f64, u64)>,
    threads: Option<usize>,
    level: Option<Level>,
}

impl<'py> Settings<'py> {
    pub(crate) fn new(keywords: &Keywords<'py>, inputs: &Inputs<'py>) -> PyResult<Self> {
        let mut settings = Self {
            mask: None,
            bias: None,
            added: Vec::new(),
            own_slopes: false,
            causal: Causal::Off,
            window: None,
            q_offset: None,
            kv_lens: None,
            scale: Scale::InvSqrtDim,
            softcap: None,
            top_k: None,
            sink: None,
            dropout: None,
            threads: None,
            level: None,
        };
        if !keywords.is_default() {
            settings.fill(keywords, inputs)?;
        }
        settings.threads = threads::choose(settings.threads);
        Ok(settings)
    }

    fn fill(&mut self, given: &Keywords<'py>, inputs: &Inputs<'py>) -> PyResult<()> {
        let scores = inputs.scores_shape();
        let [batch, heads, _, seq_kv] = scores;
        self.causal = given.causal.as_ref().map_or(Ok(Causal::Off), causal)?;
        self.window = given.window.as_ref().map(window).transpose()?;
        self.q_offset = given.q_offset.as_ref().map(q_offset).transpose()?;
        self.kv_lens = given.kv_lens.as_ref().map(|lens| kv_lens(lens, batch, seq_kv)).transpose()?;
        if let Some(scale) = &given.scale {
            self.scale = Scale::By(number("scale", scale)?);
        }
        self.softcap = given.softcap.as_ref().map(|cap| number("softcap", cap)).transpose()?.filter(|&cap| cap != 0.0);
        self.top_k = given.top_k.as_ref().map(|k| not_negative("top_k", integer("top_k", k)?)).transpose()?;
        self.sink = given.sink.as_ref().map(|sink| per_head("sink", sink, heads)).transpose()?;
        self.dropout = dropout(given.dropout_p.as_ref(), given.seed.as_ref())?;
        if let Some(n) = &given.threads {
            self.threads = Some(threads::at_least_one("threads", integer("threads", n)?)?);
        }
        self.level = given.level.as_ref().map(|level| Level::parse(&text("level", level)?).map_err(refused)).transpose()?;
        self.fill_mask_and_bias(given, inputs)
    }

    fn fill_mask_and_bias(&mut self, given: &Keywords<'py>, inputs: &Inputs<'py>) -> PyResult<()> {
        let scores = inputs.scores_shape();
        let mut parts = Vec::new();
        if let Some(mask) = &given.mask {
            let mask = arrays::array("mask", mask)?;
            dense::check_broadcast("mask", mask.shape(), scores)?;
            if arrays::is_bool(&mask) {
                self.mask = Some(dense::truth(&mask)?);
            } else {
                parts.push(Dense::new("mask", "bool (true: attend) or float (added to the scores)", &mask)?);
                self.added.push(mask);
            }
        }
        if let Some(bias) = &given.bias {
            let bias = arrays::array("bias", bias)?;
            dense::check_broadcast("bias", bias.shape(), scores)?;
            parts.push(Dense::new("bias", "float (added to the scores); a bool array is a mask", &bias)?);
            self.added.push(bias);
        }
        self.own_slopes = given.alibi.as_ref().is_some_and(|slopes| !slopes.is_instance_of::<PyBool>());
        let slopes = given.alibi.as_ref().map(|slopes| alibi(slopes, scores[1])).transpose()?.flatten();
        self.bias = match (slopes, parts.len()) {
            (None, 0) => None,
            (None, 1) => parts.pop().map(AnyBias::Dense),
            (Some(slopes), 0) => Some(AnyBias::Alibi(slopes)),
            (slopes, _) => {
                let slopes = slopes.map(Bias::Alibi);
                let place = |batch, head| self.place(scores, batch, head);
                Some(AnyBias::Dense(dense::sum(&parts, slopes.as_ref(), place, scores, inputs.dtype)?))
            }
        };
        Ok(())
    }

    fn place(&self, scores: [usize; 4], batch: usize, head: usize) -> Place {
        HeadPosition { batch, head, q_offset: self.first_position(scores, batch) }
    }

    /// The gradient of what was added to the scores, as those of the operands that it was made of: float mask, bias, slopes.
    pub(crate) fn operand_gradients(&self, py: Python<'py>, whole: BiasGradient, scores: [usize; 4]) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let whole = match whole {
            BiasGradient::Alibi(slopes) if self.own_slopes => return Ok(vec![slopes.into_pyarray(py).into_any()]),
            BiasGradient::Dense(whole) => DenseGradient::F32(whole),
            BiasGradient::Dense64(whole) => DenseGradient::F64(whole),
            _ => return Ok(Vec::new()),
        };
        if let [only] = self.added.as_slice()
            && only.len() == whole.len()
            && !self.own_slopes
        {
            return Ok(vec![whole.into_array(py, only)?]);
        }
        let whole = whole.widened();
        let mut gradients = Vec::new();
        for operand in &self.added {
            gradients.push(DenseGradient::F64(dense::folded(&whole, operand.shape())).into_array(py, operand)?);
        }
        if self.own_slopes {
            gradients.push(dense::slope_gradient(&whole, |b, h| self.place(scores, b, h)).into_pyarray(py).into_any());
        }
        Ok(gradients)
    }

    /// The position of query 0 on the key axis.
    fn first_position(&self, [_, _, seq_q, seq_kv]: [usize; 4], batch: usize) -> i64 {
        match &self.q_offset {
            Some(Offset::Same(n)) => *n,
            Some(Offset::PerBatch(offsets)) => offsets.get(batch).copied().unwrap_or(0),
            None if self.causal == Causal::BottomRight => {
                let keys = self.kv_lens.as_ref().map_or(seq_kv, |lens| lens[batch]);
                keys as i64 - seq_q as i64
            }
            None => 0,
        }
    }

    pub(crate) fn attention(&self) -> Attention<'_> {
        let mut attention = Attention::new().scale(self.scale);
        if let Some(mask) = self.mask.as_ref().and_then(arrays::view4) {
            attention = attention.mask(Mask::dense(mask));
        }
        match &self.bias {
            Some(AnyBias::Dense(bias)) => attention = attention.bias(bias.as_bias()),
            Some(AnyBias::Alibi(slopes)) => attention = attention.bias(Bias::Alibi(slopes.clone())),
            None => {}
        }
        match self.causal {
            Causal::Off => {}
            Causal::TopLeft => attention = attention.causal(),
            Causal::BottomRight => attention = attention.causal_bottom_right(),
        }
        if let Some((left, right)) = self.window {
            attention = attention.mask(Mask::window(left, right));
        }
        // After causal: an offset that is given counts more than an alignment.
        match &self.q_offset {
            Some(Offset::Same(n)) => attention = attention.q_offset(*n),
            Some(Offset::PerBatch(offsets)) => attention = attention.q_offsets(offsets.as_slice()),
            None => {}
        }
        if let Some(lens) = &self.kv_lens {
            attention = attention.key_lengths(lens.as_slice());
        }
        if let Some(cap) = self.softcap {
            attention = attention.softcap(cap);
        }
        if let Some(k) = self.top_k {
            attention = attention.top_k(k);
        }
        if let Some(sink) = &self.sink {
            attention = attention.sink(sink.as_slice());
        }
        if let Some((p, seed)) = self.dropout {
            attention = attention.dropout(p, seed);
        }
        if let Some(threads) = self.threads {
            attention = attention.threads(threads);
        }
        if let Some(level) = self.level {
            attention = attention.level(level);
        }
        attention
    }
}

/// The library's refusal, in its own words.
pub(crate) fn refused(error: regard::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The probability and the seed, where anything is to be dropped.
fn dropout(p: Option<&Bound<'_, PyAny>>, seed: Option<&Bound<'_, PyAny>>) -> PyResult<Option<(f64, u64)>> {
    let p = p.map_or(Ok(0.0), |p| number("dropout_p", p))?;
    if !(0.0..1.0).contains(&p) {
        return Err(PyValueError::new_err(format!("dropout_p is {p}; it must be in [0, 1)")));
    }
    let seed = seed.map_or(Ok(0), |seed| {
        seed.extract().map_err(|error: PyErr| {
            if error.is_instance_of::<PyOverflowError>(seed.py()) {
                PyValueError::new_err(format!("seed is {seed}; it must be between 0 and 2**64 - 1"))
            } else {
                wrong_type("seed", "an integer", seed)
            }
        })
    })?;
    Ok((p > 0.0).then_some((p, seed)))
}

fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string())
}

fn wrong_type(name: &str, wanted: &str, object: &Bound<'_, PyAny>) -> PyErr {
    PyTypeError::new_err(format!("{name} must be {wanted}, not {}", type_name(object)))
}

fn number(name: &str, object: &Bound<'_, PyAny>) -> PyResult<f64> {
    object.extract().map_err(|_| wrong_type(name, "a number", object))
}

fn integer(name: &str, object: &Bound<'_, PyAny>) -> PyResult<i64> {
    object.extract::<i64>().map_err(|error| {
        if error.is_instance_of::<PyOverflowError>(object.py()) {
            PyValueError::new_err(format!("{name} is {object}; it must fit into 64 bits"))
        } else {
            wrong_type(name, "an integer", object)
        }
    })
}

pub(crate) fn not_negative(name: &str, n: i64) -> PyResult<usize> {
    usize::try_from(n).map_err(|_| PyValueError::new_err(format!("{name} is {n}; it must not be negative")))
}

pub(crate) fn flag(name: &str, object: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
    object.map_or(Ok(false), |object| object.extract().map_err(|_| wrong_type(name, "True or False", object)))
}

pub(crate) fn text(name: &str, object: &Bound<'_, PyAny>) -> PyResult<String> {
    object.extract().map_err(|_| wrong_type(name, "a string", object))
}

fn causal(object: &Bound<'_, PyAny>) -> PyResult<Causal> {
    const WANTED: &str = "False, True, 'top_left' or 'bottom_right'";
    if let Ok(on) = object.extract::<bool>() {
        return Ok(if on { Causal::TopLeft } else { Causal::Off });
    }
    let name: String = object.extract().map_err(|_| wrong_type("causal", WANTED, object))?;
    match name.as_str() {
        "top_left" => Ok(Causal::TopLeft),
        "bottom_right" => Ok(Causal::BottomRight),
        other => Err(PyValueError::new_err(format!("causal is '{other}'; it must be {WANTED}"))),
    }
}

fn window(object: &Bound<'_, PyAny>) -> PyResult<Sides> {
    const WANTED: &str = "a pair (left, right)";
    let pair = object.cast::<PySequence>().map_err(|_| wrong_type("window", WANTED, object))?;
    if pair.len()? != 2 {
        return Err(PyValueError::new_err(format!("window has {} entries; it must be {WANTED}", pair.len()?)));
    }
    let side = |at: usize| {
        let side = pair.get_item(at)?;
        match if side.is_none() { -1 } else { integer("a side of window", &side)? } {
            -1 => Ok(None),
            n => usize::try_from(n)
                .map(Some)
                .map_err(|_| PyValueError::new_err(format!("window has a side of {n}; it must be 0 or more, or None (or -1): unbounded"))),
        }
    };
    Ok((side(0)?, side(1)?))
}

fn q_offset(object: &Bound<'_, PyAny>) -> PyResult<Offset> {
    match integer("q_offset", object) {
        Ok(n) => Ok(Offset::Same(n)),
        Err(error) if error.is_instance_of::<PyValueError>(object.py()) => Err(error),
        Err(_) => integers("q_offset", "an integer or one integer per batch entry", object).map(Offset::PerBatch),
    }
}

fn kv_lens(object: &Bound<'_, PyAny>, batch: usize, seq_kv: usize) -> PyResult<Vec<usize>> {
    let lens = integers("kv_lens", "one integer per batch entry", object)?;
    if lens.len() != batch {
        return Err(PyValueError::new_err(format!("kv_lens has {} entries, expected {batch} (one per batch entry)", lens.len())));
    }
    let length = |(b, n): (usize, i64)| {
        usize::try_from(n)
            .ok()
            .filter(|&n| n <= seq_kv)
            .ok_or_else(|| PyValueError::new_err(format!("kv_lens[{b}] is {n}; it must be between 0 and the {seq_kv} keys of k")))
    };
    lens.into_iter().enumerate().map(length).collect()
}

fn alibi(object: &Bound<'_, PyAny>, heads: usize) -> PyResult<Option<Vec<f64>>> {
    match object.cast::<PyBool>() {
        Ok(standard) => Ok(standard.is_true().then(|| alibi_slopes(heads))),
        Err(_) => per_head("alibi", object, heads).map(Some),
    }
}

/// One number per query head, or one for all.
fn per_head(name: &str, object: &Bound<'_, PyAny>, heads: usize) -> PyResult<Vec<f64>> {
    if let Ok(one) = object.extract::<f64>() {
        return Ok(vec![one; heads]);
    }
    let array = arrays::array(name, object)?;
    let wanted = "a number per query head";
    if arrays::DType::of(&array).is_none() && !is_integer(&array)? {
        return Err(PyTypeError::new_err(format!("{name} must be {wanted}, not an array of {}", arrays::dtype_name(&array))));
    }
    line(name, wanted, &array, "float64")
}

fn integers(name: &str, wanted: &str, object: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    let array = arrays::array(name, object)?;
    // An empty list is an array of floats to NumPy.
    if !is_integer(&array)? && !array.is_empty() {
        return Err(PyTypeError::new_err(format!("{name} must be {wanted}, not {}", arrays::dtype_name(&array))));
    }
    line(name, wanted, &array, "int64")
}

fn is_integer(array: &Bound<'_, PyUntypedArray>) -> PyResult<bool> {
    let kind: String = array.dtype().getattr("kind")?.extract()?;
    Ok(kind == "i" || kind == "u")
}

/// The numbers of an array of one axis.
fn line<T: numpy::Element + Copy>(name: &str, wanted: &str, array: &Bound<'_, PyUntypedArray>, dtype: &str) -> PyResult<Vec<T>> {
    static ASCONTIGUOUS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if array.ndim() != 1 {
        return Err(PyValueError::new_err(format!("{name} has shape {:?}; it must be {wanted}, in one axis", array.shape())));
    }
    let array = arrays::numpy_function(&ASCONTIGUOUS, array.py(), "ascontiguousarray")?.call1((array, dtype))?;
    Ok(array.cast::<numpy::PyArray1<T>>()?.try_readonly()?.as_slice()?.to_vec())
}
