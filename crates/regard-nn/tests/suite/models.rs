//! What whole models promise: bits that do not depend on threads, and a cache that changes nothing.

use crate::common::{parameters, tokens};
use regard_nn::evaluate::{Split, Window};
use regard_nn::generate::{Sampling, Writer};
use regard_nn::positions::Positions;
use regard_nn::seq2seq::Pairs;
use regard_nn::sublayer::NormPlace;
use regard_nn::{EncoderDecoder, Error, Keep, LanguageModel, MaskKind, ModelConfig, Pass};

fn gradient(threads: usize, batch: usize, config: &ModelConfig) -> (f64, Vec<f32>) {
    let model = LanguageModel::new(config.clone()).expect("valid");
    let p = model.layout().init::<f32>(1);
    let mut g = vec![0.0; p.len()];
    let (ids, targets) = (tokens(batch * 64, 1, 65), tokens(batch * 64, 4, 65));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
    let loss = pool.install(|| {
        let mut pass = model.plan(batch, 64, Keep::Tape);
        let call = Pass { dropout: (config.dropout > 0.0).then_some(3), ..Pass::new(batch, 64, MaskKind::Causal) };
        model.loss_and_gradient(&model.weights(&p), &mut g, &ids, &targets, &call, (batch * 64) as f64, &mut pass).expect("shapes fit")
    });
    (loss.mean(), g)
}

#[test]
fn gradients_have_the_same_bits_for_any_number_of_threads() {
    // 768 rows are three pieces of 256, 5,120 are eight of 640; places of rows matter to rotary positions and to dropout.
    let plain = ModelConfig::default();
    let placed =
        ModelConfig { positions: Positions::Rotary(10_000.0), norm_place: NormPlace::Post, dropout: 0.1, ..ModelConfig::default() };
    for (batch, config) in [(12, &plain), (12, &placed), (80, &placed)] {
        let one = gradient(1, batch, config);
        for threads in [2, 3, 7] {
            assert!(gradient(threads, batch, config) == one, "{threads} threads, batch {batch}, {config:?}");
        }
    }
}

#[test]
fn logits_of_a_row_do_not_depend_on_how_many_rows_there_are() {
    // So pieces of a large batch, which are longer and do not begin with a sequence, are where they belong.
    const SEQ: usize = 60;
    for positions in [Positions::Learned, Positions::Rotary(10_000.0)] {
        let model = LanguageModel::new(ModelConfig { positions, ..ModelConfig::default() }).expect("valid");
        let p = model.layout().init::<f32>(1);
        let logits = |ids: &[u32]| {
            let batch = ids.len() / SEQ;
            let mut pass = model.plan(batch, SEQ, Keep::Discard);
            model.forward(&model.weights(&p), ids, &Pass::new(batch, SEQ, MaskKind::Causal), &mut pass).expect("shapes fit");
            pass.logits().to_vec()
        };
        let ids = tokens(80 * SEQ, 1, 65);
        let whole = logits(&ids);
        for (alone, together) in ids.chunks(SEQ * 4).map(logits).zip(whole.chunks(SEQ * 4 * 65)) {
            assert!(alone == together, "{positions:?}");
        }
    }
}

fn write(config: &ModelConfig, cached: bool, sampling: Sampling) -> Vec<u32> {
    let model = LanguageModel::new(config.clone()).expect("valid");
    let p = model.layout().init::<f32>(3);
    // Larger than they begin, so that the next token depends on the past.
    let p: Vec<f32> = p.iter().map(|x| 2.5 * x).collect();
    let mut writer = Writer::new(&model, &p, &tokens(5, 1, config.vocab), sampling, cached).expect("a valid prompt");
    for _ in 0..120 {
        writer.next_token().expect("a token");
    }
    writer.tokens().to_vec()
}

#[test]
fn cache_writes_the_same_tokens_as_no_cache() {
    for positions in [Positions::Learned, Positions::Rotary(10_000.0), Positions::Alibi, Positions::Sinusoidal] {
        for norm_place in [NormPlace::Pre, NormPlace::Post] {
            let config = ModelConfig { context: 48, kv_heads: Some(2), positions, norm_place, ..ModelConfig::default() };
            for sampling in [Sampling::default(), Sampling { temperature: 0.7, top_k: Some(20), top_p: Some(0.9), seed: 4 }] {
                let (with, without) = (write(&config, true, sampling), write(&config, false, sampling));
                assert_eq!(with, without, "{config:?}");
                assert!(with[5..].iter().collect::<std::collections::BTreeSet<_>>().len() > 5, "a text, not one token over and over");
            }
        }
    }
}

#[test]
fn greedy_takes_the_likeliest_and_top_k_of_one_is_greedy() {
    let config = ModelConfig::default();
    let greedy = write(&config, true, Sampling { temperature: 0.0, ..Sampling::default() });
    assert_eq!(greedy, write(&config, true, Sampling { top_k: Some(1), seed: 9, ..Sampling::default() }));
    assert_eq!(greedy, write(&config, true, Sampling { top_p: Some(1e-9), seed: 8, ..Sampling::default() }));
}

#[test]
fn encoder_decoder_writes_what_its_logits_say() {
    let model = EncoderDecoder::new(ModelConfig { vocab: 11, context: 9, width: 16, heads: 2, ..ModelConfig::default() }).expect("valid");
    let p: Vec<f64> = parameters(model.layout());
    let mut pairs = Pairs { batch: 2, source: tokens(12, 1, 11), source_lengths: vec![6, 3], ..Pairs::default() };
    let written = model.write(&model.weights(&p), &pairs, 0, 99, 9).expect("shapes fit");
    // Fed with what it wrote, every most likely next token must be the one that it wrote.
    for w in &written {
        pairs.written.push(0);
        pairs.written.extend(&w[..8]);
        pairs.targets.extend(w);
    }
    let mut pass = model.plan(&pairs, Keep::Discard);
    let loss = model.loss(&model.weights(&p), &pairs, &mut pass).expect("shapes fit");
    assert_eq!(loss.correct, 18);
}

#[test]
fn bad_calls_are_refused_with_one_clear_line() {
    let model = LanguageModel::new(ModelConfig::default()).expect("valid");
    let p = model.layout().init::<f32>(1);
    let call = Pass::new(1, 4, MaskKind::Causal);
    let mut pass = model.plan(1, 4, Keep::Tape);
    let refused = model.forward(&model.weights(&p), &[1, 2, 65, 3], &call, &mut pass).expect_err("a token outside");
    assert_eq!(refused.to_string(), "token 65 is outside the vocabulary of 65");
    assert!(matches!(model.loss(&model.weights(&p), &[1, 2, 3, 4], &[0, 0, 0, 70], &call, &mut pass), Err(Error::Token { token: 70, .. })));
    assert!(matches!(model.forward(&model.weights(&p), &[1, 2], &call, &mut pass), Err(Error::Length { .. })));
    let long = Pass::new(1, 65, MaskKind::Causal);
    assert!(matches!(
        model.forward(&model.weights(&p), &[0; 65], &long, &mut model.plan(1, 65, Keep::Discard)),
        Err(Error::TooLong { .. })
    ));
    assert!(matches!(Writer::new(&model, &p, &[], Sampling::default(), true), Err(Error::Length { .. })));
    let nothing =
        model.extend(&model.weights(&p), &[], &mut model.cache(&model.weights(&p), 1), &mut Vec::new()).expect_err("no tokens").to_string();
    assert_eq!(nothing, "the list of new tokens has 0 entries, expected 1");
    for logits in [[0.0, f64::NAN, 1.0], [f64::NEG_INFINITY; 3]] {
        for temperature in [0.0, 1.0] {
            let drawn = Sampling { temperature, ..Sampling::default() }.draw(&logits, &mut regard_nn::random::Draws::at(1, &[]));
            assert!(matches!(drawn, Err(Error::Logits)), "{logits:?}: {drawn:?}");
        }
    }
    let odd = ModelConfig { heads: 3, ..ModelConfig::default() };
    assert_eq!(
        LanguageModel::new(odd).expect_err("64 / 3").to_string(),
        "width is 64; it must be a multiple of heads (3), or head_dim must be given"
    );
    assert!(LanguageModel::new(ModelConfig { kv_heads: Some(3), ..ModelConfig::default() }).is_err());
    assert!(LanguageModel::new(ModelConfig { dropout: 1.0, ..ModelConfig::default() }).is_err());
    assert!(LanguageModel::new(ModelConfig { head_dim: Some(5), positions: Positions::Rotary(1e4), ..ModelConfig::default() }).is_err());
    assert!(Sampling { top_p: Some(0.0), ..Sampling::default() }.check().is_err());
    assert!(Sampling { temperature: f64::NAN, ..Sampling::default() }.check().is_err());
}

#[test]
fn windows_predict_every_token_once() {
    for whole_last in [false, true] {
        for (first, tokens) in (0..2).flat_map(|first| (first + 1..30).map(move |tokens| (first, tokens))) {
            for stride in (1..=6).map(Some).chain([None]) {
                let windows = Split { tokens, first, predictions: 6, stride, whole_last }.windows().expect("windows");
                let new: Vec<usize> = windows.iter().flat_map(|window| window.new.clone()).collect();
                assert_eq!(new, (first..tokens).collect::<Vec<_>>(), "{tokens} tokens, stride {stride:?}");
                for window in &windows {
                    assert!(window.targets.start <= window.new.start && window.targets.end == window.new.end && window.targets.len() <= 6);
                    assert!(!whole_last || window.targets.len() == 6.min(tokens - first), "{windows:?}");
                }
                // The shorter the stride, the more context: at least `predictions - stride` tokens after the first window.
                let context = |window: &Window| window.new.start - window.targets.start;
                assert!(windows[1..].iter().all(|window| context(window) >= 6 - stride.unwrap_or(6)));
            }
        }
    }
    let split = Split { tokens: 3, first: 1, predictions: 6, stride: None, whole_last: true };
    assert!(matches!(Split { tokens: 1, ..split }.windows(), Err(Error::ShortText { .. })));
    for stride in [0, 7] {
        assert!(matches!(Split { stride: Some(stride), ..split }.windows(), Err(Error::Config { .. })));
    }
}
