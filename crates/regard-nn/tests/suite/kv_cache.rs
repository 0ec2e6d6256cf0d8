//! A cache that stores keys and values in fewer bits: the same as a pass over the whole text whose keys and values a probe rounds.

use crate::common::{parameters, tokens};
use half::{bf16, f16};
use ndarray::{ArrayViewMut1, ArrayViewMut4, Axis};
use regard_nn::cache::CacheType;
use regard_nn::layers::activation::Activation;
use regard_nn::layers::attention::{AttentionConfig, Heads, HeadsMut, Projection};
use regard_nn::layers::mlp::MlpConfig;
use regard_nn::layers::norm::NormKind;
use regard_nn::layers::positions::Rotary;
use regard_nn::layers::probe::{Attending, Change, NoProbe, Probe};
use regard_nn::layers::stack::{BlockConfig, BlockWiring};
use regard_nn::models::transformer::{EmbeddingConfig, HeadConfig, Transformer, TransformerConfig};
use regard_nn::tensors::Order;
use regard_nn::{Float, Keep, MaskKind, Pass};
use std::cell::Cell;

const VOCAB: usize = 11;
const SEQ: usize = 45;

/// A Llama of two layers, the second with a window.
fn model(heads: usize, kv_heads: usize, head_dim: usize) -> Transformer {
    let width = 24;
    let block = |i: usize| {
        let attention = AttentionConfig {
            kv_heads,
            head_dim,
            projection: Projection::Separate,
            order: Order::OutIn,
            rotary: Some(Rotary::new(100.0)),
            window: (i == 1).then_some(9),
            ..AttentionConfig::new(width, heads)
        };
        let mlp = MlpConfig { gated: true, order: Order::OutIn, ..MlpConfig::new(width, 10, Activation::Silu) };
        BlockConfig::new(format!("blocks.{i}"), BlockWiring::PreNorm, (NormKind::Rms, 1e-5), attention, mlp)
    };
    Transformer::new(&TransformerConfig {
        width,
        embedding: EmbeddingConfig { vocab: VOCAB, width, ..EmbeddingConfig::default() },
        blocks: (0..2).map(block).collect(),
        last_norm: Some((NormKind::Rms, 1e-5)),
        head: Some(HeadConfig { order: Order::OutIn, ..HeadConfig::default() }),
    })
}

/// Rounds keys and values by the definition of the type.
struct Rounding(CacheType);

fn round_row<T: Float>(kind: CacheType, mut row: ArrayViewMut1<'_, T>) {
    let narrow = |x: &T| x.to_f64() as f32;
    match kind {
        CacheType::F32 => {}
        CacheType::F16 => row.mapv_inplace(|x| T::from_f64(f16::from_f32(narrow(&x)).to_f64())),
        CacheType::Bf16 => row.mapv_inplace(|x| T::from_f64(bf16::from_f32(narrow(&x)).to_f64())),
        CacheType::Q8_0 => {
            for mut block in row.axis_chunks_iter_mut(Axis(0), 32) {
                let scale = block.iter().map(|x| narrow(x).abs()).fold(0.0, f32::max) / 127.0;
                block.mapv_inplace(|x| T::from_f64((narrow(&x) * (1.0 / scale)).round() as f64 * f16::from_f32(scale).to_f64()));
            }
        }
    }
}

impl<T: Float> Probe<T> for Rounding {
    fn heads(&self, _: usize, heads: &mut HeadsMut<'_, T>) {
        heads.k().lanes_mut(Axis(3)).into_iter().for_each(|row| round_row(self.0, row));
        heads.v().lanes_mut(Axis(3)).into_iter().for_each(|row| round_row(self.0, row));
    }
}

/// Sees the keys and values of the cache as attention reads them.
#[derive(Default)]
struct Looks(Cell<usize>);

impl<T: Float> Probe<T> for Looks {
    fn results(&self, _: usize, attending: &Attending<'_>, heads: &Heads<'_, T>, z: ArrayViewMut4<'_, T>) -> regard::Result<()> {
        assert!(attending.attention(&Change::default()).forward(heads.q, heads.k, heads.v)?.out == z);
        self.0.set(self.0.get() + heads.k.len_of(Axis(2)));
        Ok(())
    }
}

fn same_bits<T: Float>(what: &str, got: &[T], expected: &[T]) {
    let same = got.len() == expected.len() && got.iter().zip(expected).all(|(x, y)| x.to_f64().to_bits() == y.to_f64().to_bits());
    assert!(same, "{what}");
}

/// Of two sequences: a pass over the whole text, pieces over a cache of the type, and pieces over a cache of f32, with a probe that rounds.
fn check<T: Float>(model: &Transformer, kind: CacheType) -> Vec<T> {
    let p = parameters::<T>(model.layout());
    let (w, ids) = (model.weights(&p), tokens(2 * SEQ, 3, VOCAB));
    let mut acts = model.plan(2, SEQ, Keep::Discard);
    model.probe(&w, &ids, &Pass::new(2, SEQ, MaskKind::Causal), &mut acts, &Rounding(kind)).expect("shapes fit");
    let whole = acts.rows().to_vec();
    for pieces in [vec![SEQ], vec![1; SEQ], vec![7, 20, 1, 1, 13, 1, 2]] {
        let [mut plain, mut seen, mut rounded] = [kind, kind, CacheType::F32].map(|kind| model.cache(&w, 2).stored_as(kind));
        let (mut done, looks, at_once) = (0, Looks::default(), pieces.len() == 1);
        for new in pieces {
            let part: Vec<u32> = (0..2).flat_map(|b| &ids[b * SEQ + done..b * SEQ + done + new]).copied().collect();
            let what = format!("{}, tokens {done}..{}", kind.name(), done + new);
            let rows = model.extend_rows(&w, &part, &mut plain, &NoProbe).expect("shapes fit");
            same_bits(&what, rows, model.extend_rows(&w, &part, &mut rounded, &Rounding(kind)).expect("shapes fit"));
            same_bits("looking changes nothing", rows, model.extend_rows(&w, &part, &mut seen, &looks).expect("shapes fit"));
            if at_once {
                same_bits(&what, rows, &whole);
            }
            done += new;
        }
        assert!(looks.0.get() >= 2 * SEQ, "keys were seen");
        assert_eq!(plain.len(), SEQ);
    }
    whole
}

#[test]
fn decoding_over_fewer_bits_is_exact_over_what_is_stored() {
    for (heads, kv_heads, head_dim) in [(4, 2, 4), (3, 3, 32), (6, 2, 40), (2, 1, 64)] {
        let model = model(heads, kv_heads, head_dim);
        let exact = check::<f32>(&model, CacheType::F32);
        for kind in [CacheType::F16, CacheType::Bf16, CacheType::Q8_0] {
            let rounded = check::<f32>(&model, kind);
            let change = exact.iter().zip(&rounded).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
            assert!(change > 0.0 && change < 0.3, "{}: rows changed by {change}", kind.name());
            check::<f64>(&model, kind);
        }
    }
}

#[test]
fn a_cache_takes_the_memory_that_its_type_says() {
    let model = model(6, 2, 40);
    let p = parameters::<f32>(model.layout());
    let (w, ids) = (model.weights(&p), tokens(40, 3, VOCAB));
    for (kind, row) in [(CacheType::F32, 160), (CacheType::F16, 80), (CacheType::Bf16, 80), (CacheType::Q8_0, 68)] {
        let mut cache = model.cache(&w, 1).stored_as(kind);
        assert_eq!(cache.bytes(), 0);
        model.extend(&w, &ids, &mut cache, &mut Vec::new()).expect("shapes fit");
        assert_eq!(kind.row_bytes(40), row);
        // Two layers, keys and values, two heads; room for an eighth more.
        let (least, most) = (2 * 2 * 2 * 40 * row, 2 * 2 * 2 * 64 * row);
        assert!((least..=most).contains(&cache.bytes()), "{}: {} bytes", kind.name(), cache.bytes());
        cache.clear();
        assert!(cache.is_empty());
    }
}

#[test]
fn types_are_read_by_name() {
    for kind in CacheType::ALL {
        assert_eq!(kind.name().parse::<CacheType>().expect("a name"), kind);
    }
    let said = "q4_0".parse::<CacheType>().expect_err("no such type").to_string();
    assert_eq!(said, "the cache type is q4_0; it must be one of f32, f16, bf16, q8_0");
}
