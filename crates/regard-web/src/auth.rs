//! Request authentication: Host, Origin, token and size checks, before any handler runs. Every page in the browser and every program of
//! every user of the machine can reach a local server.
//!
//! ```text
//! Host            127.0.0.1, localhost or [::1], with our port       else 403: a foreign name that resolves to this machine (rebinding)
//! Origin          where sent, one of the same                        else 403: another page
//! Sec-Fetch-Site  same-origin or none; links may open `/`            else 403: another page
//! x-regard-token  for every path below /api                          else 401: printed on the terminal, never part of a link
//! body            1 MiB, within ten seconds                          else 413, 408
//! ```

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use std::time::Duration;

/// Largest request body, in bytes.
pub(crate) const BODY: usize = 1 << 20;
/// Timeout for receiving a request and for writing a response.
pub(crate) const IO_TIMEOUT: Duration = Duration::from_secs(10);

/// Header with the token.
const TOKEN: &str = "x-regard-token";
/// The port that browsers leave out of Host and Origin.
const DEFAULT_PORT: u16 = 80;

#[derive(Debug)]
pub(crate) struct Auth {
    hosts: Vec<String>,
    token: String,
}

/// 128 random bits in hexadecimal.
fn new_token() -> std::io::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| std::io::Error::other(e.to_string()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Comparison in constant time.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// Headers of every response: no content from other origins, no frames.
const SECURITY_HEADERS: [(header::HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::CACHE_CONTROL, "no-cache"),
];

/// The value of a header; the flag says whether it was sent more than once.
fn single<'h>(headers: &'h HeaderMap, name: &str) -> (Option<&'h HeaderValue>, bool) {
    let mut values = headers.get_all(name).iter();
    (values.next(), values.next().is_some())
}

/// A link from another page or from a file that opens the index in a tab of its own. The index has no data without the token.
fn is_link_to_index(method: &Method, path: &str, headers: &HeaderMap) -> bool {
    let is = |name: &str, value: &[u8]| matches!(single(headers, name), (Some(sent), false) if sent.as_bytes() == value);
    *method == Method::GET && path == "/" && is("sec-fetch-mode", b"navigate") && is("sec-fetch-dest", b"document")
}

impl Auth {
    pub(crate) fn new(port: u16) -> std::io::Result<Self> {
        Ok(Self { hosts: hosts(port), token: new_token()? })
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    fn refusal(&self, method: &Method, path: &str, headers: &HeaderMap) -> Option<(StatusCode, &'static str)> {
        let known = |value: &HeaderValue, before: &str| {
            value.to_str().ok().and_then(|value| value.strip_prefix(before)).is_some_and(|host| self.hosts.iter().any(|own| own == host))
        };
        match single(headers, "host") {
            (Some(host), false) if known(host, "") => {}
            _ => return Some((StatusCode::FORBIDDEN, "unknown host; use 127.0.0.1 or localhost with the printed port")),
        }
        let cross_origin = (StatusCode::FORBIDDEN, "cross-origin request refused; open the address that `regard serve` printed");
        if let (Some(origin), more) = single(headers, "origin")
            && (more || !known(origin, "http://"))
        {
            return Some(cross_origin);
        }
        if let (Some(site), more) = single(headers, "sec-fetch-site")
            && (more || !matches!(site.as_bytes(), b"same-origin" | b"none"))
            && !is_link_to_index(method, path, headers)
        {
            return Some(cross_origin);
        }
        if path.starts_with("/api/") {
            match single(headers, TOKEN) {
                (Some(token), false) if same(token.as_bytes(), self.token.as_bytes()) => {}
                _ => return Some((StatusCode::UNAUTHORIZED, "missing or wrong token; use the address that `regard serve` printed")),
            }
        }
        if *method == Method::POST {
            let json = headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
            return (!json).then_some((StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported content type; send application/json"));
        }
        (!matches!(*method, Method::GET | Method::HEAD))
            .then_some((StatusCode::METHOD_NOT_ALLOWED, "method not allowed; use GET, HEAD or POST"))
    }
}

/// Values of Host that name this server.
fn hosts(port: u16) -> Vec<String> {
    let names = ["127.0.0.1", "localhost", "[::1]"];
    let bare = names.iter().filter(|_| port == DEFAULT_PORT).map(|name| (*name).to_owned());
    names.iter().map(|name| format!("{name}:{port}")).chain(bare).collect()
}

/// Reads the whole body, within the limits of size and time.
async fn received(request: Request) -> Result<Request, (StatusCode, &'static str)> {
    let (parts, body) = request.into_parts();
    match tokio::time::timeout(IO_TIMEOUT, to_bytes(body, BODY)).await {
        Ok(Ok(bytes)) => Ok(Request::from_parts(parts, Body::from(bytes))),
        Ok(Err(_)) => Err((StatusCode::PAYLOAD_TOO_LARGE, "request body too large; send at most 1 MiB")),
        Err(_) => Err((StatusCode::REQUEST_TIMEOUT, "request timed out; send it within ten seconds")),
    }
}

/// Middleware of all routes.
pub(crate) async fn guard(State(auth): State<Arc<Auth>>, request: Request, next: Next) -> Response {
    let checked = match auth.refusal(request.method(), request.uri().path(), request.headers()) {
        Some(refusal) => Err(refusal),
        None => received(request).await,
    };
    let mut response = match checked {
        Ok(request) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    for (name, value) in SECURITY_HEADERS {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The status of a refusal by a server on this port.
    fn status(port: u16, method: &Method, path: &str, headers: &[(&'static str, &str)]) -> Option<u16> {
        let auth = Auth { hosts: hosts(port), token: "secret".to_owned() };
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().expect("a header"));
        }
        auth.refusal(method, path, &map).map(|(status, _)| status.as_u16())
    }

    #[test]
    fn foreign_requests_are_refused() {
        let (get, host, token) = (Method::GET, ("host", "127.0.0.1:8080"), ("x-regard-token", "secret"));
        let status = |method: &Method, path: &str, headers: &[(&'static str, &str)]| status(8080, method, path, headers);
        assert_eq!(status(&get, "/", &[host]), None);
        assert_eq!(status(&get, "/api/models", &[host, token]), None);
        assert_eq!(status(&get, "/", &[("host", "localhost:8080"), ("origin", "http://localhost:8080"), ("sec-fetch-site", "none")]), None);
        for headers in [
            &[][..],
            &[("host", "evil.example:8080")],
            &[("host", "127.0.0.1:81")],
            &[("host", "127.0.0.1")],
            &[host, ("host", "evil.example")],
            &[host, ("origin", "http://evil.example")],
            &[host, ("origin", "null")],
            &[host, ("origin", "https://127.0.0.1:8080")],
            &[host, ("sec-fetch-site", "cross-site")],
            &[host, ("sec-fetch-site", "same-site")],
            &[host, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")],
        ] {
            assert_eq!(status(&get, "/", headers), Some(403), "{headers:?}");
        }
        for headers in [&[host][..], &[host, ("x-regard-token", "secreT")], &[host, token, token], &[host, ("x-regard-token", "")]] {
            assert_eq!(status(&get, "/api/models", headers), Some(401), "{headers:?}");
        }
        assert_eq!(status(&Method::POST, "/api/run", &[host, token]), Some(415));
        assert_eq!(status(&Method::DELETE, "/", &[host]), Some(405));
    }

    #[test]
    fn links_of_other_pages_open_the_index_and_nothing_else() {
        let link = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
        let headers = [&[("host", "127.0.0.1:8080")][..], &link].concat();
        assert_eq!(status(8080, &Method::GET, "/", &headers), None);
        for (method, path) in [(Method::GET, "/main.js"), (Method::GET, "/api/models"), (Method::POST, "/")] {
            assert_eq!(status(8080, &method, path, &headers), Some(403), "{method} {path}");
        }
    }

    #[test]
    fn browsers_leave_out_port_80() {
        for name in ["127.0.0.1", "localhost", "[::1]"] {
            let (origin, with_port) = (format!("http://{name}"), format!("{name}:80"));
            assert_eq!(status(80, &Method::GET, "/", &[("host", name), ("origin", &origin)]), None, "{name}");
            assert_eq!(status(80, &Method::GET, "/", &[("host", &with_port)]), None, "{name}");
            assert_eq!(status(8080, &Method::GET, "/", &[("host", name)]), Some(403), "{name}");
        }
        assert_eq!(status(80, &Method::GET, "/", &[("host", "evil.example")]), Some(403));
    }
}
