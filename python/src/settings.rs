//! Keywords as Python gives them -> checked values -> [`Attention`].

use crate::arrays::{self, Inputs, Layout};
use crate::dense::{self, Dense};
use crate::mask::PyMask;
use crate::options::Keywords;
use crate::parse::{count, integer, integers, number, pair, per_head, refused, text, wrong_type};
use crate::threads;
use ndarray::{Axis, Ix2};
use numpy::{IntoPyArray, PyReadonlyArrayDyn, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyUserWarning, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBool;
use regard::{Attention, Bias, BiasGradient, Level, Mask, Scale, alibi_slopes};
use std::sync::atomic::AtomicBool;

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

enum AnyMask<'py> {
    Dense(PyReadonlyArrayDyn<'py, bool>),
    Rule(Bound<'py, PyMask>),
}

/// The biases, in the order of their gradients.
enum Added<'py> {
    /// With the name of its gradient.
    Dense(&'static str, Dense<'py>, Bound<'py, PyUntypedArray>),
    /// Slopes, and whether they have a gradient (given as numbers).
    Alibi(Vec<f64>, bool),
    Relative(PyReadonlyArrayDyn<'py, f32>, Bound<'py, PyUntypedArray>),
}

/// Checked values, and the arrays that an [`Attention`] borrows.
pub(crate) struct Settings<'py> {
    mask: Option<AnyMask<'py>>,
    added: Vec<Added<'py>>,
    causal: Causal,
    window: Option<Mask<'static>>,
    q_offset: Option<Offset>,
    kv_lens: Option<Vec<usize>>,
    scale: Scale,
    softcap: Option<f64>,
    top_k: Option<usize>,
    sink: Option<Vec<f64>>,
    dropout: Option<(f64, u64)>,
    threads: Option<usize>,
    level: Option<Level>,
    interrupt: AtomicBool,
}

impl<'py> Settings<'py> {
    pub(crate) fn new(keywords: &Keywords<'py>, inputs: &Inputs<'py>) -> PyResult<Self> {
        Self::of_batch(keywords, inputs, inputs.q_shape()[0])
    }

    /// For packed sequences, the batch entries are the sequences.
    pub(crate) fn of_batch(keywords: &Keywords<'py>, inputs: &Inputs<'py>, batch: usize) -> PyResult<Self> {
        let mut settings = Self {
            mask: None,
            added: Vec::new(),
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
            interrupt: AtomicBool::new(false),
        };
        if !keywords.is_default() {
            settings.fill(keywords, inputs, batch)?;
        }
        settings.threads = threads::choose(settings.threads)?;
        Ok(settings)
    }

    fn fill(&mut self, given: &Keywords<'py>, inputs: &Inputs<'py>, batch: usize) -> PyResult<()> {
        let [_, heads, _, seq_kv] = inputs.scores_shape();
        self.causal = given.causal.as_ref().map_or(Ok(Causal::Off), causal)?;
        self.window = given.window.as_ref().map(window).transpose()?;
        self.q_offset = given.q_offset.as_ref().map(q_offset).transpose()?;
        if self.causal == Causal::BottomRight && self.q_offset.is_some() {
            let text =
                "q_offset= and causal='bottom_right' both place the queries on the key axis; give one of them (q_offset with causal=True)";
            return Err(PyValueError::new_err(text));
        }
        self.kv_lens = given.kv_lens.as_ref().map(|lens| kv_lens(lens, batch, seq_kv)).transpose()?;
        if let Some(scale) = &given.scale {
            self.scale = scale_of(scale)?;
        }
        self.softcap = given.softcap.as_ref().map(softcap).transpose()?.filter(|&cap| cap != 0.0);
        self.top_k = given.top_k.as_ref().map(|k| count("top_k", k)).transpose()?;
        self.sink = given.sink.as_ref().map(|sink| per_head("sink", sink, heads)).transpose()?;
        self.dropout = dropout(given.dropout_p.as_ref(), given.seed.as_ref())?;
        if let Some(n) = &given.threads {
            self.threads = Some(threads::in_bounds("threads", integer("threads", n)?)?);
        }
        self.level = given.level.as_ref().map(|level| Level::parse(&text("level", level)?).map_err(missing_level)).transpose()?;
        self.fill_mask(given, inputs)?;
        self.fill_added(given, inputs)
    }

    fn fill_mask(&mut self, given: &Keywords<'py>, inputs: &Inputs<'py>) -> PyResult<()> {
        let Some(mask) = &given.mask else { return Ok(()) };
        if let Ok(rule) = mask.cast::<PyMask>() {
            self.mask = Some(AnyMask::Rule(rule.clone()));
            return Ok(());
        }
        let mask = per_pair("mask", mask, inputs)?;
        if arrays::is_bool(&mask) {
            self.mask = Some(AnyMask::Dense(dense::truth(&mask)?));
        } else {
            let numbers = Dense::new("mask", "bool (true: attend) or float (added to the scores)", &mask)?;
            if numbers.looks_like_truth() {
                let text = c"mask has the numbers 0 and 1, which are added to the scores and hide nothing: for a mask give bool, \
                    mask.astype(bool); numbers that are meant to be added may be given as bias= without this warning";
                PyErr::warn(mask.py(), &mask.py().get_type::<PyUserWarning>(), text, 1)?;
            }
            self.added.push(Added::Dense("d_mask", numbers, mask));
        }
        Ok(())
    }

    fn fill_added(&mut self, given: &Keywords<'py>, inputs: &Inputs<'py>) -> PyResult<()> {
        if let Some(bias) = &given.bias {
            let bias = per_pair("bias", bias, inputs)?;
            let numbers = Dense::new("bias", "float (added to the scores); a bool array is a mask", &bias)?;
            self.added.push(Added::Dense("d_bias", numbers, bias));
        }
        if let Some(given) = &given.alibi {
            let heads = inputs.q_shape()[1];
            match given.extract::<bool>() {
                Ok(true) => self.added.push(Added::Alibi(alibi_slopes(heads), false)),
                Ok(false) => {}
                Err(_) => self.added.push(Added::Alibi(per_head("alibi", given, heads)?, true)),
            }
        }
        if let Some(table) = &given.relative {
            let table = arrays::array("relative", table)?;
            if !(1..=2).contains(&table.ndim()) {
                let text = "[heads, 2 r + 1], or [2 r + 1] for all heads";
                return Err(PyValueError::new_err(format!("relative has shape {:?}; it must be {text}", table.shape())));
            }
            if arrays::DType::of(&table) != Some(arrays::DType::F32) {
                return Err(PyTypeError::new_err(format!("relative is {}; it must be float32", arrays::dtype_name(&table))));
            }
            self.added.push(Added::Relative(arrays::readonly(&table)?, table));
        }
        Ok(())
    }

    /// The gradients of the biases, in the shapes of the operands, with their names.
    pub(crate) fn operand_gradients(
        &self,
        py: Python<'py>,
        gradients: Vec<BiasGradient>,
    ) -> PyResult<Vec<(&'static str, Bound<'py, PyAny>)>> {
        let mut named = Vec::new();
        for (added, gradient) in self.added.iter().zip(gradients) {
            match (added, gradient) {
                (Added::Dense(name, _, operand), BiasGradient::Dense(x)) => named.push((*name, dense::like_operand(py, x, operand)?)),
                (Added::Dense(name, _, operand), BiasGradient::Dense64(x)) => named.push((*name, dense::like_operand(py, x, operand)?)),
                (Added::Alibi(_, true), BiasGradient::Alibi(slopes)) => named.push(("d_alibi", slopes.into_pyarray(py).into_any())),
                (Added::Relative(_, operand), BiasGradient::Relative(x)) => {
                    let x = x.insert_axis(Axis(0)).insert_axis(Axis(0));
                    named.push(("d_relative", dense::like_operand(py, x, operand)?));
                }
                _ => {}
            }
        }
        Ok(named)
    }

    /// The flag that cancels the calls of [`Settings::attention`].
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.interrupt
    }

    pub(crate) fn attention(&self) -> Attention<'_> {
        let mut attention = Attention::new().scale(self.scale).interrupt(&self.interrupt);
        match &self.mask {
            Some(AnyMask::Dense(mask)) => attention = attention.mask(Mask::dense(dense::view(mask))),
            Some(AnyMask::Rule(mask)) => attention = attention.mask(mask.get().mask()),
            None => {}
        }
        for added in &self.added {
            attention = attention.bias(match added {
                Added::Dense(_, numbers, _) => numbers.as_bias(),
                Added::Alibi(slopes, _) => Bias::Alibi(slopes.clone()),
                Added::Relative(table, _) => {
                    let view = table.as_array();
                    let view = if view.ndim() == 1 { view.insert_axis(Axis(0)) } else { view };
                    Bias::Relative(view.into_dimensionality::<Ix2>().expect("one or two axes").into())
                }
            });
        }
        match self.causal {
            Causal::Off => {}
            Causal::TopLeft => attention = attention.causal(),
            Causal::BottomRight => attention = attention.causal_bottom_right(),
        }
        match &self.q_offset {
            Some(Offset::Same(n)) => attention = attention.q_offset(*n),
            Some(Offset::PerBatch(offsets)) => attention = attention.q_offsets(offsets.as_slice()),
            None => {}
        }
        if let Some(window) = &self.window {
            attention = attention.mask(window.clone());
        }
        if let Some(lens) = &self.kv_lens {
            attention = attention.key_lengths(lens.as_slice());
        }
        self.with_numbers(attention)
    }

    fn with_numbers<'a>(&'a self, mut attention: Attention<'a>) -> Attention<'a> {
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

/// An array with an entry per pair of query and key.
fn per_pair<'py>(name: &str, object: &Bound<'py, PyAny>, inputs: &Inputs<'py>) -> PyResult<Bound<'py, PyUntypedArray>> {
    if inputs.layout == Layout::Packed {
        let text = "packed sequences have no common shape of scores; give a regard.Mask, causal, window, alibi or relative";
        return Err(PyValueError::new_err(format!("{name} is an array, but {text}")));
    }
    let array = arrays::array(name, object)?;
    dense::check_broadcast(name, array.shape(), inputs.scores_shape())?;
    Ok(array)
}

fn missing_level(error: impl Into<regard::Error>) -> PyErr {
    refused(error.into())
}

/// A number, or a bool: True is `1 / sqrt(head_dim)`, False is no scale.
fn scale_of(object: &Bound<'_, PyAny>) -> PyResult<Scale> {
    Ok(match object.extract::<bool>() {
        Ok(true) => Scale::InvSqrtDim,
        Ok(false) => Scale::By(1.0),
        Err(_) => Scale::By(number("scale", object)?),
    })
}

/// A number, or False: off.
fn softcap(object: &Bound<'_, PyAny>) -> PyResult<f64> {
    match object.extract::<bool>() {
        Ok(true) => Err(wrong_type("softcap", "a number (the cap)", object)),
        Ok(false) => Ok(0.0),
        Err(_) => number("softcap", object),
    }
}

/// The probability and the seed, if weights are dropped. A seed is required: by default every call would drop the same weights.
fn dropout(p: Option<&Bound<'_, PyAny>>, seed: Option<&Bound<'_, PyAny>>) -> PyResult<Option<(f64, u64)>> {
    let p = p.map_or(Ok(0.0), |p| number("dropout_p", p))?;
    if !(0.0..1.0).contains(&p) {
        return Err(PyValueError::new_err(format!("dropout_p is {p}; it must be in [0, 1)")));
    }
    if p == 0.0 {
        return Ok(None);
    }
    let Some(seed) = seed else {
        let text = "the same seed drops the same weights, so give another one to every call (seed=rng.integers(2**63))";
        return Err(PyValueError::new_err(format!("dropout_p is {p} and seed is missing; {text}")));
    };
    let seed = seed.extract().map_err(|error: PyErr| {
        if error.is_instance_of::<PyOverflowError>(seed.py()) {
            PyValueError::new_err(format!("seed is {seed}; it must be between 0 and 2**64 - 1"))
        } else {
            wrong_type("seed", "an integer", seed)
        }
    })?;
    Ok(Some((p, seed)))
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

fn window(object: &Bound<'_, PyAny>) -> PyResult<Mask<'static>> {
    let side = |side: &Bound<'_, PyAny>| match if side.is_none() { -1 } else { integer("a side of window", side)? } {
        -1 => Ok(None),
        n => usize::try_from(n)
            .map(Some)
            .map_err(|_| PyValueError::new_err(format!("window has a side of {n}; it must be 0 or more, or None (or -1): unbounded"))),
    };
    if object.is_instance_of::<PyBool>() {
        return Err(wrong_type("window", "an integer, or a pair (left, right)", object));
    }
    if let Ok(both) = object.extract::<i64>() {
        if both < 0 {
            return Err(PyValueError::new_err(format!("window is {both}; it must be 0 or more, or a pair (left, right)")));
        }
        return Ok(Mask::window(Some(both as usize), Some(both as usize)));
    }
    let [left, right] = pair("window", "an integer, or a pair (left, right)", object)?;
    Ok(Mask::window(side(&left)?, side(&right)?))
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
