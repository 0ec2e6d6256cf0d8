//! The page of regard in a browser tab: a request in, an answer out, by the code of the server.
//!
//! ```text
//! answer      any request of the page; two of the tab's own: POST /api/open {path, name}, GET /api/hash
//! boundary    the C ABI of the module (wasm only)
//! hash        results of attention, to compare machines (wasm only)
//! ```

#[cfg(target_family = "wasm")]
mod boundary;
#[cfg(target_family = "wasm")]
mod hash;

use regard_model::{Cancel, Model};
use regard_web::api::{Answer, Api, ApiError, ApiResult, Request};
use serde_json::{Value, json};
use std::sync::OnceLock;

/// The models and runs of this tab.
fn api() -> ApiResult<&'static Api> {
    static API: OnceLock<Result<Api, String>> = OnceLock::new();
    let made = API.get_or_init(|| Model::built_in().map(|model| Api::new(vec![model])).map_err(|error| error.to_string()));
    made.as_ref().map_err(|reason| ApiError(500, reason.clone()))
}

/// Adds a model of files that were handed over; its number.
fn open(body: &[u8]) -> ApiResult<Value> {
    let body: Value = serde_json::from_slice(body).map_err(|error| ApiError(ApiError::BAD_REQUEST, error.to_string()))?;
    let path = body["path"].as_str().ok_or_else(|| ApiError(ApiError::BAD_REQUEST, "no path".to_owned()))?;
    let model = Model::load(path)?;
    Ok(json!({ "number": api()?.add(model) }))
}

/// Answers a request: `METHOD TARGET`, a line break, and the body of a POST.
///
/// # Errors
/// Status and message.
pub fn answer(request: &[u8], send: &dyn Fn(Value) -> bool) -> ApiResult<Answer> {
    let line = request.iter().position(|byte| *byte == b'\n').unwrap_or(request.len());
    let bad = || ApiError(ApiError::BAD_REQUEST, "not a request".to_owned());
    let (method, target) = std::str::from_utf8(&request[..line]).ok().and_then(|line| line.split_once(' ')).ok_or_else(bad)?;
    let body = (method == "POST").then(|| request.get(line + 1..).unwrap_or_default());
    match (target, body) {
        ("/api/open", Some(body)) => open(body).map(Answer::Json),
        #[cfg(target_family = "wasm")]
        ("/api/hash", None) => {
            let (hash, error) = hash::hash().map_err(|error| ApiError::unprocessable(error.to_string()))?;
            Ok(Answer::Json(json!([hash, error])))
        }
        _ => api()?.answer(&Request { target, body }, &Cancel::new(), send),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_a_line_and_a_body() {
        let ask = |request: &str| answer(request.as_bytes(), &|_| true);
        let Ok(Answer::Json(models)) = ask("GET /api/models\n") else { panic!("models") };
        assert_eq!(models["models"][0]["layers"], 3);
        let Ok(Answer::Json(run)) = ask("POST /api/run\n{\"model\": 0, \"text\": \"Leo\"}") else { panic!("a run") };
        assert!(run["tokens"].as_array().is_some_and(|tokens| !tokens.is_empty()));
        assert_eq!(ask("nothing").err().map(|error| error.0), Some(400));
        assert_eq!(ask("POST /api/open\n{\"path\": \"/no/such/model\"}").err().map(|error| error.0), Some(422));
    }
}
