//! What reading a pattern takes: a process of its own, so that its peak is that of the reading.
#![cfg(target_os = "linux")]

use regard_lab::pattern::input::{Held, Names, Pattern, read_pattern};
use std::io::Write as _;

fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn a_small_archive_of_many_numbers_takes_their_size_once() {
    const SIDE: usize = 4096;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weights.npz");
    let mut writer = zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
    writer
        .start_file("weights.npy", zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated))
        .unwrap();
    let header = format!("{{'descr': '<f2', 'fortran_order': False, 'shape': (1, 1, {SIDE}, {SIDE}), }}\n");
    writer.write_all(b"\x93NUMPY\x01\x00").unwrap();
    writer.write_all(&(header.len() as u16).to_le_bytes()).unwrap();
    writer.write_all(header.as_bytes()).unwrap();
    for _ in 0..SIDE {
        writer.write_all(&[0; 2 * SIDE]).unwrap();
    }
    writer.finish().unwrap();
    assert!(path.metadata().unwrap().len() < 100_000);
    let before = peak();
    let input = read_pattern(&path, &Names::default()).unwrap();
    let held = (SIDE * SIDE * 4) as u64;
    let taken = peak() - before;
    assert!(matches!(input.pattern, Pattern::Weights(Held::Single(_))));
    assert!(taken < held + held / 8, "{taken} bytes for {held}");
}
