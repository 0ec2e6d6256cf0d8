//! Who may come in. A server on this machine can be reached by every page in the browser and by every program of every user: what is asked here is asked
//! before anything else.
//!
//! ```text
//! Host            127.0.0.1, localhost or [::1], with our port       else 403: a foreign name that points here (rebinding)
//! Origin          where sent, one of the same                        else 403: another page
//! Sec-Fetch-Site  not cross-site, not same-site                      else 403: another page
//! x-regard-token  of every call to /api                              else 401: it is printed on the terminal, and never in a link
//! body            1 MiB, within ten seconds                          else 413, 408
//! ```

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a request's body, at most.
pub(crate) const BODY: usize = 1 << 20;
/// How long a client may take to send a request, or to take an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The name of the header with the token.
const TOKEN: &str = "x-regard-token";

/// What is asked of everybody.
#[derive(Debug)]
pub(crate) struct Door {
    hosts: [String; 3],
    token: String,
}

/// 128 random bits in letters.
fn new_token() -> std::io::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| std::io::Error::other(e.to_string()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The same time whether the first letter differs or the last.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// Headers that every answer has: nothing from elsewhere, nothing to elsewhere, in nobody's frame.
const PROMISES: [(header::HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::CACHE_CONTROL, "no-cache"),
];

impl Door {
    pub(crate) fn new(port: u16) -> std::io::Result<Self> {
        Ok(Self { hosts: ["127.0.0.1", "localhost", "[::1]"].map(|name| format!("{name}:{port}")), token: new_token()? })
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    fn refuses(&self, method: &Method, path: &str, headers: &HeaderMap) -> Option<(StatusCode, &'static str)> {
        let one = |name: &str| {
            let mut values = headers.get_all(name).iter();
            (values.next(), values.next().is_some())
        };
        let known = |value: &HeaderValue, before: &str| {
            value.to_str().ok().and_then(|value| value.strip_prefix(before)).is_some_and(|host| self.hosts.iter().any(|own| own == host))
        };
        match one("host") {
            (Some(host), false) if known(host, "") => {}
            _ => return Some((StatusCode::FORBIDDEN, "this server answers to 127.0.0.1 and localhost only")),
        }
        if let (Some(origin), more) = one("origin")
            && (more || !known(origin, "http://"))
        {
            return Some((StatusCode::FORBIDDEN, "another page has no business here"));
        }
        if let (Some(site), more) = one("sec-fetch-site")
            && (more || !matches!(site.as_bytes(), b"same-origin" | b"none"))
        {
            return Some((StatusCode::FORBIDDEN, "another page has no business here"));
        }
        if path.starts_with("/api/") {
            match one(TOKEN) {
                (Some(token), false) if same(token.as_bytes(), self.token.as_bytes()) => {}
                _ => return Some((StatusCode::UNAUTHORIZED, "the token is missing or not the one that `regard serve` printed")),
            }
        }
        if *method == Method::POST {
            let json = headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
            return (!json).then_some((StatusCode::UNSUPPORTED_MEDIA_TYPE, "a request has JSON in it"));
        }
        (!matches!(*method, Method::GET | Method::HEAD)).then_some((StatusCode::METHOD_NOT_ALLOWED, "GET, HEAD and POST are understood"))
    }
}

/// The whole body, if it is small and comes in time.
async fn received(request: Request) -> Result<Request, (StatusCode, &'static str)> {
    let (parts, body) = request.into_parts();
    match tokio::time::timeout(PATIENCE, to_bytes(body, BODY)).await {
        Ok(Ok(bytes)) => Ok(Request::from_parts(parts, Body::from(bytes))),
        Ok(Err(_)) => Err((StatusCode::PAYLOAD_TOO_LARGE, "a request has 1 MiB at most")),
        Err(_) => Err((StatusCode::REQUEST_TIMEOUT, "the request took more than ten seconds to arrive")),
    }
}

/// In front of everything.
pub(crate) async fn guard(State(door): State<Arc<Door>>, request: Request, next: Next) -> Response {
    let answer = match door.refuses(request.method(), request.uri().path(), request.headers()) {
        Some(refusal) => Err(refusal),
        None => received(request).await,
    };
    let mut response = match answer {
        Ok(request) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    for (name, value) in PROMISES {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: &Method, path: &str, headers: &[(&'static str, &str)]) -> Option<u16> {
        let door = Door { hosts: ["127.0.0.1:80", "localhost:80", "[::1]:80"].map(str::to_owned), token: "secret".to_owned() };
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().expect("a header"));
        }
        door.refuses(method, path, &map).map(|(status, _)| status.as_u16())
    }

    #[test]
    fn strangers_stay_outside() {
        let (get, host, token) = (Method::GET, ("host", "127.0.0.1:80"), ("x-regard-token", "secret"));
        assert_eq!(asked(&get, "/", &[host]), None);
        assert_eq!(asked(&get, "/api/models", &[host, token]), None);
        assert_eq!(asked(&get, "/", &[("host", "localhost:80"), ("origin", "http://localhost:80"), ("sec-fetch-site", "none")]), None);
        for headers in [
            &[][..],
            &[("host", "evil.example:80")],
            &[("host", "127.0.0.1:81")],
            &[("host", "127.0.0.1")],
            &[host, ("host", "evil.example")],
            &[host, ("origin", "http://evil.example")],
            &[host, ("origin", "null")],
            &[host, ("origin", "https://127.0.0.1:80")],
            &[host, ("sec-fetch-site", "cross-site")],
            &[host, ("sec-fetch-site", "same-site")],
        ] {
            assert_eq!(asked(&get, "/", headers), Some(403), "{headers:?}");
        }
        for headers in [&[host][..], &[host, ("x-regard-token", "secreT")], &[host, token, token], &[host, ("x-regard-token", "")]] {
            assert_eq!(asked(&get, "/api/models", headers), Some(401), "{headers:?}");
        }
        assert_eq!(asked(&Method::POST, "/api/run", &[host, token]), Some(415));
        assert_eq!(asked(&Method::DELETE, "/", &[host]), Some(405));
    }
}
