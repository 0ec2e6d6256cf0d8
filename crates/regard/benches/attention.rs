//! How long attention takes: `cargo bench -p regard`, or `cargo bench -p regard -- decode` for some of it.
//!
//! Throughput is in multiply-adds of visible pairs, so that masked calls can be put beside full ones. `REGARD_SIMD` chooses
//! the level.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ndarray::Array4;
use regard::{Attention, StatsOptions};
use std::hint::black_box;
use std::time::Duration;

/// Numbers of about the size of a layer's activations.
fn random(shape: (usize, usize, usize, usize), seed: u64) -> Array4<f32> {
    let mut state = seed;
    Array4::from_shape_simple_fn(shape, || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1 << 24) as f32 - 0.5) * 3.4
    })
}

/// q, k and v.
type Inputs = (Array4<f32>, Array4<f32>, Array4<f32>);

fn inputs(heads_q: usize, heads_kv: usize, seq_q: usize, seq_kv: usize, dim: usize) -> Inputs {
    (random((1, heads_q, seq_q, dim), 1), random((1, heads_kv, seq_kv, dim), 2), random((1, heads_kv, seq_kv, dim), 3))
}

/// Multiply-adds of both products.
fn work(heads: usize, pairs: usize, dim: usize) -> Throughput {
    Throughput::Elements((2 * heads * pairs * dim) as u64)
}

fn forward(c: &mut Criterion) {
    let mut group = c.benchmark_group("forward");
    for (heads, n, dim) in [(8, 512, 64), (8, 2048, 64), (4, 2048, 128)] {
        let (q, k, v) = inputs(heads, heads, n, n, dim);
        group.throughput(work(heads, n * n, dim));
        let full = Attention::new();
        group.bench_function(format!("full, {heads} heads, {n} tokens, dim {dim}"), |b| b.iter(|| black_box(full.forward(&q, &k, &v))));
        group.throughput(work(heads, n * (n + 1) / 2, dim));
        let causal = Attention::new().causal();
        group.bench_function(format!("causal, {heads} heads, {n} tokens, dim {dim}"), |b| b.iter(|| black_box(causal.forward(&q, &k, &v))));
    }
    group.finish();
}

fn window(c: &mut Criterion) {
    let mut group = c.benchmark_group("window");
    let (n, dim) = (8192, 64);
    let (q, k, v) = inputs(2, 2, n, n, dim);
    for left in [128, 1024] {
        group.throughput(work(2, n * (left + 1) - left * (left + 1) / 2, dim));
        let a = Attention::new().window(left, 0);
        group.bench_function(format!("{left} back of {n} tokens"), |b| b.iter(|| black_box(a.forward(&q, &k, &v))));
    }
    group.finish();
}

fn decode(c: &mut Criterion) {
    let mut group = c.benchmark_group("decode");
    for (heads_q, heads_kv, keys, dim) in [(8, 8, 4096, 64), (32, 8, 4096, 128)] {
        let (q, k, v) = inputs(heads_q, heads_kv, 1, keys, dim);
        // Memory is the limit: count the bytes of K and V.
        group.throughput(Throughput::Bytes((2 * heads_kv * keys * dim * size_of::<f32>()) as u64));
        let a = Attention::new();
        group.bench_function(format!("{heads_q} heads on {heads_kv}, {keys} keys, dim {dim}"), |b| {
            b.iter(|| black_box(a.forward(&q, &k, &v)));
        });
    }
    group.finish();
}

fn instruments(c: &mut Criterion) {
    let mut group = c.benchmark_group("instruments");
    let (heads, n, dim) = (8, 1024, 64);
    let (q, k, v) = inputs(heads, heads, n, n, dim);
    let a = Attention::new().causal();
    group.throughput(work(heads, n * (n + 1) / 2, dim));
    group.bench_function("forward alone", |b| b.iter(|| black_box(a.forward(&q, &k, &v))));
    for top_keys in [0, 4] {
        let options = StatsOptions { top_keys, ..StatsOptions::default() };
        group.bench_function(format!("forward with statistics, {top_keys} top keys"), |b| {
            b.iter(|| black_box(a.forward_with_stats(&q, &k, &v, options)));
        });
    }
    group.bench_function("heat map of 128 x 128", |b| b.iter(|| black_box(a.heat_map(&q, &k, 128, 128))));
    group.bench_function("column sums", |b| b.iter(|| black_box(a.column_sums(&q, &k))));
    group.finish();
}

/// What a call costs that has next to nothing to compute.
fn tiny(c: &mut Criterion) {
    let (q, k, v) = inputs(1, 1, 1, 8, 8);
    let a = Attention::new();
    c.bench_function("tiny, 1 query, 8 keys, dim 8", |b| b.iter(|| black_box(a.forward(&q, &k, &v))));
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2));
    targets = forward, window, decode, instruments, tiny
}
criterion_main!(benches);
