//! Checkpoints from disk: `load` and a model.

use crate::activation_gradients::{ActivationGradients, metric, objective, token};
use crate::hooks::{Activations, PyHooks, parse};
use crate::instruments::result;
use crate::interrupt::watched;
use crate::parse::Listed;
use crate::reading::{Given, Source};
use crate::run::{Run, place};
use crate::threads::pooled;
use ndarray::{ArrayD, Axis};
use numpy::{IntoPyArray, PyArrayDyn, PyArrayMethods, PyReadonlyArray2, PyReadonlyArray3};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyString};
use regard_model::{Arrays, Cancel, Edits, Generation, Input, LogitOf, Metric, Objective, PatchOptions, Site, Sources, Vectors};
use regard_nn::generate::Sampling;
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) fn refused(error: regard_model::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Work on a model without the GIL, which ends with `cancel` soon after a signal handler raised: on a thread of its own, while this one
/// runs Python's signal handlers.
pub(crate) fn cancellable<R: Send>(py: Python<'_>, cancel: &Cancel, work: impl FnOnce() -> regard_model::Result<R> + Send) -> PyResult<R> {
    watched(py, || cancel.cancel(), || pooled(work))?.map_err(refused)
}

/// Load a model: a file (GGUF, safetensors, llama2.c, a PyTorch file that is read and never executed), a folder, or a name in the local
/// Hugging Face cache. Nothing is downloaded.
///
/// ``m = regard.load(path)``; ``m.run("Once upon a time").loss``. Without a path, the small model that comes with the package.
/// ``vectors`` are named vectors that edits may add (``"L1.resid=add:NAME*2"``): a safetensors file, or a dict of arrays.
#[pyfunction]
#[pyo3(signature = (path = None, *, vectors = None))]
pub(crate) fn load(py: Python<'_>, path: Option<PathBuf>, vectors: Option<&Bound<'_, PyAny>>) -> PyResult<Model> {
    crate::threads::check_variable()?;
    let model = py.detach(|| pooled(|| path.map_or_else(regard_model::Model::built_in, regard_model::Model::load))).map_err(refused)?;
    Ok(Model { model: vectors.map(named_vectors).transpose()?.map_or_else(|| model.clone(), |vectors| model.with_vectors(vectors)) })
}

/// An array of another package, as float32.
fn array(given: &Bound<'_, PyAny>) -> PyResult<ArrayD<f32>> {
    let array = given.py().import("numpy")?.call_method1("asarray", (given, "float32"))?;
    Ok(array.cast::<PyArrayDyn<f32>>()?.try_readonly()?.as_array().to_owned())
}

/// Vectors of a file, or of arrays by name.
fn named_vectors(given: &Bound<'_, PyAny>) -> PyResult<Vectors> {
    let Ok(named) = given.cast::<PyDict>() else {
        return Vectors::read(&given.extract::<PathBuf>()?).map_err(refused);
    };
    let mut vectors = Vectors::default();
    for (name, vector) in named {
        let (name, vector) = (name.extract::<String>()?, array(&vector)?);
        if vector.shape().iter().filter(|n| **n != 1).count() > 1 {
            let text = format!("the vector {name:?} has the shape {:?}; it must have one dimension", vector.shape());
            return Err(PyValueError::new_err(text));
        }
        vectors.insert(&name, &vector.iter().copied().collect::<Vec<_>>()).map_err(refused)?;
    }
    Ok(vectors)
}

/// Own arrays by activation, `L3.z`, or `z` with one for each layer.
fn own_arrays(given: &Bound<'_, PyDict>, layers: usize) -> PyResult<Arrays> {
    let mut arrays = Arrays::new();
    for (name, given) in given {
        let name = name.extract::<String>()?;
        let values = array(&given)?;
        match parse(&name, layers)? {
            (Some(layer), site) => {
                arrays.insert((layer, site), values);
            }
            (None, _) if values.ndim() == 0 || values.len_of(Axis(0)) != layers => {
                let text = format!("{name} has the shape {:?}; without a layer in its name it must have {layers} first", values.shape());
                return Err(PyValueError::new_err(text));
            }
            (None, site) => arrays.extend(values.outer_iter().enumerate().map(|(layer, values)| ((layer, site), values.to_owned()))),
        }
    }
    Ok(arrays)
}

/// A checkpoint that can be run, looked into and edited: see :func:`load`.
#[pyclass(frozen, module = "regard")]
pub(crate) struct Model {
    model: regard_model::Model,
}

impl Model {
    /// Work with the model without the GIL; Ctrl-C ends it.
    fn work<R: Send>(&self, py: Python<'_>, work: impl FnOnce(&regard_model::Model) -> regard_model::Result<R> + Send) -> PyResult<R> {
        let cancel = Cancel::new();
        let model = self.model.with_cancel(&cancel);
        cancellable(py, &cancel, || work(&model))
    }

    /// What edits take from other texts.
    fn sources(
        &self,
        py: Python<'_>,
        edits: &Edits,
        texts: Option<&Bound<'_, PyDict>>,
        reference: Option<Listed<Bound<'_, PyAny>>>,
    ) -> PyResult<Sources> {
        let (mut named, mut runs, mut own) = (Vec::new(), Vec::new(), Vec::new());
        for (name, text) in texts.into_iter().flatten() {
            let name = name.extract::<String>()?;
            if let Ok(arrays) = text.cast::<PyDict>() {
                own.push((name, Arc::new(own_arrays(arrays, self.model.shape().layers)?)));
                continue;
            }
            match text.cast::<Run>() {
                Ok(run) if run.get().0.model().shape() == self.model.shape() => {
                    let kept = run.get().1.iter().filter(|((_, site), _)| !site.has_heads());
                    own.push((name.clone(), Arc::new(kept.map(|(at, values)| (*at, values.clone())).collect())));
                    runs.push((name, run.get().0.activations()));
                }
                Ok(_) => {
                    return Err(PyValueError::new_err(format!(
                        "texts[{name:?}] is a run of a model of another shape; give one of this model"
                    )));
                }
                Err(_) => named.push((name, Given::new(&text)?.ids(&self.model)?)),
            }
        }
        let given = match reference {
            None => None,
            Some(Listed(texts)) => Some(texts.iter().map(|text| Given::new(text)?.ids(&self.model)).collect::<PyResult<Vec<_>>>()?),
        };
        self.work(py, |model| {
            let none = Edits::default();
            // Without texts, stories that are not judged.
            let mut sources = model.sources_of(if given.is_some() { &none } else { edits })?;
            if let Some(texts) = given.filter(|_| edits.needs_reference()) {
                sources.reference = Some(model.reference(&texts)?.into());
            }
            for (name, ids) in &named {
                model.source_for(edits, &mut sources, name, ids)?;
            }
            sources.texts.extend(runs);
            sources.arrays.extend(own);
            Ok(sources)
        })
    }
}

/// The texts of a list of texts, or of a list of lists of ids.
fn several<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
    let list = match object.cast::<PyList>() {
        Ok(list) => list.iter().collect::<Vec<_>>(),
        Err(_) => return Ok(None),
    };
    let is_text = |x: &Bound<'py, PyAny>| x.is_instance_of::<PyString>() || x.is_instance_of::<PyList>();
    Ok(list.first().is_some_and(is_text).then_some(list))
}

impl Model {
    /// One run with hooks.
    fn run_one(
        &self,
        py: Python<'_>,
        ids: &[u32],
        edits: &Edits,
        sources: &Sources,
        keep: &[String],
        hooks: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Run> {
        let cancel = Cancel::new();
        let hooks = PyHooks::new(self.model.shape().layers, keep, hooks, &cancel)?;
        let model = self.model.with_cancel(&cancel);
        if hooks.is_empty() {
            return Ok(Run(cancellable(py, &cancel, || model.run(ids, edits, sources))?, Activations::new()));
        }
        let run = cancellable(py, &cancel, || model.run_with(ids, edits, sources, &hooks));
        let kept = hooks.finish()?;
        Ok(Run(run?, kept))
    }

    /// Ids of texts; without any, of stories of our own. What is beyond the model's context is cut off, with a warning.
    fn texts(&self, py: Python<'_>, texts: Option<Listed<Bound<'_, PyAny>>>) -> PyResult<Vec<Vec<u32>>> {
        let Some(Listed(texts)) = texts else { return self.model.own_texts(16, 256).map_err(refused) };
        let mut all: Vec<Vec<u32>> = texts.iter().map(|text| Given::new(text)?.ids(&self.model)).collect::<PyResult<_>>()?;
        let context = self.model.context();
        let long = all.iter().filter(|ids| ids.len() > context).count();
        if long > 0 {
            warn(py, Some(format!("{long} of {} texts are cut to the {context} tokens that the model was trained for", all.len())))?;
            all.iter_mut().for_each(|ids| ids.truncate(context));
        }
        Ok(all)
    }
}

pub(crate) fn column<'py, T: numpy::Element>(py: Python<'py>, values: impl Iterator<Item = T>) -> Bound<'py, numpy::PyArray1<T>> {
    values.collect::<Vec<T>>().into_pyarray(py)
}

pub(crate) fn table(fields: &Bound<'_, PyDict>) -> PyResult<Py<PyAny>> {
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

    /// Run a text or ids, with edits such as ``"L3.H1=zero/scale=off"``: a :class:`Run`. Of a list of texts, a list of runs, each with
    /// the bits that it has alone.
    ///
    /// ``texts`` are second texts by name, for ``patch:NAME``: texts, ids, own arrays by activation (``{"L3.z": array}``), or runs, whose
    /// edits then count (path patching: ``texts={"x": m.run(corrupt, "L3.H1=patch:y", texts={"y": clean})}``; rows of the stream are
    /// those of ``keep``). ``vectors`` are named vectors for ``add:NAME``: a safetensors file or a dict of arrays. ``reference`` are other
    /// texts, for ``mean`` and ``resample`` (16 of our stories when there are none). ``keep`` names activations that ``run[name]`` returns
    /// afterwards: ``keep=["resid_post", "L3.mlp_out"]``; queries, keys, values, ``z``, ``pattern`` and ``logits`` are always there.
    ///
    /// ``hooks`` are functions by name of activation, ``{"L3.z": lambda z: z * 0.5}``: each sees an array and returns one of the same
    /// shape, or None for no change. Steering is ``m.run(text, "L5.resid=add:v*2", vectors={"v": direction})``, or
    /// ``hooks={"L5.resid_pre": lambda x: x + 2 * direction}``.
    #[pyo3(signature = (text_or_ids, edits = "", *, texts = None, reference = None, keep = None, hooks = None, vectors = None))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        text_or_ids: &Bound<'py, PyAny>,
        edits: &str,
        texts: Option<&Bound<'py, PyDict>>,
        reference: Option<Listed<Bound<'py, PyAny>>>,
        keep: Option<Listed<String>>,
        hooks: Option<&Bound<'py, PyDict>>,
        vectors: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let keep = keep.map_or_else(Vec::new, |keep| keep.0);
        let given = several(text_or_ids)?;
        let alone = given.is_none();
        let given = given.unwrap_or_else(|| vec![text_or_ids.clone()]);
        let edits = Edits::parse(edits).map_err(refused)?;
        let mut sources = self.sources(py, &edits, texts, reference)?;
        if let Some(vectors) = vectors {
            sources.vectors.extend(&named_vectors(vectors)?);
        }
        let mut runs = Vec::new();
        for text in given {
            let ids = Given::new(&text)?.ids(&self.model)?;
            warn(py, self.model.warning(ids.len()))?;
            runs.push(Bound::new(py, self.run_one(py, &ids, &edits, &sources, &keep, hooks)?)?.into_any());
        }
        if alone { Ok(runs.swap_remove(0)) } else { Ok(PyList::new(py, runs)?.into_any()) }
    }

    /// The same model with named vectors, which its edits may then add everywhere: a safetensors file or a dict of arrays.
    fn with_vectors(&self, vectors: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self { model: self.model.with_vectors(named_vectors(vectors)?) })
    }

    /// What the encoder of an encoder-decoder makes of its source, or a model of images of an image: a :class:`Run`. The source is a text
    /// or ids, ``audio`` (a WAV file), ``image`` (a PNG file of any size), log-mel ``features`` ``[mels, frames]``, or normalised
    /// ``pixels`` ``[channels, height, width]``.
    #[pyo3(signature = (text_or_ids = None, *, audio = None, image = None, features = None, pixels = None, edits = ""))]
    fn read(
        &self,
        py: Python<'_>,
        text_or_ids: Option<&Bound<'_, PyAny>>,
        audio: Option<PathBuf>,
        image: Option<PathBuf>,
        features: Option<PyReadonlyArray2<'_, f32>>,
        pixels: Option<PyReadonlyArray3<'_, f32>>,
        edits: &str,
    ) -> PyResult<Run> {
        let ids = text_or_ids.map(|given| Given::new(given)?.ids(&self.model)).transpose()?;
        let source = Source::new(ids, audio, image, features, pixels)?;
        let edits = Edits::parse(edits).map_err(refused)?;
        let sources = self.sources(py, &edits, None, None)?;
        Ok(Run(self.work(py, |model| source.read(model, &edits, &sources))?, Activations::default()))
    }

    /// The same model, whose decoder reads this run of its encoder: it runs and generates as any other, from ``start_ids`` on.
    fn reading(&self, run: &Run) -> PyResult<Self> {
        Ok(Self { model: self.model.reading(&run.0).map_err(refused)? })
    }

    /// The ids that a decoder begins with.
    #[getter]
    fn start_ids(&self) -> Vec<u32> {
        self.model.start_ids().to_vec()
    }

    /// The experts of each token in a layer, with their shares: a list of ``(expert, share)`` per token.
    fn routing(&self, py: Python<'_>, text_or_ids: &Bound<'_, PyAny>, layer: usize) -> PyResult<Vec<Vec<(usize, f32)>>> {
        let ids = Given::new(text_or_ids)?.ids(&self.model)?;
        self.work(py, |model| model.routing(&ids, &Edits::default(), &Sources::default(), layer))
    }

    /// Gradients with respect to activations, by the backward passes of the parts; weights, also quantised ones, are constant: see
    /// :class:`ActivationGradients`.
    ///
    /// ``of`` is ``"loss"`` (mean over next tokens), ``{"position": -1, "logit_diff": [a, b]}`` (the logit of token ``a`` minus that of
    /// ``b`` after the token at ``position``; ids, or texts of one token), or ``{"hidden": array}`` (the sum of the final hidden states
    /// times an array). ``wrt`` names activations as in :meth:`run`, ``"L3.z"`` or ``"z"`` for all layers: ``resid_pre``, ``resid_mid``,
    /// ``resid_post``, ``q``, ``k``, ``v``, ``pattern``, ``z``, ``attn_out``, ``mlp_out``.
    #[pyo3(signature = (text_or_ids, of = None, wrt = vec!["z".to_owned()]))]
    fn gradients(
        &self,
        py: Python<'_>,
        text_or_ids: &Bound<'_, PyAny>,
        of: Option<&Bound<'_, PyAny>>,
        wrt: Vec<String>,
    ) -> PyResult<ActivationGradients> {
        let ids = Given::new(text_or_ids)?.ids(&self.model)?;
        let layers = self.model.shape().layers;
        let wanted = wrt.iter().map(|name| parse(name, layers)).collect::<PyResult<Vec<_>>>()?;
        let objective = of.map_or(Ok(Objective::Loss), |of| objective(of, &self.model, ids.len()))?;
        warn(py, self.model.warning(ids.len()))?;
        let wants = |layer: usize, site: Site| wanted.iter().any(|(at, of)| *of == site && at.is_none_or(|at| at == layer));
        let made = self.work(py, |model| model.gradients(&ids, &objective, &wants))?;
        Ok(ActivationGradients { made, layers })
    }

    /// A copy of weights, float32: ``W_Q``, ``W_K``, ``W_V`` ``[heads, width, head_dim]`` and ``W_O`` ``[heads, head_dim, width]`` of a
    /// layer, as in ``m.weights("L3.W_Q")``. Rows are multiplied from the left: ``q = x @ W_Q[head]``, before biases, norms and
    /// positions.
    fn weights(&self, py: Python<'_>, name: &str) -> PyResult<Py<PyAny>> {
        const NAMES: [&str; 4] = ["W_Q", "W_K", "W_V", "W_O"];
        let parts = name.strip_prefix('L').and_then(|rest| rest.split_once('.'));
        let found = parts.and_then(|(layer, which)| Some((layer.parse().ok()?, NAMES.iter().position(|name| *name == which)?)));
        let Some((layer, place)) = found else {
            let text = format!("{name:?} is no weight; it must be L<layer>.NAME with NAME one of {}", NAMES.join(", "));
            return Err(PyValueError::new_err(text));
        };
        let mut all = self.work(py, |model| model.projections(layer))?;
        Ok(std::mem::take(&mut all[place]).into_pyarray(py).into_any().unbind())
    }

    /// Write up to ``n`` more tokens, the most likely ones at temperature 0: the new ids. Writing stops after a token that ends texts,
    /// and after the token that completes ``stop`` (a text or several). ``context`` is the number of tokens that are visible at most: the
    /// older half is dropped when they are full. ``cache_type`` is how keys and values of earlier tokens are stored: ``"f32"``, ``"f16"``,
    /// ``"bf16"`` or ``"q8_0"`` (blocks of 32 integers of 8 bits with a scale).
    #[pyo3(signature = (
        text_or_ids, n, edits = "", temperature = 0.0, *, top_k = None, top_p = None, seed = 0, reference = None,
        stop = None, context = None, cache_type = "f32"
    ))]
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
        reference: Option<Listed<Bound<'_, PyAny>>>,
        stop: Option<&Bound<'_, PyAny>>,
        context: Option<usize>,
        cache_type: &str,
    ) -> PyResult<Vec<u32>> {
        let stops: Vec<String> = match stop {
            None => Vec::new(),
            Some(stop) => match stop.extract::<String>() {
                Ok(one) => vec![one],
                Err(_) => stop.extract::<Listed<String>>()?.0,
            },
        };
        if context.is_some_and(|tokens| tokens < 2) || stops.iter().any(String::is_empty) {
            return Err(PyValueError::new_err("context must be at least 2 tokens, and stop a text that is not empty"));
        }
        let ids = Given::new(text_or_ids)?.ids(&self.model)?;
        let edits = Edits::parse(edits).map_err(refused)?;
        let sources = self.sources(py, &edits, None, reference)?;
        let sampling = Sampling { temperature, top_k, top_p, seed };
        warn(py, self.model.warning(ids.len().saturating_add(n)))?;
        let cache_type = cache_type.parse().map_err(|error: regard_nn::Error| PyValueError::new_err(error.to_string()))?;
        let options = Generation { tokens: n, sampling, cached: true, context, cache_type };
        self.work(py, |model| {
            let (tokenizer, mut written) = (if stops.is_empty() { None } else { Some(model.tokenizer()?) }, Vec::new());
            let goes_on = |id: u32| {
                written.push(id);
                let text = tokenizer.and_then(|tokenizer| tokenizer.decode(&written).ok()).unwrap_or_default();
                !stops.iter().any(|stop| text.contains(stop.as_str()))
            };
            model.generate(&ids, &options, &edits, &sources, goes_on)
        })
    }

    /// What every head does on texts, and on random tokens that come twice: a :class:`Table` with a row per head, scores with baselines,
    /// and labels.
    ///
    /// Each score has its mean weight over rows and texts, the same under uniform weights (``NAME_base``), and the lower 95 % bound of
    /// the lift ``(score - base) / (1 - base)`` (``NAME_low``): ``previous`` the token before, ``own`` the query's own token, ``first``
    /// the first token, ``local`` near tokens, ``duplicate`` earlier copies of the own token, ``induction`` the tokens after these,
    /// ``repeated`` induction on random tokens that come twice, ``delimiter`` punctuation. ``broad`` is the entropy over its maximum,
    /// ``column`` the largest mean of a key, ``positional`` how alike the rows of unrelated texts are, ``writes`` the head's share of
    /// what the layer's heads write. A label needs a lower bound above 0.4; ``mixed`` is none.
    ///
    /// Without texts, on 16 of our stories of 256 tokens.
    #[pyo3(signature = (texts = None))]
    fn classify(&self, py: Python<'_>, texts: Option<Listed<Bound<'_, PyAny>>>) -> PyResult<Py<PyAny>> {
        let texts = self.texts(py, texts)?;
        let heads = self.work(py, |model| model.classify(&texts, |_, _| true))?;
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

    /// Every head taken out, one by one: a :class:`Table` with the mean change of the loss over texts, its 95 % interval, sign-flip p and
    /// Benjamini-Hochberg q.
    ///
    /// Without texts, on 16 of our stories of 256 tokens. With ``direct``, beside it the effect of taking a head out of the last stream
    /// alone.
    ///
    /// ``of`` is what is measured: ``"loss"``, or a prediction after each text, ``{"logit_diff": [a, b]}`` (the logit of token ``a`` minus
    /// that of ``b``) or ``{"probability": a}``, after another token with ``"position"``; a list has one for each text. The columns
    /// ``loss`` and ``worse`` are then ``value`` and ``higher``.
    #[pyo3(signature = (texts = None, *, direct = false, of = None))]
    fn screen(
        &self,
        py: Python<'_>,
        texts: Option<Listed<Bound<'_, PyAny>>>,
        direct: bool,
        of: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let texts = self.texts(py, texts)?;
        let metric = of.map_or(Ok(Metric::Loss), |of| metric(of, &self.model, &texts))?;
        let outcomes = self.work(py, |model| model.screen_by(&texts, &metric, &[], |_, _| true))?;
        let heads = self.model.shape().heads;
        let fields = PyDict::new(py);
        fields.set_item("layer", column(py, (0..outcomes.len()).map(|i| (i / heads) as i64)))?;
        fields.set_item("head", column(py, (0..outcomes.len()).map(|i| (i % heads) as i64)))?;
        outcome_columns(py, &fields, &outcomes)?;
        fields.set_item("q", column(py, outcomes.iter().map(|o| o.q.unwrap_or(f64::NAN))))?;
        if metric != Metric::Loss {
            for (loss, name) in [("loss", "value"), ("worse", "higher")] {
                fields.set_item(name, fields.get_item(loss)?)?;
                fields.del_item(loss)?;
            }
        }
        if direct {
            let effects = self.work(py, |model| model.direct_effects_by(&texts, &metric, |_, _| {}))?;
            fields.set_item("direct", column(py, effects.iter().map(|e| e.mean)))?;
            fields.set_item("direct_low", column(py, effects.iter().map(|e| e.low)))?;
            fields.set_item("direct_high", column(py, effects.iter().map(|e| e.high)))?;
        }
        table(&fields)
    }

    /// What edits do to several texts: a :class:`Table` of one row, with the change of the loss, its interval and p, divergence and
    /// changed tokens.
    #[pyo3(signature = (texts, edits, *, reference = None))]
    fn surgery(
        &self,
        py: Python<'_>,
        texts: Option<Listed<Bound<'_, PyAny>>>,
        edits: &str,
        reference: Option<Listed<Bound<'_, PyAny>>>,
    ) -> PyResult<Py<PyAny>> {
        let texts = self.texts(py, texts)?;
        let edits = Edits::parse(edits).map_err(refused)?;
        let sources = self.sources(py, &edits, None, reference)?;
        let outcome = self.work(py, |model| model.surgery(&texts, &edits, &sources, |_, _| true))?;
        let fields = PyDict::new(py);
        fields.set_item("divergence", column(py, [outcome.divergence.unwrap_or(f64::NAN)].into_iter()))?;
        fields.set_item("changed", column(py, [outcome.changed.unwrap_or(f64::NAN)].into_iter()))?;
        outcome_columns(py, &fields, &[outcome])?;
        table(&fields)
    }

    /// Activation patching: an activation on the clean text put into a run of the corrupt one, which has as many tokens, head by head. A
    /// :class:`Table` with a row per head (and ``position``, with ``by_position``): ``margin`` is the logit of the first of ``tokens`` less
    /// that of the second after the last token (by default the most likely tokens of the clean and of the corrupt text; ids, or texts of
    /// one token), ``share`` the share of the difference between the texts, ``clean`` and ``corrupt`` their margins.
    ///
    /// ``site`` is the activation: ``z``, ``q``, ``k``, ``v`` (of key and value heads), ``pattern``, or with a row per layer and without
    /// ``head`` ``resid_pre``, ``resid_mid``, ``resid_post``, ``attn_out``, ``mlp_out``. The residual stream is patched position by
    /// position, unless ``by_position`` is False; a position of ``pattern`` is a query.
    #[pyo3(signature = (clean, corrupt, site = "z", *, tokens = None, by_position = None))]
    fn patch(
        &self,
        py: Python<'_>,
        clean: &Bound<'_, PyAny>,
        corrupt: &Bound<'_, PyAny>,
        site: &str,
        tokens: Option<[Bound<'_, PyAny>; 2]>,
        by_position: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        let (clean, corrupt) = (Given::new(clean)?.ids(&self.model)?, Given::new(corrupt)?.ids(&self.model)?);
        let site: Site = site.parse().map_err(PyValueError::new_err)?;
        let tokens = match tokens {
            Some([a, b]) => Some([token(&a, &self.model)?, token(&b, &self.model)?]),
            None => None,
        };
        let by_position = by_position.unwrap_or(site.is_stream());
        let patched = self.work(py, |model| model.patch(&clean, &corrupt, PatchOptions { site, tokens, by_position }, |_, _| {}))?;
        let (fields, places) = (PyDict::new(py), || patched.margins.indexed_iter().map(|(place, _)| place));
        fields.set_item("layer", column(py, places().map(|(layer, ..)| layer as i64)))?;
        if site.has_heads() {
            fields.set_item("head", column(py, places().map(|(_, head, _)| head as i64)))?;
        }
        if by_position {
            fields.set_item("position", column(py, places().map(|(.., position)| position as i64)))?;
        }
        fields.set_item("margin", column(py, patched.margins.iter().copied()))?;
        fields.set_item("share", column(py, patched.margins.iter().map(|margin| patched.share(*margin))))?;
        fields.set_item("clean", column(py, patched.margins.iter().map(|_| patched.clean)))?;
        fields.set_item("corrupt", column(py, patched.margins.iter().map(|_| patched.corrupt)))?;
        table(&fields)
    }

    /// The logit lens, the prediction after each layer: a :class:`Lens` with the ``top`` most likely tokens of each place.
    #[pyo3(signature = (text_or_ids, edits = "", top = 5))]
    fn lens(&self, py: Python<'_>, text_or_ids: &Bound<'_, PyAny>, edits: &str, top: usize) -> PyResult<Py<PyAny>> {
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let ids = Given::new(text_or_ids)?.ids(&self.model)?;
        let edits = Edits::parse(edits).map_err(refused)?;
        let sources = self.sources(py, &edits, None, None)?;
        let lens = self.work(py, |model| model.lens(&ids, &edits, &sources, top))?;
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

    /// What each part of the model writes to the logit of ``token`` (by default the most likely) at ``row`` (by default the last): a
    /// :class:`Table` whose ``writes`` add up to the logit. With ``minus``, to the difference of two tokens' logits. Tokens are ids, or
    /// texts of one token. With ``by_position``, what a head writes is taken apart by the token whose value it reads (``position``).
    #[pyo3(signature = (text_or_ids, row = None, token = None, edits = "", *, minus = None, by_position = false))]
    fn attribute(
        &self,
        py: Python<'_>,
        text_or_ids: &Bound<'_, PyAny>,
        row: Option<i64>,
        token: Option<&Bound<'_, PyAny>>,
        edits: &str,
        minus: Option<&Bound<'_, PyAny>>,
        by_position: bool,
    ) -> PyResult<Py<PyAny>> {
        let ids = Given::new(text_or_ids)?.ids(&self.model)?;
        let edits = Edits::parse(edits).map_err(refused)?;
        let sources = self.sources(py, &edits, None, None)?;
        let row = place("row", row.unwrap_or(-1), ids.len())?;
        let id = |given: Option<&Bound<'_, PyAny>>| given.map(|given| crate::activation_gradients::token(given, &self.model)).transpose();
        let of = LogitOf { token: id(token)?, minus: id(minus)?, by_position };
        let attribution = self.work(py, |model| model.attribute_to(&ids, &edits, &sources, row, of))?;
        let fields = PyDict::new(py);
        fields.set_item("part", attribution.parts)?;
        if by_position {
            fields.set_item("position", column(py, attribution.positions.into_iter().map(|position| position as i64)))?;
        }
        fields.set_item("writes", column(py, attribution.writes.into_iter()))?;
        table(&fields)
    }

    /// One vector for a text, pooled as the model's folder says (else the mean over tokens).
    fn embed(&self, py: Python<'_>, text_or_ids: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let ids = Given::new(text_or_ids)?.ids(&self.model)?;
        let vector = self.work(py, |model| model.run(&ids, &Edits::default(), &Sources::default()).map(|run| run.embedding()))?;
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
