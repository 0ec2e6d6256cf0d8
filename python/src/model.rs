//! Checkpoints from disk: `load`, a model, and a run of it.

use crate::arrays::Layout;
use crate::instruments::{field, head_fields, result, row_fields};
use crate::lab::PyFigure;
use crate::threads::pooled;
use ndarray::{Array3, Axis, concatenate};
use numpy::IntoPyArray;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString};
use regard::{RowStats, StatsOptions};
use regard_cli::microscope::picture;
use regard_lab::figure::Figure;
use regard_model::{Edits, Input, RunParts, Sink, Sources};
use regard_nn::generate::Sampling;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

fn refused(error: regard_model::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Work without the GIL that Ctrl-C ends: it asks whether to go on.
fn stoppable<R: Send>(py: Python<'_>, work: impl FnOnce(&dyn Fn() -> bool) -> regard_model::Result<R> + Send) -> PyResult<R> {
    let raised = Mutex::new(None);
    let goes_on = || match Python::attach(|py| py.check_signals()) {
        Ok(()) => true,
        Err(error) => {
            *raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            false
        }
    };
    let done = py.detach(|| pooled(|| work(&goes_on)));
    raised.into_inner().unwrap_or_else(PoisonError::into_inner).map_or_else(|| done.map_err(refused), Err)
}

/// Tokens as Python has them: a text, or anything with integers in it.
enum Given {
    Text(String),
    Ids(Vec<u32>),
}

impl Given {
    fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(text) = object.cast::<PyString>() {
            return Ok(Self::Text(text.to_str()?.to_owned()));
        }
        // Arrays and tensors of other packages know their numbers as lists.
        let list = if object.hasattr("tolist")? { object.call_method0("tolist")? } else { object.clone() };
        let wrong = || PyTypeError::new_err(format!("a text or a list of token ids is needed, not {}", object.get_type()));
        let numbers: Vec<i64> = match list.extract::<Vec<i64>>() {
            Ok(numbers) => numbers,
            Err(_) => match list.extract::<Vec<Vec<i64>>>() {
                Ok(rows) if rows.len() == 1 => rows.into_iter().next().unwrap_or_default(),
                Ok(rows) => return Err(PyValueError::new_err(format!("one text at a time, not {}", rows.len()))),
                Err(_) => return Err(wrong()),
            },
        };
        let id = |&id: &i64| u32::try_from(id).map_err(|_| PyValueError::new_err(format!("{id} is no token")));
        numbers.iter().map(id).collect::<PyResult<_>>().map(Self::Ids)
    }

    fn ids(&self, model: &regard_model::Model) -> PyResult<Vec<u32>> {
        let input = match self {
            Self::Text(text) => Input::Text(text),
            Self::Ids(ids) => Input::Ids(ids),
        };
        model.ids(input).map_err(refused)
    }
}

/// Load a model: a file (GGUF, safetensors, llama2.c, a PyTorch file that is read and never executed), a folder, or a name in the local
/// Hugging Face cache. Nothing is downloaded.
///
/// ``m = regard.load(path)``; ``m.run("Once upon a time").loss``. Without a path, the small model that comes with the package.
#[pyfunction]
#[pyo3(signature = (path = None))]
pub(crate) fn load(py: Python<'_>, path: Option<PathBuf>) -> PyResult<Model> {
    let model = py.detach(|| pooled(|| path.map_or_else(regard_model::Model::built_in, regard_model::Model::load))).map_err(refused)?;
    Ok(Model { model: Arc::new(model) })
}

/// A checkpoint that can be run, looked into and edited: see :func:`load`.
#[pyclass(frozen, module = "regard")]
pub(crate) struct Model {
    model: Arc<regard_model::Model>,
}

impl Model {
    /// What edits take from other texts.
    fn sources(
        &self,
        py: Python<'_>,
        edits: &Edits,
        texts: Option<&Bound<'_, PyDict>>,
        reference: Option<Vec<Bound<'_, PyAny>>>,
    ) -> PyResult<Sources> {
        let mut named = Vec::new();
        for (name, text) in texts.into_iter().flatten() {
            named.push((name.extract::<String>()?, Given::new(&text)?.ids(&self.model)?));
        }
        let given = match reference {
            None => None,
            Some(texts) => Some(texts.iter().map(|text| Given::new(text)?.ids(&self.model)).collect::<PyResult<Vec<_>>>()?),
        };
        let model = &self.model;
        let make = || {
            let mut sources = match &given {
                Some(texts) if edits.needs_reference() => Sources { reference: Some(model.reference(texts)?.into()), ..Sources::default() },
                // Stories that are not judged.
                _ => model.sources_of(edits)?,
            };
            for (name, ids) in &named {
                model.source(&mut sources, name, ids)?;
            }
            Ok(sources)
        };
        py.detach(|| pooled(make)).map_err(refused)
    }
}

impl Model {
    /// Ids of texts; without any, of stories of our own.
    fn texts(&self, texts: Option<Vec<Bound<'_, PyAny>>>) -> PyResult<Vec<Vec<u32>>> {
        match texts {
            None => self.model.own_texts(16, 256).map_err(refused),
            Some(texts) => texts.iter().map(|text| Given::new(text)?.ids(&self.model)).collect(),
        }
    }
}

fn column<'py, T: numpy::Element>(py: Python<'py>, values: impl Iterator<Item = T>) -> Bound<'py, numpy::PyArray1<T>> {
    values.collect::<Vec<T>>().into_pyarray(py)
}

fn table(fields: &Bound<'_, PyDict>) -> PyResult<Py<PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    Ok(result(&CLASS, "Table", fields)?.unbind())
}

fn outcome_columns(py: Python<'_>, fields: &Bound<'_, PyDict>, outcomes: &[regard_model::Outcome]) -> PyResult<()> {
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len().max(1) as f64;
    fields.set_item("edits", outcomes.iter().map(|o| o.edits.clone()).collect::<Vec<_>>())?;
    fields.set_item("intact", column(py, outcomes.iter().map(|o| mean(&o.intact))))?;
    fields.set_item("loss", column(py, outcomes.iter().map(|o| mean(&o.edited))))?;
    fields.set_item("change", column(py, outcomes.iter().map(|o| o.difference.mean)))?;
    fields.set_item("deviation", column(py, outcomes.iter().map(|o| o.difference.deviation)))?;
    fields.set_item("low", column(py, outcomes.iter().map(|o| o.difference.low)))?;
    fields.set_item("high", column(py, outcomes.iter().map(|o| o.difference.high)))?;
    fields.set_item("worse", column(py, outcomes.iter().map(|o| o.difference.worse as i64)))?;
    fields.set_item("texts", column(py, outcomes.iter().map(|o| o.difference.texts as i64)))?;
    fields.set_item("p", column(py, outcomes.iter().map(|o| o.difference.p)))
}

fn warn(py: Python<'_>, warning: Option<String>) -> PyResult<()> {
    if let Some(text) = warning {
        py.import("warnings")?.call_method1("warn", (text,))?;
    }
    Ok(())
}

#[pymethods]
impl Model {
    /// The ids of a text, with those that the tokenizer adds.
    fn tokens(&self, text: &str) -> PyResult<Vec<u32>> {
        self.model.ids(Input::Text(text)).map_err(refused)
    }

    /// A text from ids.
    fn text(&self, ids: &Bound<'_, PyAny>) -> PyResult<String> {
        let ids = Given::new(ids)?.ids(&self.model)?;
        self.model.tokenizer().and_then(|tokenizer| tokenizer.decode(&ids)).map_err(refused)
    }

    /// Each token of a text or of ids as people read it.
    fn pieces(&self, input: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
        Ok(Given::new(input)?.ids(&self.model)?.into_iter().map(|id| self.model.piece(id)).collect())
    }

    /// Run a text or ids, with edits such as ``"L3.H1=zero/scale=off"``: a :class:`Run`.
    ///
    /// ``texts`` are second texts by name, for ``patch:NAME``; ``reference`` are other texts, for ``mean`` and ``resample`` (16 of our stories when
    /// there are none).
    #[pyo3(signature = (text_or_ids, edits = "", *, texts = None, reference = None))]
    fn run(
        &self,
        py: Python<'_>,
        text_or_ids: &Bound<'_, PyAny>,
        edits: &str,
        texts: Option<&Bound<'_, PyDict>>,
        reference: Option<Vec<Bound<'_, PyAny>>>,
    ) -> PyResult<Run> {
        let ids = Given::new(text_or_ids)?.ids(&self.model)?;
        let edits = Edits::parse(edits).map_err(refused)?;
        let sources = self.sources(py, &edits, texts, reference)?;
        warn(py, self.model.warning(ids.len()))?;
        let parts = py.detach(|| pooled(|| self.model.run(&ids, &edits, &sources).map(regard_model::Run::into_parts))).map_err(refused)?;
        Ok(Run { model: self.model.clone(), parts: Mutex::new(parts) })
    }

    /// Write up to ``n`` more tokens, the likeliest ones at temperature 0: the new ids. Writing stops behind a token that ends texts.
    #[pyo3(signature = (text_or_ids, n, edits = "", temperature = 0.0, *, top_k = None, top_p = None, seed = 0, reference = None))]
    fn generate(
        &self,
        py: Python<'_>,
        text_or_ids: &Bound<'_, PyAny>,
        n: usize,
        edits: &str,
        temperature: f64,
        top_k: Option<usize>,
        top_p: Option<f64>,
        seed: u64,
        reference: Option<Vec<Bound<'_, PyAny>>>,
    ) -> PyResult<Vec<u32>> {
        let ids = Given::new(text_or_ids)?.ids(&self.model)?;
        let edits = Edits::parse(edits).map_err(refused)?;
        let sources = self.sources(py, &edits, None, reference)?;
        let sampling = Sampling { temperature, top_k, top_p, seed };
        warn(py, self.model.warning(ids.len() + n))?;
        stoppable(py, |goes_on| self.model.generate(&ids, n, &edits, &sources, &sampling, |_| goes_on()))
    }

    /// What every head does on texts, and on random tokens that come twice: a :class:`Table` with a row per head, scores with baselines, and labels.
    ///
    /// Without texts, on 16 of our stories of 256 tokens.
    #[pyo3(signature = (texts = None))]
    fn classify(&self, py: Python<'_>, texts: Option<Vec<Bound<'_, PyAny>>>) -> PyResult<Py<PyAny>> {
        let texts = self.texts(texts)?;
        let heads = stoppable(py, |goes_on| self.model.classify(&texts, |_, _| goes_on()))?;
        let fields = PyDict::new(py);
        fields.set_item("layer", column(py, heads.iter().map(|h| h.layer as i64)))?;
        fields.set_item("head", column(py, heads.iter().map(|h| h.head as i64)))?;
        for (i, name) in regard_model::scores::NAMES.iter().enumerate() {
            fields.set_item(*name, column(py, heads.iter().map(|h| h.scores[i])))?;
            fields.set_item(format!("{name}_base"), column(py, heads.iter().map(|h| h.baselines[i])))?;
            fields.set_item(format!("{name}_low"), column(py, heads.iter().map(|h| h.lift[i].0)))?;
        }
        fields.set_item("broad", column(py, heads.iter().map(|h| h.broad)))?;
        fields.set_item("column", column(py, heads.iter().map(|h| h.column)))?;
        fields.set_item("positional", column(py, heads.iter().map(|h| h.positional)))?;
        fields.set_item("writes", column(py, heads.iter().map(|h| h.writes)))?;
        let labels = |h: &regard_model::HeadScores| if h.labels.is_empty() { "mixed".to_owned() } else { h.labels.join(" ") };
        fields.set_item("labels", heads.iter().map(labels).collect::<Vec<_>>())?;
        table(&fields)
    }

    /// Every head taken out, one by one: a :class:`Table` with the mean change of the loss over texts, its 95 % interval, sign-flip p and Benjamini-Hochberg q.
    ///
    /// Without texts, on 16 of our stories of 256 tokens. With ``direct``, beside it the effect of taking a head out of the last stream alone.
    #[pyo3(signature = (texts = None, *, direct = false))]
    fn screen(&self, py: Python<'_>, texts: Option<Vec<Bound<'_, PyAny>>>, direct: bool) -> PyResult<Py<PyAny>> {
        let texts = self.texts(texts)?;
        let outcomes = stoppable(py, |goes_on| self.model.screen(&texts, &[], |_, _| goes_on()))?;
        let heads = self.model.shape().heads;
        let fields = PyDict::new(py);
        fields.set_item("layer", column(py, (0..outcomes.len()).map(|i| (i / heads) as i64)))?;
        fields.set_item("head", column(py, (0..outcomes.len()).map(|i| (i % heads) as i64)))?;
        outcome_columns(py, &fields, &outcomes)?;
        fields.set_item("q", column(py, outcomes.iter().map(|o| o.q.unwrap_or(f64::NAN))))?;
        if direct {
            let effects = py.detach(|| pooled(|| self.model.direct_effects(&texts, |_, _| {}))).map_err(refused)?;
            fields.set_item("direct", column(py, effects.iter().map(|e| e.mean)))?;
            fields.set_item("direct_low", column(py, effects.iter().map(|e| e.low)))?;
            fields.set_item("direct_high", column(py, effects.iter().map(|e| e.high)))?;
        }
        table(&fields)
    }

    /// What edits do to several texts: a :class:`Table` of one row, with the change of the loss, its interval and p, divergence and changed tokens.
    #[pyo3(signature = (texts, edits, *, reference = None))]
    fn surgery(
        &self,
        py: Python<'_>,
        texts: Option<Vec<Bound<'_, PyAny>>>,
        edits: &str,
        reference: Option<Vec<Bound<'_, PyAny>>>,
    ) -> PyResult<Py<PyAny>> {
        let texts = self.texts(texts)?;
        let edits = Edits::parse(edits).map_err(refused)?;
        let sources = self.sources(py, &edits, None, reference)?;
        let outcome = stoppable(py, |goes_on| self.model.surgery(&texts, &edits, &sources, |_, _| goes_on()))?;
        let fields = PyDict::new(py);
        fields.set_item("divergence", column(py, [outcome.divergence.unwrap_or(f64::NAN)].into_iter()))?;
        fields.set_item("changed", column(py, [outcome.changed.unwrap_or(f64::NAN)].into_iter()))?;
        outcome_columns(py, &fields, &[outcome])?;
        table(&fields)
    }

    /// What the model would say behind each layer: a :class:`Lens` with the ``top`` likeliest tokens of each place.
    #[pyo3(signature = (text_or_ids, edits = "", top = 5))]
    fn lens(&self, py: Python<'_>, text_or_ids: &Bound<'_, PyAny>, edits: &str, top: usize) -> PyResult<Py<PyAny>> {
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let ids = Given::new(text_or_ids)?.ids(&self.model)?;
        let edits = Edits::parse(edits).map_err(refused)?;
        let sources = self.sources(py, &edits, None, None)?;
        let lens = py.detach(|| pooled(|| self.model.lens(&ids, &edits, &sources, top))).map_err(refused)?;
        let fields = PyDict::new(py);
        fields.set_item("tokens", ids.iter().map(|id| self.model.piece(*id)).collect::<Vec<_>>())?;
        let words: Vec<String> = lens.top.iter().map(|id| self.model.piece(*id)).collect();
        fields.set_item("words", words)?;
        fields.set_item("top", lens.top.into_pyarray(py))?;
        fields.set_item("probability", lens.probability.into_pyarray(py))?;
        fields.set_item("loss", lens.loss.into_pyarray(py))?;
        fields.set_item("entropy", lens.entropy.into_pyarray(py))?;
        Ok(result(&CLASS, "Lens", &fields)?.unbind())
    }

    /// What each part of the model writes to the logit of ``token`` (by default the likeliest) at ``row`` (by default the last): a :class:`Table` whose
    /// ``writes`` add up to the logit.
    #[pyo3(signature = (text_or_ids, row = None, token = None, edits = ""))]
    fn attribute(
        &self,
        py: Python<'_>,
        text_or_ids: &Bound<'_, PyAny>,
        row: Option<usize>,
        token: Option<u32>,
        edits: &str,
    ) -> PyResult<Py<PyAny>> {
        let ids = Given::new(text_or_ids)?.ids(&self.model)?;
        let edits = Edits::parse(edits).map_err(refused)?;
        let sources = self.sources(py, &edits, None, None)?;
        let row = row.unwrap_or(ids.len().saturating_sub(1));
        let attribution = py
            .detach(|| {
                let token = match token {
                    Some(token) => token,
                    None => {
                        let run = self.model.run(&ids, &edits, &sources)?;
                        let hidden = run.hidden();
                        let hidden = hidden.row(row.min(ids.len() - 1)).to_vec();
                        regard_nn::generate::argmax(&self.model.logits(&hidden)?) as u32
                    }
                };
                self.model.attribute(&ids, &edits, &sources, row, token)
            })
            .map_err(refused)?;
        let fields = PyDict::new(py);
        fields.set_item("part", attribution.parts)?;
        fields.set_item("writes", column(py, attribution.writes.into_iter()))?;
        table(&fields)
    }

    /// One vector for a text, pooled as the model's folder says (else the mean over tokens).
    fn embed(&self, py: Python<'_>, text_or_ids: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let ids = Given::new(text_or_ids)?.ids(&self.model)?;
        let vector = py
            .detach(|| pooled(|| self.model.run(&ids, &Edits::default(), &Sources::default()).map(|run| run.embedding())))
            .map_err(refused)?;
        Ok(vector.into_pyarray(py).into_any().unbind())
    }

    /// As its file calls the family.
    #[getter]
    fn family(&self) -> &str {
        self.model.family()
    }

    /// ``safetensors``, ``pickle``, ``gguf``, ``llama2.c`` or ``regard``.
    #[getter]
    fn format(&self) -> &str {
        self.model.format()
    }

    /// How many layers.
    #[getter]
    fn layers(&self) -> usize {
        self.model.shape().layers
    }

    /// How many query heads each has.
    #[getter]
    fn heads(&self) -> usize {
        self.model.shape().heads
    }

    /// How many key and value heads each has.
    #[getter]
    fn kv_heads(&self) -> usize {
        self.model.shape().kv_heads
    }

    /// The width of a head.
    #[getter]
    fn head_dim(&self) -> usize {
        self.model.head_dim()
    }

    /// The width of the residual stream.
    #[getter]
    fn width(&self) -> usize {
        self.model.width()
    }

    /// How many tokens there are.
    #[getter]
    fn vocab(&self) -> usize {
        self.model.vocab()
    }

    /// How many tokens it was trained for.
    #[getter]
    fn context(&self) -> usize {
        self.model.context()
    }

    /// How many numbers it has.
    #[getter]
    fn parameters(&self) -> usize {
        self.model.parameters()
    }

    fn __repr__(&self) -> String {
        let (model, shape) = (&self.model, self.model.shape());
        format!(
            "Model({}, {}: {} layers of {} heads, width {}, {} tokens, {} parameters)",
            model.path().display(),
            model.family(),
            shape.layers,
            shape.heads,
            model.width(),
            model.vocab(),
            model.parameters()
        )
    }
}

/// One text through a model: see :meth:`Model.run`.
#[pyclass(frozen, module = "regard")]
pub(crate) struct Run {
    model: Arc<regard_model::Model>,
    parts: Mutex<RunParts>,
}

impl Run {
    fn look<R: Send>(&self, py: Python<'_>, look: impl FnOnce(&regard_model::Run<'_>) -> regard_model::Result<R> + Send) -> PyResult<R> {
        let look = || {
            let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
            parts.with(&self.model, look)
        };
        py.detach(|| pooled(look)).map_err(refused)
    }
}

/// What is shown of the first key.
fn sink_of(how: &str) -> PyResult<Sink> {
    match how {
        "show" => Ok(Sink::Show),
        "hide" => Ok(Sink::Hide),
        "renormalise" => Ok(Sink::Renormalise),
        other => Err(PyValueError::new_err(format!("sink is {other:?}; it must be 'show', 'hide' or 'renormalise'"))),
    }
}

/// A drawing as Python has it, which shows itself in a notebook.
fn shown(py: Python<'_>, figure: Figure) -> PyResult<Py<PyAny>> {
    Ok(py.import("regard._results")?.getattr("Figure")?.call1((PyFigure(figure),))?.unbind())
}

/// Statistics of all layers, each `[layers, heads, rows]`.
fn stacked(layers: Vec<RowStats<f32>>) -> RowStats<f32> {
    macro_rules! all {
        ($($name:ident),*) => {
            RowStats { $($name: concatenate(Axis(0), &layers.iter().map(|layer| layer.$name.view()).collect::<Vec<_>>()).expect("the same heads"),)* }
        };
    }
    all!(
        entropy,
        max_weight,
        sum_of_squares,
        diagonal_mass,
        previous_token_mass,
        first_token_mass,
        local_mass,
        mean_distance,
        argmax,
        top_keys,
        top_weights
    )
}

#[pymethods]
impl Run {
    /// The ids that were run.
    #[getter]
    fn ids(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        self.look(py, |run| Ok(run.ids().to_vec()))
    }

    /// Each of them as people read it.
    #[getter]
    fn tokens(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.look(py, |run| Ok(run.ids().iter().map(|id| run.model().piece(*id)).collect()))
    }

    /// The edits in their canonical form.
    #[getter]
    fn edits(&self, py: Python<'_>) -> PyResult<String> {
        self.look(py, |run| Ok(run.edits().canonical()))
    }

    /// Logits of every token, float32 ``[n, vocab]``.
    #[getter]
    fn logits(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let logits = self.look(py, |run| run.logits())?;
        Ok(logits.into_pyarray(py).into_any().unbind())
    }

    /// The mean loss of next tokens, in nats.
    #[getter]
    fn loss(&self, py: Python<'_>) -> PyResult<f64> {
        self.look(py, |run| run.loss())
    }

    /// The loss of each next token, float64 ``[n - 1]``.
    #[getter]
    fn losses(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.look(py, |run| run.losses())?.into_pyarray(py).into_any().unbind())
    }

    /// The final hidden states, behind the last norm, float32 ``[n, width]``.
    #[getter]
    fn hidden(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.look(py, |run| Ok(run.hidden().to_owned()))?.into_pyarray(py).into_any().unbind())
    }

    /// The weights of a head, float32 ``[n, n]``; those of some rows with ``rows=(first, end)``.
    #[pyo3(signature = (layer, head, rows = None))]
    fn weights(&self, py: Python<'_>, layer: usize, head: usize, rows: Option<(usize, usize)>) -> PyResult<Py<PyAny>> {
        let weights = self.look(py, |run| {
            let (first, end) = rows.unwrap_or((0, run.len()));
            run.weights_of(layer, head, first..end)
        })?;
        Ok(weights.into_pyarray(py).into_any().unbind())
    }

    /// What every row of every head attended to, each ``[layers, heads, n]``, in linear memory: a :class:`Statistics`.
    #[getter]
    fn statistics(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let layers = self.model.shape().layers;
        let (rows, lse, heads) = self.look(py, |run| {
            let all: Vec<_> = (0..layers).map(|layer| run.layer_statistics(layer, StatsOptions::default())).collect::<Result<_, _>>()?;
            let (rows, lse): (Vec<_>, Vec<Array3<f32>>) = all.into_iter().unzip();
            let rows = stacked(rows);
            let heads = rows.heads();
            let lse = concatenate(Axis(0), &lse.iter().map(|lse| lse.view()).collect::<Vec<_>>()).expect("the same heads");
            Ok((rows, lse, heads))
        })?;
        let layout = Layout::Axes(4);
        let fields = row_fields(py, layout, rows)?;
        fields.set_item("heads", head_fields(py, layout, heads)?)?;
        fields.set_item("out", py.None())?;
        field(&fields, layout, "lse", lse)?;
        Ok(result(&CLASS, "Statistics", &fields)?.unbind())
    }

    /// A head's weights at the size of a picture: ``mean`` and ``max`` over at most ``rows`` x ``cols`` cells, whatever the length. ``sink`` is what is
    /// shown of the first key: ``"show"``, ``"hide"``, or ``"renormalise"``, where the rest is divided by what remains.
    #[pyo3(signature = (layer, head, rows = 512, cols = None, *, sink = "show"))]
    fn heat_map(&self, py: Python<'_>, layer: usize, head: usize, rows: usize, cols: Option<usize>, sink: &str) -> PyResult<Py<PyAny>> {
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let sink = sink_of(sink)?;
        let map = self.look(py, |run| run.heat_map_without(layer, head, [rows, cols.unwrap_or(rows)], sink))?;
        let fields = PyDict::new(py);
        let two = |x: ndarray::Array4<f32>| x.index_axis_move(Axis(0), 0).index_axis_move(Axis(0), 0);
        fields.set_item("mean", two(map.mean).into_pyarray(py))?;
        fields.set_item("max", two(map.max).into_pyarray(py))?;
        Ok(result(&CLASS, "HeatMap", &fields)?.unbind())
    }

    /// Every head, or one with its tokens: a :class:`Figure`, which shows itself in a notebook. ``sink`` as in :meth:`heat_map`.
    #[pyo3(signature = (layer = None, head = None, *, sink = "show"))]
    fn picture(&self, py: Python<'_>, layer: Option<usize>, head: Option<usize>, sink: &str) -> PyResult<Py<PyAny>> {
        let sink = sink_of(sink)?;
        let figure = self.look(py, |run| {
            let drawn = match (layer, head) {
                (Some(layer), Some(head)) => picture::head(run, layer, head, sink),
                (None, None) => picture::heads(run, sink),
                _ => return Ok(Err("a picture is of all heads, or of one: give layer and head, or neither".to_owned())),
            };
            Ok(drawn.map_err(|e| e.to_string()))
        })?;
        shown(py, figure.map_err(PyValueError::new_err)?)
    }

    /// How one score of a head comes about: a :class:`Table` along the numbers of the vectors, with query and key before and after rotary positions, their
    /// products and the sums of these.
    fn neuron(&self, py: Python<'_>, layer: usize, head: usize, query: usize, key: usize) -> PyResult<Py<PyAny>> {
        let neuron = self.look(py, |run| run.neuron(layer, head, query, key))?;
        let fields = PyDict::new(py);
        for (name, numbers) in [("q_before", neuron.q_before), ("k_before", neuron.k_before), ("q", neuron.q), ("k", neuron.k)] {
            fields.set_item(name, numbers.into_pyarray(py))?;
        }
        fields.set_item("products", neuron.products.into_pyarray(py))?;
        fields.set_item("sums", neuron.sums.into_pyarray(py))?;
        table(&fields)
    }

    /// A query's row, key by key, on its way through the softmax: a :class:`Table` with ``dot``, ``scaled``, ``capped``, ``score`` and ``weight``.
    fn row(&self, py: Python<'_>, layer: usize, head: usize, query: usize) -> PyResult<Py<PyAny>> {
        let keys = self.look(py, |run| run.neuron(layer, head, query, 0))?.keys;
        let fields = PyDict::new(py);
        fields.set_item("dot", column(py, keys.iter().map(|key| key.dot)))?;
        fields.set_item("scaled", column(py, keys.iter().map(|key| key.scaled)))?;
        fields.set_item("capped", column(py, keys.iter().map(|key| key.capped)))?;
        fields.set_item("score", column(py, keys.iter().map(|key| key.score)))?;
        fields.set_item("weight", column(py, keys.iter().map(|key| key.weight)))?;
        table(&fields)
    }

    fn _repr_svg_(&self, py: Python<'_>) -> PyResult<String> {
        let figure = self.look(py, |run| Ok(picture::heads(run, Sink::Show).map_err(|e| e.to_string())))?;
        figure.map_err(PyValueError::new_err)?.svg().map_err(|e| PyValueError::new_err(e.to_string()))
    }

    /// The queries of a layer, float32 ``[heads, n, head_dim]``, as they attend; before rotary positions with ``rotated=False``.
    #[pyo3(signature = (layer, rotated = true))]
    fn q(&self, py: Python<'_>, layer: usize, rotated: bool) -> PyResult<Py<PyAny>> {
        Ok(self.look(py, |run| run.q(layer, rotated))?.into_pyarray(py).into_any().unbind())
    }

    /// The keys of a layer, float32 ``[kv_heads, n, head_dim]``.
    #[pyo3(signature = (layer, rotated = true))]
    fn k(&self, py: Python<'_>, layer: usize, rotated: bool) -> PyResult<Py<PyAny>> {
        Ok(self.look(py, |run| run.k(layer, rotated))?.into_pyarray(py).into_any().unbind())
    }

    /// The values of a layer, float32 ``[kv_heads, n, head_dim]``.
    fn v(&self, py: Python<'_>, layer: usize) -> PyResult<Py<PyAny>> {
        Ok(self.look(py, |run| run.v(layer).cloned())?.into_pyarray(py).into_any().unbind())
    }

    /// What the heads of a layer give to the output projection, float32 ``[heads, n, head_dim]``.
    fn z(&self, py: Python<'_>, layer: usize) -> PyResult<Py<PyAny>> {
        Ok(self.look(py, |run| run.z(layer).cloned())?.into_pyarray(py).into_any().unbind())
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.look(py, |run| Ok(run.len()))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        self.look(py, |run| {
            let edits = if run.edits().is_empty() { String::new() } else { format!(", edits {:?}", run.edits().canonical()) };
            Ok(format!("Run({} tokens{edits})", run.len()))
        })
    }
}
