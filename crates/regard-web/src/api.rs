//! What can be asked, by path. Models go by number, never by path; runs by what they are made of.
//!
//! ```text
//! GET  /api/models                                        what is loaded
//! POST /api/run        {model, text, edits}               tokens, losses, the name of the run
//! GET  /api/run/ID/heads?layer=                           means of each head
//! GET  /api/run/ID/thumbnails?layer=&pool=&sink=          f32, little-endian
//! GET  /api/run/ID/tile?layer=&head=&row=&rows=&key=&keys=&step=&pool=&sink=     f32, little-endian
//! GET  /api/run/ID/lens?row=                              predictions behind each layer
//! GET  /api/run/ID/neuron?layer=&head=&query=&key=        one pair, number by number
//! GET  /api/run/ID/steps?layer=&head=                     every step of a short text
//! GET  /api/text/HASH                                     a text that a link names
//! POST /api/labels     {model}                            server-sent events: progress, then what every head does
//! POST /api/edits      {model, edits}                     their one form, in words
//! POST /api/surgery    {model, edits, texts, tokens}      server-sent events: progress, then the outcome
//! POST /api/generate   {model, text, edits, count}        server-sent events: tokens
//! GET  /api/sweep?d_k=&seq=&seeds=&seed=                  the laboratory's sweep
//! ```

use crate::answers::{self, Answer, Look, Refusal, Tile};
use crate::door::{self, Door};
use crate::gate::Gate;
use crate::page;
use crate::runs::{Kept, Runs, name};
use axum::body::Body;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use regard_lab::experiments::sweep::SweepConfig;
use regard_lab::experiments::{Loss, Numbers, Unwatched};
use regard_model::{Edits, Input, Model};
use regard_nn::generate::Sampling;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Requests that look at runs: computed at a time, and in all.
const LOOKING: usize = 2;
const WAITING: usize = 64;
/// Tokens written by one request, texts and tokens of a surgery, at most.
const WRITTEN: usize = 1000;
const TEXTS: usize = 64;
const TOKENS: usize = 1024;

#[derive(Clone)]
struct Shared(Arc<Inner>);

struct Inner {
    models: Vec<Arc<Model>>,
    runs: Runs,
    gate: Gate,
    /// Surgery and writing have a gate of their own: typing goes on beside them.
    operations: Gate,
    looking: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

pub(crate) fn router(models: Vec<Model>, door: Arc<Door>) -> Router {
    let shared = Shared(Arc::new(Inner {
        models: models.into_iter().map(Arc::new).collect(),
        runs: Runs::default(),
        gate: Gate::new(),
        operations: Gate::new(),
        looking: Arc::new(Semaphore::new(LOOKING)),
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
        .fallback(async || Refusal(StatusCode::NOT_FOUND, "there is nothing of this name".to_owned()))
        .method_not_allowed_fallback(async || Refusal(StatusCode::METHOD_NOT_ALLOWED, "this is asked in another way".to_owned()))
        .layer(axum::middleware::from_fn_with_state(door, door::guard))
        .with_state(shared)
}

impl Shared {
    fn model(&self, number: usize) -> Answer<Arc<Model>> {
        let models = &self.0.models;
        models
            .get(number)
            .cloned()
            .ok_or_else(|| Refusal(StatusCode::NOT_FOUND, format!("there are {} models, counted from 0", models.len())))
    }

    /// Look at a run, on a thread for computing; the same thing asked twice is not sent twice.
    async fn look<R: IntoResponse + Send + 'static>(
        &self,
        id: &str,
        headers: &HeaderMap,
        what: impl std::fmt::Debug,
        answer: impl FnOnce(&Kept) -> Answer<R> + Send + 'static,
    ) -> Answer<Response> {
        let gone = || Refusal(StatusCode::GONE, "this run is no longer kept: run the text again".to_owned());
        let kept = self.0.runs.get(id).ok_or_else(gone)?;
        let tag = format!("\"{}\"", crate::runs::hash(&[id.as_bytes(), format!("{what:?}").as_bytes()]));
        if headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
            return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response());
        }
        let busy = |_| Refusal(StatusCode::SERVICE_UNAVAILABLE, "too many requests at a time".to_owned());
        let waiting = self.0.waiting.clone().try_acquire_owned().map_err(busy)?;
        let looking = self.0.looking.clone().acquire_owned().await.map_err(|_| gone())?;
        let made = computed(move || {
            let made = answer(&kept);
            drop((waiting, looking));
            made
        })
        .await?;
        Ok(([(header::ETAG, tag)], made).into_response())
    }
}

/// On a thread for computing. A panic is an answer, too.
async fn computed<R: Send + 'static>(work: impl FnOnce() -> Answer<R> + Send + 'static) -> Answer<R> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(Refusal(StatusCode::INTERNAL_SERVER_ERROR, "a defect of regard: this could not be computed".to_owned())))
}

/// Numbers as they lie in memory.
struct Numbered(Vec<f32>);

impl IntoResponse for Numbered {
    fn into_response(self) -> Response {
        let bytes: Vec<u8> = self.0.iter().flat_map(|x| x.to_le_bytes()).collect();
        ([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response()
    }
}

/// Arguments behind `?`, or the reason why not.
type Asked<T> = Result<Query<T>, QueryRejection>;
type Sent<T> = Result<Json<T>, JsonRejection>;

fn asked<T>(query: Asked<T>) -> Answer<T> {
    query.map(|Query(query)| query).map_err(|error| Refusal(StatusCode::BAD_REQUEST, error.body_text()))
}

fn sent<T>(json: Sent<T>) -> Answer<T> {
    json.map(|Json(json)| json).map_err(|error| Refusal(StatusCode::BAD_REQUEST, error.body_text()))
}

async fn models_loaded(State(shared): State<Shared>) -> Json<Value> {
    let models = shared.0.models.iter().enumerate().map(|(number, model)| answers::model(number, model));
    let begin = "Emma and David went to the market. Emma and David saw a red apple. Emma said, I like the red apple.";
    Json(json!({ "version": env!("CARGO_PKG_VERSION"), "models": models.collect::<Vec<_>>(), "begin": begin }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    model: usize,
    text: String,
    #[serde(default)]
    edits: String,
}

async fn run(State(shared): State<Shared>, json: Sent<Text>) -> Answer<Json<Value>> {
    let Text { model: number, text, edits } = sent(json)?;
    let model = shared.model(number)?;
    let edits = answers::edits(&model, &edits)?.0;
    if let Some(kept) = shared.0.runs.get(&name(number, &text, &edits)) {
        return computed(move || answers::summary(&kept)).await.map(Json);
    }
    let later = || Refusal(StatusCode::CONFLICT, "a later text came first".to_owned());
    let permit = shared.0.gate.enter().await.ok_or_else(later)?;
    computed(move || {
        let kept = shared.0.runs.keep(Kept::make(number, model, text, edits)?);
        drop(permit);
        answers::summary(&kept)
    })
    .await
    .map(Json)
}

#[derive(Deserialize)]
struct Layer {
    layer: usize,
}

async fn heads(State(shared): State<Shared>, Path(id): Path<String>, headers: HeaderMap, query: Asked<Layer>) -> Answer<Response> {
    let layer = asked(query)?.layer;
    shared.look(&id, &headers, ("heads", layer), move |kept| answers::heads(kept, layer).map(Json)).await
}

async fn thumbnails(
    State(shared): State<Shared>,
    Path(id): Path<String>,
    headers: HeaderMap,
    query: Asked<Layer>,
    look: Asked<Look>,
) -> Answer<Response> {
    let (layer, look) = (asked(query)?.layer, asked(look)?);
    shared.look(&id, &headers, ("thumbnails", layer, look), move |kept| answers::thumbnails(kept, layer, look).map(Numbered)).await
}

async fn tile(
    State(shared): State<Shared>,
    Path(id): Path<String>,
    headers: HeaderMap,
    query: Asked<Tile>,
    look: Asked<Look>,
) -> Answer<Response> {
    let (tile, look) = (asked(query)?, asked(look)?);
    shared.look(&id, &headers, ("tile", tile, look), move |kept| answers::tile(kept, tile, look).map(Numbered)).await
}

#[derive(Deserialize)]
struct Row {
    row: usize,
}

async fn lens(State(shared): State<Shared>, Path(id): Path<String>, headers: HeaderMap, query: Asked<Row>) -> Answer<Response> {
    let row = asked(query)?.row;
    shared.look(&id, &headers, ("lens", row), move |kept| answers::lens(kept, row).map(Json)).await
}

#[derive(Deserialize, Debug, Clone, Copy)]
struct Pair {
    layer: usize,
    head: usize,
    query: usize,
    key: usize,
}

async fn neuron(State(shared): State<Shared>, Path(id): Path<String>, headers: HeaderMap, query: Asked<Pair>) -> Answer<Response> {
    let pair = asked(query)?;
    let answer = move |kept: &Kept| answers::neuron(kept, pair.layer, pair.head, pair.query, pair.key).map(Json);
    shared.look(&id, &headers, ("neuron", pair), answer).await
}

#[derive(Deserialize, Debug, Clone, Copy)]
struct Head {
    layer: usize,
    head: usize,
}

async fn steps(State(shared): State<Shared>, Path(id): Path<String>, headers: HeaderMap, query: Asked<Head>) -> Answer<Response> {
    let at = asked(query)?;
    shared.look(&id, &headers, ("steps", at), move |kept| answers::steps(kept, at.layer, at.head).map(Json)).await
}

async fn text(State(shared): State<Shared>, Path(hash): Path<String>) -> Answer<Json<Value>> {
    let gone = || Refusal(StatusCode::GONE, "this text is no longer kept".to_owned());
    shared.0.runs.text(&hash).map(|text| Json(json!({ "text": text }))).ok_or_else(gone)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Operation {
    model: usize,
    #[serde(default)]
    edits: String,
}

async fn edits(State(shared): State<Shared>, json: Sent<Operation>) -> Answer<Json<Value>> {
    let operation = sent(json)?;
    let model = shared.model(operation.model)?;
    answers::edits(&model, &operation.edits).map(|(_, said)| Json(said))
}

/// Server-sent events from a thread for computing; the work hears when nobody listens any longer.
fn events(work: impl FnOnce(&dyn Fn(Value) -> bool) -> Answer<Value> + Send + 'static) -> Response {
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<String, std::convert::Infallible>>(64);
    tokio::task::spawn_blocking(move || {
        let send = |value: Value| sender.blocking_send(Ok(format!("data: {value}\n\n"))).is_ok();
        // A panic is an answer, too.
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&send))) {
            Ok(Ok(last)) => send(last),
            Ok(Err(Refusal(_, reason))) => send(json!({ "error": reason })),
            Err(_) => send(json!({ "error": "a defect of regard: this could not be computed" })),
        }
    });
    let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(stream)).into_response()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LabelsAsked {
    model: usize,
}

/// What every head does, over as many texts as the command takes.
async fn labels(State(shared): State<Shared>, json: Sent<LabelsAsked>) -> Answer<Response> {
    let model = shared.model(sent(json)?.model)?;
    let later = || Refusal(StatusCode::CONFLICT, "a later operation came first".to_owned());
    let permit = shared.0.operations.enter().await.ok_or_else(later)?;
    Ok(events(move |send| {
        let heads = model.classify(&model.own_texts(sixteen(), short())?, |done, all| send(json!({ "done": done, "all": all })))?;
        drop(permit);
        Ok(json!({ "heads": heads }))
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SurgeryAsked {
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

async fn surgery(State(shared): State<Shared>, json: Sent<SurgeryAsked>) -> Answer<Response> {
    let SurgeryAsked { model, edits, texts, tokens } = sent(json)?;
    let model = shared.model(model)?;
    let edits = answers::edits(&model, &edits)?.0;
    if !(1..=TEXTS).contains(&texts) || !(2..=TOKENS).contains(&tokens) {
        return Err(Refusal::unusable(format!("1 to {TEXTS} texts of 2 to {TOKENS} tokens can be judged")));
    }
    let later = || Refusal(StatusCode::CONFLICT, "a later operation came first".to_owned());
    let permit = shared.0.operations.enter().await.ok_or_else(later)?;
    Ok(events(move |send| {
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

async fn generate(State(shared): State<Shared>, json: Sent<Writing>) -> Answer<Response> {
    let Writing { model, text, edits, count, temperature, seed } = sent(json)?;
    let model = shared.model(model)?;
    let edits: Edits = answers::edits(&model, &edits)?.0;
    if count > WRITTEN {
        return Err(Refusal::unusable(format!("{WRITTEN} tokens at most are written at a time")));
    }
    let later = || Refusal(StatusCode::CONFLICT, "a later operation came first".to_owned());
    let permit = shared.0.operations.enter().await.ok_or_else(later)?;
    Ok(events(move |send| {
        let ids = model.ids(Input::Text(&text))?;
        let sampling = Sampling { temperature, seed, ..Sampling::default() };
        let mut written = Vec::new();
        model.generate(&ids, count, &edits, &model.sources_of(&edits)?, &sampling, |id| {
            written.push(id);
            let text = model.tokenizer().and_then(|tokenizer| tokenizer.decode(&written)).unwrap_or_default();
            send(json!({ "id": id, "piece": model.piece(id), "text": text }))
        })?;
        drop(permit);
        Ok(json!({ "end": true }))
    }))
}

#[derive(Deserialize)]
struct SweepAsked {
    d_k: usize,
    seq: usize,
    seeds: usize,
    seed: u64,
}

/// The laboratory's sweep at one d_k, small enough for a slider.
async fn sweep(State(shared): State<Shared>, query: Asked<SweepAsked>) -> Answer<Json<Value>> {
    let SweepAsked { d_k, seq, seeds, seed } = asked(query)?;
    if d_k > 4096 || seq > 64 || seeds > 2000 {
        return Err(Refusal::unusable("d_k up to 4096, 64 tokens and 2000 draws can be asked for here; `regard sweep` has no such bounds"));
    }
    let permit = shared.0.looking.clone().acquire_owned().await.map_err(|_| Refusal::unusable("the server is closing"))?;
    computed(move || {
        let config = SweepConfig { d_k: vec![d_k], seq, seeds, seed, numbers: Numbers::Regard, loss: Loss::Unit };
        let tables = config.run(&Unwatched)?;
        drop(permit);
        Ok(Json(Value::Array(tables.iter().map(regard_lab::Table::to_json).collect())))
    })
    .await
}
