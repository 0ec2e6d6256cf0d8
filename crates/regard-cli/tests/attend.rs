//! `regard attend` and `regard cluster`, as one process.

mod common;

use common::{command, fails, refused, regard, works};
use std::path::Path;

/// A NumPy file of float32.
fn write_npy(path: &Path, shape: &str, count: usize) {
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
    while !(10 + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend((0..count).flat_map(|i| ((i as f32 * 0.7).sin()).to_le_bytes()));
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn attend_writes_results_and_statistics() {
    let dir = tempfile::tempdir().unwrap();
    for (name, heads) in [("q.npy", 4), ("k.npy", 2), ("v.npy", 2)] {
        write_npy(&dir.path().join(name), &format!("(1, {heads}, 300, 8)"), heads * 300 * 8);
    }
    let files = ["attend", "q.npy", "k.npy", "v.npy", "--causal"];
    let said = works(&[&files[..], &["--stats", "--json", "--out", "out.npy"]].concat(), dir.path());
    let tables: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(tables[0]["rows"][0]["rows"], 4 * 300);
    assert_eq!(tables[1]["rows"].as_array().unwrap().len(), 4);
    let out = std::fs::read(dir.path().join("out.npy")).unwrap();
    assert_eq!(out.len(), 128 + 4 * 300 * 8 * 4);
    // The first row sees the first key alone: its value.
    let values = std::fs::read(dir.path().join("v.npy")).unwrap();
    assert_eq!(out[128..160], values[128..160]);
    assert!(dir.path().join("out.entropy.npy").exists() && dir.path().join("out.lse.npy").exists());
    refused(&[&files[..], &["--out", "out.npy"]].concat(), dir.path(), "out.npy: this file exists");
    refused(&[&files[..], &["--out", "./v.npy", "--overwrite"]].concat(), dir.path(), "one of the inputs");
    assert!(std::fs::read(dir.path().join("v.npy")).unwrap() == values && std::fs::read(dir.path().join("out.npy")).unwrap() == out);
    works(&[&files[..], &["--quiet", "--overwrite", "--out", "out.npy"]].concat(), dir.path());
    // Threads change nothing; a window does.
    works(&[&files[..], &["--threads", "1", "--quiet", "--out", "one.npy"]].concat(), dir.path());
    assert_eq!(std::fs::read(dir.path().join("one.npy")).unwrap(), out);
    works(&[&files[..], &["--window", "16,0", "--first-keys", "2", "--quiet", "--out", "window.npy"]].concat(), dir.path());
    assert_ne!(std::fs::read(dir.path().join("window.npy")).unwrap(), out);
}

#[test]
fn attend_writes_a_heat_map_and_its_picture() {
    let dir = tempfile::tempdir().unwrap();
    write_npy(&dir.path().join("x.npy"), "(2, 300, 8)", 2 * 300 * 8);
    let map = ["attend", "x.npy", "x.npy", "x.npy", "--causal", "--heat-map"];
    works(&[&map[..], &["3x500", "--quiet"]].concat(), dir.path());
    let bytes = std::fs::read(dir.path().join("out.heat_map.npy")).unwrap();
    assert_eq!(bytes.len(), 128 + 2 * 3 * 300 * 4);
    let cells: Vec<f32> = bytes[128..].as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
    for (i, row) in cells.chunks(300).enumerate() {
        // Columns are keys here: 100 queries see the first 100 (i % 3 + 1) of them, and their weights sum to one.
        let seen = 100 * (i % 3 + 1);
        assert!(row[seen..].iter().all(|&x| x == 0.0) && row[..seen].iter().all(|&x| x > 0.0), "row {i}");
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5, "row {i}");
    }
    let picture = std::fs::read(dir.path().join("out.heat_map.png")).unwrap();
    assert!(picture.starts_with(b"\x89PNG"));
    std::fs::remove_file(dir.path().join("out.npy")).unwrap();
    std::fs::remove_file(dir.path().join("out.heat_map.npy")).unwrap();
    refused(&[&map[..], &["3x500"]].concat(), dir.path(), "out.heat_map.png: this file exists");
    for wrong in ["512", "0x5", "ax5"] {
        refused(&[&map[..], &[wrong]].concat(), dir.path(), "512x512");
    }
}

#[test]
fn what_cannot_be_attended_to_is_named() {
    let dir = tempfile::tempdir().unwrap();
    write_npy(&dir.path().join("q.npy"), "(2, 30, 8)", 480);
    write_npy(&dir.path().join("k.npy"), "(3, 30, 8)", 720);
    refused(&["attend", "q.npy", "none.npy", "q.npy"], dir.path(), "none.npy");
    refused(&["attend", "q.npy", "k.npy", "k.npy"], dir.path(), "head");
    refused(&["attend", "q.npy", "q.npy", "q.npy", "--head-groups", "2"], dir.path(), "groups of heads");
    refused(&["attend", "q.npy", "q.npy", "q.npy", "--watchdog", "0"], dir.path(), "invalid --watchdog: 0");
    refused(&["attend", "q.npy", "q.npy", "q.npy", "--window", "x"], dir.path(), "512");
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "nothing is left behind: {left:?}");
    if !cfg!(feature = "mpi") {
        let mut one_of_two = command(&["attend", "q.npy", "q.npy", "q.npy"], dir.path());
        fails(&one_of_two.env("OMPI_COMM_WORLD_SIZE", "2").output().unwrap(), 2, "built without MPI");
    }
}

/// Whoever starts ranks says so in the environment, each in another way.
#[test]
fn ranks_of_a_job_are_known_by_what_started_them() {
    let dir = tempfile::tempdir().unwrap();
    write_npy(&dir.path().join("q.npy"), "(2, 30, 8)", 480);
    let names = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "MPI_LOCALNRANKS", "PMIX_RANK", "PMI_RANK", "SLURM_STEP_NUM_TASKS"];
    let started = |variables: &[(&str, &str)]| {
        let mut command = command(&["attend", "q.npy", "q.npy", "q.npy", "--quiet", "--overwrite"], dir.path());
        for name in names {
            command.env_remove(name);
        }
        command.envs(variables.iter().copied()).output().unwrap()
    };
    let srun = [("SLURM_NTASKS", "16"), ("SLURM_STEP_NUM_TASKS", "16"), ("SLURM_PROCID", "3"), ("PMIX_RANK", "3"), ("PMIX_NAMESPACE", "x")];
    if !cfg!(feature = "mpi") {
        fails(&started(&srun), 2, "one of 16 ranks");
        fails(&started(&srun[..2]), 2, "one of 16 ranks");
        fails(&started(&[("PMIX_RANK", "3")]), 2, "one of several ranks");
        fails(&started(&[("PMI_RANK", "1"), ("PMI_SIZE", "2")]), 2, "one of 2 ranks");
    }
    // One process: within a script of sbatch, by srun -n 1, and by mpirun -n 1 within a step of srun.
    for alone in [
        &[("SLURM_NTASKS", "16"), ("SLURM_PROCID", "0"), ("SLURM_JOB_ID", "7")][..],
        &[("SLURM_NTASKS", "16"), ("SLURM_STEP_NUM_TASKS", "1"), ("PMIX_RANK", "0")],
        &[("OMPI_COMM_WORLD_SIZE", "1"), ("SLURM_STEP_NUM_TASKS", "4"), ("PMIX_RANK", "0")],
        &[],
    ] {
        let output = started(alone);
        assert!(output.status.success(), "{alone:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
#[cfg(unix)]
fn what_is_at_the_place_of_the_results_stays() {
    use std::os::unix::fs::{FileTypeExt, symlink};
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    write_npy(&at("q.npy"), "(2, 30, 8)", 480);
    write_npy(&at(".x.npy.regard-unfinished"), "(2, 30, 8)", 480);
    let input = std::fs::read(at("q.npy")).unwrap();
    std::fs::write(at("user.txt"), "mine").unwrap();
    symlink("user.txt", at("link")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    symlink("user.txt", at(".z.npy.regard-unfinished")).unwrap();
    std::fs::create_dir(at("dir")).unwrap();
    let made = std::process::Command::new("mkfifo").args([at("pipe"), at(".u.npy.regard-unfinished")]).status().unwrap();
    assert!(made.success());
    for name in ["link", "dangling", "dir", "pipe"] {
        for more in [&["--overwrite"][..], &[]] {
            let words = if name == "dir" { "this is a directory" } else { "which is not replaced" };
            refused(&[&["attend", "q.npy", "q.npy", "q.npy", "--out", name], more].concat(), dir.path(), words);
        }
    }
    assert!(at("pipe").symlink_metadata().unwrap().file_type().is_fifo() && at("dangling").is_symlink());
    // Names that were once those of unfinished files are the user's.
    for out in ["x.npy", "z.npy", "u.npy"] {
        works(&["attend", ".x.npy.regard-unfinished", "q.npy", "q.npy", "--quiet", "--out", out], dir.path());
    }
    assert_eq!(std::fs::read(at(".x.npy.regard-unfinished")).unwrap(), input);
    assert_eq!(std::fs::read(at("user.txt")).unwrap(), b"mine");
    // Pipes, devices and directories are no inputs.
    for (name, words) in [("pipe", "a pipe or a device"), ("/dev/zero", "a pipe or a device"), ("dir", "this is a directory")] {
        for place in 0..3 {
            let mut words_of = ["attend", "q.npy", "q.npy", "q.npy", "--out", "new.npy"];
            words_of[1 + place] = name;
            refused(&words_of, dir.path(), words);
        }
    }
    let left = dir.path().read_dir().unwrap().filter(|entry| entry.as_ref().unwrap().path().to_string_lossy().ends_with("unfinished"));
    assert_eq!(left.count(), 3, "those that were there");
}

#[test]
#[cfg(target_os = "linux")]
fn names_and_words_that_cannot_be_are_one_line() {
    use std::os::unix::ffi::OsStrExt;
    let dir = tempfile::tempdir().unwrap();
    write_npy(&dir.path().join("q.npy"), "(2, 30, 8)", 480);
    refused(&["attend", "q.npy", "q.npy", "q.npy", "--out", "none/out.npy"], dir.path(), "its folder does not exist");
    for (block, words) in [("100", "a multiple of 256"), ("0", "a multiple of 256")] {
        refused(&["attend", "q.npy", "q.npy", "q.npy", "--out", "new.npy", "--block", block], dir.path(), words);
    }
    refused(&["attend", "q.npy", "q.npy", "q.npy", "--partition", "contiguous", "--block", "256"], dir.path(), "--block needs");
    // A name that is not a line, and a word that is not a name.
    refused(&["attend", "q.npy", "two\nlines.npy", "q.npy"], dir.path(), "two\\nlines.npy");
    let output = regard(&["attend", "q.npy", "q.npy", "q.npy", "--window", &"9".repeat(100_000)], dir.path());
    fails(&output, 2, "invalid value");
    assert!(output.stderr.len() < 5000);
    // No room for the results: what is there is left as it is, and the arguments are right.
    let mut full = std::process::Command::new("sh");
    full.args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_regard")]).current_dir(dir.path());
    fails(&full.args(["attend", "q.npy", "q.npy", "q.npy", "--out", "new.npy"]).output().unwrap(), 1, "cannot write new.npy");
    // A name that is not UTF-8 has statistics of that name.
    let name = std::ffi::OsStr::from_bytes(b"o\xff.npy");
    let output = command(&["attend", "q.npy", "q.npy", "q.npy", "--stats", "--quiet", "--out"], dir.path()).arg(name).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(dir.path().join(std::ffi::OsStr::from_bytes(b"o\xff.lse.npy")).exists());
    assert!(!dir.path().join("new.npy").exists());
}

/// Another program shortens the keys in the middle of the work: an error that names the file, and no results.
#[test]
fn keys_that_are_cut_short_meanwhile_are_named() {
    let dir = tempfile::tempdir().unwrap();
    const TOKENS: usize = 40_000;
    for name in ["q.npy", "k.npy", "v.npy"] {
        write_npy(&dir.path().join(name), &format!("(1, 2, {TOKENS}, 64)"), 2 * TOKENS * 64);
    }
    let mut words = command(&["attend", "q.npy", "k.npy", "v.npy", "--threads", "1", "--quiet"], dir.path());
    let job = words.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let begun = || dir.path().read_dir().unwrap().any(|entry| entry.unwrap().path().to_string_lossy().ends_with("unfinished"));
    while !begun() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    std::fs::File::options().write(true).open(dir.path().join("k.npy")).unwrap().set_len(5000).unwrap();
    fails(&job.wait_with_output().unwrap(), 1, "k.npy: it changed while it was read");
    assert_eq!(common::named(dir.path(), ".npy"), ["k.npy", "q.npy", "v.npy"]);
    assert!(!begun());
}

/// A user who may have few threads, which root can be for a while: fewer threads and the same bytes, or one line that says why not.
#[test]
#[cfg(target_os = "linux")]
fn threads_that_cannot_be_started_are_an_error_or_a_note() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    write_npy(&dir.path().join("x.npy"), "(2, 3000, 32)", 2 * 3000 * 32);
    works(&["attend", "x.npy", "x.npy", "x.npy", "--quiet", "--out", "right.npy"], dir.path());
    let few = |processes: usize, words: &[&str]| {
        let script = "ulimit -u $0 && exec timeout -s KILL 120 setpriv --reuid=65531 --clear-groups \"$@\"";
        let mut command = std::process::Command::new("bash");
        command.args(["-c", script, &processes.to_string(), env!("CARGO_BIN_EXE_regard")]).args(words).current_dir(dir.path());
        command.env("RAYON_NUM_THREADS", "16").output().unwrap()
    };
    if !few(8, &["--version"]).status.success() {
        eprintln!("skipped: this needs root, bash, setpriv, and a program that all can run");
        return;
    }
    let attend = ["attend", "x.npy", "x.npy", "x.npy", "--out"];
    fails(&few(1, &[&attend[..], &["a.npy"]].concat()), 1, "cannot start 16 threads: the system starts 0");
    fails(&few(8, &[&attend[..], &["b.npy", "--threads", "16"]].concat()), 1, "cannot start 16 threads: the system starts 7");
    let output = few(8, &[&attend[..], &["c.npy"]].concat());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && message.contains("using 5 of 16 threads"), "{message}");
    assert_eq!(std::fs::read(dir.path().join("c.npy")).unwrap(), std::fs::read(dir.path().join("right.npy")).unwrap());
    // Whatever the limit: the end is an exit code, never a panic, a signal or a hang.
    let small = ["--width", "8", "--heads", "1", "--layers", "1", "--context", "8", "--characters", "20000", "--steps", "2", "--quiet"];
    for processes in 1..6 {
        let train = ["train", "--parts", "2", "--batch", "2", "--workers", "2", "--overwrite", "--out", "model"];
        let plan = ["cluster", "plan", "--tokens", "64K", "--ranks", "4"];
        for words in [&[&attend[..], &["d.npy", "--overwrite"]].concat(), &[&train[..], &small].concat(), &plan.to_vec()] {
            let output = few(processes, words);
            let message = String::from_utf8_lossy(&output.stderr);
            assert!(matches!(output.status.code(), Some(0 | 1)), "{processes} processes, {words:?}: {:?} {message}", output.status);
            assert!(!message.contains("panicked"), "{processes} processes, {words:?}: {message}");
        }
    }
}

#[test]
fn plan_tells_seconds_bytes_and_memory() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["cluster", "plan", "--tokens", "64K", "--heads", "8/2", "--dim", "64", "--rate", "100", "--ranks", "1,4", "--json"];
    let tables: serde_json::Value = serde_json::from_str(&works(&words, dir.path())).unwrap();
    let rows = tables[0]["rows"].as_array().unwrap();
    let seconds = |row: usize| rows[row]["seconds"].as_f64().unwrap();
    let expected = 65_536.0 * 65_537.0 / 2.0 * 4.0 * 64.0 * 8.0 / 1e11;
    assert!((seconds(0) / expected - 1.0).abs() < 1e-9, "{rows:?}");
    assert!(seconds(1) < seconds(0) / 3.0 && seconds(1) >= seconds(0) / 4.0, "{rows:?}");
    refused(&["cluster", "plan", "--net", "fast"], dir.path(), "10GbE");
    refused(&["cluster", "plan", "--heads", "8/3"], dir.path(), "32/8");
    refused(&["cluster", "plan", "--tokens", "0"], dir.path(), "1M");
    refused(&["cluster", "plan", "--bytes", "3"], dir.path(), "2, 4 or 8");
    for (option, value, words) in [
        ("--tokens", "4097M", "from 1 to 4096M"),
        ("--tokens", "1G", "K is 1024"),
        ("--dim", "0", "from 1 to 65536"),
        ("--dim", "4611686018427387904", "from 1 to 65536"),
        ("--heads", "4294967296", "from 1 to 65536"),
        ("--ranks", ",", "invalid --ranks"),
        ("--ranks", "", "invalid --ranks"),
        ("--block", "100", "a multiple of 256"),
    ] {
        refused(&["cluster", "plan", "--rate", "100", option, value], dir.path(), words);
    }
    refused(&["cluster", "plan", "--contiguous", "--block", "256"], dir.path(), "cannot be used with");
    refused(&["cluster", "plan", "--rate", "100", "--tokens", "16M", "--ranks", "65536"], dir.path(), "too many to simulate");
    // More pairs than an integer of 64 bits can count, and an end all the same.
    for words in [&["--ranks", "1", "--block", "4294967296"][..], &["--ranks", "1,2", "--full"], &["--ranks", "8"]] {
        let plan = ["cluster", "plan", "--rate", "100", "--tokens", "4096M", "--json"];
        let tables: serde_json::Value = serde_json::from_str(&works(&[&plan, words].concat(), dir.path())).unwrap();
        let efficiency = tables[0]["rows"][0]["efficiency"].as_f64().unwrap();
        assert!((efficiency - 1.0).abs() < 1e-9, "{words:?}: {efficiency}");
    }
    let help = works(&["cluster", "plan", "--help"], dir.path()) + &works(&["attend", "--help"], dir.path());
    assert!(help.contains("Example") && help.contains("mpirun"), "{help}");
}
