//! What a local server must refuse, tested on the program itself.

use crate::served::Served;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

#[test]
fn strangers_are_refused_and_the_server_lives() {
    let served = Served::start(0);
    let host = format!("127.0.0.1:{}", served.port);
    let (own, token) = (("host", host.as_str()), ("x-regard-token", served.token.as_str()));
    let json = ("content-type", "application/json");
    assert_eq!(served.request("GET", "/", &[own], "").0, 200);
    assert_eq!(served.request("GET", "/api/models", &[own, token], "").0, 200);
    for (what, headers, status) in [
        ("a foreign name", vec![("host", "evil.example"), token], 403),
        ("a foreign name with our port", vec![("host", "evil.example:80"), token], 403),
        ("no name", vec![token], 400),
        ("another page", vec![own, token, ("origin", "http://evil.example")], 403),
        ("no page", vec![own, token, ("origin", "null")], 403),
        ("another site", vec![own, token, ("sec-fetch-site", "cross-site")], 403),
        ("no token", vec![own], 401),
        ("a wrong token", vec![own, ("x-regard-token", "0123456789abcdef0123456789abcdef")], 401),
    ] {
        let got = served.request("GET", "/api/models", &headers, "").0;
        // A request without a name may be refused before we see it.
        assert!(got == status || (status == 400 && got == 403), "{what}: {got}");
    }
    for path in
        ["/../etc/passwd", "/..%2f..%2fetc/passwd", "//etc/passwd", "/style.css/../../x", "/api/", "/api/run/../models", "/index.php"]
    {
        let (status, body) = served.request("GET", path, &[own, token], "");
        assert!((400..500).contains(&status) && !body.contains("root:"), "{path}: {status}");
    }
    let large = format!("{{\"model\":0,\"text\":\"{}\"}}", "a".repeat(2 << 20));
    assert_eq!(served.request("POST", "/api/run", &[own, token, json], &large).0, 413);
    assert_eq!(served.request("GET", "/", &[own, ("x", &"a".repeat(20 << 10))], "").0, 431);
    for (body, status) in [
        ("{\"model\":0,\"text\":\"Emma\",\"path\":\"/etc/passwd\"}", 400),
        ("{\"model\":\"/etc/passwd\",\"text\":\"Emma\"}", 400),
        ("{\"model\":7,\"text\":\"Emma\"}", 404),
        ("{\"model\":-1,\"text\":\"Emma\"}", 400),
        ("{\"model\":0,\"text\":\"Emma\",\"edits\":\"L99=zero\"}", 422),
        ("{", 400),
        ("", 400),
    ] {
        assert_eq!(served.request("POST", "/api/run", &[own, token, json], body).0, status, "{body}");
    }
    // An empty text is the BOS token alone.
    assert_eq!(served.request("POST", "/api/run", &[own, token, json], "{\"model\":0,\"text\":\"\"}").0, 200);
    assert_eq!(served.request("DELETE", "/", &[own, token], "").0, 405);
    assert_eq!(served.request("POST", "/api/run", &[own, token], "{}").0, 415);
    assert_eq!(served.asked("GET", "/api/run/none/heads?layer=0", "").0, 410);
    assert_eq!(served.request("GET", "/api/models", &[own, token], "").0, 200, "it lives");
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    let served = Served::start(0);
    let (status, body) = served.asked("POST", "/api/run", "{\"model\":0,\"text\":\"Emma and David\"}");
    assert_eq!(status, 200, "{body}");
    let run: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    let run = run["run"].as_str().expect("a name");
    let most = usize::MAX;
    for path in [
        "tile?layer=0&head=0&row=0&rows=0&key=0&keys=1&step=1".to_owned(),
        "tile?layer=99&head=0&row=0&rows=1&key=0&keys=1&step=1".to_owned(),
        "tile?layer=0&head=99&row=0&rows=1&key=0&keys=1&step=1".to_owned(),
        format!("tile?layer=0&head=0&row={most}&rows={most}&key=0&keys=1&step=1"),
        format!("tile?layer=0&head=0&row=1&rows={most}&key=0&keys=1&step={most}"),
        format!("tile?layer={most}&head={most}&row=0&rows=1&key=0&keys=1&step=0"),
        "tile?layer=0&head=0&row=0&rows=1&key=0&keys=1&step=-1".to_owned(),
        "tile?layer=0".to_owned(),
        "heads?layer=99".to_owned(),
        "heads?layer=x".to_owned(),
        "lens?row=99".to_owned(),
        "thumbnails?layer=0&sink=drop".to_owned(),
        "neuron?layer=0&head=0&query=99&key=0".to_owned(),
        "neuron?layer=0&head=99&query=0&key=0".to_owned(),
        "steps?layer=0&head=99".to_owned(),
    ] {
        let (status, body) = served.asked("GET", &format!("/api/run/{run}/{path}"), "");
        assert!(status == 422 || status == 400, "{path}: {status} {body}");
    }
    for query in
        ["d_k=0&seq=8&seeds=1&seed=1", "d_k=99999&seq=8&seeds=1&seed=1", "d_k=4&seq=0&seeds=1&seed=1", "d_k=4&seq=8&seeds=0&seed=1"]
    {
        let status = served.asked("GET", &format!("/api/sweep?{query}"), "").0;
        assert_eq!(status, 422, "{query}");
    }
    assert_eq!(served.asked("GET", "/api/models", "").0, 200, "it lives");
}

#[test]
fn slow_and_many_clients_do_not_keep_others_out() {
    let served = Served::start(0);
    let before = served.memory();
    // Half a request each, and never the rest.
    let mut crowd: Vec<TcpStream> = Vec::new();
    for _ in 0..1000 {
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", served.port)) {
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nhost: 127.0");
            crowd.push(stream);
        }
    }
    let mut refused = 0;
    for stream in crowd.iter_mut().skip(100).take(20) {
        let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
        let mut answer = [0; 12];
        refused += usize::from(stream.read_exact(&mut answer).is_err() || &answer == b"HTTP/1.1 503");
    }
    assert_eq!(refused, 20, "connections beyond sixteen are refused");
    // Slow clients are disconnected after ten seconds.
    let begun = Instant::now();
    while served.asked("GET", "/api/models", "").0 != 200 {
        assert!(begun.elapsed() < Duration::from_secs(30), "the crowd keeps others out");
        std::thread::sleep(Duration::from_millis(200));
    }
    drop(crowd);
    assert!(served.memory() < before + (64 << 20), "memory grew from {before} to {}", served.memory());
}

#[test]
fn random_requests_leave_it_alive_and_small() {
    let served = Served::start(0);
    let (_, body) = served.asked("POST", "/api/run", "{\"model\":0,\"text\":\"Emma and David went to the market.\"}");
    let run: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    let run = run["run"].as_str().expect("a name").to_owned();
    // Ten minutes by hand: REGARD_WEB_SECONDS=600.
    let seconds = std::env::var("REGARD_WEB_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(3);
    let (mut state, begun, mut count, mut early) = (0x1234_5678_9abc_def1_u64, Instant::now(), 0, 0);
    let mut next = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    while begun.elapsed() < Duration::from_secs(seconds) {
        let words = ["tile", "heads", "thumbnails", "lens", "neuron", "steps", "", "../run", "%00"];
        let names = ["layer", "head", "row", "rows", "key", "keys", "step", "query", "pool", "sink", "x"];
        let mut path = format!("/api/run/{run}/{}?", words[next(9) as usize]);
        for _ in 0..next(10) {
            let value = [next(4), next(40), next(u64::MAX), 0][next(4) as usize];
            path.push_str(&format!("{}={value}&", names[next(11) as usize]));
        }
        let texts =
            ["Emma", "", "L0.H1=zero", "\\u0000", "\\ud800", "scale=off", "heads=mean", "</script>", "L0=patch:B", "mask=window:3,0"];
        let body = format!(
            "{{\"model\":{},\"text\":\"{}\",\"edits\":\"{}\",\"count\":{}}}",
            next(3),
            texts[next(10) as usize],
            texts[next(10) as usize],
            next(20)
        );
        let status = match next(6) {
            0 => served.asked("POST", "/api/run", &body.replace(",\"count\":", ",\"x\":")).0,
            1 => served.asked("POST", "/api/generate", &body).0,
            2 => {
                let bytes: Vec<u8> = (0..next(300)).map(|_| next(256) as u8).collect();
                // Bytes that are no request are answered with 400, or not at all.
                let _ = served.raw(&[&bytes[..], b"\r\n\r\n"].concat());
                400
            }
            _ => served.asked("GET", &path, "").0,
        };
        assert!(status != 500 && status != 0, "{path} {body}: {status}");
        count += 1;
        if count == 50 {
            early = served.memory();
        }
    }
    let late = served.memory();
    assert!(count < 50 || late < early + (100 << 20), "memory grew from {early} to {late} in {count} requests");
    assert_eq!(served.asked("GET", "/api/models", "").0, 200, "it lives");
}

#[test]
fn long_runs_are_refused_or_end_with_their_client() {
    let served = Served::start(0);
    let before = served.memory();
    let body = |tokens: usize| serde_json::json!({ "model": 0, "text": "Emma ".repeat(tokens / 5) }).to_string();
    let begun = Instant::now();
    let (status, answer) = served.asked("POST", "/api/run", &body(1_000_000));
    assert!(status == 422 && answer.contains("; use at most "), "{status} {answer}");
    // Without the run, which takes hours.
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?} for a refusal", begun.elapsed());
    // A run of a minute and more, whose client disconnects.
    let short = |text: &str| {
        let begun = Instant::now();
        assert_eq!(served.asked("POST", "/api/run", &serde_json::json!({ "model": 0, "text": text }).to_string()).0, 200);
        begun.elapsed()
    };
    let usual = short("Emma and David");
    let (host, long) = (format!("127.0.0.1:{}", served.port), body(80_000));
    let head = format!(
        "POST /api/run HTTP/1.1\r\nhost: {host}\r\nx-regard-token: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        served.token,
        long.len()
    );
    let mut stream = TcpStream::connect(&host).expect("it listens");
    stream.write_all(format!("{head}{long}").as_bytes()).expect("it reads");
    std::thread::sleep(Duration::from_secs(1));
    drop(stream);
    let after = short("David and Emma");
    assert!(after < Duration::from_secs(5) + 20 * usual, "{after:?} after the client of a long run disconnected, usually {usual:?}");
    assert!(served.memory() < before + (800 << 20), "memory grew from {before} to {}", served.memory());
}

#[test]
#[cfg(unix)]
fn the_token_is_not_among_the_arguments_of_the_browser() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a folder");
    let program = dir.path().join(if cfg!(target_os = "macos") { "open" } else { "xdg-open" });
    // It records its arguments, and the file with its modes.
    let script = format!(
        "#!/bin/sh\ncd '{}'\n/bin/cp \"$1\" page.html\n/bin/ls -ld \"$1\" > modes\n/bin/ls -ld \"$(/usr/bin/dirname \"$1\")\" >> \
            modes\necho \"$@\" > seen\n/bin/mv seen words\n",
        dir.path().display()
    );
    std::fs::write(&program, script).expect("a program");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("modes");
    let served = Served::with(&["serve", "--json"], |command| command.env("PATH", dir.path()));
    let begun = Instant::now();
    while !dir.path().join("words").exists() {
        assert!(begun.elapsed() < Duration::from_secs(20), "no browser was started");
        std::thread::sleep(Duration::from_millis(20));
    }
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).expect("it was written");
    let (words, page, modes) = (read("words"), read("page.html"), read("modes"));
    assert!(!words.contains(&served.token), "{words}");
    assert!(page.contains(&served.address), "{page}");
    let modes: Vec<&str> = modes.lines().collect();
    assert!(modes[0].starts_with("-rw-------") && modes[1].starts_with("drwx------"), "{modes:?}");
    // A browser follows it, although it comes from a file.
    if let Some(chrome) = crate::chrome::Chrome::start() {
        chrome.open(&format!("file://{}", dir.path().join("page.html").display()));
        chrome.wait("document.getElementById('view')?.dataset.drawn");
    }
    let opened = words.trim().to_owned();
    assert!(std::process::Command::new("kill").args(["-INT", &served.child.id().to_string()]).status().expect("kill").success());
    let begun = Instant::now();
    while std::path::Path::new(&opened).exists() {
        assert!(begun.elapsed() < Duration::from_secs(10), "{opened} stays");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Browsers leave out the port where it is 80.
#[test]
fn port_80_is_served_without_a_port_in_host() {
    if std::net::TcpListener::bind(("127.0.0.1", 80)).is_err() {
        eprintln!("SKIPPED: port 80 cannot be used here");
        return;
    }
    let served = Served::with(&["serve", "--no-open", "--json", "--port", "80"], |command| command);
    for host in ["127.0.0.1", "localhost", "127.0.0.1:80"] {
        assert_eq!(served.request("GET", "/", &[("host", host)], "").0, 200, "{host}");
    }
    assert_eq!(served.request("GET", "/", &[("host", "evil.example")], "").0, 403);
}
