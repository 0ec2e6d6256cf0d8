//! `Model.gradients`: of a loss or of logits with respect to activations.

use crate::hooks::parse;
use crate::model::refused;
use crate::run::place;
use ndarray::{Axis, stack};
use numpy::{IntoPyArray, PyArray2, PyArrayMethods};
use pyo3::exceptions::{PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use regard_model::{Metric, Objective, Site, TokenMetric};

/// What gradients are of: `"loss"`, `{"position": ..., "logit_diff": [a, b]}` or `{"hidden": array}`.
pub(crate) fn objective(of: &Bound<'_, PyAny>, model: &regard_model::Model, len: usize) -> PyResult<Objective> {
    let wrong = || {
        let text = r#"of must be "loss", {"position": -1, "logit_diff": [a, b]} or {"hidden": array}"#;
        PyValueError::new_err(format!("{text}, not {of}"))
    };
    if of.cast::<PyString>().is_ok_and(|text| text == "loss") {
        return Ok(Objective::Loss);
    }
    let given = of.cast::<PyDict>().map_err(|_| wrong())?;
    for key in given.keys() {
        if !["position", "logit_diff", "hidden"].contains(&key.extract::<String>()?.as_str()) {
            return Err(wrong());
        }
    }
    if let Some(hidden) = given.get_item("hidden")? {
        let array = of.py().import("numpy")?.call_method1("ascontiguousarray", (hidden, "float32"))?;
        let array = array.cast::<PyArray2<f32>>().map_err(|_| PyTypeError::new_err("hidden must be an array [tokens, width]"))?;
        return Ok(Objective::Hidden(array.try_readonly()?.as_array().to_owned()));
    }
    let tokens: Vec<Bound<'_, PyAny>> = given.get_item("logit_diff")?.ok_or_else(wrong)?.extract()?;
    let [a, b] = tokens.as_slice() else {
        return Err(PyValueError::new_err(format!("logit_diff needs two tokens, not {}", tokens.len())));
    };
    let position: i64 = given.get_item("position")?.map_or(Ok(-1), |position| position.extract())?;
    let from_start = if position < 0 { position + len as i64 } else { position };
    let position = usize::try_from(from_start)
        .map_err(|_| PyValueError::new_err(format!("position {position} is out of range: there are {len} tokens")))?;
    Ok(Objective::LogitDifference { position, tokens: [token(a, model)?, token(b, model)?] })
}

/// What screens measure: `"loss"`, `{"logit_diff": [a, b]}` or `{"probability": a}`, with a position; or one of these for each text.
pub(crate) fn metric(of: &Bound<'_, PyAny>, model: &regard_model::Model, texts: &[Vec<u32>]) -> PyResult<Metric> {
    let wrong = || {
        let text = r#"of must be "loss", {"logit_diff": [a, b]}, {"probability": a}, these with "position", or a list of them"#;
        PyValueError::new_err(format!("{text}, not {of}"))
    };
    if of.cast::<PyString>().is_ok_and(|text| text == "loss") {
        return Ok(Metric::Loss);
    }
    let given: Vec<Bound<'_, PyDict>> = match of.cast::<PyDict>() {
        Ok(one) => vec![one.clone(); texts.len()],
        Err(_) => of.extract().map_err(|_| wrong())?,
    };
    if given.len() != texts.len() {
        return Err(PyValueError::new_err(format!(
            "of has {} entries for {} texts; give one, or one for each text",
            given.len(),
            texts.len()
        )));
    }
    let one = |(given, ids): (Bound<'_, PyDict>, &Vec<u32>)| {
        for key in given.keys() {
            if !["position", "logit_diff", "probability"].contains(&key.extract::<String>()?.as_str()) {
                return Err(wrong());
            }
        }
        let position = given.get_item("position")?.map_or(Ok(-1), |position| position.extract())?;
        let position = Some(place("position", position, ids.len())?);
        match (given.get_item("logit_diff")?, given.get_item("probability")?) {
            (Some(pair), None) => {
                let [a, b] = pair.extract::<[Bound<'_, PyAny>; 2]>()?;
                Ok(TokenMetric { position, token: token(&a, model)?, minus: Some(token(&b, model)?) })
            }
            (None, Some(of)) => Ok(TokenMetric { position, token: token(&of, model)?, minus: None }),
            _ => Err(wrong()),
        }
    };
    given.into_iter().zip(texts).map(one).collect::<PyResult<_>>().map(Metric::Tokens)
}

/// An id, or a text that is one token.
pub(crate) fn token(given: &Bound<'_, PyAny>, model: &regard_model::Model) -> PyResult<u32> {
    let Ok(text) = given.extract::<String>() else { return given.extract() };
    model.token(&text).map_err(refused)
}

/// Gradients by activation: ``g["L3.z"]``, ``g["z"]`` of all layers; see :meth:`Model.gradients`.
#[pyclass(frozen, module = "regard")]
pub(crate) struct ActivationGradients {
    pub(crate) made: regard_model::ActivationGradients,
    pub(crate) layers: usize,
}

#[pymethods]
impl ActivationGradients {
    /// The value that the gradients are of.
    #[getter]
    fn value(&self) -> f64 {
        self.made.value
    }

    /// The activations that there are gradients of, as ``L3.z``.
    fn keys(&self) -> Vec<String> {
        self.made.at.keys().map(|(layer, site)| format!("L{layer}.{}", site.name())).collect()
    }

    /// A gradient in the shape of its activation, float32; without a layer, those of all layers, ``[layers, ...]``.
    fn __getitem__(&self, py: Python<'_>, name: &str) -> PyResult<Py<PyAny>> {
        let (layer, site) = parse(name, self.layers)?;
        let of = |layer: usize, site: Site| {
            let missing = || PyKeyError::new_err(format!("there is no gradient of L{layer}.{}: name it in wrt", site.name()));
            self.made.at.get(&(layer, site)).ok_or_else(missing)
        };
        if let Some(layer) = layer {
            return Ok(of(layer, site)?.clone().into_pyarray(py).into_any().unbind());
        }
        let all = (0..self.layers).map(|layer| Ok(of(layer, site)?.view())).collect::<PyResult<Vec<_>>>()?;
        let stacked = stack(Axis(0), &all).map_err(|e| PyValueError::new_err(e.to_string()))?;
        Ok(stacked.into_pyarray(py).into_any().unbind())
    }

    fn __len__(&self) -> usize {
        self.made.at.len()
    }

    fn __repr__(&self) -> String {
        format!("ActivationGradients({} activations, of {})", self.made.at.len(), self.made.value)
    }
}
