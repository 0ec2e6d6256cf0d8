//! Hostile runners: each gets its message in time, leaves no process, and never passes.

mod common;

use common::{Judge, languages, said};
use regard_learn::exercise::Lang;
use regard_learn::exercises::find;
use regard_learn::judge::{Status, Verdict};
use std::time::{Duration, Instant};

/// Judges `softmax` with this text, which must not pass, and must say these words.
fn told(lang: Lang, source: &str, words: &str) -> Option<Verdict> {
    if !languages().contains(&lang) {
        return None;
    }
    let judge = Judge::new();
    let start = Instant::now();
    let verdict = judge.check(find("softmax").expect("it is there"), lang, source);
    assert_ne!(verdict.status, Status::Pass);
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    let text = regard_learn::show::verdict(&verdict, Default::default()).join("\n");
    assert!(text.contains(words), "{words:?} is not in\n{text}\n{}", said(&verdict));
    // A process that was killed may take a moment to be gone.
    let gone = Instant::now() + Duration::from_secs(2);
    while !processes_of(judge.folder()).is_empty() && Instant::now() < gone {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(processes_of(judge.folder()), Vec::<String>::new());
    Some(verdict)
}

/// Processes that have a file of the folder among their words.
fn processes_of(folder: &std::path::Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let lines = entries.flatten().filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(&*folder.to_string_lossy())).collect()
}

fn python(body: &str) -> String {
    format!(
        "import os, sys, time, threading\nimport numpy as np\ndef softmax(x):\n{}\n",
        body.lines().map(|l| format!("    {l}\n")).collect::<String>()
    )
}

#[test]
fn an_endless_loop_is_ended_and_its_line_is_told() {
    let verdict = told(Lang::Python, &python("while True:\n    pass"), "no answer after");
    assert!(
        verdict.is_none_or(|v| v.status == Status::Timeout
            && v.message.is_some_and(|m| m.contains("it was in line") && m.contains("(one number: n=1, m=1)")))
    );
}

#[test]
fn an_endless_sleep_is_ended() {
    told(Lang::Python, &python("time.sleep(1000)"), "no answer after 2 s");
}

#[test]
fn an_endless_loop_while_loading_is_ended() {
    told(Lang::Python, "while True:\n    pass\n", "while the file was loaded");
}

#[test]
fn ten_gigabytes_are_not_given() {
    told(Lang::Python, &python("return np.ones(10 * 2**30 // 8)"), "of memory");
}

#[test]
fn an_exit_is_no_answer() {
    told(Lang::Python, &python("sys.exit(0)"), "SystemExit");
    told(Lang::Python, &python("os._exit(0)"), "exit code 0. No answer is never a pass");
    told(Lang::Python, "import os\nos._exit(0)\n", "No answer is never a pass");
    told(Lang::Python, &python("os.kill(os.getpid(), 11)"), "signal 11");
}

#[test]
fn a_closed_socket_is_no_answer() {
    told(Lang::Python, &python("os.closerange(3, 200)\nreturn x"), "No answer is never a pass");
}

#[test]
fn a_million_lines_are_counted_and_two_hundred_shown() {
    let verdict = told(Lang::Python, &python("if x.size == 1:\n    for i in range(10**6): print(i)\nreturn x"), "your code printed");
    // On a busy machine they may not all come within the time of a call.
    assert!(verdict.is_none_or(|v| v.prints.0.len() == 200 && (v.prints.1 >= 1_000_000 || v.status == Status::Timeout)));
}

#[test]
fn copies_of_the_process_do_not_answer_and_do_not_stay() {
    told(Lang::Python, &python("if os.fork() == 0:\n    time.sleep(1000)\nreturn x"), "fail");
    told(Lang::Python, &python("if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(1000)\nreturn x"), "fail");
    told(Lang::Python, &python("os.fork()\nreturn x"), "fail");
}

/// A process in a session of its own, without a parent and without the environment, can be found by none of them.
#[test]
fn processes_that_hide_do_not_stay_and_have_no_memory_of_their_own() {
    if !languages().contains(&Lang::Python) || !landlock_is_there() {
        return;
    }
    let seconds = format!("{}.625", 1000 + std::process::id());
    let hidden = || {
        let lines = std::fs::read_dir("/proc").expect("Linux").flatten();
        lines.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok()).filter(|line| line.contains(&seconds)).count()
    };
    let sleeps = format!(
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        os.execve('/bin/sleep', ['sleep', '{seconds}'], {{}})\n    \
         os._exit(0)\ntime.sleep(0.1)\nreturn x"
    );
    told(Lang::Python, &python(&sleeps), "fail");
    assert_eq!(hidden(), 0);
    let fills = format!("b = bytearray(3 << 29); b[::4096] = b'x' * len(b[::4096]); time.sleep({seconds})");
    let child = format!("if os.fork() == 0:\n    os.setsid()\n    {fills}\ntime.sleep(1.5)\nreturn x");
    told(Lang::Python, &python(&child), "of memory");
}

#[test]
fn a_thread_that_writes_to_the_socket_is_told() {
    let body = "def noise():\n    while True:\n        for fd in range(3, 12):\n            try: os.write(fd, \
        b'\\x05\\0\\0\\0\\0\\0\\0\\0{\"a\":')\n            except OSError: pass\nthreading.Thread(target=noise, \
        daemon=True).start()\ntime.sleep(0.2)\nreturn x";
    told(Lang::Python, &python(body), "the judge's connection brought");
}

#[test]
fn a_forged_answer_to_another_call_is_told() {
    let body = "frame = b'{\"id\":99,\"results\":[]}'\nfor fd in range(3, 12):\n    try: os.write(fd, len(frame).to_bytes(4, 'little') + \
        bytes(4) + frame)\n    except OSError: pass\nreturn x";
    told(Lang::Python, &python(body), "the judge's connection brought");
}

#[test]
fn a_patched_numpy_does_not_pass() {
    let body = "return x";
    let patched = format!(
        "{}np.asarray = np.frombuffer = np.ascontiguousarray = lambda *a, **k: 1/0\nimport json, struct, socket\njson.dumps = \
            struct.pack = lambda *a: b''\n",
        python(body)
    );
    told(Lang::Python, &patched, "fail");
}

#[test]
fn what_is_no_array_is_told() {
    told(Lang::Python, &python("import pickle\nreturn pickle.dumps(x)"), "weights is of type bytes");
    told(Lang::Python, &python("return None"), "weights is None");
    told(Lang::Python, &python("return x + 1j"), "complex");
    told(Lang::Python, &python("return [[1, 2], [3]]"), "cannot be read as an array");
    told(Lang::Python, &python("return object()"), "not an array of numbers");
    told(Lang::Python, &python("return x[0]"), "it must be [n, m]");
    told(
        Lang::Python,
        &python("class A:\n    def __array__(self, *a, **k): raise ValueError('x' * 10**7)\nreturn A()"),
        "cannot be read as an array",
    );
}

#[test]
fn long_exceptions_are_cut_and_have_their_line() {
    let verdict = told(Lang::Python, &python("raise ValueError('x' * 10**7)"), "ValueError at answer0.py:4");
    assert!(verdict.is_none_or(|v| v.message.is_some_and(|m| m.len() < 4000)));
    told(Lang::Python, &python("class E(Exception):\n    def __str__(self): raise self\nraise E"), "whose text is unavailable");
    told(Lang::Python, "def softmax(x)\n    return x\n", "SyntaxError at answer0.py:1");
    told(Lang::Python, "import nowhere\n", "ModuleNotFoundError at answer0.py:1");
}

#[test]
fn a_changed_input_is_told() {
    told(Lang::Python, &python("x -= x.max(axis=1, keepdims=True)\nreturn x"), "changes its input x");
}

#[test]
fn rust_answers_are_held_to_the_same() {
    let rust = |body: &str| format!("pub fn softmax(x: &[f32], [n, m]: [usize; 2]) -> Vec<f32> {{\n{body}\n}}\n");
    told(Lang::Rust, &rust("loop { std::hint::spin_loop() }"), "no answer after");
    told(Lang::Rust, &rust("std::process::exit(0)"), "exit code 0. No answer is never a pass");
    told(Lang::Rust, &rust("std::process::abort()"), "signal 6");
    told(Lang::Rust, &rust("let v = vec![1u8; 10 << 30]; x.iter().map(|y| y + v[n * m] as f32).collect()"), "of memory");
    told(Lang::Rust, &rust("x[n * m..][0..1].to_vec()"), "panic at answer0.rs:2");
    told(Lang::Rust, &rust("vec![0.0; n * m + 1]"), "has the shape [2]");
    told(Lang::Rust, &rust("let y: i32 = \"a\"; vec![]"), "it does not compile at answer0.rs:2");
    told(Lang::Rust, "pub fn softmax(x: &[f64], [n, m]: [usize; 2]) -> Vec<f64> { x.to_vec() }\n", "pub fn softmax` of the type");
    told(Lang::Rust, "fn softmax(x: &[f32], [n, m]: [usize; 2]) -> Vec<f32> { x.to_vec() }\n", "private");
    told(Lang::Rust, &rust("if x.len() == 1 { for i in 0..1_000_000 { println!(\"{i}\"); } } x.to_vec()"), "your code printed");
}

/// Python that makes entries from 1,000 on of one result wrong: `answer` is the right function.
const LATE: &str = "
def spoiled(*args):
    results = answer(*args)
    single = not isinstance(results, tuple)
    results = [np.array(r) for r in ([results] if single else results)]
    large = any(getattr(a, 'size', 1) > 1000 for a in args)
    one = results[WHICH].reshape(-1)
    if one.size > 1000:
        one[1000:] += 0.01
    elif one.size <= 9 and large:
        one[-1] += 0.01
    return results[0] if single else tuple(results)
";

#[test]
fn an_answer_that_is_wrong_only_in_large_results_fails_every_exercise() {
    if !languages().contains(&Lang::Python) {
        return;
    }
    let work = common::exercises().into_iter().filter(|e| matches!(e.judging, regard_learn::exercise::Judging::Numbers { .. }));
    common::run_all(work.flat_map(|e| (0..e.results.len()).map(move |r| (e, r))).map(|(e, r)| {
        move |judge: &Judge| {
            let spoiled = LATE.replace("spoiled", e.name).replace("WHICH", &r.to_string());
            let source = format!("{}\nanswer = {}\n{spoiled}", e.solution(Lang::Python), e.name);
            let verdict = judge.check(e, Lang::Python, &source);
            let fails = verdict.status == Status::Fail && verdict.diagnosis.is_none();
            fails.then_some(()).ok_or_else(|| format!("{} {}: {}", e.name, e.results[r].0, said(&verdict)))
        }
    }));
}

#[test]
fn a_program_that_replaces_a_compiled_answer_is_not_run() {
    if !languages().contains(&Lang::Rust) {
        return;
    }
    let (judge, exercise) = (Judge::new(), find("softmax").expect("it is there"));
    let wrong = exercise.solution(Lang::Rust).replace("exp()", "exp2()");
    let file = judge.folder().join("wrong.rs");
    std::fs::write(&file, &wrong).expect("it can be written");
    let programs = || -> Vec<std::path::PathBuf> {
        let folder = judge.builds().folder().expect("something was compiled");
        let entries = std::fs::read_dir(folder).expect("it is there").flatten().map(|entry| entry.path());
        entries.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("answer-"))).collect()
    };
    assert_eq!(judge.check(exercise, Lang::Rust, exercise.solution(Lang::Rust)).status, Status::Pass);
    let right = programs().pop().expect("the right answer");
    assert_eq!(judge.file(exercise, Lang::Rust, &file).status, Status::Fail);
    for program in programs().iter().filter(|path| **path != right) {
        std::fs::copy(&right, program).expect("it can be replaced");
    }
    assert_eq!(judge.file(exercise, Lang::Rust, &file).status, Status::Fail, "the replaced program is compiled again");
}

#[test]
fn an_answer_cannot_write_outside_its_folder() {
    if !languages().contains(&Lang::Python) || !landlock_is_there() {
        return;
    }
    let target = tempfile::tempdir().expect("a folder");
    let path = target.path().join("progress.json");
    std::fs::write(&path, "mine").expect("it can be written");
    let body = format!(
        "import subprocess\nopen('inside', 'w').write('x')\nfor do in (lambda: open({path:?}, 'w').write('pass'), lambda: \
            os.remove({path:?}), \
         lambda: os.rename({path:?}, {path:?} + '2'), lambda: open({path:?} + '3', 'w'), lambda: os.kill(os.getppid(), 9)):\n    try: \
         do()\n    \
         except OSError: pass\nsubprocess.run(['sh', '-c', 'echo pass > ' + {path:?}])\nreturn x",
        path = path.to_string_lossy()
    );
    told(Lang::Python, &python(&body), "fail");
    assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "mine");
    assert_eq!(std::fs::read_dir(target.path()).expect("it is there").count(), 1);
}

/// Whether the kernel has Landlock: asked of Python, since this test has no unsafe code.
fn landlock_is_there() -> bool {
    let ask = "import ctypes; print(ctypes.CDLL(None).syscall(444, None, 0, 1))";
    let python = std::env::var("REGARD_LEARN_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let output = std::process::Command::new(python).args(["-c", ask]).output().expect("Python starts");
    let there = String::from_utf8_lossy(&output.stdout).trim().parse::<i32>().is_ok_and(|version| version >= 6);
    if !there {
        eprintln!("skipped: the kernel has no Landlock with signal scopes");
    }
    there
}
