//! From files to files: the bytes of one process, whatever the ranks and the groups of heads.

use half::f16;
use ndarray::{Array4, s};
use regard::{Attention, Mask, Real, StatsOptions, Storage};
use regard_dist::files::{Done, HEAT_MAP, Job, Sharing, attend, beside};
use regard_dist::{Alone, Error, Exchange, Local, Npy, Number};
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
    let order = if fortran { "True" } else { "False" };
    let text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}");
    let length = (10 + text.len() + 1).next_multiple_of(64) - 10;
    let mut bytes = [b"\x93NUMPY\x01\x00", &(length as u16).to_le_bytes()[..], text.as_bytes()].concat();
    bytes.resize(10 + length - 1, b' ');
    bytes.push(b'\n');
    bytes.extend_from_slice(bytemuck::cast_slice(numbers));
    bytes
}

/// Of the heat map: cells that begin and end within tiles of queries and pieces of keys.
const CELLS: [usize; 2] = [9, 14];

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

    fn tensor<E: Number>(&self, name: &str, descr: &str, x: &Array4<E>) -> PathBuf {
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
        progress: &|_, _| (),
    };
    attend(&job, exchange)
}

/// The files of one process.
fn done_alone(a: &Attention<'_>, inputs: &[PathBuf; 3], out: &Path, sharing: Sharing) -> Vec<PathBuf> {
    go(a, inputs, out, &Alone, None, sharing).expect("fits").files
}

fn check<E: Number + PartialEq + std::fmt::Debug>(name: &str, descr: &str, a: &Attention<'_>) {
    let folder = Folder::new(name);
    let n = 1100;
    let (q, k, v) = (random::<E>([2, 4, n, 8], 1), random::<E>([2, 2, n, 8], 2), random::<E>([2, 2, n, 6], 3));
    let inputs = [folder.tensor("q.npy", descr, &q), folder.tensor("k.npy", descr, &k), folder.tensor("v.npy", descr, &v)];
    let alone = folder.0.join("alone.npy");
    let done = go(a, &inputs, &alone, &Alone, None, Sharing::Snake(None)).expect("fits");
    assert_eq!(done.shape, [2, 4, n, 6]);
    let (whole, stats) = a.forward_with_stats(&q, &k, &v, StatsOptions { local_window: 4, top_keys: 0 }).expect("fits");
    let written = Npy::open(&alone).expect("it was written");
    assert_eq!(written.view::<E>().expect("of the type of q"), whole.out);
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
    go(&a, &inputs, &out, &Alone, None, Sharing::Contiguous).expect("fits");
    let whole = a.forward(&q, &x, &x).expect("fits").out;
    assert_eq!(Npy::open(&out).expect("written").view::<f32>().expect("f32"), whole);
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
    let error =
        go(&Attention::new(), &[q, k.clone(), k], &folder.0.join("out.npy"), &Alone, None, Sharing::Contiguous).expect_err("types differ");
    assert!(error.to_string().contains("k.npy: its numbers are <f8"), "{error}");
    assert!(!folder.0.join("out.npy").exists());
}
