//! The requests of [`crate::api`] over HTTP: how many are computed at a time, what is cancelled, and the files of the page.
//!
//! Events are server-sent events.

use crate::api::{self, Answer, Api, ApiError, ApiResult, Call, Request, RunRequest, ViewRequest};
use crate::auth::{self, Auth};
use crate::latest::LatestOnly;
use crate::page;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use regard_model::{Cancel, Model};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Views computed at a time, and in all.
const COMPUTED: usize = 2;
const QUEUE_LEN: usize = 64;
/// A run that takes longer is cancelled.
const RUN_TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Clone)]
struct Shared(Arc<Inner>);

struct Inner {
    api: Api,
    latest: LatestOnly,
    /// Surgery, labels and generation have a slot of their own: typing goes on beside them.
    operations: LatestOnly,
    computed: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    /// Threads of views. Among those of a run each of their loops would wait until a layer is done.
    threads: Option<rayon::ThreadPool>,
}

impl Inner {
    fn beside_runs<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.threads {
            Some(threads) => threads.install(work),
            None => work(),
        }
    }
}

pub(crate) fn router(models: Vec<Model>, auth: Arc<Auth>) -> Router {
    let shared = Shared(Arc::new(Inner {
        api: Api::new(models),
        latest: LatestOnly::new(),
        operations: LatestOnly::new(),
        computed: Arc::new(Semaphore::new(COMPUTED)),
        waiting: Arc::new(Semaphore::new(QUEUE_LEN)),
        threads: rayon::ThreadPoolBuilder::new().thread_name(|i| format!("view-{i}")).build().ok(),
    }));
    let mut router = Router::new()
        .route("/", get(async || ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], page::content("index.html", page::INDEX))))
        .fallback(answer);
    for file in page::FILES {
        let answer = async || ([(header::CONTENT_TYPE, format!("{}; charset=utf-8", file.kind))], page::content(file.name, file.content));
        router = router.route(&format!("/{}", file.name), get(answer));
    }
    router
        .method_not_allowed_fallback(async || ApiError(ApiError::METHOD_NOT_ALLOWED, "method not allowed".to_owned()))
        .layer(axum::middleware::from_fn_with_state(auth, auth::guard))
        .with_state(shared)
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(self.json())).into_response()
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let (kind, bytes) = self.body();
        ([(header::CONTENT_TYPE, kind)], bytes).into_response()
    }
}

async fn answer(State(shared): State<Shared>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> ApiResult<Response> {
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    let api = &shared.0.api;
    match Call::parse(&Request { target, body: (method == Method::POST).then_some(&*body) })? {
        Call::Models => Ok(Json(api.describe()).into_response()),
        Call::Run(request) => shared.run(request).await.map(|summary| Json(summary).into_response()),
        Call::Running => Ok(Json(api.running()).into_response()),
        Call::View { run, view } => shared.view(&run, &headers, view).await,
        Call::Text { hash } => api.text(&hash).map(|text| Json(text).into_response()),
        Call::Edits(request) => api.edits(&request).map(|said| Json(said).into_response()),
        Call::Operation(request) => {
            let operation = api.operation(request)?;
            let permit = shared.0.operations.acquire().await.ok_or_else(superseded)?;
            Ok(events(move |cancel, send| {
                let last = shared.0.api.operate(&operation, cancel, send);
                drop(permit);
                last
            }))
        }
        Call::Sweep(request) => {
            let stopping = |_| ApiError::unprocessable("the server is stopping");
            let permit = shared.0.computed.clone().acquire_owned().await.map_err(stopping)?;
            let tables = computed(move || {
                let tables = api::sweep(&request);
                drop(permit);
                tables
            });
            tables.await.map(|tables| Json(tables).into_response())
        }
        Call::Expectation(request) => computed(move || api::expectation(&request)).await.map(|found| Json(found).into_response()),
    }
}

impl Shared {
    async fn run(self, request: RunRequest) -> ApiResult<Value> {
        let cancel = CancelOnDrop::default();
        let token = cancel.0.clone();
        if self.0.api.find(&request)?.is_some() {
            return computed(move || self.0.api.run(request, &token)).await;
        }
        let permit = self.0.latest.acquire().await.ok_or_else(superseded)?;
        let work = computed(move || {
            let summary = self.0.api.run(request, &token);
            drop(permit);
            summary
        });
        let timed_out = |_| ApiError::unprocessable(format!("the run took more than {} s; use a shorter text", RUN_TIMEOUT.as_secs()));
        tokio::time::timeout(RUN_TIMEOUT, work).await.map_err(timed_out)?
    }

    /// Computes a view of a run; the ETag spares the page a second transfer of the same view. The work ends when the client disconnects.
    async fn view(self, id: &str, headers: &HeaderMap, view: ViewRequest) -> ApiResult<Response> {
        let cached = self.0.api.cached(id, view)?;
        let tag = format!("\"{}\"", crate::run_cache::hash(&[id.as_bytes(), format!("{view:?}").as_bytes()]));
        if headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
            return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response());
        }
        let busy = || ApiError(StatusCode::SERVICE_UNAVAILABLE.as_u16(), "too many requests; try again".to_owned());
        let waiting = self.0.waiting.clone().try_acquire_owned().map_err(|_| busy())?;
        let permit = self.0.computed.clone().acquire_owned().await.map_err(|_| busy())?;
        let cancel = CancelOnDrop::default();
        let token = cancel.0.clone();
        let made = computed(move || {
            let made = self.0.beside_runs(|| view.answer(&cached.view(&token)));
            self.0.api.runs.trim();
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
    let defect = || ApiError(StatusCode::INTERNAL_SERVER_ERROR.as_u16(), DEFECT.to_owned());
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(defect()))
}

/// Message for a panic.
const DEFECT: &str = "a defect of regard: the computation panicked";

/// The error of a request that a newer one replaced.
fn superseded() -> ApiError {
    ApiError(StatusCode::CONFLICT.as_u16(), "superseded by a newer request".to_owned())
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
            Ok(Err(error)) => send(error.json()),
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
