//! Routes and handlers. Models are named by index, never by path; runs by a hash of model, text and edits.
//!
//! ```text
//! GET  /api/models                                        loaded models and example texts
//! POST /api/run        {model, text, edits}               tokens, losses, edits, the name of the run
//! GET  /api/run/ID/heads?layer=                           means of each head
//! GET  /api/run/ID/thumbnails?layer=&pool=&sink=          f32, little-endian
//! GET  /api/run/ID/tile?layer=&head=&row=&rows=&key=&keys=&step=&pool=&sink=     f32, little-endian
//! GET  /api/run/ID/lens?row=                              predictions after each layer
//! GET  /api/run/ID/neuron?layer=&head=&query=&key=        one pair of tokens, coordinate by coordinate
//! GET  /api/run/ID/steps?layer=&head=                     every step of a short text
//! GET  /api/text/HASH                                     a text by the hash in a link
//! POST /api/labels     {model}                            server-sent events: progress, then the labels of the heads
//! POST /api/edits      {model, edits}                     canonical form, explanation, controls
//! POST /api/surgery    {model, edits, texts, tokens}      server-sent events: progress, then the outcome
//! POST /api/generate   {model, text, edits, count}        server-sent events: tokens
//! GET  /api/sweep?d_k=&seq=&seeds=&seed=                  the laboratory's sweep
//! ```

use crate::auth::{self, Auth};
use crate::latest::LatestOnly;
use crate::page;
use crate::run_cache::{CachedRun, Limits, RunCache, View, ids_within, name};
use crate::views::{self, ApiError, ApiResult, Look, Tile};
use axum::body::Body;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use regard_lab::experiments::sweep::SweepConfig;
use regard_lab::experiments::{Loss, Numbers, Unwatched};
use regard_model::{Cancel, Edits, Generation, Model};
use regard_nn::generate::Sampling;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Views computed at a time, and in all.
const COMPUTED: usize = 2;
const WAITING: usize = 64;
/// A run that takes longer is cancelled.
const RUN_TIMEOUT: Duration = Duration::from_secs(60);
/// Limits of one request: tokens generated, texts and tokens of a surgery.
const GENERATED: usize = 1000;
const TEXTS: usize = 64;
const TOKENS: usize = 1024;

#[derive(Clone)]
struct Shared(Arc<Inner>);

struct Inner {
    models: Vec<Model>,
    runs: RunCache,
    latest: LatestOnly,
    /// Surgery, labels and generation have a slot of their own: typing goes on beside them.
    operations: LatestOnly,
    computed: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

pub(crate) fn router(models: Vec<Model>, auth: Arc<Auth>) -> Router {
    let shared = Shared(Arc::new(Inner {
        models,
        runs: RunCache::new(Limits::of_this_machine()),
        latest: LatestOnly::new(),
        operations: LatestOnly::new(),
        computed: Arc::new(Semaphore::new(COMPUTED)),
        waiting: Arc::new(Semaphore::new(WAITING)),
    }));
    let mut router = Router::new()
        .route("/", get(async || ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], page::INDEX)))
        .route("/api/models", get(models_loaded))
        .route("/api/run", post(run))
        .route("/api/run/{id}/heads", get(heads))
        .route("/api/run/{id}/thumbnails", get(thumbnails))
        .route("/api/run/{id}/tile", get(tile))
        .route("/api/run/{id}/lens", get(lens))
        .route("/api/run/{id}/neuron", get(neuron))
        .route("/api/run/{id}/steps", get(steps))
        .route("/api/text/{hash}", get(text))
        .route("/api/edits", post(edits))
        .route("/api/labels", post(labels))
        .route("/api/surgery", post(surgery))
        .route("/api/generate", post(generate))
        .route("/api/sweep", get(sweep));
    for file in page::FILES {
        let answer = ([(header::CONTENT_TYPE, format!("{}; charset=utf-8", file.kind))], file.content);
        router = router.route(&format!("/{}", file.name), get(async || answer));
    }
    router
        .fallback(async || ApiError(StatusCode::NOT_FOUND, "not found".to_owned()))
        .method_not_allowed_fallback(async || ApiError(StatusCode::METHOD_NOT_ALLOWED, "method not allowed".to_owned()))
        .layer(axum::middleware::from_fn_with_state(auth, auth::guard))
        .with_state(shared)
}

impl Shared {
    fn model(&self, number: usize) -> ApiResult<Model> {
        let models = &self.0.models;
        models
            .get(number)
            .cloned()
            .ok_or_else(|| ApiError(StatusCode::NOT_FOUND, format!("no model {number}; there are {}, counted from 0", models.len())))
    }

    /// Computes a view of a run; the ETag spares the page a second transfer of the same view. The work ends when the client disconnects.
    async fn look<R: IntoResponse + Send + 'static>(
        &self,
        id: &str,
        headers: &HeaderMap,
        what: impl std::fmt::Debug,
        view: impl FnOnce(&View<'_>) -> ApiResult<R> + Send + 'static,
    ) -> ApiResult<Response> {
        let gone = || ApiError(StatusCode::GONE, "the run is no longer cached; run the text again".to_owned());
        let cached = self.0.runs.get(id).ok_or_else(gone)?;
        let tag = format!("\"{}\"", crate::run_cache::hash(&[id.as_bytes(), format!("{what:?}").as_bytes()]));
        if headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
            return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response());
        }
        let busy = |_| ApiError(StatusCode::SERVICE_UNAVAILABLE, "too many requests; try again".to_owned());
        let waiting = self.0.waiting.clone().try_acquire_owned().map_err(busy)?;
        let permit = self.0.computed.clone().acquire_owned().await.map_err(|_| gone())?;
        let cancel = CancelOnDrop::default();
        let (shared, token) = (self.clone(), cancel.0.clone());
        let made = computed(move || {
            let made = view(&cached.view(&token));
            shared.0.runs.trim();
            drop((waiting, permit));
            made
        })
        .await?;
        Ok(([(header::ETAG, tag)], made).into_response())
    }
}

/// Cancels the work of a handler: a handler is dropped when its client disconnects.
#[derive(Default)]
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Runs on the blocking pool; a panic becomes a 500.
async fn computed<R: Send + 'static>(work: impl FnOnce() -> ApiResult<R> + Send + 'static) -> ApiResult<R> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(ApiError(StatusCode::INTERNAL_SERVER_ERROR, DEFECT.to_owned())))
}

/// Message for a panic.
const DEFECT: &str = "a defect of regard: the computation panicked";

/// The error of a request that a newer one replaced.
fn superseded() -> ApiError {
    ApiError(StatusCode::CONFLICT, "superseded by a newer request".to_owned())
}

/// Little-endian f32.
struct Floats(Vec<f32>);

impl IntoResponse for Floats {
    fn into_response(self) -> Response {
        let bytes: Vec<u8> = self.0.iter().flat_map(|x| x.to_le_bytes()).collect();
        ([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response()
    }
}

/// Query parameters and body, or the reason why they do not parse.
type Parameters<T> = Result<Query<T>, QueryRejection>;
type Sent<T> = Result<Json<T>, JsonRejection>;

fn parameters<T>(query: Parameters<T>) -> ApiResult<T> {
    query.map(|Query(query)| query).map_err(|error| ApiError(StatusCode::BAD_REQUEST, error.body_text()))
}

fn body<T>(json: Sent<T>) -> ApiResult<T> {
    json.map(|Json(json)| json).map_err(|error| ApiError(StatusCode::BAD_REQUEST, error.body_text()))
}

async fn models_loaded(State(shared): State<Shared>) -> Json<Value> {
    let models = shared.0.models.iter().enumerate().map(|(number, model)| views::model(number, model));
    Json(json!({ "version": env!("CARGO_PKG_VERSION"), "models": models.collect::<Vec<_>>() }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    model: usize,
    text: String,
    #[serde(default)]
    edits: String,
}

async fn run(State(shared): State<Shared>, json: Sent<Text>) -> ApiResult<Json<Value>> {
    let Text { model: number, text, edits } = body(json)?;
    let model = shared.model(number)?;
    let edits = views::edits(&model, &edits)?.0;
    let cancel = CancelOnDrop::default();
    let token = cancel.0.clone();
    if let Some(cached) = shared.0.runs.get(&name(number, &text, &edits)) {
        return computed(move || views::summary(&cached.view(&token))).await.map(Json);
    }
    let permit = shared.0.latest.acquire().await.ok_or_else(superseded)?;
    let work = computed(move || {
        let made = CachedRun::make(number, &model, text, edits, shared.0.runs.limits, &token);
        drop(permit);
        views::summary(&shared.0.runs.insert(made?).view(&token))
    });
    let timed_out = |_| ApiError::unprocessable(format!("the run took more than {} s; use a shorter text", RUN_TIMEOUT.as_secs()));
    tokio::time::timeout(RUN_TIMEOUT, work).await.map_err(timed_out)?.map(Json)
}

#[derive(Deserialize)]
struct Layer {
    layer: usize,
}

async fn heads(State(shared): State<Shared>, Path(id): Path<String>, headers: HeaderMap, query: Parameters<Layer>) -> ApiResult<Response> {
    let layer = parameters(query)?.layer;
    shared.look(&id, &headers, ("heads", layer), move |run| views::heads(run, layer).map(Json)).await
}

async fn thumbnails(
    State(shared): State<Shared>,
    Path(id): Path<String>,
    headers: HeaderMap,
    query: Parameters<Layer>,
    look: Parameters<Look>,
) -> ApiResult<Response> {
    let (layer, look) = (parameters(query)?.layer, parameters(look)?);
    shared.look(&id, &headers, ("thumbnails", layer, look), move |run| views::thumbnails(run, layer, look).map(Floats)).await
}

async fn tile(
    State(shared): State<Shared>,
    Path(id): Path<String>,
    headers: HeaderMap,
    query: Parameters<Tile>,
    look: Parameters<Look>,
) -> ApiResult<Response> {
    let (tile, look) = (parameters(query)?, parameters(look)?);
    shared.look(&id, &headers, ("tile", tile, look), move |run| views::tile(run, tile, look).map(Floats)).await
}

#[derive(Deserialize)]
struct Row {
    row: usize,
}

async fn lens(State(shared): State<Shared>, Path(id): Path<String>, headers: HeaderMap, query: Parameters<Row>) -> ApiResult<Response> {
    let row = parameters(query)?.row;
    shared.look(&id, &headers, ("lens", row), move |run| views::lens(run, row).map(Json)).await
}

#[derive(Deserialize, Debug, Clone, Copy)]
struct Pair {
    layer: usize,
    head: usize,
    query: usize,
    key: usize,
}

async fn neuron(State(shared): State<Shared>, Path(id): Path<String>, headers: HeaderMap, query: Parameters<Pair>) -> ApiResult<Response> {
    let pair = parameters(query)?;
    let answer = move |run: &View<'_>| views::neuron(run, pair.layer, pair.head, pair.query, pair.key).map(Json);
    shared.look(&id, &headers, ("neuron", pair), answer).await
}

#[derive(Deserialize, Debug, Clone, Copy)]
struct Head {
    layer: usize,
    head: usize,
}

async fn steps(State(shared): State<Shared>, Path(id): Path<String>, headers: HeaderMap, query: Parameters<Head>) -> ApiResult<Response> {
    let at = parameters(query)?;
    shared.look(&id, &headers, ("steps", at), move |run| views::steps(run, at.layer, at.head).map(Json)).await
}

async fn text(State(shared): State<Shared>, Path(hash): Path<String>) -> ApiResult<Json<Value>> {
    let gone = || ApiError(StatusCode::GONE, "the text is no longer cached".to_owned());
    shared.0.runs.text(&hash).map(|text| Json(json!({ "text": text }))).ok_or_else(gone)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Operation {
    model: usize,
    #[serde(default)]
    edits: String,
}

async fn edits(State(shared): State<Shared>, json: Sent<Operation>) -> ApiResult<Json<Value>> {
    let operation = body(json)?;
    let model = shared.model(operation.model)?;
    views::edits(&model, &operation.edits).map(|(_, said)| Json(said))
}

/// Server-sent events of work on the blocking pool. Sending fails, and `cancel` is set, when the client disconnects.
fn events(work: impl FnOnce(&Cancel, &dyn Fn(Value) -> bool) -> ApiResult<Value> + Send + 'static) -> Response {
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<String, std::convert::Infallible>>(64);
    let cancel = CancelOnDrop::default();
    let token = cancel.0.clone();
    tokio::task::spawn_blocking(move || {
        let send = |value: Value| sender.blocking_send(Ok(format!("data: {value}\n\n"))).is_ok();
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&token, &send))) {
            Ok(Ok(last)) => send(last),
            Ok(Err(ApiError(_, reason))) => send(json!({ "error": reason })),
            Err(_) => send(json!({ "error": DEFECT })),
        }
    });
    // The stream owns the guard: both are dropped with the connection.
    let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let stream = tokio_stream::StreamExt::map(stream, move |event| {
        let _ = &cancel;
        event
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(stream)).into_response()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LabelsRequest {
    model: usize,
}

/// Labels of all heads, over the same texts as `regard classify`.
async fn labels(State(shared): State<Shared>, json: Sent<LabelsRequest>) -> ApiResult<Response> {
    let model = shared.model(body(json)?.model)?;
    let permit = shared.0.operations.acquire().await.ok_or_else(superseded)?;
    Ok(events(move |cancel, send| {
        let model = model.with_cancel(cancel);
        let heads = model.classify(&model.own_texts(sixteen(), short())?, |done, all| send(json!({ "done": done, "all": all })))?;
        drop(permit);
        Ok(json!({ "heads": heads }))
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SurgeryRequest {
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

async fn surgery(State(shared): State<Shared>, json: Sent<SurgeryRequest>) -> ApiResult<Response> {
    let SurgeryRequest { model, edits, texts, tokens } = body(json)?;
    let model = shared.model(model)?;
    let edits = views::edits(&model, &edits)?.0;
    if !(1..=TEXTS).contains(&texts) || !(2..=TOKENS).contains(&tokens) {
        return Err(ApiError::unprocessable(format!(
            "too many or too few texts or tokens: {texts} x {tokens}; use 1 to {TEXTS} texts of 2 to {TOKENS} tokens"
        )));
    }
    let permit = shared.0.operations.acquire().await.ok_or_else(superseded)?;
    Ok(events(move |cancel, send| {
        let model = model.with_cancel(cancel);
        let texts = model.own_texts(texts, tokens)?;
        let outcome = model.surgery(&texts, &edits, &model.sources_of(&edits)?, |done, all| send(json!({ "done": done, "all": all })))?;
        drop(permit);
        Ok(json!({ "outcome": outcome }))
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Writing {
    model: usize,
    text: String,
    #[serde(default)]
    edits: String,
    count: usize,
    #[serde(default)]
    temperature: f64,
    #[serde(default)]
    seed: u64,
}

async fn generate(State(shared): State<Shared>, json: Sent<Writing>) -> ApiResult<Response> {
    let Writing { model, text, edits, count, temperature, seed } = body(json)?;
    let model = shared.model(model)?;
    let edits: Edits = views::edits(&model, &edits)?.0;
    if count > GENERATED {
        return Err(ApiError::unprocessable(format!("too many tokens: {count}; use at most {GENERATED}")));
    }
    let permit = shared.0.operations.acquire().await.ok_or_else(superseded)?;
    Ok(events(move |cancel, send| {
        let model = model.with_cancel(cancel);
        let ids = ids_within(&model, &text, shared.0.runs.limits)?;
        let sampling = Sampling { temperature, seed, ..Sampling::default() };
        let mut written = Vec::new();
        let options = Generation { tokens: count, sampling, cached: true };
        model.generate(&ids, &options, &edits, &model.sources_of(&edits)?, |id| {
            written.push(id);
            let text = model.tokenizer().and_then(|tokenizer| tokenizer.decode(&written)).unwrap_or_default();
            send(json!({ "id": id, "piece": model.piece(id), "text": text }))
        })?;
        drop(permit);
        Ok(json!({ "end": true }))
    }))
}

#[derive(Deserialize)]
struct SweepRequest {
    d_k: usize,
    seq: usize,
    seeds: usize,
    seed: u64,
}

/// The laboratory's sweep at one d_k, small enough for a slider.
async fn sweep(State(shared): State<Shared>, query: Parameters<SweepRequest>) -> ApiResult<Json<Value>> {
    let SweepRequest { d_k, seq, seeds, seed } = parameters(query)?;
    if d_k > 4096 || seq > 64 || seeds > 2000 {
        return Err(ApiError::unprocessable("too large for the page: use d_k up to 4096, 64 tokens and 2000 draws, or `regard lab sweep`"));
    }
    let permit = shared.0.computed.clone().acquire_owned().await.map_err(|_| ApiError::unprocessable("the server is stopping"))?;
    computed(move || {
        let config = SweepConfig { d_k: vec![d_k], seq, seeds, seed, numbers: Numbers::Regard, loss: Loss::Unit };
        let tables = config.run(&Unwatched)?;
        drop(permit);
        Ok(Json(Value::Array(tables.iter().map(regard_lab::Table::to_json).collect())))
    })
    .await
}
