//! The experiments at a size that takes seconds: what must hold whatever the size.

use regard_lab::trainings::ablate_scale::{AblateConfig, ablate_scale};
use regard_lab::trainings::masks::{MasksConfig, Variant, masks};
use regard_lab::trainings::pairs::{PairKind, PairsConfig, learn_pairs};
use regard_nn::ModelConfig;
use regard_nn::attention::ScaleKind;
use regard_nn::data::Text;
use regard_nn::stories;
use regard_nn::tokenizer::{Tokenizer, TokenizerKind};
use regard_nn::training::trainer::TrainConfig;

fn model() -> ModelConfig {
    ModelConfig { context: 16, width: 32, heads: 2, layers: 1, ..ModelConfig::default() }
}

#[test]
fn only_honest_masks_pass_the_protocol() {
    let text = stories::write(30_000, 2);
    let tokenizer = Tokenizer::train(TokenizerKind::Char, &text).expect("trained");
    let config = MasksConfig {
        model: model(),
        train: TrainConfig { steps: 250, batch: 16, ..TrainConfig::default() },
        windows: 40,
        samples: 4,
        sample_tokens: 40,
        ..MasksConfig::default()
    };
    let result = masks(&config, &text, &tokenizer, &mut |_| {}).expect("run");
    assert!(result.baselines.unigram < result.baselines.uniform && result.baselines.bigram < result.baselines.unigram);
    for v in &result.variants {
        let honest = matches!(v.variant, Variant::Causal | Variant::RightToLeft);
        let apart = (v.prefix_only_mean - v.validation).abs();
        assert_eq!(v.leak == 0.0 && v.leak_before == 0.0, honest, "{v:?}");
        assert_eq!(apart < 1e-5, honest, "{:?}: prefix-only differs by {apart}", v.variant);
        assert_eq!(v.prefix_only.len(), 16);
    }
    let of = |variant| result.variants.iter().find(|v| v.variant == variant).expect("it ran");
    let (causal, reverse) = (of(Variant::Causal), of(Variant::Reverse));
    assert!(reverse.validation < 0.5 * causal.validation, "the cheater looks better: {} and {}", reverse.validation, causal.validation);
    assert!(reverse.prefix_only_mean > causal.prefix_only_mean, "and is worse");
    assert!((causal.causal_swapped_in - causal.validation).abs() < 1e-12);
}

#[test]
fn masks_of_nothing_are_refused() {
    let text = stories::write(20_000, 2);
    let tokenizer = Tokenizer::train(TokenizerKind::Char, &text).expect("trained");
    let some = MasksConfig { model: model(), ..MasksConfig::default() };
    for (name, config) in [("windows", MasksConfig { windows: 0, ..some.clone() }), ("samples", MasksConfig { samples: 0, ..some })] {
        let refusal = masks(&config, &text, &tokenizer, &mut |_| {}).expect_err("nothing to measure").to_string();
        assert!(refusal.contains(name) && refusal.contains("at least 1"), "{refusal}");
    }
}

#[test]
fn scale_changes_how_sharp_heads_begin() {
    let text = stories::write(20_000, 2);
    let tokenizer = Tokenizer::train(TokenizerKind::Char, &text).expect("trained");
    let tokens = Text::split(tokenizer.encode(&text).expect("encoded"), 16).expect("long enough");
    let config = AblateConfig {
        model: ModelConfig { vocab: tokenizer.vocab(), ..model() },
        train: TrainConfig { steps: 10, batch: 8, ..TrainConfig::default() },
        head_dims: vec![64],
        every: 5,
        windows: 8,
    };
    let runs = ablate_scale(&config, &tokens, &mut |_| {}).expect("run");
    assert_eq!(runs.iter().map(|r| r.scale).collect::<Vec<_>>(), [ScaleKind::InvSqrtDim, ScaleKind::Off]);
    let entropy = |run: usize| runs[run].moments[0].inside.heads.iter().map(|h| h.relative_entropy).sum::<f64>();
    assert!(entropy(1) < entropy(0), "without the scale weights begin sharper: {} and {}", entropy(1), entropy(0));
    for run in &runs {
        assert_eq!(run.moments.iter().map(|m| m.step).collect::<Vec<_>>(), [0, 1, 5, 10]);
        let inside = &run.moments[3].inside;
        assert_eq!((inside.heads.len(), inside.layers.len()), (2, 1));
        assert!(inside.heads.iter().all(|h| (0.0..=1.0).contains(&h.relative_entropy) && h.max_weight <= 1.0));
        assert!(inside.layers.iter().all(|l| l.query_gradient > 0.0 && l.value_gradient > 0.0 && l.jensen_shannon >= 0.0));
    }
}

#[test]
fn pairs_are_learnt_from_the_source() {
    let mut config = PairsConfig::new(PairKind::Reverse);
    config.model = model();
    config.train = TrainConfig { steps: 60, batch: 16, ..TrainConfig::default() };
    config.held_out = 20;
    let result = learn_pairs(&config, &mut |_| {}).expect("run");
    assert!(result.curve.last().expect("a curve").loss < result.curve[0].loss);
    assert_eq!(result.maps.len(), 2);
    for map in &result.maps {
        assert_eq!((map.rows, map.cols), (result.mapped.len() + 1, result.mapped.len()));
        assert!(map.weights.chunks(map.cols).all(|row| (row.iter().sum::<f32>() - 1.0).abs() < 1e-5), "padding has no weight");
    }
    let explained = &result.explained;
    assert_eq!((explained.heads.len(), explained.inputs, explained.map.cols), (2, 20, result.mapped.len()));
    let shares = explained.heads.iter().flat_map(|h| [h.weight, h.value_weighted, h.ablated, h.permuted]);
    let shares = shares.chain([explained.right, explained.all_permuted, explained.all_even, explained.influence, explained.even]);
    assert!(shares.into_iter().all(|share| (0.0..=1.0).contains(&share)), "{explained:?}");
    config.held_out = 0;
    assert!(learn_pairs(&config, &mut |_| {}).is_err());
}
