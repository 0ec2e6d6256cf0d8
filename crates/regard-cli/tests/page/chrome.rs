//! A real browser, driven over its debugging protocol.

use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tungstenite::{Message, WebSocket};

/// Timeout of every step: it ends a test that hangs, and leaves room on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(180);

/// A browser with a profile of its own, and one tab.
pub struct Chrome {
    child: Child,
    _profile: tempfile::TempDir,
    socket: RefCell<WebSocket<TcpStream>>,
    session: String,
    number: Cell<u64>,
    /// What the page complained about, and every address that it asked for.
    pub complaints: RefCell<Vec<String>>,
    pub requests: RefCell<Vec<String>>,
}

/// The browser of this machine, if there is one.
pub fn find() -> Option<PathBuf> {
    let named = std::env::var_os("REGARD_BROWSER").map(PathBuf::from);
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = || std::env::split_paths(&path).flat_map(|folder| names.map(|name| folder.join(name)));
    named.filter(|path| path.is_file()).or_else(|| all().find(|path| path.is_file()))
}

impl Chrome {
    /// Start it; `None` says aloud that there is no browser.
    pub fn start() -> Option<Self> {
        let Some(program) = find() else {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "no chromium: with CI=true the page is always tested");
            eprintln!("SKIPPED: no chromium on this machine, the page was not tested (REGARD_BROWSER names one)");
            return None;
        };
        let profile = tempfile::tempdir().expect("a folder");
        let child = Command::new(program)
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--remote-debugging-port=0",
            ])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio", "--hide-scrollbars"])
            // Other machines cannot be reached, from workers neither.
            .arg("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost")
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the browser starts");
        let said = profile.path().join("DevToolsActivePort");
        let begun = Instant::now();
        let (port, path) = loop {
            if let Some((port, path)) = std::fs::read_to_string(&said).ok().as_deref().and_then(|text| text.split_once('\n')) {
                break (port.trim().to_owned(), path.trim().to_owned());
            }
            assert!(begun.elapsed() < TIMEOUT, "the browser does not say where it listens");
            std::thread::sleep(Duration::from_millis(50));
        };
        let stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens");
        // A tab that is frozen is a failure, and not a test that hangs.
        stream.set_read_timeout(Some(TIMEOUT)).expect("a time");
        let (socket, _) = tungstenite::client(format!("ws://127.0.0.1:{port}{path}"), stream).expect("it answers");
        let mut chrome = Self {
            child,
            _profile: profile,
            socket: RefCell::new(socket),
            session: String::new(),
            number: Cell::new(0),
            complaints: RefCell::default(),
            requests: RefCell::default(),
        };
        let target = chrome.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attached = chrome.call("Target.attachToTarget", json!({ "targetId": target["targetId"], "flatten": true }));
        chrome.session = attached["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            chrome.call(&format!("{domain}.enable"), json!({}));
        }
        chrome.size(1280, 900, false);
        Some(chrome)
    }

    fn note(&self, event: &Value) {
        let words = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => event["params"]["exceptionDetails"].to_string(),
            Some("Log.entryAdded") if event["params"]["entry"]["level"] == "error" => event["params"]["entry"].to_string(),
            Some("Runtime.consoleAPICalled") if event["params"]["type"] == "error" => event["params"]["args"].to_string(),
            Some("Network.requestWillBeSent") => {
                self.requests.borrow_mut().push(event["params"]["request"]["url"].as_str().unwrap_or_default().to_owned());
                return;
            }
            _ => return,
        };
        self.complaints.borrow_mut().push(words);
    }

    /// One command, and its answer; what happens meanwhile is noted.
    pub fn call(&self, method: &str, params: Value) -> Value {
        let id = self.number.get() + 1;
        self.number.set(id);
        let mut message = json!({ "id": id, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut socket = self.socket.borrow_mut();
        socket.send(Message::text(message.to_string())).expect("the browser listens");
        loop {
            let Message::Text(text) = socket.read().expect("the browser answers") else { continue };
            let answer: Value = serde_json::from_str(&text).expect("JSON");
            if answer["id"] == id {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.note(&answer);
        }
    }

    /// The value of an expression, which may be a promise.
    pub fn eval(&self, script: &str) -> Value {
        let params = json!({ "expression": script, "awaitPromise": true, "returnByValue": true, "userGesture": true });
        let answer = self.call("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{script}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    /// Wait until an expression is true.
    #[track_caller]
    pub fn wait(&self, script: &str) {
        let begun = Instant::now();
        while self.eval(&format!("Promise.resolve({script}).then(Boolean)")) != true {
            assert!(begun.elapsed() < TIMEOUT, "this never came true: {script}; {:?}", self.complaints.borrow());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Open an address in the tab.
    pub fn open(&self, address: &str) {
        // Only what comes after # may differ: through another page, so that it is loaded anew.
        self.call("Page.navigate", json!({ "url": "about:blank" }));
        self.call("Page.navigate", json!({ "url": address }));
        self.wait("document.readyState === 'complete' && document.getElementById('view')");
    }

    /// Width and height of the window, light or dark.
    pub fn size(&self, width: u32, height: u32, dark: bool) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        let scheme = if dark { "dark" } else { "light" };
        self.call("Emulation.setEmulatedMedia", json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] }));
    }

    /// Press a key, as people do.
    pub fn key(&self, key: &str) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            " " => 32,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            _ => key.to_uppercase().bytes().next().map_or(0, u32::from),
        };
        let text = match key {
            "Enter" => "\r",
            _ if key.chars().count() == 1 => key,
            _ => "",
        };
        let down = if text.is_empty() { "rawKeyDown" } else { "keyDown" };
        self.call("Input.dispatchKeyEvent", json!({ "type": down, "key": key, "text": text, "windowsVirtualKeyCode": code }));
        self.call("Input.dispatchKeyEvent", json!({ "type": "keyUp", "key": key, "windowsVirtualKeyCode": code }));
    }

    /// A picture of the window, where `REGARD_SHOTS` names a folder for them.
    pub fn shot(&self, name: &str) {
        let Some(folder) = std::env::var_os("REGARD_SHOTS").map(PathBuf::from) else { return };
        use base64::Engine;
        let answer = self.call("Page.captureScreenshot", json!({ "format": "png", "captureBeyondViewport": true }));
        let bytes = base64::engine::general_purpose::STANDARD.decode(answer["data"].as_str().expect("a picture")).expect("base64");
        std::fs::write(folder.join(format!("{name}.png")), bytes).expect("it is written");
    }
}

impl Drop for Chrome {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
