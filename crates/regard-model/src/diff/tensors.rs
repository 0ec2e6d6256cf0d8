//! How each tensor of B differs from that of A.

use super::ROUNDING;
use crate::error::Result;
use crate::model::Model;
use half::{bf16, f16};
use regard_nn::layers::positions::Pairs;
use regard_nn::tensors::Source;
use std::collections::HashMap;

/// A tensor of B, beside that of A.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorDifference {
    /// Our name.
    pub name: String,
    /// Types in the files.
    pub kinds: [String; 2],
    /// Root mean square of the difference over that of A.
    pub relative: f64,
    /// What would turn A's into B's.
    pub change: Change,
}

/// A change of a tensor that is recognised.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Rows of queries or keys are in the order of the other rotary pairing.
    Pairing,
    /// It is another tensor of A.
    Exchanged(String),
    /// Heads, or their columns of the output, are in another order.
    Heads,
    /// It is transposed.
    Transposed,
    /// Gains of a norm that are all one, as where a file has none.
    One,
    /// Every number times this.
    Scaled(f64),
    /// Every number plus one, or less one.
    Shifted(f64),
    /// All zero.
    Zero,
    /// Rounded to a type of fewer bits.
    Rounded(&'static str),
    /// Other numbers.
    Other,
}

/// All numbers of a tensor.
fn numbers(model: &Model, name: &str) -> Result<(Vec<f32>, Vec<usize>, String)> {
    let tensor = model.tensor_source().tensor(name)?;
    let mut numbers = vec![0f32; tensor.numbers.len()];
    tensor.numbers.widen(0..numbers.len(), &mut numbers);
    Ok((numbers, tensor.shape, tensor.numbers.kind().to_owned()))
}

fn hash<'n>(x: impl IntoIterator<Item = &'n f32>) -> u64 {
    x.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, x| (hash ^ u64::from(x.to_bits())).wrapping_mul(0x0000_0100_0000_01b3))
}

fn rms(x: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = x.fold((0.0, 0usize), |(sum, count), x| (sum + x * x, count + 1));
    (sum / count.max(1) as f64).sqrt()
}

/// The root mean square of the difference over that of `a`.
fn relative(a: &[f32], b: &[f32]) -> f64 {
    let difference = rms(a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    if difference == 0.0 { 0.0 } else { difference / rms(a.iter().map(|x| f64::from(*x))).max(f64::MIN_POSITIVE) }
}

/// Rows of heads (`dim` each) in the order of the other rotary pairing: from halves to neighbours, or back.
fn repaired(x: &[f32], width: usize, dim: usize, dims: usize, to_halves: bool) -> Vec<f32> {
    let mut turned = x.to_vec();
    for (old, new) in x.chunks(dim * width).zip(turned.chunks_mut(dim * width)) {
        for i in 0..dims {
            let other = i / 2 + i % 2 * (dims / 2);
            let (from, to) = if to_halves { (i, other) } else { (other, i) };
            if (to + 1) * width <= new.len() && (from + 1) * width <= old.len() {
                new[to * width..(to + 1) * width].copy_from_slice(&old[from * width..(from + 1) * width]);
            }
        }
    }
    turned
}

fn is_of_queries_or_keys(name: &str) -> bool {
    [".attention.q.", ".attention.k."].iter().any(|part| name.contains(part))
}

/// Hashes of the heads of a projection, sorted: equal where only the order of heads differs.
fn sorted_heads(x: &[f32], width: usize, dim: usize, in_columns: bool) -> Vec<u64> {
    let of_columns = |head: usize| hash(x.chunks(width).flat_map(|row| &row[head * dim..(head + 1) * dim]));
    let mut heads: Vec<u64> =
        if in_columns { (0..width / dim).map(of_columns).collect() } else { x.chunks(dim * width).map(hash).collect() };
    heads.sort_unstable();
    heads
}

/// Whether the heads of a projection are in another order.
fn is_other_order(a: &[f32], b: &[f32], name: &str, width: usize, dim: usize) -> bool {
    let in_columns = name.ends_with(".attention.out.weight");
    if !in_columns && ![".attention.q.", ".attention.k.", ".attention.v."].iter().any(|part| name.contains(part)) {
        return false;
    }
    sorted_heads(a, width, dim, in_columns) == sorted_heads(b, width, dim, in_columns)
}

fn change(a: &[f32], b: &[f32], name: &str, shape: &[usize], (dim, dims): (usize, usize)) -> Change {
    let near = |x: &[f32]| relative(x, b) <= ROUNDING;
    if b.iter().all(|x| *x == 0.0) {
        return Change::Zero;
    }
    if name.ends_with(".gain") && b.iter().all(|x| *x == 1.0) {
        return Change::One;
    }
    let width = if shape.len() == 2 { shape[1] } else { 1 };
    if is_of_queries_or_keys(name) && (near(&repaired(a, width, dim, dims, true)) || near(&repaired(a, width, dim, dims, false))) {
        return Change::Pairing;
    }
    if is_other_order(a, b, name, width, dim) {
        return Change::Heads;
    }
    if let [n, m] = *shape
        && n == m
        && near(&(0..n * m).map(|i| a[i % n * m + i / n]).collect::<Vec<_>>())
    {
        return Change::Transposed;
    }
    type Rounding = (&'static str, fn(f32) -> f32);
    let rounding: [Rounding; 2] = [("f16", |x| f16::from_f32(x).to_f32()), ("bf16", |x| bf16::from_f32(x).to_f32())];
    for (kind, round) in rounding {
        if a.iter().zip(b).all(|(a, b)| round(*a) == *b) {
            return Change::Rounded(kind);
        }
    }
    let shift = a.iter().zip(b).map(|(a, b)| f64::from(*b) - f64::from(*a)).sum::<f64>() / a.len().max(1) as f64;
    if (shift.abs() - 1.0).abs() < 1e-3 && near(&a.iter().map(|x| x + shift.round() as f32).collect::<Vec<_>>()) {
        return Change::Shifted(shift.round());
    }
    let product = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    let factor = product(a, b) / product(a, a).max(f64::MIN_POSITIVE);
    if factor != 0.0 && relative(&a.iter().map(|x| (f64::from(*x) * factor) as f32).collect::<Vec<_>>(), b) <= 2e-3 {
        return Change::Scaled(factor);
    }
    Change::Other
}

/// Tensors that differ in a bit, in the order of the model.
pub(super) fn compare(a: &Model, b: &Model) -> Result<Vec<TensorDifference>> {
    let mut found: Vec<(TensorDifference, u64)> = Vec::new();
    let mut known: HashMap<u64, Vec<String>> = HashMap::new();
    let dim = a.head_dim();
    let dims = a.attention().rotary.and_then(|rotary| rotary.dims).unwrap_or(dim).min(dim);
    let pairs = |model: &Model| model.attention().rotary.map(|rotary| rotary.pairs);
    for entry in a.transformer().layout().entries() {
        let (mut x, shape, kind) = numbers(a, &entry.name)?;
        known.entry(hash(&x)).or_default().push(entry.name.clone());
        if !b.transformer().layout().entries().iter().any(|other| other.name == entry.name) {
            continue;
        }
        let (y, other, other_kind) = numbers(b, &entry.name)?;
        if other != shape {
            continue;
        }
        // Files that pair other numbers have their rows in another order, rightly.
        let width = if shape.len() == 2 { shape[1] } else { 1 };
        if is_of_queries_or_keys(&entry.name) && pairs(a) != pairs(b) {
            let turned = repaired(&x, width, dim, dims, pairs(a) == Some(Pairs::Interleaved));
            if relative(&turned, &y) < relative(&x, &y) {
                x = turned;
            }
        }
        if x.iter().zip(&y).all(|(x, y)| x.to_bits() == y.to_bits()) {
            continue;
        }
        let change = change(&x, &y, &entry.name, &shape, (dim, dims));
        let relative = relative(&x, &y);
        found.push((TensorDifference { name: entry.name.clone(), kinds: [kind, other_kind], relative, change }, hash(&y)));
    }
    let named = |(mut difference, hash): (TensorDifference, u64)| {
        let of_b = if difference.change == Change::Other { known.get(&hash).and_then(|names| names.first()) } else { None };
        if let Some(name) = of_b {
            difference.change = Change::Exchanged(name.clone());
        }
        difference
    };
    Ok(found.into_iter().map(named).collect())
}
