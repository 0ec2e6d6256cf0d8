//! Gradients of activations against central differences in f64, where each number is moved by a probe during the forward pass; for every
//! way that norms, branches and heads go together.

use crate::common::{max, parameters, tokens};
use ndarray::{ArrayD, ArrayView4, ArrayViewMut4, ArrayViewMutD};
use regard_nn::layers::activation::Activation;
use regard_nn::layers::attention::{AttentionConfig, Heads, HeadsMut, Projection};
use regard_nn::layers::probe::{Attending, GradientProbe, Operand, Probe, Reads};
use regard_nn::layers::stack::{BlockConfig, BlockWiring};
use regard_nn::loss::cross_entropy;
use regard_nn::mlp::MlpConfig;
use regard_nn::models::transformer::{EmbeddingConfig, HeadConfig, Transformer, TransformerConfig};
use regard_nn::norm::NormKind;
use regard_nn::positions::Rotary;
use regard_nn::tensors::Weights;
use regard_nn::tensors::layout::Layout;
use regard_nn::tensors::{Numbers, Source, Tensor};
use regard_nn::{IGNORE, Keep, MaskKind, Pass};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Where in a pass: sublayer and what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum At {
    Stream(usize),
    Q(usize),
    K(usize),
    V(usize),
    Z(usize),
    Branch(usize),
}

/// Moves one number.
struct Nudge(At, usize, f64);

impl Nudge {
    fn at(&self, at: At, x: ArrayViewMutD<'_, f64>) {
        if at == self.0 {
            *x.into_iter().nth(self.1).expect("as many numbers as gradients") += self.2;
        }
    }
}

fn rows(x: &mut [f64]) -> ArrayViewMutD<'_, f64> {
    ArrayViewMutD::from_shape(vec![x.len()], x).expect("a row")
}

impl Probe<f64> for Nudge {
    fn stream(&self, number: usize, x: &mut [f64]) {
        self.at(At::Stream(number), rows(x));
    }
    fn heads(&self, number: usize, heads: &mut HeadsMut<'_, f64>) {
        self.at(At::Q(number), heads.q().into_dyn());
        self.at(At::K(number), heads.k().into_dyn());
        self.at(At::V(number), heads.v().into_dyn());
    }
    fn results(&self, number: usize, _: &Attending<'_>, _: &Heads<'_, f64>, z: ArrayViewMut4<'_, f64>) -> regard::Result<()> {
        self.at(At::Z(number), z.into_dyn());
        Ok(())
    }
    fn wants_branch(&self, number: usize) -> bool {
        self.0 == At::Branch(number)
    }
    fn branch(&self, number: usize, x: &mut [f64]) {
        self.at(At::Branch(number), rows(x));
    }
}

/// Keeps every gradient, and per sublayer the sum of what all of its readings come to.
#[derive(Default)]
struct Recorded {
    at: Mutex<BTreeMap<At, ArrayD<f64>>>,
    reads: Mutex<BTreeMap<usize, Vec<f64>>>,
    heads: [usize; 2],
}

impl Recorded {
    fn put(&self, at: At, d: ArrayD<f64>) {
        self.at.lock().expect("no panics").insert(at, d);
    }
}

impl GradientProbe<f64> for Recorded {
    fn stream(&self, number: usize, d: &[f64]) {
        self.put(At::Stream(number), ArrayD::from_shape_vec(vec![d.len()], d.to_vec()).expect("a row"));
    }
    fn branch(&self, number: usize, d: &[f64]) {
        self.put(At::Branch(number), ArrayD::from_shape_vec(vec![d.len()], d.to_vec()).expect("a row"));
    }
    fn results(&self, number: usize, _: &Heads<'_, f64>, d: ArrayView4<'_, f64>) {
        self.put(At::Z(number), d.to_owned().into_dyn());
    }
    fn heads(&self, number: usize, d: &Heads<'_, f64>) {
        self.put(At::Q(number), d.q.to_owned().into_dyn());
        self.put(At::K(number), d.k.to_owned().into_dyn());
        self.put(At::V(number), d.v.to_owned().into_dyn());
    }
    fn reads(&self, number: usize, reads: &Reads<'_, f64>) {
        let [heads, kv_heads] = self.heads;
        let all = (0..heads).map(|h| reads.through(Operand::Q, h));
        let all = all.chain((0..kv_heads).flat_map(|h| [reads.through(Operand::K, h), reads.through(Operand::V, h)]));
        let mut sum: Vec<f64> = Vec::new();
        for part in all.chain([reads.network()]).filter(|part| !part.is_empty()) {
            sum.resize(part.len(), 0.0);
            sum.iter_mut().zip(&part).for_each(|(s, x)| *s += x);
        }
        self.reads.lock().expect("no panics").insert(number, sum);
    }
}

/// Parameters as f32, which a model in f64 widens as it does quantised blocks.
struct Narrow<'n>(&'n Layout, Vec<f32>);

impl Source for Narrow<'_> {
    fn tensor(&self, name: &str) -> regard_nn::Result<Tensor<'_>> {
        let entry = self.0.entries().iter().find(|e| e.name == name).expect("a tensor of the layout");
        Ok(Tensor { shape: entry.shape.clone(), numbers: Numbers::F32(Cow::Borrowed(&self.1[entry.range.clone()])) })
    }
}

const VOCAB: usize = 11;
const SEQ: usize = 6;

fn parts(wiring: BlockWiring, norm: NormKind, attention: AttentionConfig, mlp: MlpConfig, head: HeadConfig) -> TransformerConfig {
    let width = attention.width;
    let block = |i: usize| BlockConfig::new(format!("blocks.{i}"), wiring, (norm, 1e-5), attention, mlp);
    TransformerConfig {
        width,
        embedding: EmbeddingConfig { vocab: VOCAB, width, ..EmbeddingConfig::default() },
        blocks: (0..2).map(block).collect(),
        last_norm: (wiring != BlockWiring::PostNorm).then_some((norm, 1e-5)),
        head: Some(head),
    }
}

fn check(what: &str, config: &TransformerConfig) {
    let model = Transformer::new(config);
    let attention = config.blocks[0].attention;
    let p: Vec<f64> = parameters::<f32>(model.layout()).into_iter().map(f64::from).collect();
    let narrow = Narrow(model.layout(), parameters::<f32>(model.layout()));
    let bound: Weights<'_, f64> = model.bind(&narrow).expect("every tensor is there");
    assert!(!bound.is_trainable(), "matrices are widened as they are used");
    let ids = tokens(2 * SEQ, 1, VOCAB);
    let mut targets = tokens(2 * SEQ, 4, VOCAB);
    targets[3] = IGNORE;
    let pass = Pass::new(2, SEQ, MaskKind::Causal);
    let divisor = (2 * SEQ - 1) as f64;
    for w in [model.weights(&p), bound] {
        let mut acts = model.plan(2, SEQ, Keep::Tape);
        model.forward(&w, &ids, &pass, &mut acts).expect("fits");
        let mut losses = vec![0.0; 2 * SEQ];
        let d_rows = model
            .rows_gradient(&w, acts.rows(), |logits| {
                cross_entropy(logits, &targets, Some(divisor), &mut losses);
            })
            .expect("it has a head");
        let kept = Recorded { heads: [attention.heads, attention.kv_heads], ..Recorded::default() };
        model.activation_gradients(&w, &pass, &mut acts, &d_rows, &kept).expect("a pass was kept");
        let loss = |nudge: &Nudge| {
            let mut acts = model.plan(2, SEQ, Keep::Discard);
            model.probe(&w, &ids, &pass, &mut acts, nudge).expect("fits");
            let mut logits = acts.logits().to_vec();
            cross_entropy(&mut logits, &targets, None, &mut [0.0; 2 * SEQ]).sum / divisor
        };
        let at = kept.at.into_inner().expect("no panics");
        assert_eq!(at.len(), 5 + 4 + 2 * 4, "{what}: streams, branches, and four of each attention");
        for (at, d) in &at {
            let size = max(d.iter().map(|x| x.abs()));
            assert!(size > 1e-6, "{what}: {at:?} has a gradient");
            let errors = d.iter().enumerate().step_by(5).map(|(i, d)| {
                let h = 1e-5;
                ((loss(&Nudge(*at, i, h)) - loss(&Nudge(*at, i, -h))) / (2.0 * h) - d).abs() / size
            });
            let error = max(errors);
            assert!(error < 2e-7, "{what}: {at:?}: {error}");
        }
        // What a sublayer reads is the rest of the gradient of the stream before it.
        let stream = |number: usize| at[&At::Stream(number)].iter().copied().collect::<Vec<f64>>();
        let (reads, parallel) = (kept.reads.into_inner().expect("no panics"), config.blocks[0].wiring == BlockWiring::Parallel);
        for number in (0..4).step_by(1 + usize::from(parallel)) {
            let mut got = reads[&number].clone();
            if parallel {
                got.iter_mut().zip(&reads[&(number + 1)]).for_each(|(a, b)| *a += b);
            }
            let after = match config.blocks[0].wiring {
                BlockWiring::PostNorm => at[&At::Branch(number)].iter().copied().collect(),
                _ => stream(number + 1 + usize::from(parallel)),
            };
            let right: Vec<f64> = stream(number).iter().zip(&after).map(|(a, b)| a - b).collect();
            let size = max(right.iter().map(|x| x.abs()));
            let error = max(got.iter().zip(&right).map(|(a, b)| (a - b).abs() / size));
            assert!(error < 1e-12, "{what}: reads of {number}: {error}");
        }
    }
}

#[test]
fn gradients_of_activations_are_differences_for_every_wiring() {
    let attention = AttentionConfig { bias: true, out_bias: true, ..AttentionConfig::new(8, 2) };
    let mlp = MlpConfig { bias: true, ..MlpConfig::new(8, 12, Activation::Gelu) };
    for wiring in [BlockWiring::PreNorm, BlockWiring::PostNorm, BlockWiring::Sandwich, BlockWiring::ResultNorm, BlockWiring::Parallel] {
        check(&format!("{wiring:?}"), &parts(wiring, NormKind::Layer, attention, mlp, HeadConfig::default()));
    }
}

#[test]
fn gradients_of_activations_are_differences_for_every_kind_of_head() {
    let rotary = Some(Rotary::new(100.0));
    let gated = MlpConfig { gated: true, ..MlpConfig::new(8, 12, Activation::Silu) };
    let grouped = AttentionConfig { kv_heads: 2, head_dim: 4, rotary, ..AttentionConfig::new(8, 4) };
    let kinds = [
        ("Qwen 3", AttentionConfig { head_norms: Some(1e-6), projection: Projection::Separate, ..grouped }),
        ("OLMo 2", AttentionConfig { head_norms: Some(1e-6), whole_norms: true, projection: Projection::Separate, ..grouped }),
        ("Gemma 2", AttentionConfig { softcap: Some(1.5), window: Some(2), projection: Projection::Separate, ..grouped }),
        ("NeoX", AttentionConfig { kv_heads: 4, projection: Projection::PerHead, bias: true, ..grouped }),
        ("MPT", AttentionConfig { alibi: true, rotary: None, ..grouped }),
    ];
    for (what, attention) in kinds {
        let wiring = match what {
            "Gemma 2" => BlockWiring::Sandwich,
            "NeoX" => BlockWiring::Parallel,
            "OLMo 2" => BlockWiring::ResultNorm,
            _ => BlockWiring::PreNorm,
        };
        let head = HeadConfig {
            softcap: (what == "Gemma 2").then_some(2.0),
            scale: (what == "MPT").then_some(0.4),
            tied: what != "NeoX",
            ..HeadConfig::default()
        };
        check(what, &parts(wiring, NormKind::Rms, attention, gated, head));
    }
    let bert = HeadConfig { tied: true, bias: true, transform: Some((Activation::Gelu, 1e-12)), ..HeadConfig::default() };
    check(
        "BERT",
        &parts(BlockWiring::PostNorm, NormKind::Layer, AttentionConfig::new(8, 2), MlpConfig::new(8, 12, Activation::Gelu), bert),
    );
}
