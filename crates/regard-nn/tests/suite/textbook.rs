//! A transformer as a textbook has it, in f64, token by token and number by number: the oracle of the parts.

use regard_nn::layers::activation::Activation;
use regard_nn::layers::attention::{AttentionConfig, Projection, ScaleKind};
use regard_nn::layers::mlp::MlpConfig;
use regard_nn::layers::norm::NormKind;
use regard_nn::layers::positions::{Pairs, Positions, Scaling};
use regard_nn::layers::stack::{BlockConfig, BlockWiring};
use regard_nn::models::transformer::TransformerConfig;
use regard_nn::tensors::{Layout, Order};

type Row = Vec<f64>;

/// The tensors of a model by name.
pub struct Tensors<'t> {
    pub layout: &'t Layout,
    pub numbers: &'t [f64],
}

impl Tensors<'_> {
    fn get(&self, name: &str) -> &[f64] {
        let entry = self.layout.entries().iter().find(|e| e.name == name).unwrap_or_else(|| panic!("no tensor {name}"));
        &self.numbers[entry.range.clone()]
    }

    fn has(&self, name: &str) -> bool {
        self.layout.entries().iter().any(|e| e.name == name)
    }

    fn linear(&self, name: &str, order: Order, x: &[f64]) -> Row {
        let w = self.get(&format!("{name}.weight"));
        let outputs = w.len() / x.len();
        let bias = format!("{name}.bias");
        (0..outputs)
            .map(|o| {
                let at = |i: usize| if order == Order::InOut { w[i * outputs + o] } else { w[o * x.len() + i] };
                let b = if self.has(&bias) { self.get(&bias)[o] } else { 0.0 };
                x.iter().enumerate().map(|(i, x)| x * at(i)).sum::<f64>() + b
            })
            .collect()
    }

    fn norm(&self, name: &str, kind: NormKind, eps: f64, x: &[f64]) -> Row {
        let n = x.len() as f64;
        let mean = if kind == NormKind::Layer { x.iter().sum::<f64>() / n } else { 0.0 };
        let square = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        let gain = self.get(&format!("{name}.gain"));
        let shift = format!("{name}.shift");
        let shift = |i: usize| if kind == NormKind::Layer { self.get(&shift)[i] } else { 0.0 };
        x.iter().enumerate().map(|(i, x)| (x - mean) / (square + eps).sqrt() * gain[i] + shift(i)).collect()
    }
}

fn activate(activation: Activation, h: f64) -> f64 {
    match activation {
        Activation::Gelu => 0.5 * h * (1.0 + erf(h / 2f64.sqrt())),
        Activation::GeluTanh => 0.5 * h * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (h + 0.044_715 * h.powi(3))).tanh()),
        Activation::Silu => h / (1.0 + (-h).exp()),
        Activation::Relu => h.max(0.0),
    }
}

/// By its series, which converges for all x and is exact enough for the small ones of these tests.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

fn rotate(config: &AttentionConfig, head: &mut [f64], t: usize) {
    let Some(rotary) = config.rotary else { return };
    let dims = rotary.dims.unwrap_or(head.len());
    for i in 0..dims / 2 {
        let mut frequency = rotary.base.powf(-2.0 * i as f64 / dims as f64);
        match rotary.scaling {
            Scaling::None => {}
            Scaling::Linear(factor) => frequency /= factor,
            Scaling::Factors(factors) => frequency /= f64::from(factors[i]),
            Scaling::Llama3 { factor, low, high, context } => {
                let wavelength = std::f64::consts::TAU / frequency;
                if wavelength > context / low {
                    frequency /= factor;
                } else if wavelength > context / high {
                    let smooth = (context / wavelength - low) / (high - low);
                    frequency = (1.0 - smooth) * frequency / factor + smooth * frequency;
                }
            }
        }
        let (sin, cos) = (t as f64 * frequency).sin_cos();
        let (a, b) = if rotary.pairs == Pairs::Halves { (i, i + dims / 2) } else { (2 * i, 2 * i + 1) };
        (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[b] * cos + head[a] * sin);
    }
}

/// Queries, keys and values of one row: heads of numbers.
fn projected(w: &Tensors<'_>, name: &str, config: &AttentionConfig, x: &[f64], t: usize) -> [Vec<Row>; 3] {
    let (d, h, kv) = (config.head_dim, config.heads, config.kv_heads);
    let cut = |x: &[f64]| x.chunks(d).map(<[f64]>::to_vec).collect::<Vec<Row>>();
    let linear = |part: &str| w.linear(&format!("{name}.{part}"), config.order, x);
    let [mut q, mut k, v] = match config.projection {
        Projection::Separate => [cut(&linear("q")), cut(&linear("k")), cut(&linear("v"))],
        Projection::Joined => {
            let all = cut(&linear("qkv"));
            [all[..h].to_vec(), all[h..h + kv].to_vec(), all[h + kv..].to_vec()]
        }
        Projection::PerHead => {
            let all = cut(&linear("qkv"));
            [0, 1, 2].map(|part| all.iter().skip(part).step_by(3).cloned().collect())
        }
    };
    for (heads, norm) in [(&mut q, "q_norm"), (&mut k, "k_norm")] {
        for head in heads {
            if let Some(eps) = config.head_norms {
                *head = w.norm(&format!("{name}.{norm}"), NormKind::Rms, eps, head);
            }
            rotate(config, head, t);
        }
    }
    [q, k, v]
}

fn attention(w: &Tensors<'_>, name: &str, config: &AttentionConfig, rows: &[Row], causal: bool) -> Vec<Row> {
    let all: Vec<_> = rows.iter().enumerate().map(|(t, x)| projected(w, name, config, x, t)).collect();
    let scale = match config.scale {
        ScaleKind::InvSqrtDim => 1.0 / (config.head_dim as f64).sqrt(),
        ScaleKind::Off => 1.0,
        ScaleKind::Value(x) => x,
    };
    let slopes = config.alibi.then(|| regard::alibi_slopes(config.heads));
    let mut results = Vec::new();
    for i in 0..rows.len() {
        let mut z = Vec::new();
        for h in 0..config.heads {
            let kv = h / (config.heads / config.kv_heads);
            let visible = |j: usize| (!causal || j <= i) && config.window.is_none_or(|left| j + left >= i);
            let score = |j: usize| {
                let dot: f64 = all[i][0][h].iter().zip(&all[j][1][kv]).map(|(q, k)| q * k).sum();
                let score = config.softcap.map_or(dot * scale, |cap| cap * (dot * scale / cap).tanh());
                score - slopes.as_ref().map_or(0.0, |s| s[h] * i.abs_diff(j) as f64)
            };
            let powers: Vec<(usize, f64)> = (0..rows.len()).filter(|&j| visible(j)).map(|j| (j, score(j).exp())).collect();
            let sum: f64 = powers.iter().map(|(_, p)| p).sum();
            z.extend((0..config.head_dim).map(|d| powers.iter().map(|&(j, p)| p / sum * all[j][2][kv][d]).sum::<f64>()));
        }
        results.push(w.linear(&format!("{name}.out"), config.order, &z));
    }
    results
}

fn network(w: &Tensors<'_>, name: &str, config: &MlpConfig, x: &[f64]) -> Row {
    let linear = |part: &str| w.linear(&format!("{name}.{part}"), config.order, x);
    let act: Row = if config.gated {
        let both = if config.joined { linear("gate_up") } else { [linear("gate"), linear("up")].concat() };
        (0..config.hidden).map(|i| activate(config.activation, both[i]) * both[config.hidden + i]).collect()
    } else {
        linear("up").into_iter().map(|h| activate(config.activation, h)).collect()
    };
    w.linear(&format!("{name}.down"), config.order, &act)
}

fn sum(a: &[Row], b: &[Row]) -> Vec<Row> {
    a.iter().zip(b).map(|(a, b)| a.iter().zip(b).map(|(a, b)| a + b).collect()).collect()
}

fn block(w: &Tensors<'_>, config: &BlockConfig, x: Vec<Row>, causal: bool) -> Vec<Row> {
    let norm = |part: &str, rows: &[Row]| -> Vec<Row> {
        rows.iter().map(|x| w.norm(&format!("{}.{part}", config.name), config.norm, config.eps, x)).collect()
    };
    let attend = |rows: &[Row]| attention(w, &format!("{}.attention", config.name), &config.attention, rows, causal);
    let mlp = |rows: &[Row]| -> Vec<Row> { rows.iter().map(|x| network(w, &format!("{}.mlp", config.name), &config.mlp, x)).collect() };
    match config.wiring {
        BlockWiring::PreNorm => {
            let x = sum(&x, &attend(&norm("attention.norm", &x)));
            sum(&x, &mlp(&norm("mlp.norm", &x)))
        }
        BlockWiring::PostNorm => {
            let x = norm("attention.norm", &sum(&x, &attend(&x)));
            norm("mlp.norm", &sum(&x, &mlp(&x)))
        }
        BlockWiring::Sandwich => {
            let x = sum(&x, &norm("attention.result_norm", &attend(&norm("attention.norm", &x))));
            sum(&x, &norm("mlp.result_norm", &mlp(&norm("mlp.norm", &x))))
        }
        BlockWiring::ResultNorm => {
            let x = sum(&x, &norm("attention.norm", &attend(&x)));
            sum(&x, &norm("mlp.norm", &mlp(&x)))
        }
        BlockWiring::Parallel => sum(&sum(&x, &attend(&norm("attention.norm", &x))), &mlp(&norm("mlp.norm", &x))),
    }
}

/// The rows after the last block, and their logits where there is a head.
pub fn transformer(w: &Tensors<'_>, config: &TransformerConfig, ids: &[u32], causal: bool) -> (Vec<Row>, Vec<Row>) {
    let e = &config.embedding;
    let table = |name: &str, row: usize| &w.get(&format!("{name}.table"))[row * e.width..(row + 1) * e.width];
    let mut x: Vec<Row> = Vec::new();
    for (t, &id) in ids.iter().enumerate() {
        let mut row: Row = table("tokens", id as usize).iter().map(|x| x * e.scale.unwrap_or(1.0)).collect();
        if e.types.is_some() {
            row.iter_mut().zip(table("types", 0)).for_each(|(x, y)| *x += y);
        }
        if e.positions == Positions::Learned {
            row.iter_mut().zip(table("positions", e.first_position + t)).for_each(|(x, y)| *x += y);
        }
        if let Some((kind, eps)) = e.norm {
            row = w.norm("embedding_norm", kind, eps, &row);
        }
        x.push(if e.width == config.width { row } else { w.linear("widen", Order::OutIn, &row) });
    }
    for config in &config.blocks {
        x = block(w, config, x, causal);
    }
    if let Some((kind, eps)) = config.last_norm {
        x = x.iter().map(|x| w.norm("last_norm", kind, eps, x)).collect();
    }
    let Some(head) = &config.head else { return (x, Vec::new()) };
    let logits = x.iter().map(|x| {
        let x = match head.transform {
            None => x.clone(),
            Some((activation, eps)) => {
                let inner: Row = w.linear("transform", head.order, x).into_iter().map(|h| activate(activation, h)).collect();
                w.norm("transform_norm", NormKind::Layer, eps, &inner)
            }
        };
        let x: Row = x.iter().map(|x| x * head.scale.unwrap_or(1.0)).collect();
        let mut logits: Row = if head.tied {
            (0..e.vocab).map(|v| table("tokens", v).iter().zip(&x).map(|(a, b)| a * b).sum::<f64>()).collect()
        } else {
            w.linear("head", head.order, &x)
        };
        if head.tied && head.bias {
            logits.iter_mut().zip(w.get("head.bias")).for_each(|(x, b)| *x += b);
        }
        logits.into_iter().map(|x| head.softcap.map_or(x, |cap| cap * (x / cap).tanh())).collect()
    });
    let logits = logits.collect();
    (x, logits)
}
