//! Gradients against differences of the loss, in f64, where PyTorch's are not at hand: dropout, and sizes of several pieces.

use crate::common::{max, numbers, parameters, tokens};
use regard_nn::loss::cross_entropy;
use regard_nn::mlp::MlpKind;
use regard_nn::norm::NormKind;
use regard_nn::positions::Positions;
use regard_nn::seq2seq::Pairs;
use regard_nn::sublayer::NormPlace;
use regard_nn::{EncoderDecoder, IGNORE, Keep, LanguageModel, MaskKind, ModelConfig, Pass};

/// The largest relative difference between `gradient` and central differences of `loss`, over every `stride`-th parameter.
fn compare(p: &[f64], gradient: &[f64], stride: usize, mut loss: impl FnMut(&[f64]) -> f64) -> f64 {
    let size = max(gradient.iter().map(|x| x.abs()));
    let mut p = p.to_vec();
    let mut errors = Vec::new();
    for i in (0..p.len()).step_by(stride) {
        let (old, h) = (p[i], 1e-5);
        p[i] = old + h;
        let above = loss(&p);
        p[i] = old - h;
        let below = loss(&p);
        p[i] = old;
        errors.push(((above - below) / (2.0 * h) - gradient[i]).abs() / size);
    }
    max(errors)
}

fn check_language_model(config: ModelConfig, batch: usize, dropout: Option<u64>, stride: usize) {
    let model = LanguageModel::new(config.clone()).expect("a valid configuration");
    let p = parameters::<f64>(model.layout());
    let (seq, vocab) = (config.context, config.vocab);
    let (ids, mut targets) = (tokens(batch * seq, 1, vocab), tokens(batch * seq, 4, vocab));
    targets[3] = IGNORE;
    let call = Pass { dropout, ..Pass::new(batch, seq, MaskKind::Causal) };
    let mut pass = model.plan(batch, seq, Keep::Tape);
    let counted = (batch * seq - 1) as f64;
    let mut g = vec![0.0; p.len()];
    model.loss_and_gradient(&model.weights(&p), &mut g, &ids, &targets, &call, counted, &mut pass).expect("shapes fit");
    assert!(model.layout().entries().iter().all(|e| g[e.range.clone()].iter().any(|g| *g != 0.0)), "every tensor has a gradient");
    let error = compare(&p, &g, stride, |p| model.loss(&model.weights(p), &ids, &targets, &call, &mut pass).expect("shapes fit").mean());
    assert!(error < 1e-7, "{config:?}: {error}");
}

fn small() -> ModelConfig {
    ModelConfig { vocab: 7, context: 6, width: 8, heads: 2, layers: 2, hidden: Some(12), ..ModelConfig::default() }
}

#[test]
fn gradients_with_dropout_are_differences() {
    for norm_place in [NormPlace::Pre, NormPlace::Post] {
        check_language_model(ModelConfig { dropout: 0.2, norm_place, ..small() }, 2, Some(11), 3);
    }
}

#[test]
fn gradients_of_every_kind_of_part_are_differences() {
    let rotary = Positions::Rotary(100.0);
    check_language_model(
        ModelConfig { norm: NormKind::Rms, mlp: MlpKind::SwiGlu, positions: rotary, kv_heads: Some(1), ..small() },
        2,
        None,
        3,
    );
    check_language_model(ModelConfig { positions: Positions::Alibi, tied: true, attention_bias: true, ..small() }, 2, None, 3);
    check_language_model(
        ModelConfig {
            positions: Positions::Sinusoidal,
            norm_place: NormPlace::Post,
            head_dim: Some(5),
            embedding_scale: Some(2.5),
            ..small()
        },
        2,
        None,
        3,
    );
}

#[test]
fn gradients_over_several_pieces_of_rows_are_differences() {
    check_language_model(small(), 90, None, 37);
    check_language_model(ModelConfig { dropout: 0.1, norm_place: NormPlace::Post, ..small() }, 90, Some(3), 37);
}

#[test]
fn gradients_of_the_encoder_decoder_with_dropout_are_differences() {
    let config = ModelConfig { dropout: 0.2, ..small() };
    let model = EncoderDecoder::new(config).expect("a valid configuration");
    let p = parameters::<f64>(model.layout());
    let pairs =
        Pairs { batch: 2, source: tokens(10, 2, 7), source_lengths: vec![5, 3], written: tokens(8, 3, 7), targets: tokens(8, 5, 7) };
    let mut pass = model.plan(&pairs, Keep::Tape);
    let mut g = vec![0.0; p.len()];
    model.loss_and_gradient(&model.weights(&p), &mut g, &pairs, Some(5), 8.0, &mut pass).expect("shapes fit");
    let mut unused = vec![0.0; p.len()];
    let error = compare(&p, &g, 5, |p| {
        model.loss_and_gradient(&model.weights(p), &mut unused, &pairs, Some(5), 8.0, &mut pass).expect("shapes fit").mean()
    });
    assert!(error < 1e-7, "{error}");
}

#[test]
fn cross_entropy_is_its_definition_and_its_gradient_a_difference() {
    let (rows, classes) = (5, 19);
    let logits = numbers::<f64>(rows * classes, 0.4);
    let targets = [3, IGNORE, 18, 0, 7];
    let mut losses = vec![0.0; rows];
    let loss = cross_entropy(&mut logits.clone(), &targets, None, &mut losses);
    let right: f64 = (0..rows)
        .filter(|&r| targets[r] != IGNORE)
        .map(|r| {
            let row = &logits[r * classes..(r + 1) * classes];
            row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[targets[r] as usize]
        })
        .sum();
    assert!((loss.sum - right).abs() < 1e-12);
    assert_eq!((loss.rows, losses[1]), (4, 0.0));
    let mut d = logits.clone();
    cross_entropy(&mut d, &targets, Some(4.0), &mut losses);
    let error = compare(&logits, &d, 1, |l| cross_entropy(&mut l.to_vec(), &targets, None, &mut losses).mean());
    assert!(error < 1e-8, "{error}");
}
