//! `cargo xtask site --check`: the static folder in node and in Chromium, compared with the command.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::chrome::Chrome;
use crate::command::{cargo, command, root, run, target_dir, text, works};
use crate::steps::skipped;

/// The text, the edit and the tokens that the command and the tab are compared on.
const TEXT: &str = "Leo and Ben went to the library.";
const EDIT: &str = "L0.H1=zero";
const WRITTEN: usize = 20;
/// Bounds: bytes before the first picture, milliseconds of the page's thread at a time, error of attention in f32.
const DOWNLOAD: u64 = 4_000_000;
const LONGEST_TASK: f64 = 100.0;
const ERROR: f64 = 1e-6;

/// A plain static server, which counts what it sends.
struct Static {
    port: u16,
    sent: Arc<AtomicU64>,
    paths: Arc<Mutex<Vec<String>>>,
    stopped: Arc<AtomicBool>,
}

impl Static {
    fn start(folder: &Path) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port")?;
        let server = Self { port: listener.local_addr()?.port(), sent: Arc::default(), paths: Arc::default(), stopped: Arc::default() };
        let (folder, sent, paths, stopped) = (folder.to_owned(), server.sent.clone(), server.paths.clone(), server.stopped.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (folder, sent, paths) = (folder.clone(), sent.clone(), paths.clone());
                std::thread::spawn(move || {
                    let _ = respond(stream, &folder, &sent, &paths);
                });
            }
        });
        Ok(server)
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn respond(mut stream: TcpStream, folder: &Path, sent: &AtomicU64, paths: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut line = String::new();
    BufReader::new(stream.try_clone()?).read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or("/").split(['?', '#']).next().unwrap_or("/").trim_start_matches('/').to_owned();
    let file = folder.join(if path.is_empty() || path.ends_with('/') { format!("{path}index.html") } else { path.clone() });
    let kind = match file.extension().and_then(|e| e.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript",
        Some("css") => "text/css",
        Some("wasm") => "application/wasm",
        Some("json") => "application/json",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    };
    let inside = !path.split('/').any(|part| part == "..");
    let (status, body) = match std::fs::read(file) {
        Ok(body) if inside => ("200 OK", body),
        _ => ("404 Not Found", b"not found".to_vec()),
    };
    sent.fetch_add(body.len() as u64, Ordering::SeqCst);
    paths.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(format!("{path} {status}"));
    write!(stream, "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len())?;
    stream.write_all(&body)
}

/// What the command prints for the text: its loss, and the text that it writes.
fn by_the_command(regard: &Path, words: &[&str]) -> Result<(String, String)> {
    let out = target_dir().join("site-check");
    let mut look = command(regard, &["look", "--text", TEXT, "--out"]);
    look.arg(&out).args(words);
    let loss = text(look)?;
    let loss = loss.lines().find_map(|line| line.strip_prefix("loss ")).and_then(|line| line.split(' ').next());
    let mut write = command(regard, &["look", "--text", TEXT, "--generate", &WRITTEN.to_string(), "--out"]);
    write.arg(&out).args(words);
    let written = text(write)?;
    let written = written.lines().find_map(|line| line.strip_prefix(TEXT)).context("the command writes no text")?.to_owned();
    Ok((loss.context("the command prints no loss")?.to_owned(), written))
}

/// Loss and text of the tab, by the page's own modules.
fn by_the_tab(chrome: &Chrome, model: usize, sent: &str, edits: &str, count: usize) -> (Value, Value) {
    let run = json!({ "model": model, "text": sent, "edits": edits });
    let loss = chrome.eval(&format!("import('./api.js').then(({{ send }}) => send('/api/run', {run})).then((run) => run.loss)"));
    let wanted = json!({ "model": model, "text": sent, "edits": edits, "count": count });
    let written = chrome.eval(&format!(
        "import('./api.js').then(async ({{ events }}) => {{ let last = ''; \
         await events('/api/generate', {wanted}, (data) => {{ last = data.text ?? last; }}); return last; }})"
    ));
    (loss, written)
}

const DRAWN: &str = "document.getElementById('view').dataset.drawn && document.getElementById('view').getAttribute('aria-busy') !== 'true'";

pub(crate) fn check(folder: &Path, regard: Option<&Path>, model: Option<&Path>) -> Result<()> {
    let hash = node_hash(folder)?;
    let regard = match regard {
        Some(path) => path.to_owned(),
        None => {
            run(cargo(&["build", "--quiet", "--release", "--package", "regard-cli"]))?;
            target_dir().join("release").join(if cfg!(windows) { "regard.exe" } else { "regard" })
        }
    };
    let server = Static::start(folder)?;
    let origin = format!("http://127.0.0.1:{}/", server.port);
    let Some(chrome) = Chrome::start() else { return Ok(()) };

    let begun = Instant::now();
    chrome.open(&origin);
    drawn(&chrome)?;
    let (seconds, bytes) = (begun.elapsed().as_secs_f64(), server.sent.load(Ordering::SeqCst));
    println!("first picture after {seconds:.2} s, {:.2} MB", bytes as f64 / 1e6);
    ensure!(bytes <= DOWNLOAD, "{bytes} bytes before the first picture");

    for edits in ["", EDIT] {
        let words = if edits.is_empty() { vec![] } else { vec!["--edits", edits] };
        let (loss, written) = by_the_command(&regard, &words)?;
        let (tab_loss, tab_written) = by_the_tab(&chrome, 0, TEXT, edits, WRITTEN);
        let digits = loss.split('.').nth(1).map_or(0, str::len);
        let tab_loss = format!("{:.digits$}", tab_loss.as_f64().context("the tab has no loss")?);
        println!("loss with edits {edits:?}: command {loss}, tab {tab_loss}; text: {written:?}");
        ensure!(loss == tab_loss, "the losses differ");
        ensure!(tab_written == written.as_str(), "the texts differ: {tab_written} in the tab");
    }
    // By hand, in the address: the page itself has the edit's loss.
    chrome.open(&format!("{origin}#e={EDIT}&v=map"));
    drawn(&chrome)?;
    chrome.wait("Number(document.getElementById('loss-d').dataset.value) !== 0");

    if let Some(hash) = hash {
        let said = chrome.eval("import('./api.js').then(({ ask }) => ask('/api/hash'))").to_string();
        ensure!(said == hash, "Chromium has another hash: {said}, node {hash}");
        println!("hash in node and Chromium: {hash}");
    }
    responsive(&chrome)?;
    if let Some(model) = model {
        dropped(&chrome, model)?;
    }
    offline(&chrome, &server, &origin)?;
    let foreign: Vec<String> = chrome.requests.borrow().iter().filter(|url| !allowed(url, &origin)).cloned().collect();
    ensure!(foreign.is_empty(), "requests to others: {foreign:?}");
    let complaints = chrome.complaints.borrow();
    ensure!(complaints.is_empty(), "the page complains: {complaints:?}");
    Ok(())
}

fn allowed(url: &str, origin: &str) -> bool {
    url.starts_with(origin) || ["about:", "data:", "blob:"].iter().any(|kind| url.starts_with(kind))
}

/// The hash of attention in node, the same in two instances, within the bound of its error.
fn node_hash(folder: &Path) -> Result<Option<String>> {
    if !works(command("node", &["--version"])) {
        skipped("the hash in node", "node is not installed");
        return Ok(None);
    }
    let mut node = command("node", &["crates/regard-wasm/page/hash.mjs"]);
    node.arg(folder.join(crate::site::WASM));
    let said = text(node)?.trim().to_owned();
    let value: Value = serde_json::from_str(&said)?;
    let error = value[1].as_f64().unwrap_or(f64::NAN);
    println!("attention in wasm: largest error {error:.1e}");
    // NaN fails, too.
    ensure!(error < ERROR, "the error of attention in wasm is above {ERROR:.0e}");
    Ok(Some(said))
}

/// A text of 2,000 tokens: the page's thread stays free while it is run and drawn.
fn responsive(chrome: &Chrome) -> Result<()> {
    chrome.eval(
        "window.longest = 0; new PerformanceObserver((list) => { for (const entry of list.getEntries()) \
         window.longest = Math.max(window.longest, entry.duration); }).observe({ type: 'longtask' }); 0",
    );
    let begun = Instant::now();
    chrome.eval(&format!(
        "(() => {{ const box = document.getElementById('text'); box.value = {}; box.dispatchEvent(new Event('input')); }})()",
        json!("Leo and Ben went to the library. ".repeat(145))
    ));
    chrome.wait("import('./state.js').then(({ runs }) => runs.B.tokens.length >= 2000)");
    drawn(chrome)?;
    let (seconds, longest) = (begun.elapsed().as_secs_f64(), chrome.eval("window.longest").as_f64().unwrap_or(f64::NAN));
    let tokens = chrome.eval("import('./state.js').then(({ runs }) => runs.B.tokens.length)");
    println!("{tokens} tokens: {seconds:.1} s, longest task of the page's thread {longest:.0} ms (0: none above 50 ms)");
    ensure!(longest <= LONGEST_TASK, "the page's thread was busy for {longest:.0} ms");
    Ok(())
}

/// Waits for the view, and fails where it shows an error.
fn drawn(chrome: &Chrome) -> Result<()> {
    chrome.wait(&format!("({DRAWN}) || document.querySelector('#view .error')"));
    let shown = chrome.eval("document.querySelector('#view .error')?.textContent ?? ''");
    ensure!(shown == "", "the view shows an error: {shown}");
    Ok(())
}

/// A model of one file, or of llama2.c with its tokenizer, as if chosen by the visitor.
fn dropped(chrome: &Chrome, model: &Path) -> Result<()> {
    let files = [model.to_owned(), model.with_file_name("tokenizer.bin")].map(|path| root().join(path));
    let files: Vec<PathBuf> = files.into_iter().filter(|path| path.is_file()).collect();
    let document = chrome.call("DOM.getDocument", json!({}));
    let picker = chrome.call("DOM.querySelector", json!({ "nodeId": document["root"]["nodeId"], "selector": "#open-model" }));
    chrome.call("DOM.setFileInputFiles", json!({ "nodeId": picker["nodeId"], "files": files }));
    chrome.wait("import('./state.js').then(({ runs }) => runs.models.length === 2 && runs.B?.model === 1)");
    drawn(chrome)?;
    // The first call also reads the model into the worker of operations.
    by_the_tab(chrome, 1, "Once upon a time", "", 1);
    let begun = Instant::now();
    let ten = by_the_tab(chrome, 1, "Once upon a time", "", 10).1;
    let short = begun.elapsed();
    let begun = Instant::now();
    let hundred = by_the_tab(chrome, 1, "Once upon a time", "", 110).1;
    let rate = 100.0 / begun.elapsed().saturating_sub(short).max(Duration::from_millis(1)).as_secs_f64();
    println!("{}: {rate:.1} tokens a second: {hundred}", model.display());
    ensure!(hundred.as_str().is_some_and(|text| ten.as_str().is_some_and(|start| text.starts_with(start))), "the text is not continued");
    Ok(())
}

/// The site opens again after its server has ended.
fn offline(chrome: &Chrome, server: &Static, origin: &str) -> Result<()> {
    chrome.wait("navigator.serviceWorker.ready.then((ready) => ready.active?.state === 'activated')");
    server.stop();
    chrome.open(origin);
    drawn(chrome)?;
    println!("opens again without its server");
    Ok(())
}
