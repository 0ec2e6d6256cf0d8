//! The cases: small ones for each feature, edge cases, and sizes around the tiles of kernels.

mod features;
mod pairs;

use super::problem::{Align, Memory, Plane, Problem, Segment};
use super::program::Precision;
use crate::rng::Rng;
use features::{merges, others, packed, softcaps};

/// What a kernel takes, as far as the cases depend on it.
#[derive(Clone, Debug)]
pub struct Takes {
    /// Names of features: `mask`, `bias`, `causal`, `scale`, `window`, `window_left`, `softcap`, `alibi`, `sinks`, `lengths`,
    /// `offset`, `packed`, `dropout`, `k_scale`, `backward`, `merge`, `lse`.
    pub features: Vec<String>,
    /// Dimensions of q: 4, 3 (no batch) or 2 (one head).
    pub rank: usize,
    pub align: Align,
    pub seq_major: bool,
    pub precision: Precision,
}

impl Takes {
    pub fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|one| one == feature)
    }
}

/// Batch, heads, key heads, queries, keys, head dimension, value dimension.
type Sizes = [usize; 7];

struct Maker<'a> {
    rng: Rng,
    takes: &'a Takes,
    cases: Vec<Problem>,
}

/// A change of a problem.
type Change<'c> = &'c dyn Fn(&mut Problem, &mut Rng);

impl Maker<'_> {
    fn normals(&mut self, count: usize) -> Vec<f64> {
        self.rng.normals(count).into_iter().map(|x| self.takes.precision.store(f64::from(x))).collect()
    }

    fn blank(&mut self, label: &str, sizes: Sizes) -> Problem {
        let [mut b, mut h, mut hk, n, m, d, dv] = sizes;
        if self.takes.rank < 4 && !self.takes.has("packed") {
            b = 1;
        }
        if self.takes.rank < 3 {
            (h, hk) = (1, 1);
        }
        let segments = (0..b).map(|s| Segment { q0: s * n, n, k0: s * m, m }).collect();
        Problem {
            label: label.to_owned(),
            segments,
            heads: [h, hk],
            dims: [d, dv],
            q: self.normals(b * n * h * d),
            k: self.normals(b * m * hk * d),
            v: self.normals(b * m * hk * dv),
            scale: None,
            mask: None,
            bias: None,
            causal: false,
            window: None,
            softcap: None,
            alibi: None,
            sinks: None,
            lengths: None,
            offset: None,
            k_scale: None,
            packed: false,
            paged: false,
            dropout: 0.0,
            keep: [None, None],
            dropout_fault: None,
            d_out: self.takes.has("backward").then(|| self.normals(b * n * h * dv)),
            lse: self.takes.has("lse"),
            align: self.takes.align,
            memory: Memory::Contiguous,
            seq_major: self.takes.seq_major,
            merge: None,
            hard: false,
            hidden_nan: false,
        }
    }

    fn add(&mut self, label: &str, sizes: Sizes, change: Change<'_>) {
        let mut problem = self.blank(label, sizes);
        change(&mut problem, &mut self.rng);
        if problem.k_scale.is_none() && self.takes.has("k_scale") {
            problem.k_scale = Some(vec![1.0; problem.k.len() / problem.dims[0]]);
            // Keys are of type int8.
            if problem.k.iter().any(|x| x.is_nan()) {
                return;
            }
            problem.k.iter_mut().for_each(|x| *x = (*x * 8.0).round().clamp(-127.0, 127.0));
        }
        self.cases.push(problem);
    }

    fn hard(&mut self, label: &str, sizes: Sizes, change: Change<'_>) {
        self.add(label, sizes, &|problem, rng| {
            problem.hard = true;
            change(problem, rng);
        });
    }
}

/// A mask in which every row of every head sees at least one key.
fn mask(p: &mut Problem, rng: &mut Rng, broadcast: [bool; 3]) {
    let s = p.segments[0];
    let full = [p.segments.len(), p.heads[0], s.n, s.m];
    let shape = [0, 1, 2, 3].map(|axis| if axis < 3 && broadcast[axis] { 1 } else { full[axis] });
    let rows = shape[0] * shape[1] * shape[2];
    let mut data: Vec<f64> = (0..rows * s.m).map(|_| f64::from(u8::from(rng.chance(0.6)))).collect();
    for row in 0..rows {
        // One visible key, one hidden key.
        let at = rng.size(0, s.m - 1);
        data[row * s.m + at] = 1.0;
        if s.m > 1 {
            data[row * s.m + (at + 1) % s.m] = 0.0;
        }
    }
    p.mask = Some(Plane { shape, data });
}

fn bias(p: &mut Problem, rng: &mut Rng, broadcast: [bool; 3]) {
    let s = p.segments[0];
    let full = [p.segments.len(), p.heads[0], s.n, s.m];
    let shape = [0, 1, 2, 3].map(|axis| if axis < 3 && broadcast[axis] { 1 } else { full[axis] });
    let count = shape.iter().product();
    p.bias = Some(Plane { shape, data: rng.normals(count).into_iter().map(|x| f64::from((x * 64.0).round() / 32.0)).collect() });
}

/// A float mask of 0 and -inf.
fn float_mask(p: &mut Problem, rng: &mut Rng, broadcast: [bool; 3]) {
    mask(p, rng, broadcast);
    if let Some(plane) = p.mask.take() {
        let data = plane.data.iter().map(|x| if *x == 0.0 { f64::NEG_INFINITY } else { 0.0 }).collect();
        p.bias = Some(Plane { shape: plane.shape, data });
        // The gradient of a mask is not asked for.
    }
}

/// Scores that are whole numbers of this size, exact in any order of sums.
fn large(p: &mut Problem, rng: &mut Rng, unit: f32) {
    for x in p.q.iter_mut().chain(&mut p.k) {
        *x = f64::from(rng.whole(-3, 3) as f32 * unit);
    }
    p.scale = None;
    p.d_out = None;
}

/// The cases that apply to a kernel; all of them causal for a kernel that always is.
pub fn cases(takes: &Takes, seed: u64) -> Vec<Problem> {
    let mut all = chosen(takes, seed);
    if takes.has("always-paged") {
        for p in &mut all {
            (p.paged, p.memory, p.d_out) = (true, Memory::Contiguous, None);
        }
    }
    if takes.has("always-causal") && !takes.has("merge") {
        for p in &mut all {
            p.causal = true;
            let blind = (0..p.segments.len()).any(|s| (0..p.segments[s].n).any(|i| p.blind(s, 0, i)));
            if blind {
                (p.hard, p.d_out) = (true, None);
            }
        }
    }
    all
}

fn chosen(takes: &Takes, seed: u64) -> Vec<Problem> {
    let mut make = Maker { rng: Rng::new(seed, "kernels"), takes, cases: Vec::new() };
    if takes.has("merge") {
        merges(&mut make);
        return make.cases;
    }
    if takes.has("packed") {
        packed(&mut make);
        return make.cases;
    }
    plain(&mut make);
    if takes.has("scale") {
        make.add("scale 0.3", [2, 2, 2, 3, 4, 8, 8], &|p, _| p.scale = Some(0.3));
        make.add("scale 1", [1, 2, 2, 3, 5, 8, 8], &|p, _| p.scale = Some(1.0));
        make.hard("scale -0.5", [1, 2, 2, 3, 5, 8, 8], &|p, _| p.scale = Some(-0.5));
        make.hard("scale -0.5, scores of 1e3", [1, 2, 2, 3, 5, 16, 16], &|p, rng| {
            large(p, rng, 8.0);
            p.scale = Some(-0.5);
        });
    }
    if takes.has("causal") {
        causal(&mut make);
    }
    if takes.has("window") || takes.has("window_left") {
        windows(&mut make);
    }
    if takes.has("mask") {
        masks(&mut make);
    }
    if takes.has("bias") {
        biases(&mut make);
    }
    if takes.has("softcap") {
        softcaps(&mut make);
    }
    others(&mut make);
    pairs::pairs(&mut make);
    make.cases
}

fn plain(make: &mut Maker<'_>) {
    make.add("one query and one key", [1, 1, 1, 1, 1, 8, 8], &|_, _| {});
    make.add("two queries, three keys", [1, 1, 1, 2, 3, 8, 8], &|_, _| {});
    make.add("random", [2, 3, 3, 4, 5, 8, 8], &|_, _| {});
    make.add("more queries than keys", [1, 2, 2, 6, 3, 16, 16], &|_, _| {});
    make.add("square", [2, 2, 2, 5, 5, 8, 8], &|_, _| {});
    make.add("one query", [2, 2, 2, 1, 7, 8, 8], &|_, _| {});
    make.add("value dimension 16, head dimension 8", [1, 2, 2, 3, 4, 8, 16], &|_, _| {});
    make.add("head dimension 5", [1, 2, 2, 3, 4, 5, 5], &|_, _| {});
    make.add("head dimension 40", [1, 2, 2, 3, 4, 40, 40], &|_, _| {});
    make.add("head dimension 72", [1, 1, 1, 2, 3, 72, 72], &|_, _| {});
    make.add("head dimension 136", [1, 1, 1, 2, 3, 136, 136], &|_, _| {});
    if make.takes.rank > 2 {
        make.add("four query heads, two key heads", [1, 4, 2, 3, 4, 8, 8], &|_, _| {});
        make.add("one query, six query heads, two key heads", [2, 6, 2, 1, 5, 8, 8], &|_, _| {});
        make.add("70 queries and keys, four query heads, two key heads", [1, 4, 2, 70, 70, 8, 8], &|_, _| {});
        make.add("six query heads, two key heads", [2, 6, 2, 2, 5, 8, 8], &|_, _| {});
        make.add("six query heads, three key heads", [1, 6, 3, 3, 3, 8, 8], &|_, _| {});
        make.add("three query heads, one key head", [1, 3, 1, 3, 4, 8, 8], &|_, _| {});
    }
    for (n, m) in [(5, 67), (33, 130), (70, 70), (3, 257), (130, 20), (17, 24)] {
        make.add(&format!("{n} queries, {m} keys"), [1, 2, 2, n, m, 8, 8], &|_, _| {});
    }
    make.add("two queries, 2,100 keys", [1, 1, 1, 2, 2100, 8, 8], &|_, _| {});
    make.add("rising scores", [1, 1, 1, 2, 200, 8, 8], &|p, _| {
        let d = p.dims[0];
        p.q.iter_mut().for_each(|x| *x = 1.0);
        for (at, x) in p.k.iter_mut().enumerate() {
            *x = ((at / d) as f64 / 64.0).floor() + *x / 8.0;
        }
    });
    make.hard("scores of 1e4", [1, 2, 2, 4, 5, 16, 16], &|p, rng| large(p, rng, 32.0));
    make.hard("scores of 100", [1, 2, 2, 4, 5, 16, 16], &|p, rng| large(p, rng, 4.0));
    make.hard("scores of -1e4", [1, 2, 2, 3, 4, 16, 16], &|p, rng| {
        large(p, rng, 32.0);
        p.q.iter_mut().for_each(|x| *x = x.abs() + 32.0);
        p.k.iter_mut().for_each(|x| *x = -x.abs() - 32.0);
    });
    make.hard("rows at different levels", [1, 2, 2, 4, 5, 16, 16], &|p, rng| {
        // The scores of row 0 are some hundreds above those of the other rows.
        let ([heads, _], [d, _]) = (p.heads, p.dims);
        for (at, x) in p.q.iter_mut().enumerate() {
            *x = if at < heads * d { 4.0 } else { if rng.chance(0.5) { 1.0 } else { -1.0 } };
        }
        p.k.iter_mut().enumerate().for_each(|(at, x)| *x = 8.0 + 2.0 * (at / (heads * d)) as f64);
        (p.scale, p.d_out) = (None, None);
    });
    make.hard("a NaN in query 1", [1, 2, 2, 3, 4, 8, 8], &|p, _| {
        let at = p.heads[0] * p.dims[0];
        p.q[at] = f64::NAN;
        p.d_out = None;
    });
    make.hard("a NaN in a visible key", [2, 1, 1, 3, 4, 8, 8], &|p, _| {
        p.k[0] = f64::NAN;
        p.d_out = None;
    });
    make.hard("transposed views", [2, 3, 3, 4, 5, 8, 8], &|p, _| p.memory = Memory::Transposed);
    make.hard("every second element", [1, 2, 2, 3, 4, 8, 8], &|p, _| p.memory = Memory::Strided);
    make.hard("70,001 keys", [1, 1, 1, 1, 70_001, 8, 8], &|p, _| {
        p.d_out = None;
        // The last keys weigh most.
        p.q.iter_mut().for_each(|x| *x = 2.0);
        let d = p.dims[0];
        p.k[65_600 * d..].iter_mut().for_each(|x| *x += 2.0);
    });
}

fn causal(make: &mut Maker<'_>) {
    make.add("causal, square", [2, 2, 2, 5, 5, 8, 8], &|p, _| p.causal = true);
    make.add("causal, three queries, six keys", [2, 2, 2, 3, 6, 8, 8], &|p, _| p.causal = true);
    make.add("causal, one query, five keys", [1, 2, 2, 1, 5, 8, 8], &|p, _| p.causal = true);
    let blind = make.takes.align == Align::BottomRight;
    make.add("causal, six queries, three keys", [1, 2, 2, 6, 3, 8, 8], &|p, _| {
        p.causal = true;
        p.hard = blind;
        if blind {
            p.d_out = None;
        }
    });
    make.add("causal, 130 queries and keys", [1, 1, 1, 130, 130, 8, 8], &|p, _| p.causal = true);
    make.add("causal, 40 queries, 170 keys", [1, 1, 1, 40, 170, 8, 8], &|p, _| p.causal = true);
    if make.takes.rank > 2 {
        make.add("causal, four query heads, two key heads", [1, 4, 2, 4, 4, 8, 8], &|p, _| p.causal = true);
    }
    make.hard("causal, NaN in the last value", [1, 1, 1, 4, 4, 8, 8], &|p, _| {
        (p.causal, p.hidden_nan, p.d_out) = (true, true, None);
        let width = p.dims[1];
        let last = p.v.len() - width;
        p.v[last] = f64::NAN;
    });
    make.hard("causal, NaN in the last key", [1, 1, 1, 4, 4, 8, 8], &|p, _| {
        (p.causal, p.hidden_nan, p.d_out) = (true, true, None);
        let width = p.dims[0];
        let last = p.k.len() - width;
        p.k[last] = f64::NAN;
    });
    make.hard("causal, large hidden scores", [1, 1, 1, 4, 4, 16, 16], &|p, rng| {
        large(p, rng, 1.0);
        (p.causal, p.d_out) = (true, None);
        p.q.iter_mut().for_each(|x| *x = x.abs() + 32.0);
        for (at, x) in p.k.iter_mut().enumerate() {
            // Later keys have larger scores, earlier ones very negative ones.
            *x = -400.0 + 128.0 * (at / 16) as f64;
        }
    });
}

fn windows(make: &mut Maker<'_>) {
    let both = make.takes.has("window");
    let causal = make.takes.has("causal");
    let mut add = |label: &str, sizes: Sizes, window: [Option<usize>; 2], with_causal: bool| {
        if (both || (window[1] == Some(0) && with_causal)) && (causal || !with_causal) {
            make.add(label, sizes, &|p, _| {
                (p.window, p.causal) = (Some(window), with_causal);
                let blind = (0..p.segments[0].n).any(|i| p.blind(0, 0, i));
                p.hard = blind;
                if blind {
                    p.d_out = None;
                }
            });
        }
    };
    add("window 2 left, 1 right", [1, 2, 2, 9, 9, 8, 8], [Some(2), Some(1)], false);
    add("window 3 left, 0 right", [1, 2, 2, 9, 9, 8, 8], [Some(3), Some(0)], false);
    add("window 0 left, 2 right", [1, 1, 1, 7, 7, 8, 8], [Some(0), Some(2)], false);
    add("window 3 left, all right", [1, 1, 1, 8, 8, 8, 8], [Some(3), None], false);
    add("window all left, 2 right", [1, 1, 1, 8, 8, 8, 8], [None, Some(2)], false);
    add("window 2 left, 1 right, four queries, nine keys", [1, 2, 2, 4, 9, 8, 8], [Some(2), Some(1)], false);
    add("causal window 2 left", [1, 2, 2, 9, 9, 8, 8], [Some(2), Some(0)], true);
    add("causal window 4 left", [2, 2, 2, 9, 9, 8, 8], [Some(4), Some(0)], true);
    add("causal window 3 left, four queries, nine keys", [1, 2, 2, 4, 9, 8, 8], [Some(3), Some(0)], true);
    add("causal window 40 left, 150 queries and keys", [1, 1, 1, 150, 150, 8, 8], [Some(40), Some(0)], true);
    add("window 20 left, 30 right, 150 queries and keys", [1, 1, 1, 150, 150, 8, 8], [Some(20), Some(30)], false);
}

fn masks(make: &mut Maker<'_>) {
    make.add("mask per batch and head", [2, 2, 2, 3, 5, 8, 8], &|p, rng| mask(p, rng, [false, false, false]));
    make.add("mask for all batches and heads", [2, 2, 2, 4, 3, 8, 8], &|p, rng| mask(p, rng, [true, true, false]));
    make.add("mask of padding per batch", [3, 2, 2, 3, 5, 8, 8], &|p, rng| mask(p, rng, [false, true, true]));
    make.add("mask per batch", [2, 2, 2, 4, 4, 8, 8], &|p, rng| mask(p, rng, [false, true, false]));
    make.add("mask, keys 16 to 128 or a part of them hidden", [1, 2, 2, 6, 150, 8, 8], &|p, _| {
        let hidden = [(16, 32), (32, 64), (64, 128), (16, 128), (8, 16), (4, 8)];
        let visible = |row: usize, key: usize| !(hidden[row].0..hidden[row].1).contains(&key);
        p.mask = Some(Plane { shape: [1, 1, 6, 150], data: (0..900).map(|at| f64::from(u8::from(visible(at / 150, at % 150)))).collect() });
    });
    make.add("mask, 5 queries, 150 keys", [1, 1, 1, 5, 150, 8, 8], &|p, rng| mask(p, rng, [true, true, false]));
    if make.takes.has("scale") {
        make.add("mask and scale 0.3", [1, 2, 2, 3, 4, 8, 8], &|p, rng| {
            mask(p, rng, [true, true, false]);
            p.scale = Some(0.3);
        });
    }
    if make.takes.has("causal") && make.takes.has("causal+mask") {
        make.add("mask and causal", [1, 2, 2, 5, 5, 8, 8], &|p, rng| {
            mask(p, rng, [true, true, false]);
            p.causal = true;
            if let Some(mask) = &mut p.mask {
                (0..5).for_each(|i| mask.data[i * 5] = 1.0);
                (0..5).for_each(|i| mask.data[i * 5 + 2] = 0.0);
            }
        });
    }
    let (first, width) = ([0, 16, 32, 64, 128, 256], 270);
    make.hard("mask, the first 16, 32, 64, 128 and 256 keys hidden", [1, 1, 1, first.len(), width, 8, 8], &|p, _| {
        let data = (0..first.len() * width).map(|at| f64::from(u8::from(at % width >= first[at / width]))).collect();
        p.mask = Some(Plane { shape: [1, 1, first.len(), width], data });
    });
    make.hard("mask, a row sees nothing", [1, 2, 2, 3, 4, 8, 8], &|p, rng| {
        mask(p, rng, [true, true, false]);
        if let Some(mask) = &mut p.mask {
            mask.data[4..8].fill(0.0);
        }
        p.d_out = None;
    });
    make.hard("mask, a row sees nothing, gradients", [1, 1, 1, 3, 4, 8, 8], &|p, rng| {
        mask(p, rng, [true, true, false]);
        if let Some(mask) = &mut p.mask {
            mask.data[4..8].fill(0.0);
        }
    });
    for of_key in [true, false] {
        make.hard(if of_key { "mask, NaN in a hidden key" } else { "mask, NaN in a hidden value" }, [1, 1, 1, 3, 4, 8, 8], &|p, rng| {
            mask(p, rng, [true, true, false]);
            (p.hidden_nan, p.d_out) = (true, None);
            if let Some(mask) = &mut p.mask {
                (0..3).for_each(|i| mask.data[i * 4 + 1] = 0.0);
                (0..3).for_each(|i| mask.data[i * 4] = 1.0);
            }
            let width = if of_key { p.dims[0] } else { p.dims[1] };
            if of_key { p.k[width] = f64::NAN } else { p.v[width] = f64::NAN }
        });
    }
    make.hard("mask, visible scores far below hidden ones", [1, 1, 1, 3, 4, 16, 16], &|p, rng| {
        large(p, rng, 1.0);
        mask(p, rng, [true, true, false]);
        p.q.iter_mut().for_each(|x| *x = 64.0);
        for (at, x) in p.k.iter_mut().enumerate() {
            let key = at / 16;
            *x = if key == 0 { -200.0 } else { -199.0 + key as f64 };
        }
        if let Some(mask) = &mut p.mask {
            mask.data = (0..12).map(|at| f64::from(u8::from(at % 4 < 2))).collect();
        }
    });
}

fn biases(make: &mut Maker<'_>) {
    make.add("bias per batch and head", [2, 2, 2, 3, 5, 8, 8], &|p, rng| bias(p, rng, [false, false, false]));
    make.add("bias per head", [2, 2, 2, 4, 3, 8, 8], &|p, rng| bias(p, rng, [true, false, false]));
    make.add("bias for all batches and heads", [2, 2, 2, 4, 4, 8, 8], &|p, rng| bias(p, rng, [true, true, false]));
    make.add("bias per key", [2, 2, 2, 3, 4, 8, 8], &|p, rng| bias(p, rng, [false, true, true]));
    make.add("float mask of 0 and -inf", [2, 2, 2, 3, 5, 8, 8], &|p, rng| float_mask(p, rng, [false, true, false]));
    if make.takes.has("scale") {
        make.add("bias and scale 0.2", [1, 2, 2, 3, 4, 8, 8], &|p, rng| {
            bias(p, rng, [true, true, false]);
            p.scale = Some(0.2);
        });
    }
    if make.takes.has("causal") && make.takes.has("causal+mask") {
        make.add("bias and causal", [1, 2, 2, 4, 4, 8, 8], &|p, rng| {
            bias(p, rng, [true, true, false]);
            p.causal = true;
        });
    }
}
