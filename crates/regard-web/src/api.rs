//! Requests of the page and their answers, without a server: `regard serve` and a browser tab share this code. Models are named by index,
//! never by path; runs by a hash of model, text and edits.
//!
//! ```text
//! GET  /api/models                                        loaded models and example texts
//! POST /api/run        {model, text, edits}               tokens, losses, edits, the name of the run; of an encoder-decoder also {source,
//!                                                         part}: what its encoder reads, and whose attention (decoder, encoder, cross)
//! GET  /api/running                                       the run under way: its name, tokens and layers that are done
//! GET  /api/run/ID/heads?layer=                           means of each head
//! GET  /api/run/ID/thumbnails?layer=&pool=&sink=          f32, little-endian
//! GET  /api/run/ID/tile?layer=&head=&row=&rows=&key=&keys=&step=&pool=&sink=     f32, little-endian
//! GET  /api/run/ID/columns?layer=                         what each key gets from all rows of each head: f32, little-endian
//! GET  /api/run/ID/next?row=                              the most likely tokens after a token
//! GET  /api/run/ID/lens?row=&rows=                        predictions after each layer
//! GET  /api/run/ID/neuron?layer=&head=&query=&key=        one pair of tokens, coordinate by coordinate
//! GET  /api/run/ID/steps?layer=&head=                     every step of a short text
//! GET  /api/text/HASH                                     a text by the hash in a link
//! POST /api/labels     {model}                            events: progress, then the labels of the heads
//! POST /api/examples   {model, layer, head, text}         events: progress, then where the head attends least as usual
//! POST /api/edits      {model, edits}                     canonical form, explanation, controls
//! POST /api/surgery    {model, edits, texts, tokens}      events: progress, then the outcome
//! POST /api/generate   {model, text, edits, count}        events: tokens; of an encoder-decoder also {source}
//! GET  /api/sweep?d_k=&seq=&seeds=&seed=                  the laboratory's sweep
//! GET  /api/expectation?d_k=&seq=&scale=                  exact expectations of a row of weights
//! ```

use crate::run_cache::{Attending, CachedRun, Limits, RunCache, RunOf, View, ids_within, reading};
use crate::views::{self, Look, Tile};
use regard_lab::experiments::sweep::SweepConfig;
use regard_lab::experiments::{Loss, Numbers, Unwatched};
use regard_model::{Cancel, Edits, Generation, Model};
use regard_nn::generate::Sampling;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::sync::{Arc, RwLock};

/// Limits of one request: tokens generated, texts and tokens of a surgery.
const GENERATED: usize = 1000;
const TEXTS: usize = 64;
const TOKENS: usize = 1024;
/// Examples of a head.
const EXAMPLES: usize = 12;

/// HTTP status and message of a failed request.
#[derive(Debug)]
pub struct ApiError(pub u16, pub String);

pub type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    pub const BAD_REQUEST: u16 = 400;
    pub const NOT_FOUND: u16 = 404;
    pub const METHOD_NOT_ALLOWED: u16 = 405;
    /// Not cached any more.
    pub const GONE: u16 = 410;
    pub const UNPROCESSABLE: u16 = 422;

    pub fn unprocessable(message: impl Into<String>) -> Self {
        Self(Self::UNPROCESSABLE, message.into())
    }

    /// The body of the answer.
    pub fn json(&self) -> Value {
        json!({ "error": self.1 })
    }
}

impl From<regard_model::Error> for ApiError {
    fn from(error: regard_model::Error) -> Self {
        Self::unprocessable(error.to_string())
    }
}

impl From<regard_lab::Error> for ApiError {
    fn from(error: regard_lab::Error) -> Self {
        Self::unprocessable(error.to_string())
    }
}

/// The body of an answer.
#[derive(Debug)]
pub enum Answer {
    Json(Value),
    Floats(Vec<f32>),
}

impl Answer {
    /// Content type and bytes; floats are little-endian.
    pub fn body(&self) -> (&'static str, Vec<u8>) {
        match self {
            Self::Json(value) => ("application/json", value.to_string().into_bytes()),
            Self::Floats(values) => ("application/octet-stream", values.iter().flat_map(|x| x.to_le_bytes()).collect()),
        }
    }
}

/// Path with query, and body: `None` for GET.
#[derive(Debug, Clone, Copy)]
pub struct Request<'r> {
    pub target: &'r str,
    pub body: Option<&'r [u8]>,
}

impl Request<'_> {
    fn posted<T: DeserializeOwned>(&self) -> ApiResult<T> {
        let body = self.body.ok_or_else(wrong_method)?;
        serde_json::from_slice(body).map_err(|error| ApiError(ApiError::BAD_REQUEST, format!("invalid request body: {error}")))
    }

    fn query<T: DeserializeOwned>(&self) -> ApiResult<T> {
        if self.body.is_some() {
            return Err(wrong_method());
        }
        let query = self.target.split_once('?').map_or("", |(_, query)| query);
        serde_urlencoded::from_str(query).map_err(|error| ApiError(ApiError::BAD_REQUEST, format!("invalid query parameters: {error}")))
    }
}

fn wrong_method() -> ApiError {
    ApiError(ApiError::METHOD_NOT_ALLOWED, "method not allowed".to_owned())
}

#[derive(Debug, Deserialize)]
struct Nothing {}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    model: usize,
    text: String,
    #[serde(default)]
    edits: String,
    #[serde(default)]
    source: String,
    #[serde(default)]
    part: Attending,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EditsRequest {
    model: usize,
    #[serde(default)]
    edits: String,
}

#[derive(Debug, Deserialize)]
pub struct SweepRequest {
    d_k: usize,
    seq: usize,
    seeds: usize,
    seed: u64,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub struct AtLayer {
    layer: usize,
}

#[derive(Debug, Deserialize)]
pub struct ExpectationRequest {
    d_k: usize,
    seq: usize,
    scale: f64,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub struct AtRow {
    row: usize,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub struct AtRows {
    row: usize,
    #[serde(default = "one")]
    rows: usize,
}

fn one() -> usize {
    1
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub struct AtHead {
    layer: usize,
    head: usize,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub struct AtPair {
    layer: usize,
    head: usize,
    query: usize,
    key: usize,
}

/// A view of a cached run.
#[derive(Debug, Clone, Copy)]
pub enum ViewRequest {
    Heads(AtLayer),
    Thumbnails(AtLayer, Look),
    Tile(Tile, Look),
    Columns(AtLayer),
    Next(AtRow),
    Lens(AtRows),
    Neuron(AtPair),
    Steps(AtHead),
}

impl ViewRequest {
    fn parse(name: &str, request: &Request<'_>) -> ApiResult<Self> {
        Ok(match name {
            "heads" => Self::Heads(request.query()?),
            "thumbnails" => Self::Thumbnails(request.query()?, request.query()?),
            "tile" => Self::Tile(request.query()?, request.query()?),
            "columns" => Self::Columns(request.query()?),
            "next" => Self::Next(request.query()?),
            "lens" => Self::Lens(request.query()?),
            "neuron" => Self::Neuron(request.query()?),
            "steps" => Self::Steps(request.query()?),
            _ => return Err(not_found()),
        })
    }

    /// The layer of a view that needs nothing but the heads of one layer.
    fn layer_of_heads(self) -> Option<usize> {
        match self {
            Self::Heads(at) | Self::Thumbnails(at, _) | Self::Columns(at) => Some(at.layer),
            Self::Tile(tile, _) => Some(tile.layer),
            _ => None,
        }
    }

    pub(crate) fn answer(self, run: &View<'_>) -> ApiResult<Answer> {
        match self {
            Self::Heads(at) => views::heads(run, at.layer).map(Answer::Json),
            Self::Thumbnails(at, look) => views::thumbnails(run, at.layer, look).map(Answer::Floats),
            Self::Tile(tile, look) => views::tile(run, tile, look).map(Answer::Floats),
            Self::Columns(at) => views::columns(run, at.layer).map(Answer::Floats),
            Self::Next(at) => views::next(run, at.row).map(Answer::Json),
            Self::Lens(at) => views::lens(run, at.row, at.rows).map(Answer::Json),
            Self::Neuron(at) => views::neuron(run, at.layer, at.head, at.query, at.key).map(Answer::Json),
            Self::Steps(at) => views::steps(run, at.layer, at.head).map(Answer::Json),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelsRequest {
    model: usize,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExamplesRequest {
    model: usize,
    layer: usize,
    head: usize,
    /// A corpus; stories without one.
    text: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SurgeryRequest {
    model: usize,
    edits: String,
    #[serde(default = "sixteen")]
    texts: usize,
    #[serde(default = "short")]
    tokens: usize,
}

fn sixteen() -> usize {
    16
}

fn short() -> usize {
    256
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerateRequest {
    model: usize,
    text: String,
    #[serde(default)]
    edits: String,
    count: usize,
    #[serde(default)]
    source: String,
    #[serde(default)]
    temperature: f64,
    #[serde(default)]
    seed: u64,
}

/// Work that takes seconds and reports its progress as events.
#[derive(Debug)]
pub enum OperationRequest {
    /// Labels of all heads, over the same texts as `regard classify`.
    Labels(LabelsRequest),
    /// Rows in which a head attends unlike itself.
    Examples(ExamplesRequest),
    Surgery(SurgeryRequest),
    Generate(GenerateRequest),
}

/// An operation with its model and edits, checked.
#[derive(Debug)]
pub(crate) struct Operation {
    model: Model,
    edits: Edits,
    request: OperationRequest,
}

/// A parsed request.
#[derive(Debug)]
pub enum Call {
    Models,
    Run(RunRequest),
    Running,
    View { run: String, view: ViewRequest },
    Text { hash: String },
    Edits(EditsRequest),
    Operation(OperationRequest),
    Sweep(SweepRequest),
    Expectation(ExpectationRequest),
}

fn not_found() -> ApiError {
    ApiError(ApiError::NOT_FOUND, "not found".to_owned())
}

impl Call {
    /// # Errors
    /// 400, 404 and 405.
    pub fn parse(request: &Request<'_>) -> ApiResult<Self> {
        let path = request.target.split('?').next().unwrap_or_default();
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        Ok(match parts.as_slice() {
            ["api", "models"] => request.query().map(|Nothing {}| Self::Models)?,
            ["api", "run"] => Self::Run(request.posted()?),
            ["api", "running"] => request.query().map(|Nothing {}| Self::Running)?,
            ["api", "run", run, view] => Self::View { run: (*run).to_owned(), view: ViewRequest::parse(view, request)? },
            ["api", "text", hash] => request.query().map(|Nothing {}| Self::Text { hash: (*hash).to_owned() })?,
            ["api", "edits"] => Self::Edits(request.posted()?),
            ["api", "labels"] => Self::Operation(OperationRequest::Labels(request.posted()?)),
            ["api", "examples"] => Self::Operation(OperationRequest::Examples(request.posted()?)),
            ["api", "surgery"] => Self::Operation(OperationRequest::Surgery(request.posted()?)),
            ["api", "generate"] => Self::Operation(OperationRequest::Generate(request.posted()?)),
            ["api", "sweep"] => Self::Sweep(request.query()?),
            ["api", "expectation"] => Self::Expectation(request.query()?),
            _ => return Err(not_found()),
        })
    }
}

/// The models and the cached runs.
#[derive(Debug)]
pub struct Api {
    models: RwLock<Vec<Model>>,
    pub(crate) runs: RunCache,
}

impl Api {
    pub fn new(models: Vec<Model>) -> Self {
        Self { models: RwLock::new(models), runs: RunCache::new(Limits::of_this_machine()) }
    }

    /// Adds a model; its index.
    pub fn add(&self, model: Model) -> usize {
        let mut models = self.models.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        models.push(model);
        models.len() - 1
    }

    fn models(&self) -> Vec<Model> {
        self.models.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    fn model(&self, number: usize) -> ApiResult<Model> {
        let models = self.models();
        let missing = || ApiError(ApiError::NOT_FOUND, format!("no model {number}; there are {}, counted from 0", models.len()));
        models.get(number).cloned().ok_or_else(missing)
    }

    /// Answers a request on this thread. `send` gets the events of an operation and returns false to stop it.
    ///
    /// # Errors
    /// Status and message.
    pub fn answer(&self, request: &Request<'_>, cancel: &Cancel, send: &dyn Fn(Value) -> bool) -> ApiResult<Answer> {
        match Call::parse(request)? {
            Call::Models => Ok(Answer::Json(self.describe())),
            Call::Run(request) => self.run(request, cancel).map(Answer::Json),
            Call::Running => Ok(Answer::Json(self.running())),
            Call::View { run, view } => {
                let made = view.answer(&self.cached(&run, view)?.view(cancel));
                self.runs.trim();
                made
            }
            Call::Text { hash } => self.text(&hash).map(Answer::Json),
            Call::Edits(request) => self.edits(&request).map(Answer::Json),
            Call::Operation(request) => self.operate(&self.operation(request)?, cancel, send).map(Answer::Json),
            Call::Sweep(request) => sweep(&request).map(Answer::Json),
            Call::Expectation(request) => expectation(&request).map(Answer::Json),
        }
    }

    /// All models.
    pub(crate) fn describe(&self) -> Value {
        let models: Vec<Value> = self.models().iter().enumerate().map(|(number, model)| views::model(number, model)).collect();
        json!({ "version": env!("CARGO_PKG_VERSION"), "models": models })
    }

    /// The cached run of a request, if there is one.
    pub(crate) fn find(&self, request: &RunRequest) -> ApiResult<Option<Arc<CachedRun>>> {
        Ok(self.runs.get(&self.run_of(request)?.name(request.model)))
    }

    fn run_of(&self, request: &RunRequest) -> ApiResult<RunOf> {
        let RunRequest { model, text, edits, source, part } = request;
        let model = self.model(*model)?;
        // Edits are of the decoder.
        let edits = if *part == Attending::Encoder { Edits::default() } else { views::edits(&model, edits)?.0 };
        if model.encoder().is_none() && (*part != Attending::Decoder || !source.is_empty()) {
            return Err(ApiError::unprocessable(format!("{} has no encoder; leave source and part out", model.family())));
        }
        Ok(RunOf { text: text.clone(), edits, source: source.clone(), part: *part })
    }

    /// Runs a text, or finds its run in the cache.
    pub(crate) fn run(&self, request: RunRequest, cancel: &Cancel) -> ApiResult<Value> {
        let cached = match self.find(&request)? {
            Some(cached) => cached,
            None => {
                let (number, of) = (request.model, self.run_of(&request)?);
                let under_way = |run| self.runs.set_under_way(Some(run));
                let made = CachedRun::make(number, &self.model(number)?, of, self.runs.limits, cancel, under_way);
                // Inserted before it is forgotten as under way: it is found at any time.
                let cached = made.map(|run| self.runs.insert(run));
                self.runs.set_under_way(None);
                cached?
            }
        };
        views::summary(&cached.view(cancel))
    }

    /// A run by its name; one that is under way for views of heads whose layer is done.
    pub(crate) fn cached(&self, id: &str, view: ViewRequest) -> ApiResult<Arc<CachedRun>> {
        let gone = || ApiError(ApiError::GONE, "the run is no longer cached; run the text again".to_owned());
        let partial = || self.runs.under_way().filter(|run| run.id == id && view.layer_of_heads().is_some_and(|layer| layer < run.layers));
        self.runs.get(id).or_else(partial).ok_or_else(gone)
    }

    /// How far the run is that is under way; null without one.
    pub(crate) fn running(&self) -> Value {
        let far = |run: Arc<CachedRun>| {
            let (text, edits) = (crate::run_cache::hash(&[run.of.text.as_bytes()]), run.of.edits.canonical());
            let (tokens, all) = (run.ids.len(), run.model.shape().layers);
            json!({ "run": run.id, "model": run.number, "text": text, "edits": edits, "tokens": tokens, "done": run.layers, "all": all })
        };
        self.runs.under_way().map_or(Value::Null, far)
    }

    pub(crate) fn text(&self, hash: &str) -> ApiResult<Value> {
        let gone = || ApiError(ApiError::GONE, "the text is no longer cached".to_owned());
        self.runs.text(hash).map(|text| json!({ "text": text })).ok_or_else(gone)
    }

    pub(crate) fn edits(&self, request: &EditsRequest) -> ApiResult<Value> {
        views::edits(&self.model(request.model)?, &request.edits).map(|(_, said)| said)
    }

    /// Checks an operation before its events begin.
    pub(crate) fn operation(&self, request: OperationRequest) -> ApiResult<Operation> {
        let (model, edits) = match &request {
            OperationRequest::Labels(request) => (request.model, ""),
            OperationRequest::Examples(request) => (request.model, ""),
            OperationRequest::Surgery(request) => (request.model, request.edits.as_str()),
            OperationRequest::Generate(request) => (request.model, request.edits.as_str()),
        };
        let model = self.model(model)?;
        let edits = views::edits(&model, edits)?.0;
        match &request {
            OperationRequest::Surgery(SurgeryRequest { texts, tokens, .. })
                if !(1..=TEXTS).contains(texts) || !(2..=TOKENS).contains(tokens) =>
            {
                Err(ApiError::unprocessable(format!(
                    "too many or too few texts or tokens: {texts} x {tokens}; use 1 to {TEXTS} texts of 2 to {TOKENS} tokens"
                )))
            }
            OperationRequest::Generate(GenerateRequest { count, .. }) if *count > GENERATED => {
                Err(ApiError::unprocessable(format!("too many tokens: {count}; use at most {GENERATED}")))
            }
            _ => Ok(Operation { model, edits, request }),
        }
    }

    /// Performs an operation; its last event.
    pub(crate) fn operate(&self, operation: &Operation, cancel: &Cancel, send: &dyn Fn(Value) -> bool) -> ApiResult<Value> {
        let Operation { model, edits, request } = operation;
        let model = model.with_cancel(cancel);
        let progress = |done: usize, all: usize| send(json!({ "done": done, "all": all }));
        match request {
            OperationRequest::Labels(_) => {
                let heads = model.classify(&model.own_texts(sixteen(), short())?, progress)?;
                Ok(json!({ "heads": heads }))
            }
            OperationRequest::Examples(ExamplesRequest { layer, head, text, .. }) => {
                let texts = match text {
                    Some(text) => model.passages(text, short(), TEXTS)?,
                    None => model.own_stories(sixteen(), short())?,
                };
                let found = model.unusual(&texts, [*layer, *head], EXAMPLES, progress)?;
                views::examples(&model, &texts, &found)
            }
            OperationRequest::Surgery(SurgeryRequest { texts, tokens, .. }) => {
                let outcome = model.surgery(&model.own_texts(*texts, *tokens)?, edits, &model.sources_of(edits)?, progress)?;
                Ok(json!({ "outcome": outcome }))
            }
            OperationRequest::Generate(GenerateRequest { text, count, source, temperature, seed, .. }) => {
                let model = reading(&model, source, self.runs.limits)?;
                let ids = ids_within(&model, text, self.runs.limits)?;
                let sampling = Sampling { temperature: *temperature, seed: *seed, ..Sampling::default() };
                let mut written = Vec::new();
                let options = Generation { sampling, ..Generation::greedy(*count) };
                model.generate(&ids, &options, edits, &model.sources_of(edits)?, |id| {
                    written.push(id);
                    let text = model.tokenizer().and_then(|tokenizer| tokenizer.decode(&written)).unwrap_or_default();
                    send(json!({ "id": id, "piece": model.piece(id), "text": text }))
                })?;
                Ok(json!({ "end": true }))
            }
        }
    }
}

/// The laboratory's sweep at one d_k, small enough for a slider.
pub(crate) fn sweep(request: &SweepRequest) -> ApiResult<Value> {
    let &SweepRequest { d_k, seq, seeds, seed } = request;
    if d_k > 4096 || seq > 64 || seeds > 2000 {
        return Err(ApiError::unprocessable("too large for the page: use d_k up to 4096, 64 tokens and 2000 draws, or `regard lab sweep`"));
    }
    let config = SweepConfig { d_k: vec![d_k], seq, seeds, seed, numbers: Numbers::Regard, loss: Loss::Unit };
    let tables = config.run(&Unwatched)?;
    Ok(Value::Array(tables.iter().map(regard_lab::Table::to_json).collect()))
}

/// Exact expectations of a row over random queries and keys, whose scores are multiplied by `scale`.
pub(crate) fn expectation(request: &ExpectationRequest) -> ApiResult<Value> {
    let &ExpectationRequest { d_k, seq, scale } = request;
    if !(1..=4096).contains(&d_k) || !(1..=64).contains(&seq) || !(0.0..=1.0).contains(&scale) {
        return Err(ApiError::unprocessable("outside of the page's range: use d_k up to 4096, 64 tokens and a scale from 0 to 1"));
    }
    Ok(views::expectation(d_k, seq, scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(target: &str, body: Option<&[u8]>) -> u16 {
        Call::parse(&Request { target, body }).err().map_or(200, |error| error.0)
    }

    #[test]
    fn requests_parse_or_have_a_status() {
        assert_eq!(status("/api/models", None), 200);
        assert_eq!(status("/api/run/ab/tile?layer=0&head=1&row=0&rows=2&key=0&keys=2&step=1&pool=max", None), 200);
        assert_eq!(status("/api/run", Some(br#"{"model": 0, "text": "a"}"#)), 200);
        for (target, body, expected) in [
            ("/api/nothing", None, 404),
            ("/", None, 404),
            ("/api/run/ab/nothing?layer=0", None, 404),
            ("/api/models", Some(&b"{}"[..]), 405),
            ("/api/run", None, 405),
            ("/api/run/ab/heads?layer=0", Some(b"{}"), 405),
            ("/api/run/ab/heads", None, 400),
            ("/api/run/ab/heads?layer=-1", None, 400),
            ("/api/run", Some(br#"{"model": 0, "text": "a", "more": 1}"#), 400),
            ("/api/run", Some(b"{"), 400),
        ] {
            assert_eq!(status(target, body), expected, "{target}");
        }
    }

    #[test]
    fn answers_without_a_server() {
        let api = Api::new(vec![Model::built_in().expect("it is in the crate")]);
        let ask = |target: &str, body: Option<Value>| {
            let body = body.map(|body| body.to_string());
            api.answer(&Request { target, body: body.as_deref().map(str::as_bytes) }, &Cancel::new(), &|_| true)
        };
        let Ok(Answer::Json(run)) = ask("/api/run", Some(json!({ "model": 0, "text": "Leo and Ben went" }))) else { panic!("a run") };
        let name = run["run"].as_str().expect("a name");
        let Ok(Answer::Floats(cells)) = ask(&format!("/api/run/{name}/thumbnails?layer=0"), None) else { panic!("cells") };
        let n = run["tokens"].as_array().map_or(0, Vec::len);
        assert_eq!(cells.len(), 4 * n * n, "four heads, a cell per pair");
        assert_eq!(ask("/api/run/0000000000000000/heads?layer=0", None).err().map(|error| error.0), Some(410));
        let many = json!({ "model": 0, "text": "a", "count": 100_000 });
        assert_eq!(ask("/api/generate", Some(many)).err().map(|error| error.0), Some(422));
    }
}
