//! One hash per SIMD level over the bits of 15,360 results: element types x masks x options x shapes x passes.
//!
//! Levels with fused multiply-adds have the same bits, on any processor, so their hashes are equal; a difference is an error.
//! `cargo xtask cross` compares the hashes of two architectures.
//!
//! ```text
//! cargo run --release -p regard --example level_hash            # a line per level of this CPU
//! cargo run --release -p regard --example level_hash -- avx2    # of one level
//! cargo run --release -p regard --example level_hash -- parts   # and a line per type and pass: where two levels differ
//! ```

use half::{bf16, f16};
use ndarray::{Array2, Array3, Array4, ArrayBase, Data, Dimension};
use regard::{Attention, Bias, BiasGradient, Element, Level, Mask, Real, Scale, StatsOptions, Storage, alibi_slopes, random::Stream};
use std::process::ExitCode;

/// Hashes of a type: forward, backward, statistics.
const PASSES: [&str; 3] = ["forward", "backward", "statistics"];

/// Sizes of a call.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    heads_q: usize,
    heads_kv: usize,
    seq_q: usize,
    seq_kv: usize,
    head_dim: usize,
    value_dim: usize,
}

/// Decoding, several tiles of queries, several tiles of keys, several splits of keys.
const SHAPES: [Sizes; 4] = [
    Sizes { batch: 2, heads_q: 4, heads_kv: 2, seq_q: 1, seq_kv: 150, head_dim: 17, value_dim: 17 },
    Sizes { batch: 1, heads_q: 2, heads_kv: 2, seq_q: 70, seq_kv: 45, head_dim: 16, value_dim: 13 },
    Sizes { batch: 2, heads_q: 2, heads_kv: 1, seq_q: 11, seq_kv: 300, head_dim: 24, value_dim: 24 },
    Sizes { batch: 1, heads_q: 2, heads_kv: 1, seq_q: 6, seq_kv: 2100, head_dim: 8, value_dim: 9 },
];

/// The bits of elements; one NaN is as good as another.
struct Hash {
    state: u64,
    results: usize,
}

impl Hash {
    const fn new() -> Self {
        Self { state: 0xcbf2_9ce4_8422_2325, results: 0 }
    }

    fn word(&mut self, word: u64) {
        self.state = (self.state ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    }

    fn element<E: Storage>(&mut self, x: E) {
        let x = x.to_real().to_f64();
        self.word(if x.is_nan() { u64::MAX } else { x.to_bits() });
    }

    fn array<E: Storage, S: Data<Elem = E>, D: Dimension>(&mut self, array: &ArrayBase<S, D>) {
        for &x in array {
            self.element(x);
        }
    }

    /// One more result is complete.
    fn result(&mut self) {
        self.results += 1;
    }
}

/// Counter-based numbers between -1 and 1.
fn numbers(len: usize, place: u32) -> Vec<f64> {
    let mut numbers = vec![0.0; len];
    Stream::new(7, [1, 2, place]).uniform(&mut numbers);
    numbers
}

fn tensor<E: Storage>(shape: [usize; 4], place: u32) -> Array4<E> {
    let numbers = numbers(shape.iter().product(), place).into_iter();
    let numbers = numbers.map(|x| E::from_real(E::Real::from_f64(2.0 * x))).collect();
    Array4::from_shape_vec(shape, numbers).expect("as many numbers as the shape has")
}

fn masks(s: Sizes) -> Vec<Attention<'static>> {
    let visible = |shape: [usize; 4]| tensor::<f64>(shape, 90).mapv(|x| x > -0.7);
    let ids = |n: usize| Array2::from_shape_fn((s.batch, n), |(b, i)| ((i + 5 * b) / 12) as u32);
    let blocks = Array3::from_shape_fn((1, s.seq_q.div_ceil(7), s.seq_kv.div_ceil(9)), |(_, i, j)| (i + j) % 3 != 1);
    let lengths: Vec<usize> = (0..s.batch).map(|b| s.seq_kv - 3 - b * s.seq_kv / 3).collect();
    let a = Attention::new;
    vec![
        a(),
        a().causal().q_offset(4),
        a().causal_bottom_right(),
        a().window(9, 2).align_end(),
        a().mask(Mask::first_keys(2) | Mask::window(Some(40), Some(0))).align_end(),
        a().mask(!Mask::window(Some(3), Some(3))),
        a().key_lengths(lengths),
        a().mask(Mask::documents(ids(s.seq_q), ids(s.seq_kv))),
        a().mask(Mask::dense(visible([s.batch, 1, s.seq_q, s.seq_kv]))),
        a().mask(Mask::blocks(blocks, 7, 9)),
    ]
}

/// The options, each added to a mask.
fn options(a: &Attention<'static>, s: Sizes) -> Vec<Attention<'static>> {
    let dense = || Bias::Dense(tensor::<f32>([1, s.heads_q, s.seq_q, s.seq_kv], 91).into());
    let alibi = || Bias::Alibi(alibi_slopes(s.heads_q));
    let relative = Array2::from_shape_fn((1, 15), |(_, i)| i as f32 / 8.0 - 1.0);
    let sink: Vec<f64> = (0..s.heads_q).map(|h| h as f64 - 0.5).collect();
    let a = || a.clone();
    vec![
        a(),
        a().scale(Scale::Off),
        a().scale(Scale::By(0.37)).scale_gradient(true),
        a().softcap(1.5),
        a().bias(dense()),
        a().bias(alibi()),
        a().bias(Bias::Relative(relative.into())),
        a().sink(sink.clone()),
        a().top_k(9),
        a().dropout(0.2, 11),
        a().softcap(2.0).bias(dense()).sink(sink.clone()),
        a().dropout(0.1, 5).bias(alibi()).sink(sink),
    ]
}

fn hash_type<E: Element>(level: Level) -> [Hash; 3] {
    let [mut forward, mut backward, mut statistics] = [Hash::new(), Hash::new(), Hash::new()];
    for s in SHAPES {
        let q = tensor::<E>([s.batch, s.heads_q, s.seq_q, s.head_dim], 1);
        let k = tensor::<E>([s.batch, s.heads_kv, s.seq_kv, s.head_dim], 2);
        let v = tensor::<E>([s.batch, s.heads_kv, s.seq_kv, s.value_dim], 3);
        let d_out = tensor::<E>([s.batch, s.heads_q, s.seq_q, s.value_dim], 4);
        for attention in masks(s).iter().flat_map(|mask| options(mask, s)) {
            let attention = attention.level(level);
            let result = attention.forward(&q, &k, &v).expect("the options fit the shapes");
            forward.array(&result.out);
            forward.result();
            forward.array(&result.lse);
            forward.result();

            let saved = attention.forward_saved(&q, &k, &v).expect("the options fit the shapes");
            let (gradients, sizes) = attention.backward_with_stats(&q, &k, &v, &saved, &d_out).expect("the options fit the shapes");
            for gradient in [&gradients.dq, &gradients.dk, &gradients.dv] {
                backward.array(gradient);
                backward.result();
            }
            for gradient in &gradients.d_biases {
                match gradient {
                    BiasGradient::Dense(x) => backward.array(x),
                    BiasGradient::Dense64(x) => backward.array(x),
                    BiasGradient::Alibi(x) => x.iter().for_each(|&x| backward.element(x)),
                    BiasGradient::Relative(x) => backward.array(x),
                    other => unreachable!("no option here has this gradient: {other:?}"),
                }
            }
            gradients.d_sink.iter().flatten().chain(&gradients.d_scale).for_each(|&x| backward.element(x));
            backward.result();

            let wanted = StatsOptions { local_window: 3, top_keys: 2 };
            let (_, rows) = attention.forward_with_stats(&q, &k, &v, wanted).expect("the options fit the shapes");
            for array in [&rows.entropy, &rows.max_weight, &rows.sum_of_squares, &rows.local_mass, &rows.mean_distance] {
                statistics.array(array);
            }
            for array in [&rows.diagonal_mass, &rows.previous_token_mass, &rows.first_token_mass] {
                statistics.array(array);
            }
            rows.argmax.iter().chain(&rows.top_keys).for_each(|&key| statistics.word(key as u64));
            statistics.result();
            for array in [&sizes.dq_rows, &sizes.dk_rows, &sizes.dv_rows, &sizes.d_scores_rows] {
                statistics.array(array);
            }
            statistics.result();
        }
    }
    [forward, backward, statistics]
}

/// The hash of a level and the number of results in it.
fn hash_level(level: Level, parts: bool) -> Hash {
    let types = [
        ("f32", hash_type::<f32>(level)),
        ("f64", hash_type::<f64>(level)),
        ("f16", hash_type::<f16>(level)),
        ("bf16", hash_type::<bf16>(level)),
    ];
    let mut whole = Hash::new();
    for (name, hashes) in types {
        for (pass, hash) in PASSES.into_iter().zip(hashes) {
            if parts {
                println!("  {:<10} {name:<5} {pass:<11} {:016x}", level.name(), hash.state);
            }
            whole.word(hash.state);
            whole.results += hash.results;
        }
    }
    whole
}

/// Whether the multiply-adds of the level are rounded once, so that its bits are those of every other such level.
fn is_fused(level: Level) -> bool {
    match level {
        Level::Portable => cfg!(any(target_feature = "fma", target_arch = "aarch64")),
        _ => ["neon", "avx2", "avx512"].contains(&level.name()),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let parts = arguments.iter().any(|argument| argument == "parts");
    let asked: Vec<Level> = Level::available().filter(|level| arguments.iter().any(|argument| argument == level.name())).collect();
    let levels = if asked.is_empty() { Level::available().collect() } else { asked };
    let mut first = None;
    let mut differs = false;
    for level in levels {
        let hash = hash_level(level, parts);
        let note = if is_fused(level) { "fused" } else { "bits of its own" };
        println!("{:<10} {:016x}  {} results, {note}", level.name(), hash.state, hash.results);
        if is_fused(level) {
            differs |= *first.get_or_insert(hash.state) != hash.state;
        }
    }
    if differs {
        eprintln!("error: levels with fused multiply-adds differ; run with the argument `parts` to see where");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
