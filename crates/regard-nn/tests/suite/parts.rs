//! Models as lists of parts: every family against the textbook, any numbers, caches, probes.

use crate::common::{max, parameters, tokens, worst};
use crate::textbook::{Tensors, transformer};
use half::{bf16, f16};
use ndarray::ArrayViewMut4;
use regard_nn::layers::activation::Activation;
use regard_nn::layers::attention::{AttentionConfig, Heads, HeadsMut, Projection, ScaleKind};
use regard_nn::layers::mlp::MlpConfig;
use regard_nn::layers::norm::NormKind;
use regard_nn::layers::positions::{Pairs, Positions, Rotary, Scaling};
use regard_nn::layers::probe::{Attending, Change, Probe};
use regard_nn::layers::stack::{BlockConfig, BlockWiring};
use regard_nn::models::transformer::{EmbeddingConfig, HeadConfig, Transformer, TransformerConfig};
use regard_nn::tensors::{BlockKind, Blocks, Buffer, Numbers, Order, Renamed, SafetensorsFile, Shards, Source, Tensor, Weights};
use regard_nn::{Error, Keep, MaskKind, Pass, Wanted};
use std::cell::RefCell;

const WIDTH: usize = 12;
const VOCAB: usize = 11;

/// One family: its name, its parts, and whether a token sees only the past.
type Family = (&'static str, TransformerConfig, bool);

/// A Llama: the others are told by what they have different.
fn llama() -> TransformerConfig {
    let attention = AttentionConfig {
        kv_heads: 2,
        head_dim: 4,
        projection: Projection::Separate,
        order: Order::OutIn,
        rotary: Some(Rotary::new(100.0)),
        ..AttentionConfig::new(WIDTH, 4)
    };
    let mlp = MlpConfig { gated: true, order: Order::OutIn, ..MlpConfig::new(WIDTH, 10, Activation::Silu) };
    let norm = (NormKind::Rms, 1e-5);
    let block = |i: usize| BlockConfig::new(format!("blocks.{i}"), BlockWiring::PreNorm, norm, attention, mlp);
    TransformerConfig {
        width: WIDTH,
        embedding: EmbeddingConfig { vocab: VOCAB, width: WIDTH, ..EmbeddingConfig::default() },
        blocks: (0..2).map(block).collect(),
        last_norm: Some(norm),
        head: Some(HeadConfig { order: Order::OutIn, ..HeadConfig::default() }),
    }
}

fn with_blocks(mut config: TransformerConfig, change: impl Fn(usize, &mut BlockConfig)) -> TransformerConfig {
    config.blocks.iter_mut().enumerate().for_each(|(i, block)| change(i, block));
    config
}

fn bert() -> TransformerConfig {
    let config = with_blocks(llama(), |_, block| {
        (block.wiring, block.norm, block.eps) = (BlockWiring::PostNorm, NormKind::Layer, 1e-12);
        block.attention = AttentionConfig { kv_heads: 4, bias: true, out_bias: true, rotary: None, ..block.attention };
        block.mlp = MlpConfig { activation: Activation::Gelu, gated: false, bias: true, ..block.mlp };
    });
    let positions = EmbeddingConfig { positions: Positions::Learned, context: 20, types: Some(2), ..config.embedding.clone() };
    TransformerConfig {
        embedding: EmbeddingConfig { norm: Some((NormKind::Layer, 1e-12)), ..positions },
        last_norm: None,
        head: Some(HeadConfig {
            tied: true,
            bias: true,
            order: Order::OutIn,
            transform: Some((Activation::Gelu, 1e-12)),
            ..HeadConfig::default()
        }),
        ..config
    }
}

fn gpt2() -> TransformerConfig {
    let config = with_blocks(llama(), |_, block| {
        block.norm = NormKind::Layer;
        let joined = AttentionConfig { kv_heads: 4, projection: Projection::Joined, order: Order::InOut, ..block.attention };
        block.attention = AttentionConfig { bias: true, out_bias: true, rotary: None, ..joined };
        block.mlp = MlpConfig { activation: Activation::GeluTanh, gated: false, bias: true, order: Order::InOut, ..block.mlp };
    });
    let embedding = EmbeddingConfig { positions: Positions::Learned, context: 20, ..config.embedding.clone() };
    let head = Some(HeadConfig { tied: true, ..HeadConfig::default() });
    TransformerConfig { embedding, last_norm: Some((NormKind::Layer, 1e-5)), head, ..config }
}

fn families() -> Vec<Family> {
    let attend = |change: fn(usize, &mut AttentionConfig)| with_blocks(llama(), |i, block| change(i, &mut block.attention));
    let gemma = with_blocks(llama(), |i, block| {
        block.wiring = BlockWiring::Sandwich;
        block.mlp.activation = Activation::GeluTanh;
        block.attention.softcap = Some(5.0);
        block.attention.scale = ScaleKind::Value(0.3);
        block.attention.window = (i == 0).then_some(3);
    });
    let gemma = TransformerConfig {
        embedding: EmbeddingConfig { scale: Some((WIDTH as f64).sqrt()), ..gemma.embedding.clone() },
        head: Some(HeadConfig { tied: true, softcap: Some(3.0), ..HeadConfig::default() }),
        ..gemma
    };
    let neox = with_blocks(llama(), |_, block| {
        (block.wiring, block.norm) = (BlockWiring::Parallel, NormKind::Layer);
        let per_head = AttentionConfig { kv_heads: 4, projection: Projection::PerHead, bias: true, out_bias: true, ..block.attention };
        block.attention = AttentionConfig { rotary: Some(Rotary { dims: Some(2), ..Rotary::new(100.0) }), ..per_head };
        block.mlp = MlpConfig { activation: Activation::Gelu, gated: false, bias: true, ..block.mlp };
    });
    let roberta = TransformerConfig {
        embedding: EmbeddingConfig { first_position: 2, types: Some(1), ..bert().embedding },
        head: Some(HeadConfig {
            tied: true,
            bias: true,
            order: Order::OutIn,
            transform: Some((Activation::Gelu, 1e-5)),
            ..HeadConfig::default()
        }),
        ..bert()
    };
    let distil = TransformerConfig { embedding: EmbeddingConfig { types: None, ..bert().embedding }, ..bert() };
    let albert = with_blocks(bert(), |_, block| block.name = "blocks.0".to_owned());
    let albert = TransformerConfig { embedding: EmbeddingConfig { width: 5, ..albert.embedding.clone() }, ..albert };
    let scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, context: 64.0 };
    let llama3 = with_blocks(llama(), |_, block| block.attention.rotary = Some(Rotary { scaling, ..Rotary::new(100.0) }));
    let interleaved =
        with_blocks(llama(), |_, block| block.attention.rotary = Some(Rotary { pairs: Pairs::Interleaved, ..Rotary::new(100.0) }));
    let linear =
        with_blocks(llama(), |_, block| block.attention.rotary = Some(Rotary { scaling: Scaling::Linear(4.0), ..Rotary::new(100.0) }));
    let alibi = attend(|_, attention| (attention.alibi, attention.rotary) = (true, None));
    let relu = with_blocks(gpt2(), |_, block| block.mlp = MlpConfig { activation: Activation::Relu, bias: false, ..block.mlp });
    // GELU without a bias is GELU.
    let gelu = with_blocks(gpt2(), |_, block| block.mlp = MlpConfig { activation: Activation::Gelu, bias: false, ..block.mlp });
    vec![
        ("llama", llama(), true),
        ("llama, neighbours rotated", interleaved, true),
        ("llama, linear scaling", linear, true),
        ("llama 3.1", llama3, true),
        ("qwen2", attend(|_, attention| attention.bias = true), true),
        ("qwen3", attend(|_, attention| (attention.head_norms, attention.head_dim) = (Some(1e-6), 6)), true),
        ("mistral", attend(|_, attention| attention.window = Some(2)), true),
        ("gemma 2", gemma, true),
        ("gpt-neox", neox, true),
        ("gpt-2", gpt2(), true),
        ("alibi", alibi, true),
        ("relu without bias", relu, true),
        ("gelu without bias", gelu, true),
        ("bert", bert(), false),
        ("roberta", roberta, false),
        ("distilbert", distil, false),
        ("albert", albert, false),
        ("reader", TransformerConfig { head: None, ..bert() }, false),
    ]
}

fn mask(causal: bool) -> MaskKind {
    if causal { MaskKind::Causal } else { MaskKind::Everything }
}

#[test]
fn every_family_is_a_list_of_parts_and_computes_what_the_textbook_says() {
    for (name, config, causal) in families() {
        let model = Transformer::new(&config);
        let p = parameters::<f64>(model.layout());
        let (batch, seq) = (2, 9);
        let ids = tokens(batch * seq, 1, VOCAB);
        for keep in [Keep::Discard, Keep::Tape] {
            let mut acts = model.plan(batch, seq, keep);
            model.forward(&model.weights(&p), &ids, &Pass::new(batch, seq, mask(causal)), &mut acts).expect("shapes fit");
            for (b, ids) in ids.chunks(seq).enumerate() {
                let (rows, logits) = transformer(&Tensors { layout: model.layout(), numbers: &p }, &config, ids, causal);
                let error = worst(&acts.rows()[b * seq * WIDTH..(b + 1) * seq * WIDTH], &rows.concat());
                assert!(error < 1e-9, "{name}, {keep:?}: rows off by {error:e}");
                if config.head.is_some() {
                    let error = worst(&acts.logits()[b * seq * VOCAB..(b + 1) * seq * VOCAB], &logits.concat());
                    assert!(error < 1e-9, "{name}, {keep:?}: logits off by {error:e}");
                }
            }
        }
    }
}

#[test]
fn decoding_with_a_cache_that_grows_gives_the_logits_of_the_whole_text() {
    for (name, config, _) in families().into_iter().filter(|(_, config, causal)| *causal && config.head.is_some()) {
        let model = Transformer::new(&config);
        let p = parameters::<f64>(model.layout());
        let w = model.weights(&p);
        let seq = 20;
        let ids = tokens(2 * seq, 3, VOCAB);
        let mut acts = model.plan(2, seq, Keep::Discard);
        model.forward(&w, &ids, &Pass::new(2, seq, MaskKind::Causal), &mut acts).expect("shapes fit");
        let whole = acts.logits().to_vec();
        let expect = |b: usize, t: usize| &whole[(b * seq + t) * VOCAB..(b * seq + t + 1) * VOCAB];
        let (mut cache, mut logits) = (model.cache(&w, 2), Vec::new());
        // Seven at once, six more, then one by one: more than the cache begins with.
        let mut done = 0;
        for new in [7, 6, 1, 1, 1, 1, 1, 1, 1] {
            let part: Vec<u32> = (0..2).flat_map(|b| &ids[b * seq + done..b * seq + done + new]).copied().collect();
            model.extend(&w, &part, &mut cache, &mut logits).expect("shapes fit");
            done += new;
            for b in 0..2 {
                let error = worst(&logits[b * VOCAB..(b + 1) * VOCAB], expect(b, done - 1));
                assert!(error < 1e-10, "{name}, token {done}: off by {error:e}");
            }
        }
        // One sequence forgets its end and is written again, at a length of its own.
        cache.truncate(0, 5);
        assert_eq!(cache.lengths(), [5, 20].map(|n: usize| n.min(done)));
        cache.truncate(1, 11);
        for step in 0..4 {
            let part = [ids[5 + step], ids[seq + 11 + step]];
            model.extend(&w, &part, &mut cache, &mut logits).expect("shapes fit");
            for (b, t) in [(0, 5 + step), (1, 11 + step)] {
                let error = worst(&logits[b * VOCAB..(b + 1) * VOCAB], expect(b, t));
                assert!(error < 1e-10, "{name}, sequence {b}, token {t}: off by {error:e}");
            }
        }
    }
}

#[test]
fn only_the_wanted_rows_get_logits() {
    let model = Transformer::new(&llama());
    let p = parameters::<f64>(model.layout());
    let w = model.weights(&p);
    let ids = tokens(12, 1, VOCAB);
    let logits = |wanted| {
        let mut acts = model.plan(2, 6, Keep::Discard);
        model.forward(&w, &ids, &Pass { wanted, ..Pass::new(2, 6, MaskKind::Causal) }, &mut acts).map(|()| acts.logits().to_vec())
    };
    let all = logits(Wanted::All).expect("shapes fit");
    let rows = |rows: &[usize]| rows.iter().flat_map(|r| all[r * VOCAB..(r + 1) * VOCAB].to_vec()).collect::<Vec<f64>>();
    assert!(worst(&logits(Wanted::LastRow).expect("shapes fit"), &rows(&[5, 11])) < 1e-13);
    assert!(worst(&logits(Wanted::Rows(&[7, 0, 7])).expect("shapes fit"), &rows(&[7, 0, 7])) < 1e-13);
    assert!(matches!(logits(Wanted::Rows(&[12])), Err(Error::Length { .. })));
}

/// A file with the tensors of a model in one type.
fn file(model: &Transformer, p: &[f32], dtype: safetensors::Dtype, bytes: impl Fn(f32) -> Vec<u8>) -> SafetensorsFile {
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = model
        .layout()
        .entries()
        .iter()
        .map(|e| (e.name.replace("blocks", "layers"), e.shape.clone(), p[e.range.clone()].iter().flat_map(|x| bytes(*x)).collect()))
        .collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name.as_str(), safetensors::tensor::TensorView::new(dtype, shape.clone(), bytes).expect("bytes fit the shape"))
    });
    let bytes = safetensors::serialize(views, None).expect("serialised");
    SafetensorsFile::new(std::path::Path::new("test.safetensors"), bytes).expect("a whole file")
}

fn logits_of(model: &Transformer, w: &Weights<'_, f32>, rows: usize) -> Vec<f32> {
    let mut acts = model.plan(1, rows, Keep::Discard);
    model.forward(w, &tokens(rows, 1, VOCAB), &Pass::new(1, rows, MaskKind::Causal), &mut acts).expect("shapes fit");
    acts.logits().to_vec()
}

#[test]
fn numbers_of_every_type_in_either_order_give_the_same_logits() {
    for config in [llama(), gpt2()] {
        let model = Transformer::new(&config);
        // Numbers that even f16 and bf16 have.
        let p: Vec<f32> = parameters::<f32>(model.layout()).iter().map(|x| bf16::from_f32((x * 64.0).round() / 64.0).to_f32()).collect();
        let source = |name: &str| -> Shards<SafetensorsFile> {
            Shards(vec![match name {
                "f32" => file(&model, &p, safetensors::Dtype::F32, |x| x.to_le_bytes().to_vec()),
                "f64" => file(&model, &p, safetensors::Dtype::F64, |x| f64::from(x).to_le_bytes().to_vec()),
                "f16" => file(&model, &p, safetensors::Dtype::F16, |x| f16::from_f32(x).to_le_bytes().to_vec()),
                _ => file(&model, &p, safetensors::Dtype::BF16, |x| bf16::from_f32(x).to_le_bytes().to_vec()),
            }])
        };
        // Two rows go through the one-row product, nine are packed.
        for rows in [2, 9] {
            let right = logits_of(&model, &model.weights(&p), rows);
            for name in ["f32", "f64", "f16", "bf16"] {
                let renamed = Renamed { source: source(name), rename: |ours: &str| ours.replace("blocks", "layers") };
                let w = model.bind::<f32>(&renamed).expect("all tensors are there");
                assert_eq!(w.is_trainable(), name == "f32");
                assert_eq!(logits_of(&model, &w, rows), right, "{name}, {rows} rows: the same bits");
            }
        }
        let plain = source("bf16");
        let missing = model.bind::<f32>(&plain).expect_err("other names").to_string();
        assert!(missing.contains("cannot be used: it is not there"), "{missing}");
    }
}

/// Every matrix as blocks of 8 bits.
struct Quantised<'q>(Buffer<'q, f32>);

impl Source for Quantised<'_> {
    fn tensor(&self, name: &str) -> regard_nn::Result<Tensor<'_>> {
        let Tensor { shape, numbers } = self.0.tensor(name)?;
        let mut x = vec![0f32; numbers.len()];
        numbers.widen(0..x.len(), &mut x);
        if shape.len() < 2 {
            return Ok(Tensor { shape, numbers });
        }
        let mut bytes = Vec::new();
        for block in x.chunks(32) {
            let scale = f16::from_f32(max(block.iter().map(|x| f64::from(x.abs()))) as f32 / 127.0);
            bytes.extend(scale.to_le_bytes());
            bytes.extend(block.iter().map(|x| (x / scale.to_f32()).round() as i8 as u8));
        }
        Ok(Tensor { shape, numbers: Numbers::Quantised(Blocks::new(BlockKind::Q8_0, bytes).expect("whole blocks")) })
    }
}

#[test]
fn quantised_blocks_are_used_as_they_are_and_refused_for_training() {
    // Widths in whole blocks.
    let wide = |config: TransformerConfig| {
        let config = with_blocks(config, |_, block| {
            block.attention = AttentionConfig { width: 32, head_dim: 8, ..block.attention };
            block.mlp = MlpConfig { width: 32, hidden: 64, ..block.mlp };
        });
        TransformerConfig { width: 32, embedding: EmbeddingConfig { width: 32, ..config.embedding.clone() }, ..config }
    };
    for config in [wide(llama()), wide(gpt2())] {
        let model = Transformer::new(&config);
        let p = parameters::<f32>(model.layout());
        let source = Quantised(Buffer { layout: model.layout(), numbers: &p });
        let w = model.bind::<f32>(&source).expect("bound");
        // The same numbers, dequantised before.
        let mut widened = vec![0f32; p.len()];
        for entry in model.layout().entries() {
            let tensor = source.tensor(&entry.name).expect("there");
            tensor.numbers.widen(0..entry.range.len(), &mut widened[entry.range.clone()]);
        }
        for rows in [2, 9] {
            let right = logits_of(&model, &model.weights(&widened), rows);
            assert_eq!(logits_of(&model, &w, rows), right);
            assert_ne!(logits_of(&model, &model.weights(&p), rows), right, "quantising changes something");
        }
        let mut acts = model.plan(1, 9, Keep::Tape);
        let (ids, mut g) = (tokens(9, 1, VOCAB), vec![0f32; p.len()]);
        let refused = model.loss_and_gradient(&w, &mut g, &ids, &ids, &Pass::new(1, 9, MaskKind::Causal), 9.0, &mut acts);
        assert_eq!(
            refused.expect_err("no gradients").to_string(),
            "a matrix of another element type than the computation can be used, but not trained"
        );
    }
}

/// Zeroes a head, and writes down what it sees.
#[derive(Default)]
struct EditProbe {
    zero: Option<(usize, usize)>,
    streams: RefCell<Vec<Vec<f64>>>,
    results: RefCell<Vec<Vec<f64>>>,
    keys: RefCell<Vec<usize>>,
}

impl Probe<f64> for EditProbe {
    fn stream(&self, number: usize, rows: &mut [f64]) {
        assert_eq!(number, self.streams.borrow().len());
        self.streams.borrow_mut().push(rows.to_vec());
    }

    fn heads(&self, _: usize, heads: &mut HeadsMut<'_, f64>) {
        assert_eq!(heads.q().dim(), (1, 4, 6, 4));
        assert_eq!(heads.v().dim(), (1, 2, 6, 4));
    }

    fn results(
        &self,
        number: usize,
        attending: &Attending<'_>,
        heads: &Heads<'_, f64>,
        mut z: ArrayViewMut4<'_, f64>,
    ) -> regard::Result<()> {
        self.keys.borrow_mut().push(heads.k.dim().2);
        // What was computed with can be asked again: statistics, weights, maps.
        let again = attending.attention(&Change::default()).forward(heads.q, heads.k, heads.v)?.out;
        assert_eq!(again.view(), z.view());
        self.results.borrow_mut().push(z.iter().copied().collect());
        if let Some((layer, head)) = self.zero
            && layer == number
        {
            z.index_axis_mut(ndarray::Axis(1), head).fill(0.0);
        }
        Ok(())
    }
}

#[test]
fn taking_a_head_away_takes_exactly_its_part_of_the_output_projection() {
    let model = Transformer::new(&llama());
    let p = parameters::<f64>(model.layout());
    let w = model.weights(&p);
    let ids = tokens(6, 1, VOCAB);
    let look = |surgeon: &EditProbe| {
        let mut acts = model.plan(1, 6, Keep::Discard);
        model.probe(&w, &ids, &Pass::new(1, 6, MaskKind::Causal), &mut acts, surgeon).expect("shapes fit");
        acts.logits().to_vec()
    };
    let intact = EditProbe::default();
    let logits = look(&intact);
    assert_eq!(intact.streams.borrow().len(), 5, "before each of four sublayers, and after the last");
    assert_eq!(*intact.keys.borrow(), [6, 6]);
    let mut acts = model.plan(1, 6, Keep::Discard);
    model.forward(&w, &ids, &Pass::new(1, 6, MaskKind::Causal), &mut acts).expect("shapes fit");
    assert_eq!(acts.logits(), logits, "looking changes nothing");
    let cut = EditProbe { zero: Some((0, 1)), ..EditProbe::default() };
    assert_ne!(look(&cut), logits);
    // Behind the first attention: the difference is z_1 W_O^1.
    let entry = model.layout().entries().iter().find(|e| e.name == "blocks.0.attention.out.weight").expect("it is there");
    let out = &p[entry.range.clone()];
    let (before, after) = (&intact.streams.borrow()[1], &cut.streams.borrow()[1]);
    let z = &intact.results.borrow()[0];
    for t in 0..6 {
        for o in 0..WIDTH {
            // `[outputs, 4 heads of 4]`; results are `[head, token, dim]`.
            let part: f64 = (0..4).map(|d| z[(6 + t) * 4 + d] * out[o * 16 + 4 + d]).sum();
            let difference = before[t * WIDTH + o] - after[t * WIDTH + o];
            assert!((difference - part).abs() < 1e-13, "token {t}, output {o}: {difference}, not {part}");
        }
    }
}

#[test]
fn gradients_of_parts_that_train_are_differences_and_the_others_say_so() {
    let trained = |config: &TransformerConfig| {
        let model = Transformer::new(config);
        let p = parameters::<f64>(model.layout());
        let (ids, targets, mut g) = (tokens(12, 1, VOCAB), tokens(12, 4, VOCAB), vec![0.0; p.len()]);
        let pass = Pass::new(2, 6, MaskKind::Causal);
        let mut acts = model.plan(2, 6, Keep::Tape);
        model.loss_and_gradient(&model.weights(&p), &mut g, &ids, &targets, &pass, 12.0, &mut acts)?;
        let mut loss = |p: &[f64]| model.loss(&model.weights(p), &ids, &targets, &pass, &mut acts).expect("shapes fit").mean();
        let size = max(g.iter().map(|g| g.abs()));
        let (mut q, mut errors) = (p.clone(), Vec::new());
        for i in (0..p.len()).step_by(7) {
            q[i] = p[i] + 1e-5;
            let above = loss(&q);
            q[i] = p[i] - 1e-5;
            errors.push(((above - loss(&q)) / 2e-5 - g[i]).abs() / size);
            q[i] = p[i];
        }
        assert!(model.layout().entries().iter().all(|e| g[e.range.clone()].iter().any(|g| *g != 0.0)), "every tensor has a gradient");
        Ok::<_, Error>(max(errors))
    };
    for (name, config, _) in families() {
        let scaled = config.blocks.iter().any(|block| block.wiring == BlockWiring::Sandwich);
        let inference = ["gemma 2", "bert", "roberta", "distilbert", "albert", "reader"].contains(&name);
        match trained(&config) {
            Ok(error) => assert!(!inference && error < 1e-7, "{name}: {error:e}"),
            Err(error) => assert!(inference && error.to_string().contains("can be used, but not trained"), "{name}, {scaled}: {error}"),
        }
    }
    let model = Transformer::new(&llama());
    let p = parameters::<f64>(model.layout());
    let (ids, mut g, mut acts) = (tokens(6, 1, VOCAB), vec![0.0; p.len()], model.plan(1, 6, Keep::Discard));
    let refused = model.loss_and_gradient(&model.weights(&p), &mut g, &ids, &ids, &Pass::new(1, 6, MaskKind::Causal), 6.0, &mut acts);
    assert!(matches!(refused, Err(Error::BackwardFirst)), "nothing was kept: {refused:?}");
}
