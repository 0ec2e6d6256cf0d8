//! From files to files: the bytes of one process, whatever the ranks and the groups of heads.

use half::f16;
use ndarray::{Array4, s};
use regard::{Attention, Mask, Real, StatsOptions, Storage};
use regard_dist::files::{Done, HEAT_MAP, Job, Sharing, attend, beside};
use regard_dist::{Error, Exchange, Local, Npy, SingleRank, TempFiles, WireElement};
use std::path::{Path, PathBuf};

fn random<E: Storage>(shape: [usize; 4], seed: u64) -> Array4<E> {
    let mut state = seed;
    Array4::from_shape_simple_fn(shape, || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        E::from_real(E::Real::from_f64((state >> 11) as f64 / (1u64 << 52) as f64 * 4.0 - 4.0))
    })
}

/// As NumPy writes it.
fn npy<T: bytemuck::Pod>(descr: &str, shape: &str, fortran: bool, numbers: &[T]) -> Vec<u8> {
    npy_of(&format!("'{descr}'"), shape, fortran, numbers)
}

/// The type as it stands in the header.
fn npy_of<T: bytemuck::Pod>(descr: &str, shape: &str, fortran: bool, numbers: &[T]) -> Vec<u8> {
    let order = if fortran { "True" } else { "False" };
    let text = format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}");
    let length = (10 + text.len() + 1).next_multiple_of(64) - 10;
    let mut bytes = [b"\x93NUMPY\x01\x00", &(length as u16).to_le_bytes()[..], text.as_bytes()].concat();
    bytes.resize(10 + length - 1, b' ');
    bytes.push(b'\n');
    bytes.extend_from_slice(bytemuck::cast_slice(numbers));
    bytes
}

/// Of the heat map: cells that begin and end within tiles of queries and pieces of keys.
const CELLS: [usize; 2] = [9, 14];

fn all_of<E: WireElement>(file: &Npy) -> Array4<E> {
    let [_, heads, tokens, _] = file.shape;
    file.read_range(&(0..heads), 0..tokens).expect("it can be read")
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("regard-dist-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn put(&self, name: &str, bytes: Vec<u8>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).expect("it can be written");
        path
    }

    fn tensor<E: WireElement>(&self, name: &str, descr: &str, x: &Array4<E>) -> PathBuf {
        let shape = format!("({}, {}, {}, {})", x.shape()[0], x.shape()[1], x.shape()[2], x.shape()[3]);
        self.put(name, npy(descr, &shape, false, x.as_slice().expect("the standard layout")))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn go<X: Exchange>(
    a: &Attention<'_>,
    inputs: &[PathBuf; 3],
    out: &Path,
    exchange: &X,
    groups: Option<usize>,
    sharing: Sharing,
) -> Result<Done, Error> {
    let inputs = inputs.each_ref().map(PathBuf::as_path);
    let stats = Some(StatsOptions { local_window: 4, top_keys: 0 });
    let job = Job {
        attention: a,
        inputs,
        out,
        overwrite: true,
        stats,
        heat_map: Some(CELLS),
        sharing,
        head_groups: groups,
        temp_files: TempFiles::default(),
        progress: &|_, _| (),
    };
    attend(&job, exchange)
}

/// The files of one process.
fn done_alone(a: &Attention<'_>, inputs: &[PathBuf; 3], out: &Path, sharing: Sharing) -> Vec<PathBuf> {
    go(a, inputs, out, &SingleRank, None, sharing).expect("fits").files
}

fn check<E: WireElement + PartialEq + std::fmt::Debug>(name: &str, descr: &str, a: &Attention<'_>) {
    let folder = Folder::new(name);
    let n = 1100;
    let (q, k, v) = (random::<E>([2, 4, n, 8], 1), random::<E>([2, 2, n, 8], 2), random::<E>([2, 2, n, 6], 3));
    let inputs = [folder.tensor("q.npy", descr, &q), folder.tensor("k.npy", descr, &k), folder.tensor("v.npy", descr, &v)];
    let alone = folder.0.join("alone.npy");
    let done = go(a, &inputs, &alone, &SingleRank, None, Sharing::Snake(None)).expect("fits");
    assert_eq!(done.shape, [2, 4, n, 6]);
    let (whole, stats) = a.forward_with_stats(&q, &k, &v, StatsOptions { local_window: 4, top_keys: 0 }).expect("fits");
    let written = Npy::open(&alone).expect("it was written");
    assert_eq!(all_of::<E>(&written), whole.out);
    assert!(done.files.iter().all(|path| path.exists()), "{:?}", done.files);
    let entropy = std::fs::read(beside(&alone, "entropy")).expect("it was written");
    let numbers: &[u8] = bytemuck::cast_slice(stats.entropy.as_slice().expect("the standard layout"));
    assert!(entropy.ends_with(numbers));
    let map = a.heat_map(&q, &k, CELLS[0], CELLS[1]).expect("fits").mean;
    assert_eq!(Npy::open(&beside(&alone, HEAT_MAP)).expect("it was written").shape, [2, 4, 9, 14]);
    let numbers: &[u8] = bytemuck::cast_slice(map.as_slice().expect("the standard layout"));
    assert!(std::fs::read(beside(&alone, HEAT_MAP)).expect("it was written").ends_with(numbers));
    for (ranks, groups, sharing) in [
        (2, Some(1), Sharing::Snake(None)),
        (3, None, Sharing::Contiguous),
        (4, None, Sharing::Snake(Some(256))),
        (2, None, Sharing::Contiguous),
        (1, None, Sharing::Contiguous),
    ] {
        let out = folder.0.join(format!("ranks{ranks}.npy"));
        let done = Local::run(ranks, |exchange| go(a, &inputs, &out, &exchange, groups, sharing).expect("fits"));
        assert_eq!(done.iter().map(|done| done.rows).sum::<usize>(), 2 * 4 * n, "{ranks} ranks");
        for (one, several) in done_alone(a, &inputs, &alone, sharing).iter().zip(&done[0].files) {
            assert!(
                std::fs::read(one).expect("written") == std::fs::read(several).expect("written"),
                "{ranks} ranks: {}",
                several.display()
            );
        }
    }
    let left: Vec<_> = std::fs::read_dir(&folder.0).expect("a folder").map(|entry| entry.expect("an entry").file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with('.')), "{left:?}");
}

#[test]
fn any_ranks_and_groups_write_the_bytes_of_one_process() {
    check::<f32>("f32", "<f4", &Attention::new().causal());
    check::<f64>("f64", "<f8", &Attention::new().mask(Mask::first_keys(4) | Mask::window(Some(90), Some(0))));
    check::<f16>("f16", "<f2", &Attention::new());
}

/// Fortran order, fewer axes, and more keys than queries.
#[test]
fn files_of_other_shapes_and_orders_are_read() {
    let folder = Folder::new("orders");
    let x = random::<f32>([1, 2, 600, 8], 1);
    let turned: Vec<f32> = x.t().iter().copied().collect();
    let q = x.slice(s![.., .., ..70, ..]).to_owned();
    let inputs = [
        folder.put("q.npy", npy("<f4", "(2, 70, 8)", false, q.as_slice().expect("the standard layout"))),
        folder.put("k.npy", npy("<f4", "(1, 2, 600, 8)", true, &turned)),
        folder.tensor("v.npy", "<f4", &x),
    ];
    let (a, out) = (Attention::new().causal_bottom_right(), folder.0.join("out.npy"));
    go(&a, &inputs, &out, &SingleRank, None, Sharing::Contiguous).expect("fits");
    let whole = a.forward(&q, &x, &x).expect("fits").out;
    assert_eq!(all_of::<f32>(&Npy::open(&out).expect("written")), whole);
    let refused = Local::run(3, |exchange| go(&a, &inputs, &out, &exchange, None, Sharing::Contiguous).map(|_| ()));
    assert!(refused.iter().all(|error| matches!(error, Err(Error::Lengths { queries: 70, keys: 600 }))), "{refused:?}");
    let refused = Local::run(2, |exchange| go(&a, &inputs, &out, &exchange, Some(3), Sharing::Contiguous).map(|_| ()));
    assert!(refused.iter().all(|error| matches!(error, Err(Error::Mesh { groups: 3, .. }))), "{refused:?}");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let folder = Folder::new("broken");
    let good = npy("<f4", "(4, 2)", false, &[0f32; 8]);
    for (name, bytes, words) in [
        ("empty.npy", Vec::new(), "not a .npy file"),
        ("text.npy", b"not numpy at all, whatever it is".to_vec(), "not a .npy file"),
        ("short.npy", good[..good.len() - 4].to_vec(), "cut short"),
        ("long.npy", [&good[..], &[0; 4]].concat(), "cut short"),
        ("ints.npy", npy("<i4", "(4, 2)", false, &[0f32; 8]), "float32"),
        ("big.npy", npy(">f4", "(4, 2)", false, &[0f32; 8]), "little-endian"),
        ("records.npy", npy_of("[('a', '<f4')]", "(4, 2)", false, &[0f32; 8]), "records; save it as"),
        ("flat.npy", npy("<f4", "(8,)", false, &[0f32; 8]), "shape"),
        ("huge.npy", npy("<f4", "(4611686018427387904, 4)", false, &[0f32; 8]), "cut short"),
        ("header.npy", npy("<f4", "4, 2", false, &[0f32; 8]), "not a .npy file"),
    ] {
        let path = folder.put(name, bytes);
        let Err(error) = Npy::open(&path) else { panic!("{name} was taken") };
        assert!(error.to_string().contains(words) && error.to_string().contains(name), "{error}");
    }
    assert!(matches!(Npy::open(&folder.0.join("none.npy")), Err(Error::File { .. })));
    let (q, k) = (folder.put("q.npy", good), folder.put("k.npy", npy("<f8", "(4, 2)", false, &[0f64; 8])));
    let error = go(&Attention::new(), &[q, k.clone(), k], &folder.0.join("out.npy"), &SingleRank, None, Sharing::Contiguous)
        .expect_err("types differ");
    assert!(error.to_string().contains("k.npy: its elements are <f8"), "{error}");
    assert!(!folder.0.join("out.npy").exists());
}

/// A file that is shortened, extended or written to after it was opened: an error that names it, where a map would be a signal.
#[test]
fn a_file_that_changes_while_it_is_read_is_an_error() {
    use std::time::{Duration, SystemTime};
    type Change = fn(&std::fs::File) -> std::io::Result<()>;
    let changes: [(&str, Change); 3] = [
        ("shortened", |file| file.set_len(1000)),
        ("extended", |file| file.set_len(1 << 20)),
        ("written to", |file| file.set_modified(SystemTime::now() + Duration::from_secs(5))),
    ];
    let folder = Folder::new("changes");
    let x = random::<f32>([1, 2, 5000, 8], 1);
    for fortran in [false, true] {
        for (what, change) in changes {
            let path = folder.put("x.npy", npy("<f4", "(1, 2, 5000, 8)", fortran, x.as_slice().expect("the standard layout")));
            let file = Npy::open(&path).expect("it is whole");
            file.read_range::<f32>(&(1..2), 4096..5000).expect("unchanged");
            change(&std::fs::File::options().write(true).open(&path).expect("there")).expect("changed");
            let error = file.read_range::<f32>(&(1..2), 4096..5000).expect_err(what);
            assert!(matches!(&error, Error::Changed { path: named, .. } if *named == path), "{what}: {error}");
        }
    }
    // A job whose keys are shortened after the first piece: no results, and nothing left over.
    let path = |name: &str| folder.tensor(name, "<f4", &random::<f32>([1, 1, 20_000, 8], 2));
    let inputs = [path("q.npy"), path("k.npy"), path("v.npy")];
    let out = folder.0.join("out.npy");
    let attention = Attention::new();
    let cut = |_: usize, _: usize| std::fs::File::options().write(true).open(&inputs[1]).and_then(|file| file.set_len(4096)).expect("cut");
    let job = Job {
        attention: &attention,
        inputs: inputs.each_ref().map(PathBuf::as_path),
        out: &out,
        overwrite: false,
        stats: None,
        heat_map: None,
        sharing: Sharing::Contiguous,
        head_groups: None,
        temp_files: TempFiles::default(),
        progress: &cut,
    };
    let error = attend(&job, &SingleRank).expect_err("the keys are cut");
    assert!(matches!(&error, Error::Changed { path, after: 4096, .. } if *path == inputs[1]), "{error}");
    assert_eq!(names(&folder.0), ["k.npy", "q.npy", "v.npy", "x.npy"]);
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        folder.read_dir().expect("a folder").map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Refused before any file is made, with the shapes that the files have.
#[test]
fn shapes_that_do_not_fit_are_refused_with_all_of_them() {
    let folder = Folder::new("shapes");
    let q = [1, 2, 6, 8];
    for (q, k, v, words) in [
        (q, q, [1, 2, 5, 8], "k and v differ in tokens"),
        (q, q, [1, 2, 7, 8], "k and v differ in tokens"),
        (q, [1, 2, 4, 8], q, "k and v differ in tokens"),
        (q, q, [1, 2, 0, 8], "k and v differ in tokens"),
        (q, [1, 2, 0, 8], q, "k and v differ in tokens"),
        (q, q, [1, 1, 6, 8], "k and v differ in heads"),
        (q, q, [1, 4, 6, 8], "k and v differ in heads"),
        (q, [1, 1, 6, 8], q, "k and v differ in heads"),
        (q, q, [2, 2, 6, 8], "the batches differ"),
        (q, [2, 2, 6, 8], [2, 2, 6, 8], "the batches differ"),
        ([2, 2, 6, 8], q, q, "the batches differ"),
        (q, [1, 2, 6, 7], q, "dimensions of a head"),
        (q, [1, 3, 6, 8], [1, 3, 6, 8], "not a multiple of those of k"),
        (q, [1, 0, 6, 8], [1, 0, 6, 8], "not a multiple of those of k"),
    ] {
        let inputs =
            [("q", q), ("k", k), ("v", v)].map(|(name, shape)| folder.tensor(&format!("{name}.npy"), "<f4", &random::<f32>(shape, 1)));
        for ranks in [1, 2] {
            let done = Local::run(ranks, |x| {
                go(&Attention::new(), &inputs, &folder.0.join("out.npy"), &x, None, Sharing::Contiguous).map(|_| ()).expect_err("no fit")
            });
            for error in done {
                let said = error.to_string();
                assert!(said.contains(words) && [q, k, v].iter().all(|shape| said.contains(&format!("{shape:?}"))), "{said}");
            }
        }
        assert_eq!(names(&folder.0), ["k.npy", "q.npy", "v.npy"]);
    }
}

/// No numbers, and no end of them.
#[test]
fn shapes_without_numbers_have_an_end() {
    let folder = Folder::new("empty");
    for shape in ["(0, 9223372036854775807, 9223372036854775807)", "(1000000000000, 0)", "(0, 1, 1000000000000000, 8)"] {
        let path = folder.put("x.npy", npy::<f32>("<f4", shape, false, &[]));
        let Err(error) = Npy::open(&path) else { panic!("{shape} was taken") };
        assert!(error.to_string().contains("too many rows"), "{error}");
    }
    let q = folder.put("q.npy", npy::<f32>("<f4", "(16777216, 0)", false, &[]));
    let k = folder.put("k.npy", npy::<f32>("<f4", "(4, 0)", false, &[]));
    let v = folder.put("v.npy", npy("<f4", "(4, 100)", false, &[1f32; 400]));
    let out = folder.0.join("out.npy");
    let error = go(&Attention::new(), &[q, k.clone(), v.clone()], &out, &SingleRank, None, Sharing::Contiguous).expect_err("6.7 GB");
    assert!(matches!(error, Error::Results { inputs: 1600, .. }), "{error}");
    assert_eq!(names(&folder.0), ["k.npy", "q.npy", "v.npy", "x.npy"]);
    // Scores of no dimensions are all zero: the mean of the values.
    let q = folder.put("q.npy", npy::<f32>("<f4", "(3, 0)", false, &[]));
    go(&Attention::new(), &[q, k, v], &out, &SingleRank, None, Sharing::Contiguous).expect("fits");
    assert!(all_of::<f32>(&Npy::open(&out).expect("written")).iter().all(|&x| x == 1.0));
}

/// One job in the middle of another, with the same name for the results.
#[test]
fn two_jobs_with_one_name_do_not_harm_each_other() {
    let folder = Folder::new("jobs");
    let (a, b) = (random::<f32>([1, 1, 700, 8], 1), random::<f32>([1, 1, 700, 8], 2));
    let short = folder.tensor("short.npy", "<f4", &random::<f32>([1, 1, 600, 8], 3));
    let (a, b, out) = (folder.tensor("a.npy", "<f4", &a), folder.tensor("b.npy", "<f4", &b), folder.0.join("out.npy"));
    let alone = |x: &PathBuf, name: &str| {
        let out = folder.0.join(name);
        go(&Attention::new(), &[x.clone(), x.clone(), x.clone()], &out, &SingleRank, None, Sharing::Contiguous).expect("fits");
        std::fs::read(out).expect("written")
    };
    let (of_a, of_b) = (alone(&a, "alone_a.npy"), alone(&b, "alone_b.npy"));
    let attention = Attention::new();
    let job = |inputs: [&PathBuf; 3], overwrite: bool, progress: &(dyn Fn(usize, usize) + Sync)| {
        let (inputs, stats, sharing) = (inputs.map(PathBuf::as_path), None, Sharing::Contiguous);
        let (out, temp_files) = (out.as_path(), TempFiles::default());
        let (attention, head_groups, heat_map) = (&attention, None, None);
        attend(&Job { attention, inputs, out, overwrite, stats, heat_map, sharing, head_groups, temp_files, progress }, &SingleRank)
    };
    // Refused, and one that is ended early: neither takes anything of the first.
    let done = job([&a; 3], true, &|_, _| {
        job([&a, &a, &short], true, &|_, _| ()).expect_err("shapes differ");
        let broken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job([&b; 3], true, &|_, _| panic!("killed"))));
        assert!(broken.is_err());
    });
    done.expect("fits");
    assert!(std::fs::read(&out).expect("written") == of_a);
    // Both may replace: both are whole, and the last one stays.
    job([&a; 3], true, &|_, _| drop(job([&b; 3], true, &|_, _| ()).expect("fits"))).expect("fits");
    assert!(std::fs::read(&out).expect("written") == of_a);
    // Neither may: the first one to end stays, and the other's results too.
    std::fs::remove_file(&out).expect("removed");
    let error = job([&a; 3], false, &|_, _| drop(job([&b; 3], false, &|_, _| ()).expect("fits"))).expect_err("it is there");
    let Error::Appeared { path, kept } = error else { panic!("{error}") };
    assert!(path == out && std::fs::read(&out).expect("written") == of_b && std::fs::read(kept).expect("kept") == of_a);
}
