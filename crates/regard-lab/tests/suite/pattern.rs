//! Reading patterns, and drawing them: what is right, and every way in which a file can be wrong.

use ndarray::{Array4, ArrayD, IxDyn};
use regard::{Attention, StatsOptions};
use regard_lab::figure::{Norm, Panel, Theme};
use regard_lab::pattern::input::{Held, Input, InputError, Names, Pattern, read_pattern, read_tokens, read_vectors};
use regard_lab::pattern::{CellValue, PlotError, PlotOptions, Plotted, plot};
use regard_lab::{Table, Value};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A `.npy` file's bytes.
fn npy(descr: &str, fortran: bool, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': {}, 'shape': {shape}, }}\n", if fortran { "True" } else { "False" });
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend((header.len() as u16).to_le_bytes());
    out.extend(header.as_bytes());
    out.extend(data);
    out
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn npz(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
        writer.start_file(format!("{name}.npy"), options).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(data);
    out
}

struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
    fn read(&self, name: &str, bytes: impl AsRef<[u8]>) -> Result<Input, InputError> {
        read_pattern(&self.write(name, bytes), &Names::default())
    }
}

fn weights_of(input: Input) -> Array4<f64> {
    match input.pattern {
        Pattern::Weights(Held::Single(weights)) => weights.mapv(f64::from),
        Pattern::Weights(Held::Double(weights)) => weights,
        Pattern::QueriesKeys { .. } => panic!("weights were expected"),
    }
}

fn vectors_of(input: Input) -> (Array4<f32>, Array4<f32>) {
    match input.pattern {
        Pattern::QueriesKeys { q: Held::Single(q), k: Held::Single(k) } => (q, k),
        Pattern::QueriesKeys { q: Held::Double(q), k: Held::Double(k) } => (q.mapv(|x| x as f32), k.mapv(|x| x as f32)),
        other => panic!("q and k were expected: {other:?}"),
    }
}

const HALVES: [f32; 4] = [0.75, 0.25, 0.5, 0.5];

#[test]
fn npy_is_read_in_every_float_type_byte_order_and_axis_order() {
    let files = Files::new();
    let expected = Array4::from_shape_vec((1, 1, 2, 2), HALVES.map(f64::from).to_vec()).unwrap();
    let f16: Vec<u8> = HALVES.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect();
    let f64le: Vec<u8> = HALVES.iter().flat_map(|v| f64::from(*v).to_le_bytes()).collect();
    let f32be: Vec<u8> = HALVES.iter().flat_map(|v| v.to_be_bytes()).collect();
    for (descr, data) in [("<f2", f16), ("<f4", f32s(&HALVES)), ("<f8", f64le), (">f4", f32be)] {
        assert_eq!(weights_of(files.read("a.npy", npy(descr, false, "(2, 2)", &data)).unwrap()), expected, "{descr}");
    }
    let columns = f32s(&[0.75, 0.5, 0.25, 0.5]);
    assert_eq!(weights_of(files.read("a.npy", npy("<f4", true, "(2, 2)", &columns)).unwrap()), expected);
    assert_eq!(weights_of(files.read("a.npy", npy("<f4", false, "(1, 1, 2, 2)", &f32s(&HALVES))).unwrap()), expected);
}

#[test]
fn archives_give_weights_or_vectors_by_their_names() {
    let files = Files::new();
    let array = |shape: &str, values: &[f32]| npy("<f4", false, shape, &f32s(values));
    let both = npz(&[("q", array("(2, 1)", &[1.0, 2.0])), ("K", array("(3, 1)", &[3.0, 4.0, 5.0])), ("other", array("(1,)", &[0.0]))]);
    let (q, k) = vectors_of(files.read("both.npz", &both).unwrap());
    assert_eq!((q.shape(), k.shape()), (&[1, 1, 2, 1][..], &[1, 1, 3, 1][..]));
    assert_eq!(k[[0, 0, 2, 0]], 5.0);
    let weights = npz(&[("attn", array("(2, 2)", &HALVES)), ("x", array("(1,)", &[0.0]))]);
    assert_eq!(weights_of(files.read("w.npz", weights).unwrap())[[0, 0, 0, 1]], 0.25);
    let only = npz(&[("whatever", array("(2, 2)", &HALVES))]);
    assert_eq!(weights_of(files.read("o.npz", only).unwrap())[[0, 0, 0, 0]], 0.75);

    let data: Vec<u8> =
        [f32s(&HALVES), half::bf16::from_f32(1.5).to_le_bytes().to_vec(), half::bf16::from_f32(-2.0).to_le_bytes().to_vec()].concat();
    let header = r#"{"__metadata__":{"a":"b"},"map":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"query":{"dtype":"BF16","shape":[2,1],"data_offsets":[16,20]}}"#;
    let path = files.write("m.safetensors", safetensors(header, &data));
    let names = Names { weights: Some("map".to_owned()), ..Names::default() };
    assert_eq!(weights_of(read_pattern(&path, &names).unwrap())[[0, 0, 1, 1]], 0.5);
    let k = files.write("k.csv", "1\n2\n3\n");
    let (q, k) = vectors_of(read_vectors(&path, &k, &Names::default()).unwrap());
    assert_eq!((q[[0, 0, 1, 0]], k[[0, 0, 2, 0]]), (-2.0, 3.0));
}

#[test]
fn csv_may_have_comments_and_names_of_keys() {
    let files = Files::new();
    let input = files.read("w.csv", "# seed: 4\nthe,cat\n0.75, 0.25\n0.5,0.5\n").unwrap();
    assert_eq!(input.tokens, ["the", "cat"]);
    assert_eq!(weights_of(input)[[0, 0, 0, 1]], 0.25);
}

#[test]
fn tokens_come_from_a_file_or_a_list() {
    let files = Files::new();
    let path = files.write("tokens.txt", "The\r\n cat\n\n");
    assert_eq!(read_tokens(path.to_str().unwrap()).unwrap(), ["The", " cat", ""]);
    assert_eq!(read_tokens("a,b,,c").unwrap(), ["a", "b", "", "c"]);
    assert_eq!(read_tokens("the cat sat").unwrap(), ["the", "cat", "sat"]);
    assert!(matches!(read_tokens("cat"), Err(InputError::OneToken { .. })));
    let marked = files.write("marked.txt", "\u{feff}The\ncat\n");
    assert_eq!(read_tokens(marked.to_str().unwrap()).unwrap(), ["The", "cat"]);
    let empty = files.write("empty.txt", "");
    assert!(matches!(read_tokens(empty.to_str().unwrap()), Err(InputError::Files(_))));
}

#[test]
fn files_that_are_not_what_they_say_are_errors() {
    let files = Files::new();
    for (name, bytes) in [
        ("a.npy", &b""[..]),
        ("b.npy", b"not numpy at all"),
        ("c.npy", b"\x93NUMPY\x09\x00\x10\x00"),
        ("d.npy", b"\x93NUMPY\x01\x00\xff\x00short"),
        ("e.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}"),
        ("f.npz", b"PK\x03\x04 this is no archive"),
        ("g.safetensors", b"\xff\xff\xff\xff\xff\xff\xff\xff{}"),
        ("h.safetensors", b"\x02\x00\x00\x00\x00\x00\x00\x00[]"),
        ("i.safetensors", b"1234"),
        ("j.csv", b"1,2\n3\n"),
        ("k.csv", b"# nothing\n"),
        ("l.csv", b"\xff\xfe,1\n"),
    ] {
        let error = files.read(name, bytes).unwrap_err();
        assert!(matches!(error, InputError::Malformed { .. }), "{name}: {error:?}");
        assert!(error.to_string().contains(name), "{error}");
    }
    assert!(matches!(files.read("pattern.txt", "1"), Err(InputError::Kind { .. })));
    assert!(matches!(read_pattern(Path::new("/no/such/file.npy"), &Names::default()), Err(InputError::Files(_))));
    let folder = files.0.path().join("folder.npy");
    std::fs::create_dir(&folder).unwrap();
    assert!(matches!(read_pattern(&folder, &Names::default()), Err(InputError::Files(_))));
}

#[test]
fn headers_of_npy_that_make_no_sense_are_errors() {
    let files = Files::new();
    for header in ["(2, -2)", "(2, 2", "[2, 2]", "(99999999999999999999999, 2)", "(2, x)", "()", "(((((((", "None"] {
        let error = files.read("a.npy", npy("<f4", false, header, &f32s(&HALVES))).unwrap_err();
        assert!(
            matches!(error, InputError::Malformed { .. } | InputError::Length { .. } | InputError::Dimensions { .. }),
            "{header}: {error:?}"
        );
    }
    let mut nested = b"\x93NUMPY\x01\x00".to_vec();
    nested.extend(8000u16.to_le_bytes());
    nested.extend([b'('; 8000]);
    assert!(matches!(files.read("a.npy", nested), Err(InputError::Malformed { .. })));
}

#[test]
fn a_header_cannot_ask_for_memory_that_the_file_does_not_fill() {
    let files = Files::new();
    for shape in ["(4294967296, 4294967296)", "(18446744073709551615, 18446744073709551615)", "(1000000000000, 1)", "(2, 3)", "(1, 2)"] {
        let error = files.read("a.npy", npy("<f4", false, shape, &f32s(&HALVES))).unwrap_err();
        assert!(matches!(error, InputError::Length { got: 16, .. }), "{shape}: {error:?}");
        let error = files.read("a.npz", npz(&[("w", npy("<f4", false, shape, &f32s(&HALVES)))])).unwrap_err();
        assert!(matches!(error, InputError::Length { got: 16, .. }), "{shape}: {error:?}");
    }
    let huge = r#"{"w":{"dtype":"F32","shape":[1000000000000,1],"data_offsets":[0,4000000000000]}}"#;
    assert!(matches!(
        files.read("a.safetensors", safetensors(huge, &[0; 16])),
        Err(InputError::Length { .. } | InputError::Malformed { .. })
    ));
    let lying = r#"{"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,8]}}"#;
    assert!(matches!(files.read("a.safetensors", safetensors(lying, &[0; 16])), Err(InputError::Malformed { .. })));
    let backwards = r#"{"w":{"dtype":"F32","shape":[2,2],"data_offsets":[16,0]}}"#;
    assert!(matches!(files.read("a.safetensors", safetensors(backwards, &[0; 16])), Err(InputError::Malformed { .. })));
    let cut = r#"{"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#;
    assert!(matches!(
        files.read("a.safetensors", safetensors(cut, &[0; 9])),
        Err(InputError::Length { .. } | InputError::Malformed { .. })
    ));
}

#[test]
fn more_than_can_be_read_is_refused_before_it_is_read() {
    // A file with a hole: its length is that of its header and nine gigabytes, its blocks are a few.
    let files = Files::new();
    let path = files.write("large.npy", npy("<f8", false, "(1207959552, 1)", &[]));
    let header = std::fs::metadata(&path).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(header + (9 << 30)).unwrap();
    let error = read_pattern(&path, &Names::default()).unwrap_err();
    assert!(matches!(error, InputError::TooLarge { bytes: 9_663_676_416, .. }), "{error:?}");
}

#[test]
fn a_damaged_archive_is_an_error_wherever_it_is_cut_or_changed() {
    let files = Files::new();
    let values: Vec<f32> = (0..64).map(|i| (i % 8) as f32 / 28.0).collect();
    let good = npz(&[("w", npy("<f4", false, "(8, 8)", &f32s(&values)))]);
    assert!(files.read("good.npz", &good).is_ok());
    for cut in 0..good.len() {
        assert!(files.read("cut.npz", &good[..cut]).is_err(), "cut at {cut}");
    }
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x5a;
        // A changed time stamp is no damage; anything may be read, nothing may panic.
        let _ = files.read("bad.npz", &bad);
    }
    let header = r#"{"w":{"dtype":"F32","shape":[8,8],"data_offsets":[0,256]}}"#;
    for good in [safetensors(header, &f32s(&values)), npy("<f4", false, "(8, 8)", &f32s(&values))] {
        let name = if good.starts_with(b"\x93") { "x.npy" } else { "x.safetensors" };
        assert!(files.read(name, &good).is_ok());
        for cut in 0..good.len() {
            assert!(files.read(name, &good[..cut]).is_err(), "{name} cut at {cut}");
        }
        for at in 0..good.len() - 256 {
            for change in [0x01, 0x5a, 0x80] {
                let mut bad = good.clone();
                bad[at] ^= change;
                let _ = files.read(name, &bad);
            }
        }
    }
}

#[test]
fn an_archive_whose_checksum_does_not_fit_is_an_error() {
    let files = Files::new();
    // Stored, not packed: a changed number leaves a perfect archive but for its checksum.
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    writer.start_file("weights.npy", options).unwrap();
    writer.write_all(&npy("<f4", false, "(2, 2)", &f32s(&HALVES))).unwrap();
    let mut bytes = writer.finish().unwrap().into_inner();
    assert!(files.read("good.npz", &bytes).is_ok());
    let number = 0.75f32.to_le_bytes();
    let at = bytes.windows(4).position(|window| window == number).unwrap();
    bytes[at..at + 4].copy_from_slice(&0.5f32.to_le_bytes());
    let error = files.read("flipped.npz", &bytes).unwrap_err();
    assert!(matches!(&error, InputError::Malformed { kind: ".npz", .. }), "{error:?}");
}

#[test]
fn a_csv_file_that_does_not_end_is_refused() {
    let files = Files::new();
    let path = files.write("long.csv", "0.5,0.5\n");
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len((256 << 20) + 1).unwrap();
    let error = read_pattern(&path, &Names::default()).unwrap_err();
    assert!(matches!(error, InputError::LongCsv { .. } | InputError::Cell { .. } | InputError::Malformed { .. }), "{error:?}");
}

#[test]
fn finished_weights_cannot_be_made_causal() {
    let full = Pattern::Weights(Array4::from_elem((1, 2, 4, 4), 0.25).into());
    let causal = PlotOptions { causal: true, ..PlotOptions::default() };
    let error = plot(&full, &causal, &mut |_, _| {}).unwrap_err();
    assert_eq!(error, PlotError::NotCausal { head: 0, row: 0, key: 1, weight: 0.25 });
    let lower = Array4::from_shape_fn((1, 1, 4, 4), |(_, _, i, j)| if j <= i { 1.0 / (i + 1) as f64 } else { 0.0 });
    assert_eq!(heat(&draw(&Pattern::Weights(lower.into()), &causal)).hidden.iter().filter(|h| **h).count(), 6);
}

#[test]
fn large_vectors_are_computed_in_their_own_precision_or_refused() {
    let files = Files::new();
    let large: Vec<f64> = (0..12).map(|i| 1e30 * f64::from(i % 5 - 2)).collect();
    let bytes: Vec<u8> = large.iter().flat_map(|v| v.to_le_bytes()).collect();
    let path = files.write("q.npy", npy("<f8", false, "(4, 3)", &bytes));
    let double = read_vectors(&path, &path, &Names::default()).unwrap();
    let table = draw(&double.pattern, &PlotOptions::default()).table;
    assert!((number(&table, 0, "max_weight") - 0.875).abs() < 1e-9, "one key takes all of three rows, and two share the third one");
    let single: Vec<f32> = large.iter().map(|&x| x as f32).collect();
    let path = files.write("q.npy", npy("<f4", false, "(4, 3)", &f32s(&single)));
    let single = read_vectors(&path, &path, &Names::default()).unwrap();
    let error = plot(&single.pattern, &PlotOptions::default(), &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, PlotError::Overflow { kind: "float32", .. }), "{error:?}");
}

#[test]
fn integers_and_records_are_errors_that_name_the_type() {
    let files = Files::new();
    for (descr, name) in [("<i8", "<i8"), ("|b1", "|b1"), ("<c8", "<c8"), ("|O", "|O"), ("<U3", "<U3")] {
        let error = files.read("a.npy", npy(descr, false, "(2, 2)", &[0; 64])).unwrap_err();
        assert!(matches!(&error, InputError::DType { dtype, .. } if dtype == name), "{error:?}");
    }
    let mut record = b"\x93NUMPY\x01\x00".to_vec();
    let header = b"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 2), }";
    record.extend((header.len() as u16).to_le_bytes());
    record.extend(header);
    assert!(matches!(files.read("a.npy", record), Err(InputError::DType { .. })));
    let header = r#"{"w":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}}"#;
    let error = files.read("a.safetensors", safetensors(header, &[0; 16])).unwrap_err();
    assert!(error.to_string().ends_with("array w has elements of type I32; save it as float16, float32 or float64"), "{error}");
}

#[test]
fn unknown_names_list_what_is_there() {
    let files = Files::new();
    let array = npy("<f4", false, "(2, 2)", &f32s(&HALVES));
    let path = files.write("two.npz", npz(&[("alpha", array.clone()), ("beta", array.clone())]));
    let error = read_pattern(&path, &Names::default()).unwrap_err();
    assert!(error.to_string().ends_with("no array named weights (nor q and k); there are: alpha, beta"), "{error}");
    let names = Names { weights: Some("gamma".to_owned()), ..Names::default() };
    let error = read_pattern(&path, &names).unwrap_err();
    assert!(error.to_string().ends_with("no array named gamma; there are: alpha, beta"), "{error}");
    let names = Names { q: Some("alpha".to_owned()), ..Names::default() };
    assert!(matches!(read_pattern(&path, &names), Err(InputError::NoArray { wanted, .. }) if wanted == "k"));
    assert!(matches!(read_vectors(&path, &path, &Names::default()), Err(InputError::NoArray { wanted, .. }) if wanted == "q"));
    let empty = files.write("none.npz", npz(&[]));
    assert!(matches!(read_pattern(&empty, &Names::default()), Err(InputError::NoArray { known, .. }) if known == "none"));
}

#[test]
fn shapes_that_are_no_pattern_are_errors() {
    let files = Files::new();
    for (shape, bytes) in [("(4,)", 16), ("(1, 1, 1, 2, 2)", 16), ("(0, 4)", 0)] {
        let error = files.read("a.npy", npy("<f4", false, shape, &f32s(&HALVES)[..bytes])).unwrap_err();
        assert!(matches!(error, InputError::Dimensions { .. }), "{error:?}");
    }
}

#[test]
fn nan_and_infinity_are_found_and_placed() {
    let files = Files::new();
    let error = files.read("a.npy", npy("<f4", false, "(2, 2)", &f32s(&[0.5, 0.5, f32::NAN, 0.5]))).unwrap_err();
    assert!(error.to_string().ends_with("array a has NaN at [1, 0]; a pattern must be finite numbers"), "{error}");
    assert!(matches!(files.read("a.csv", "0.5,inf\n"), Err(InputError::NotFinite { at, .. }) if at == [0, 1]));
    let q = files.write("q.csv", "1,2\nNaN,1\n");
    assert!(matches!(read_vectors(&q, &q, &Names::default()), Err(InputError::NotFinite { at, .. }) if at == [1, 0]));
}

#[test]
fn words_among_numbers_and_scores_instead_of_weights_are_errors() {
    let files = Files::new();
    let error = files.read("a.csv", "0.5,0.5\n0.5,half\n").unwrap_err();
    assert!(error.to_string().ends_with("line 2, column 2: \"half\" is not a number"), "{error}");
    let error = files.read("a.csv", "0.5,0.5\n3,2\n").unwrap_err();
    assert!(matches!(&error, InputError::NotWeights { row: 1, problem, .. } if problem == "sums to 5.0000"), "{error:?}");
    assert!(matches!(files.read("a.csv", "-0.5,0.5\n"), Err(InputError::NotWeights { row: 0, .. })));
}

fn random(shape: [usize; 4], seed: u64) -> Array4<f32> {
    let mut state = seed | 1;
    Array4::from_shape_simple_fn(shape, || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 4.0
    })
}

fn number(table: &Table, row: usize, column: &str) -> f64 {
    let at = table.columns.iter().position(|c| c.name == column).unwrap();
    match table.rows[row][at] {
        Value::Number(x) => x,
        Value::Integer(x) => x as f64,
        ref other => panic!("{other:?}"),
    }
}

fn draw(pattern: &Pattern, options: &PlotOptions) -> Plotted {
    plot(pattern, options, &mut |_, _| {}).unwrap()
}

#[test]
fn statistics_from_vectors_equal_those_from_weights_and_the_library() {
    let (q, k) = (random([2, 4, 150, 8], 1), random([2, 2, 150, 8], 2));
    let attention = Attention::new().causal();
    let weights = attention.weights(&q, &k).unwrap().mapv(f64::from);
    let options = PlotOptions { causal: true, batch: 1, ..PlotOptions::default() };
    let from_vectors = draw(&Pattern::QueriesKeys { q: q.clone().into(), k: k.clone().into() }, &options).table;
    let from_weights = draw(&Pattern::Weights(weights.into()), &PlotOptions { causal: false, ..options }).table;
    let (_, stats) = attention.forward_with_stats(&q, &k, &k, StatsOptions::default()).unwrap();
    let stats = stats.heads();
    assert_eq!(from_vectors.rows.len(), 4);
    for head in 0..4 {
        for column in from_vectors.columns.iter().map(|c| c.name.as_str()) {
            let (a, b) = (number(&from_vectors, head, column), number(&from_weights, head, column));
            assert!((a - b).abs() <= 2e-5 * a.abs().max(1.0), "{column} of head {head}: {a} and {b}");
        }
        for (column, expected) in [
            ("entropy", stats.entropy[[1, head]]),
            ("max_weight", stats.max_weight[[1, head]]),
            ("diagonal_mass", stats.diagonal_mass[[1, head]]),
            ("previous_token_mass", stats.previous_token_mass[[1, head]]),
            ("first_token_mass", stats.first_token_mass[[1, head]]),
            ("local_mass", stats.local_mass[[1, head]]),
            ("mean_distance", stats.mean_distance[[1, head]]),
        ] {
            let got = number(&from_vectors, head, column);
            assert!((got - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{column} of head {head}: {got} and {expected}");
        }
        let local = number(&from_vectors, head, "local_mass");
        assert!((number(&from_vectors, head, "local_vs_global") - local / (1.0 - local)).abs() < 1e-9);
    }
}

#[test]
fn statistics_of_known_patterns() {
    let diagonal = Array4::from_shape_fn((1, 1, 5, 5), |(_, _, i, j)| f64::from(u8::from(i == j)));
    let table = draw(&Pattern::Weights(diagonal.into()), &PlotOptions { local_window: 0, ..PlotOptions::default() }).table;
    let expected = [
        ("max_weight", 1.0),
        ("entropy", 0.0),
        ("effective_keys", 1.0),
        ("diagonal_mass", 1.0),
        ("first_token_mass", 0.2),
        ("mean_distance", 0.0),
    ];
    for (column, value) in expected {
        assert_eq!(number(&table, 0, column), value, "{column}");
    }
    assert_eq!(number(&table, 0, "local_vs_global"), f64::INFINITY);
    // One query at the end of four keys looks at the key before its own.
    let last = Array4::from_shape_vec((1, 1, 1, 4), vec![0.0, 0.0, 1.0, 0.0]).unwrap();
    let table = draw(&Pattern::Weights(last.into()), &PlotOptions { align_end: true, ..PlotOptions::default() }).table;
    assert_eq!((number(&table, 0, "previous_token_mass"), number(&table, 0, "mean_distance")), (1.0, 1.0));
}

#[test]
fn pooling_weights_and_vectors_gives_the_same_map() {
    let (q, k) = (random([1, 1, 100, 8], 3), random([1, 1, 90, 8], 4));
    let weights = Attention::new().weights(&q, &k).unwrap().mapv(f64::from);
    for cell in [CellValue::Mean, CellValue::Max] {
        let options = PlotOptions { pool: Some(16), cell, ..PlotOptions::default() };
        let maps: Vec<_> = [Pattern::QueriesKeys { q: q.clone().into(), k: k.clone().into() }, Pattern::Weights(weights.clone().into())]
            .iter()
            .map(|p| match draw(p, &options).figure.panels.remove(0) {
                Panel::Heat(map) => map,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!((maps[0].rows, maps[0].cols, maps[0].row_span, maps[0].col_span), (16, 16, Some(100), Some(90)));
        for (a, b) in maps[0].values.iter().zip(&maps[1].values) {
            assert!((a - b).abs() < 1e-6, "{a} and {b}");
        }
    }
}

fn heat(plotted: &Plotted) -> &regard_lab::figure::HeatPlot {
    match &plotted.figure.panels[0] {
        Panel::Heat(map) => map,
        other => panic!("{other:?}"),
    }
}

#[test]
fn causal_weights_are_recognised_and_hatched() {
    let causal = Array4::from_shape_fn((1, 1, 4, 4), |(_, _, i, j)| if j <= i { 1.0 / (i + 1) as f64 } else { 0.0 });
    let plotted = draw(&Pattern::Weights(causal.into()), &PlotOptions::default());
    assert_eq!(heat(&plotted).hidden.iter().filter(|h| **h).count(), 6);
    let full = Array4::from_elem((1, 1, 4, 4), 0.25);
    assert!(heat(&draw(&Pattern::Weights(full.into()), &PlotOptions::default())).hidden.is_empty());
}

#[test]
fn one_head_has_tokens_and_several_are_a_grid() {
    let weights = Pattern::Weights(Array4::from_elem((1, 6, 3, 3), 1.0 / 3.0).into());
    let tokens: Vec<String> = ["a", "b", "<i>"].map(str::to_owned).to_vec();
    let one = draw(&weights, &PlotOptions { head: Some(4), tokens: tokens.clone(), ..PlotOptions::default() });
    assert_eq!((one.figure.panels.len(), &heat(&one).row_labels, one.table.rows.len()), (1, &tokens, 1));
    assert_eq!(number(&one.table, 0, "head"), 4.0);
    assert!(one.figure.svg().unwrap().contains(">&lt;i&gt;</text>"));
    let all = draw(&weights, &PlotOptions { tokens, ..PlotOptions::default() });
    assert_eq!((all.figure.panels.len(), all.figure.shared_scale, all.table.rows.len()), (6, true, 6));
    assert!(all.figure.png(Theme::Dark).is_ok());
}

#[test]
fn what_does_not_fit_is_an_error() {
    let weights = Pattern::Weights(Array4::from_elem((1, 2, 3, 4), 0.25).into());
    let error = |options: PlotOptions| plot(&weights, &options, &mut |_, _| {}).unwrap_err();
    let tokens: Vec<String> = vec!["a".to_owned(); 4];
    let message = error(PlotOptions { tokens: tokens.clone(), ..PlotOptions::default() }).to_string();
    assert!(message.starts_with("4 tokens were given, but the pattern has 3 queries and 4 keys"), "{message}");
    assert!(
        plot(
            &weights,
            &PlotOptions { tokens: tokens.clone(), query_tokens: Some(tokens[..3].to_vec()), ..PlotOptions::default() },
            &mut |_, _| {}
        )
        .is_ok()
    );
    assert_eq!(error(PlotOptions { head: Some(2), ..PlotOptions::default() }), PlotError::Index { what: "head", got: 2, count: 2 });
    assert_eq!(error(PlotOptions { batch: 1, ..PlotOptions::default() }), PlotError::Index { what: "batch entry", got: 1, count: 1 });
    assert_eq!(error(PlotOptions { pool: Some(0), ..PlotOptions::default() }), PlotError::Pool);
    for (q, k) in [([1, 1, 3, 4], [1, 1, 3, 5]), ([1, 3, 3, 4], [1, 2, 3, 4]), ([2, 1, 3, 4], [1, 1, 3, 4])] {
        let vectors = Pattern::QueriesKeys { q: random(q, 1).into(), k: random(k, 2).into() };
        for batch in 0..q[0] {
            let result = plot(&vectors, &PlotOptions { batch, ..PlotOptions::default() }, &mut |_, _| {});
            assert!(matches!(result, Err(PlotError::Attention(_))), "{q:?} and {k:?}: {result:?}");
        }
    }
}

#[test]
fn progress_only_goes_forward_and_ends() {
    let vectors = Pattern::QueriesKeys { q: random([1, 3, 200, 4], 1).into(), k: random([1, 1, 200, 4], 2).into() };
    let mut heard = Vec::new();
    plot(&vectors, &PlotOptions::default(), &mut |done, all| heard.push((done, all))).unwrap();
    assert!(heard.windows(2).all(|w| w[0].0 <= w[1].0 && w[0].1 == w[1].1));
    assert!(heard.len() > 6 && heard.last().is_some_and(|(done, all)| done == all), "{heard:?}");
}

#[test]
fn a_long_pattern_is_pooled_in_linear_memory() {
    // 20,000 x 20,000 weights would be 1.6 GB; the address space that this test may take is not limited, but nothing here asks for it.
    let n = 20_000;
    let x = random([1, 1, n, 4], 5);
    let plotted = draw(
        &Pattern::QueriesKeys { q: x.clone().into(), k: x.into() },
        &PlotOptions { causal: true, pool: Some(100), ..PlotOptions::default() },
    );
    let map = heat(&plotted);
    assert_eq!((map.rows, map.cols, map.norm, map.row_span), (100, 100, Norm::Log, Some(n)));
    // Every row of weights sums to one: so do rows of cells, times the keys in a cell.
    for row in map.values.chunks_exact(100) {
        let sum: f64 = row.iter().sum::<f64>() * (n / 100) as f64;
        assert!((sum - 1.0).abs() < 1e-4, "{sum}");
    }
    assert_eq!(map.hidden.iter().filter(|h| **h).count(), 100 * 99 / 2);
}

/// The peak of this process's memory so far, in MiB, where the system tells.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kb| kb / 1024)
}

#[test]
#[ignore = "half a minute; run it alone: cargo test -p regard-lab --test suite -- --ignored"]
fn sixty_five_thousand_tokens_need_linear_memory() {
    let n = 65_536;
    let files = Files::new();
    let vectors = |seed| npy("<f4", false, &format!("({n}, 64)"), &f32s(random([1, 1, n, 64], seed).as_slice().unwrap()));
    let path = files.write("long.npz", npz(&[("q", vectors(1)), ("k", vectors(2))]));
    let input = read_pattern(&path, &Names::default()).unwrap();
    let started = std::time::Instant::now();
    let plotted = draw(&input.pattern, &PlotOptions { causal: true, pool: Some(512), ..PlotOptions::default() });
    let (svg, png) = (plotted.figure.svg().unwrap(), plotted.figure.png(Theme::Light).unwrap());
    println!("{:?}, svg {} bytes, png {} bytes, peak {:?} MiB", started.elapsed(), svg.len(), png.len(), peak_memory());
    // The weights would be 16 GiB.
    assert!(peak_memory().is_none_or(|mib| mib < 600));
    assert!(number(&plotted.table, 0, "entropy") > 5.0);
}

#[test]
fn arrays_of_any_rank_keep_their_order() {
    let files = Files::new();
    let values: ArrayD<f32> = ArrayD::from_shape_fn(IxDyn(&[2, 3, 4]), |i| (i[0] * 12 + i[1] * 4 + i[2]) as f32 / 300.0);
    let input = files.read("w.npy", npy("<f4", false, "(2, 3, 4)", &f32s(&values.iter().copied().collect::<Vec<_>>()))).unwrap();
    let weights = weights_of(input);
    assert_eq!(weights.shape(), [1, 2, 3, 4]);
    assert!((weights[[0, 1, 2, 3]] - 23.0 / 300.0).abs() < 1e-8);
}
