//! `regard attend` and `regard cluster`, as one process.

mod common;

use common::{command, fails, refused, works};
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
    refused(&[&files[..], &["--out", "out.npy"]].concat(), dir.path(), "out.npy: it is there already");
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
    refused(&[&map[..], &["3x500"]].concat(), dir.path(), "out.heat_map.png: it is there already");
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
    refused(&["attend", "q.npy", "q.npy", "q.npy", "--watchdog", "0"], dir.path(), "--watchdog 0");
    refused(&["attend", "q.npy", "q.npy", "q.npy", "--window", "x"], dir.path(), "512");
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "nothing is left behind: {left:?}");
    if !cfg!(feature = "mpi") {
        let mut one_of_two = command(&["attend", "q.npy", "q.npy", "q.npy"], dir.path());
        fails(&one_of_two.env("OMPI_COMM_WORLD_SIZE", "2").output().unwrap(), 2, "built without MPI");
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
    let help = works(&["cluster", "plan", "--help"], dir.path()) + &works(&["attend", "--help"], dir.path());
    assert!(help.contains("Example") && help.contains("mpirun"), "{help}");
}
