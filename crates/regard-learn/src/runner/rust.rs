//! Compiles a learner's Rust file together with the harness. Nothing compiled outlives the process: see `Builds`.

use super::StartError;
use super::builds::Builds;
use super::process::Launch;
use crate::error::Error;
use crate::exercise::{Exercise, Judging, Kind};
use crate::value::{Gone, Trouble};
use serde_json::Value as Json;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const HARNESS: &str = include_str!("harness.rs");
/// What is compiled for each answer; names in `/*..*/` are filled in.
const PROGRAM: &str = "#![allow(unused, non_snake_case)]
use harness::{Args, Judge, escaped, results, same};

#[path = /*PATH*/]
mod answer;

/// The function must have this type.
const FUNCTION: /*TYPE*/ = answer::/*NAME*/;

fn answer_call(judge: &std::cell::RefCell<Judge>, id: usize, dims: Vec<usize>, mut args: Args) -> (String, Vec<u8>) {
    /*CALL*/
}

fn main() {
    harness::serve(/*PATH*/, answer_call);
}
";
const OPTIONS: [&str; 5] = ["--edition", "2024", "-C", "strip=debuginfo", "--error-format=json"];
/// Of the learner's code: fast enough for the large cases, with every check of a debug build.
const ANSWER_OPTIONS: [&str; 6] = ["-C", "opt-level=1", "-C", "overflow-checks=on", "-C", "debug-assertions=on"];
/// Of the harness: compiled once per process, so compiled fast.
const HARNESS_OPTIONS: [&str; 4] = ["--crate-type=rlib", "--crate-name=harness", "-C", "opt-level=0"];
const COMPILE_LIMIT: Duration = Duration::from_secs(300);

/// The type of the function, as its user sees it.
pub fn signature(exercise: &Exercise) -> String {
    if matches!(exercise.judging, Judging::Models) {
        return "fn(&mut dyn FnMut(&[usize]) -> (Vec<f32>, Vec<f32>), [usize; 3]) -> &'static str".to_owned();
    }
    let mut words: Vec<String> = exercise.params.iter().filter_map(|p| rust_type(p.kind).map(str::to_owned)).collect();
    words.push(format!("[usize; {}]", exercise.dims.len()));
    let result = |dims: &[&str]| if dims.is_empty() { "f32" } else { "Vec<f32>" };
    let results: Vec<&str> = exercise.results.iter().map(|r| result(r.1)).collect();
    match results[..] {
        _ if updates(exercise) => format!("fn({})", words.join(", ")),
        [one] => format!("fn({}) -> {one}", words.join(", ")),
        _ => format!("fn({}) -> ({})", words.join(", "), results.join(", ")),
    }
}

fn rust_type(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Array => Some("&[f32]"),
        Kind::State => Some("&mut [f32]"),
        Kind::Flags => Some("&[bool]"),
        Kind::Lengths => Some("&[usize]"),
        Kind::Number => Some("f32"),
        Kind::Offset => Some("isize"),
        Kind::Count => None,
        Kind::File => Some("&str"),
    }
}

/// Results are written into the arguments.
fn updates(exercise: &Exercise) -> bool {
    exercise.params.iter().any(|p| p.kind == Kind::State)
}

/// Code that takes the arguments off the frame, calls the function and packs the results.
fn glue(exercise: &Exercise) -> String {
    if matches!(exercise.judging, Judging::Models) {
        return MODEL_GLUE.to_owned();
    }
    let (mut code, mut words, mut states) = (String::new(), Vec::new(), Vec::new());
    let mut checks = Vec::new();
    for (at, param) in exercise.params.iter().filter(|p| p.kind != Kind::Count).enumerate() {
        let (take, word) = match param.kind {
            Kind::Array => (format!("let a{at} = args.floats(); let b{at} = a{at}.clone();"), format!("&a{at}")),
            Kind::State => (format!("let mut a{at} = args.floats();"), format!("&mut a{at}")),
            Kind::Flags => (format!("let a{at} = args.flags();"), format!("&a{at}")),
            Kind::Lengths => {
                (format!("let a{at}: Vec<usize> = args.wholes().into_iter().map(|x| x as usize).collect();"), format!("&a{at}"))
            }
            Kind::Number => (format!("let a{at} = args.float();"), format!("a{at}")),
            Kind::Offset => (format!("let a{at} = args.wholes()[0] as isize;"), format!("a{at}")),
            Kind::File => (format!("let a{at} = args.text();"), format!("&a{at}")),
            Kind::Count => continue,
        };
        if param.kind == Kind::Array {
            checks.push(format!("if !same(&a{at}, &b{at}) {{ changed.push({at}); }}"));
        }
        if param.kind == Kind::State {
            states.push(format!("a{at}"));
        }
        code += &take;
        words.push(word);
    }
    let dims = exercise.dims.len();
    code += &format!("let dims: [usize; {dims}] = dims.try_into().expect(\"{dims} dimensions\");\n    ");
    code += &format!("let result = FUNCTION({}, dims);\n    let mut changed = Vec::new(); {}\n    ", words.join(", "), checks.join(" "));
    let one = |at: usize, name: String| if exercise.results[at].1.is_empty() { format!("vec![{name}]") } else { name };
    let list: Vec<String> = match exercise.results.len() {
        _ if !states.is_empty() => states,
        1 => vec![one(0, "result".to_owned())],
        count => (0..count).map(|at| one(at, format!("result.{at}"))).collect(),
    };
    code + &format!("results(id, &[{}], &changed)", list.join(", "))
}

const MODEL_GLUE: &str = "let dims: [usize; 3] = dims.try_into().expect(\"3 numbers\");
    let mut model = |tokens: &[usize]| {
        judge.borrow_mut().send(&format!(\"{{\\\"id\\\":{id},\\\"ask\\\":{tokens:?}}}\"), &[]);
        let (header, payload) = judge.borrow_mut().receive();
        if header.contains(\"\\\"error\\\":\") {
            panic!(\"the model does not answer: too many questions, or tokens that it does not have\");
        }
        let mut args = Args::new(&header, payload);
        (args.floats(), args.floats())
    };
    let name = FUNCTION(&mut model, dims);
    (format!(\"{{\\\"id\\\":{id},\\\"results\\\":[{{\\\"text\\\":\\\"{}\\\"}}]}}\", escaped(name)), Vec::new())";

fn source(exercise: &Exercise, file: &Path) -> String {
    PROGRAM
        .replace("/*PATH*/", &format!("{:?}", file.display().to_string()))
        .replace("/*TYPE*/", &signature(exercise))
        .replace("/*NAME*/", exercise.name)
        .replace("/*CALL*/", &glue(exercise))
}

pub(super) fn command(exercise: &Exercise, file: &Path, builds: &Builds, stop: &AtomicBool) -> std::result::Result<Launch, StartError> {
    let source = source(exercise, file);
    let answer = crate::files::read_answer(file)?;
    let complain = |log: &str| complaint(exercise, file, log);
    let harness =
        builds.get("libharness.rlib", &[HARNESS.as_bytes()], &|target| compile(HARNESS, target, &HARNESS_OPTIONS, stop, &complain))?;
    let name = if cfg!(windows) { "answer.exe" } else { "answer" };
    // An answer may take in others of its folder.
    let parts = if answer.windows(6).any(|bytes| bytes == b"#[path") { neighbours(file) } else { Vec::new() };
    let program = builds.get(name, &[source.as_bytes(), &answer, &parts], &|target| {
        let linked = format!("harness={}", harness.display());
        let options = [&ANSWER_OPTIONS[..], &["--extern", &linked]].concat();
        compile(&source, target, &options, stop, &complain)
    })?;
    Ok(Launch { command: Command::new(program), harness: None, confined: true })
}

/// The other Rust files of a folder, one after another.
fn neighbours(file: &Path) -> Vec<u8> {
    let entries = file.parent().and_then(|folder| std::fs::read_dir(folder).ok());
    let mut paths: Vec<_> = entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path != file && path.extension().is_some_and(|ending| ending == "rs"));
    paths.sort();
    paths.iter().filter_map(|path| crate::files::read_answer(path).ok()).flatten().collect()
}

/// Compiles `source` to the file `target`; what the compiler needs beside it is in the same folder.
fn compile(
    source: &str,
    target: &Path,
    options: &[&str],
    stop: &AtomicBool,
    complain: &dyn Fn(&str) -> StartError,
) -> std::result::Result<(), StartError> {
    let (main, log_path) = (target.with_file_name("main.rs"), target.with_file_name("log"));
    std::fs::write(&main, source).map_err(Error::temporary)?;
    let log = std::fs::File::create(&log_path).map_err(Error::temporary)?;
    let mut rustc = Command::new("rustc");
    rustc.args(OPTIONS).args(options).arg(&main).arg("-o").arg(target).current_dir(target.parent().unwrap_or(Path::new(".")));
    rustc.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let mut child = rustc.spawn().map_err(|reason| Error::NoRustc { reason })?;
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
            Err(reason) => return Err(Error::Process { reason }.into()),
        }
        let late = start.elapsed() > COMPILE_LIMIT;
        if late || stop.load(Ordering::Relaxed) {
            let _ = child.kill();
            let _ = child.wait();
            let timeout = Trouble::Gone(Gone::Timeout { seconds: start.elapsed().as_secs_f64(), line: None });
            return Err(StartError::Trouble(if late { timeout } else { Trouble::Stopped }));
        }
    };
    if status.success() { Ok(()) } else { Err(complain(&std::fs::read_to_string(&log_path).unwrap_or_default())) }
}

/// The first error of the compiler, in the learner's file; errors in our part mean that the signature differs.
fn complaint(exercise: &Exercise, file: &Path, log: &str) -> StartError {
    let errors: Vec<Json> =
        log.lines().filter_map(|line| serde_json::from_str(line).ok()).filter(|e: &Json| e["level"] == "error").collect();
    let place = |error: &Json| {
        let spans = error["spans"].as_array().cloned().unwrap_or_default();
        let primary = spans.into_iter().find(|span| span["is_primary"] == true)?;
        (primary["file_name"].as_str() == file.to_str()).then(|| primary["line_start"].as_u64().unwrap_or(0) as usize)
    };
    if let Some((error, line)) = errors.iter().find_map(|e| Some((e, place(e)?))) {
        let text: String = error["rendered"].as_str().unwrap_or_default().lines().take(12).collect::<Vec<_>>().join("\n");
        return StartError::Trouble(Trouble::Raised { kind: "compile error".to_owned(), text, line: Some(line) });
    }
    if let Some(error) = errors.iter().find(|e| e["spans"].as_array().is_some_and(|spans| !spans.is_empty())) {
        let said = error["message"].as_str().unwrap_or_default();
        let text = format!("the file must have `pub fn {}` of the type\n  {}\nand rustc says: {said}", exercise.name, signature(exercise));
        return StartError::Trouble(Trouble::Raised { kind: "compile error".to_owned(), text, line: None });
    }
    let reason = errors.first().and_then(|e| e["message"].as_str()).unwrap_or(log.lines().next().unwrap_or("no word of why"));
    Error::BadRustc { reason: reason.lines().next().unwrap_or_default().to_owned() }.into()
}
