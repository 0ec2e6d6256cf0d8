//! Gradients of parts and whole models against PyTorch's, which `python/tests/parity/nn_golden_maker.py` wrote down.

use crate::common::{max, numbers, parameters, tokens, worst};
use regard_nn::attention::{AttentionConfig, MultiHeadAttention, ScaleKind};
use regard_nn::linear::Linear;
use regard_nn::mlp::{Mlp, MlpConfig, MlpKind};
use regard_nn::norm::{NORM_STATS, Norm, NormKind};
use regard_nn::positions::Rotary;
use regard_nn::scaled::{ScaledAttention, ScaledSaved};
use regard_nn::seq2seq::Pairs;
use regard_nn::tensors::Weights;
use regard_nn::tensors::layout::{Gradients, Layout};
use regard_nn::{EncoderDecoder, Float, IGNORE, Keep, LanguageModel, MaskKind, ModelConfig, Pass};
use serde::Deserialize;

const GOLDEN: &str = include_str!("../golden/gradients.json");
const WIDTH: usize = 8;
const HIDDEN: usize = 12;

#[derive(Deserialize)]
struct Golden {
    models: Vec<Model>,
    parts: Vec<Part>,
}

#[derive(Deserialize)]
struct Model {
    name: String,
    kind: String,
    config: ModelConfig,
    mask: MaskKind,
    loss: f64,
    tensors: Vec<(String, Vec<usize>)>,
    gradients: Vec<f64>,
    float32_error: f64,
}

#[derive(Deserialize)]
struct Part {
    name: String,
    y: Vec<f64>,
    dx: Vec<f64>,
    d_memory: Vec<f64>,
    gradients: Vec<f64>,
    float32_error: f64,
}

fn golden() -> Golden {
    serde_json::from_str(GOLDEN).expect("the golden file is well-formed")
}

fn same_tensors(layout: &Layout, expected: &[(String, Vec<usize>)]) {
    let ours: Vec<_> = layout.entries().iter().map(|e| (e.name.clone(), e.shape.clone())).collect();
    assert_eq!(ours, expected);
}

fn language_model<T: Float>(golden: &Model) -> (f64, Vec<T>) {
    let model = LanguageModel::new(golden.config.clone()).expect("a valid configuration");
    same_tensors(model.layout(), &golden.tensors);
    let p = parameters::<T>(model.layout());
    let mut g = vec![T::ZERO; p.len()];
    let (ids, mut targets) = (tokens(18, 1, 7), tokens(18, 4, 7));
    targets[4] = IGNORE;
    targets[10] = IGNORE;
    let call = Pass::new(3, 6, golden.mask);
    let mut pass = model.plan(3, 6, Keep::Tape);
    let loss = model.loss_and_gradient(&model.weights(&p), &mut g, &ids, &targets, &call, 16.0, &mut pass).expect("shapes fit");
    (loss.mean(), g)
}

fn encoder_decoder<T: Float>(golden: &Model) -> (f64, Vec<T>) {
    let model = EncoderDecoder::new(golden.config.clone()).expect("a valid configuration");
    same_tensors(model.layout(), &golden.tensors);
    let p = parameters::<T>(model.layout());
    let mut g = vec![T::ZERO; p.len()];
    let mut targets = tokens(12, 5, 7);
    targets[7] = IGNORE;
    let pairs = Pairs { batch: 3, source: tokens(15, 2, 7), source_lengths: vec![5, 2, 4], written: tokens(12, 3, 7), targets };
    let mut pass = model.plan(&pairs, Keep::Tape);
    let loss = model.loss_and_gradient(&model.weights(&p), &mut g, &pairs, None, 11.0, &mut pass).expect("shapes fit");
    (loss.mean(), g)
}

fn model<T: Float>(golden: &Model) -> (f64, Vec<T>) {
    match golden.kind.as_str() {
        "language_model" => language_model(golden),
        "encoder_decoder" => encoder_decoder(golden),
        other => panic!("unknown kind {other}"),
    }
}

fn largest(x: &[f64]) -> f64 {
    max(x.iter().map(|x| x.abs()))
}

#[test]
fn whole_models_have_pytorchs_gradients_in_f64() {
    for golden in golden().models {
        let (loss, g) = model::<f64>(&golden);
        assert!((loss - golden.loss).abs() < 1e-12, "{}: loss {loss}, not {}", golden.name, golden.loss);
        let error = worst(&g, &golden.gradients) / largest(&golden.gradients);
        assert!(error < 1e-9, "{}: gradients off by {error}", golden.name);
    }
}

#[test]
fn whole_models_in_f32_are_within_three_times_pytorchs_error() {
    for golden in golden().models {
        let (_, g) = model::<f32>(&golden);
        let error = worst(&g, &golden.gradients);
        assert!(error < 3.0 * golden.float32_error, "{}: {error}, PyTorch {}", golden.name, golden.float32_error);
    }
}

/// What a part made of its inputs: y, dx, d_memory and the parameters' gradients.
type Made<T> = [Vec<T>; 4];

fn part<T: Float>(name: &str) -> Made<T> {
    let rows = 12;
    let (x, memory) = (numbers::<T>(rows * WIDTH, 0.1), numbers::<T>(10 * WIDTH, 0.2));
    let (mut dx, mut d_memory) = (vec![T::ZERO; x.len()], vec![T::ZERO; memory.len()]);
    let mut layout = Layout::new();
    match name {
        "linear" => {
            let part = Linear::new(&mut layout, "part", WIDTH, 5, true);
            let p = parameters::<T>(&layout);
            let (mut y, mut g) = (vec![T::ZERO; rows * 5], vec![T::ZERO; p.len()]);
            part.forward(&Weights::of_buffer(&layout, &p), &x, &mut y);
            part.backward(&Weights::of_buffer(&layout, &p), &mut Gradients::new(&layout, &mut g), &x, &numbers(y.len(), 0.3), &mut dx);
            return [y, dx, Vec::new(), g];
        }
        "layer_norm" | "rms_norm" => {
            let kind = if name == "rms_norm" { NormKind::Rms } else { NormKind::Layer };
            let part = Norm::new(&mut layout, "part", kind, WIDTH);
            let p = parameters::<T>(&layout);
            let (mut y, mut g) = (vec![T::ZERO; rows * WIDTH], vec![T::ZERO; p.len()]);
            let (mut stats, mut partial) = (vec![T::ZERO; rows * NORM_STATS], vec![T::ZERO; 2 * WIDTH]);
            part.forward(&Weights::of_buffer(&layout, &p), &x, &mut y, &mut stats);
            part.backward(&Weights::of_buffer(&layout, &p), &x, &stats, &numbers(y.len(), 0.3), &mut dx, false, &mut partial);
            part.reduce(&mut Gradients::new(&layout, &mut g), &partial);
            return [y, dx, Vec::new(), g];
        }
        "gelu_mlp" | "swiglu_mlp" => {
            let kind = if name == "gelu_mlp" { MlpKind::Gelu } else { MlpKind::SwiGlu };
            let part = Mlp::new(&mut layout, MlpConfig::named(kind, WIDTH, HIDDEN));
            let p = parameters::<T>(&layout);
            let w = Weights::of_buffer(&layout, &p);
            let (mut y, mut g) = (vec![T::ZERO; rows * WIDTH], vec![T::ZERO; p.len()]);
            let kept = part.forward_all(&w, &x, &mut y);
            part.backward_all(&w, &mut Gradients::new(&layout, &mut g), &x, kept, &numbers(y.len(), 0.3), &mut dx);
            return [y, dx, Vec::new(), g];
        }
        _ => {}
    }
    let lengths = [3, 5];
    let mut call = Pass { memory_seq: 5, memory_lengths: Some(&lengths), ..Pass::new(2, 6, MaskKind::Causal) };
    if name == "scaled_attention" {
        let part = ScaledAttention::new(&mut layout, WIDTH, 4, 3, true, ScaleKind::InvSqrtDim);
        let p = parameters::<T>(&layout);
        let (mut y, mut g) = (vec![T::ZERO; rows * 3], vec![T::ZERO; p.len()]);
        let mut saved = ScaledSaved::default();
        part.forward(&Weights::of_buffer(&layout, &p), &call, &x, &mut y, &mut saved).expect("shapes fit");
        part.backward(
            &Weights::of_buffer(&layout, &p),
            &mut Gradients::new(&layout, &mut g),
            &call,
            &x,
            &saved,
            &numbers(y.len(), 0.3),
            &mut dx,
        )
        .expect("shapes fit");
        return [y, dx, Vec::new(), g];
    }
    let config = AttentionConfig::new(WIDTH, 4);
    let cross = name == "cross_attention";
    let part = if cross {
        MultiHeadAttention::cross(&mut layout, config)
    } else {
        assert_eq!(name, "self_attention");
        call = Pass::new(2, 6, MaskKind::Causal);
        MultiHeadAttention::new(
            &mut layout,
            AttentionConfig { bias: true, out_bias: true, kv_heads: 2, rotary: Some(Rotary::new(100.0)), ..config },
        )
    };
    let p = parameters::<T>(&layout);
    let (mut y, mut g) = (vec![T::ZERO; rows * WIDTH], vec![T::ZERO; p.len()]);
    let mut saved = part.plan(&call);
    part.forward(&Weights::of_buffer(&layout, &p), &call, &x, &memory, &mut y, &mut saved).expect("shapes fit");
    part.backward(
        &Weights::of_buffer(&layout, &p),
        &mut Gradients::new(&layout, &mut g),
        &call,
        (&x, &memory),
        &saved,
        &numbers(y.len(), 0.3),
        (&mut dx, &mut d_memory),
    )
    .expect("shapes fit");
    [y, dx, if cross { d_memory } else { Vec::new() }, g]
}

fn part_error<T: Float>(golden: &Part) -> (f64, f64) {
    let right = [&golden.y, &golden.dx, &golden.d_memory, &golden.gradients];
    let made = part::<T>(&golden.name);
    let error = max(made.iter().zip(right).map(|(got, right)| worst(got, right)));
    (error, max(right.iter().map(|x| largest(x))))
}

#[test]
fn parts_have_pytorchs_gradients_in_f64() {
    for golden in golden().parts {
        let (error, size) = part_error::<f64>(&golden);
        assert!(error / size < 1e-9, "{}: off by {error}", golden.name);
    }
}

#[test]
fn parts_in_f32_are_within_three_times_pytorchs_error() {
    for golden in golden().parts {
        let (error, _) = part_error::<f32>(&golden);
        assert!(error < 3.0 * golden.float32_error, "{}: {error}, PyTorch {}", golden.name, golden.float32_error);
    }
}
