//! Every kind of figure, and a page made of them, written to `report/gallery` (or the folder given):
//! `cargo run --release -p regard-lab --example gallery`.

use ndarray::Array4;
use regard::{Attention, Mask, Scale};
use regard_plot::figure::{Axis, BarPlot, ColourMap, Figure, HeatPlot, LinePlot, Names, Norm, Series, Theme};
use regard_plot::page::{Claim, Lead, Page, Section, Verdict};
use regard_plot::{Column, Table, Value};
use std::error::Error;
use std::path::PathBuf;

const D_K: [f64; 5] = [4.0, 16.0, 64.0, 256.0, 1024.0];

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("report/gallery"), PathBuf::from);
    std::fs::create_dir_all(&folder)?;
    let figures = [answer(), gradients(), distribution(), bars(), lying_bars(), tokens()?, masked()?, heads()?, long()?, similarity()?];
    for figure in &figures {
        let started = std::time::Instant::now();
        std::fs::write(folder.join(format!("{}.svg", figure.name)), figure.svg()?)?;
        std::fs::write(folder.join(format!("{}.png", figure.name)), figure.png(Theme::Light)?)?;
        std::fs::write(folder.join(format!("{}_dark.png", figure.name)), figure.png(Theme::Dark)?)?;
        println!("{:<24} {:>5} ms", figure.name, started.elapsed().as_millis());
    }
    std::fs::write(folder.join("index.html"), page(figures.to_vec()).html()?)?;
    println!("{}", folder.join("index.html").display());
    Ok(())
}

/// Numbers that look drawn from a normal distribution, always the same.
fn noise(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    move || (0..12).map(|_| uniform()).sum::<f64>() - 6.0
}

fn normal(shape: (usize, usize, usize, usize), seed: u64) -> Array4<f32> {
    let mut next = noise(seed);
    Array4::from_shape_simple_fn(shape, || next() as f32)
}

fn answer() -> Figure {
    let scaled = [1.74770, 1.72896, 1.72365, 1.72227, 1.72192];
    let unscaled = [1.28766, 0.67279, 0.31828, 0.15291, 0.07482];
    let entropy =
        LinePlot::new("The typical row loses its choice", Axis::log2("head dimension d_{k}"), Axis::linear("mean entropy of a row (nats)"))
            .series(Series::new("with 1/√d_{k}", &D_K, &scaled).plus_minus(&[0.03, 0.03, 0.028, 0.027, 0.027]))
            .series(Series::new("without", &D_K, &unscaled).plus_minus(&[0.06, 0.055, 0.05, 0.045, 0.03]))
            .horizontal(8f64.ln(), "ln 8: all keys alike");
    let keys: Vec<String> = (0..8).map(|k| k.to_string()).collect();
    let row = BarPlot::new("One row at d_{k} = 256", "key", keys, Axis::linear("weight").limits(0.0, 1.0))
        .bars("with 1/√d_{k}", vec![0.09, 0.31, 0.05, 0.12, 0.18, 0.08, 0.13, 0.04])
        .bars("without", vec![0.0, 0.986, 0.0, 0.001, 0.012, 0.0, 0.001, 0.0]);
    Figure::new("answer", "Without the scale, one key takes all").panel(entropy).panel(row).caption(
        "Eight queries and eight keys, entries drawn from N(0, 1). Bands: 95 % of the means over 200 seeds. The dotted line is \
             a row that spreads its weight evenly.",
    )
}

fn gradients() -> Figure {
    let d_k = [4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0];
    let plot = LinePlot::new("", Axis::log2("head dimension d_{k}"), Axis::log10("norm of a row of dQ"))
        .series(Series::new("unscaled, rms row", &d_k, &[0.65, 1.17, 1.82, 2.68, 3.85, 5.12]))
        .series(Series::new("unscaled, median row", &d_k, &[0.38, 0.55, 0.26, 1.6e-2, 2.0e-5, 2.0e-11]))
        .series(Series::new("scaled, median row", &d_k, &[0.23, 0.29, 0.31, 0.31, 0.31, 0.31]))
        .horizontal(1e-8, "float32 rounds away");
    Figure::new("gradients", "The median gradient vanishes, the mean grows")
        .panel(plot)
        .caption("Norms of rows of dQ over 2,000 matrices. Without the scale a few near-tie rows carry the whole gradient.")
}

fn distribution() -> Figure {
    let mut next = noise(7);
    let values: Vec<f64> = (0..2000).map(|_| 1.0 - (0.06 + 0.043 * next()).abs().min(0.5)).collect();
    let plot = LinePlot::new("", Axis::linear("mean largest weight, d_{k} = 256, unscaled"), Axis::linear("share of seeds"))
        .series(Series::histogram("2,000 seeds", &values, 40))
        .vertical(0.9379, "true mean 0.938")
        .vertical(0.9942, "published 0.994")
        .names(Names::Legend);
    Figure::new("distribution", "The published number is a lucky draw")
        .panel(plot)
        .caption("Share of seeds per bin; the published value lies above 93 % of them.")
}

fn bars() -> Figure {
    let heads = ["2 heads", "4 heads", "8 heads"].map(str::to_owned).to_vec();
    let plot = BarPlot::new("", "", heads, Axis::linear("mean similarity of two heads"))
        .bars_with_intervals("plain cosine", vec![0.188, 0.189, 0.195], vec![(0.09, 0.29), (0.138, 0.24), (0.16, 0.23)])
        .bars_with_intervals("centred cosine", vec![0.006, 0.006, 0.005], vec![(-0.105, 0.118), (-0.041, 0.053), (-0.019, 0.029)])
        .reference(0.0, "");
    Figure::new("head_similarity", "Plain cosine measures sharpness, not likeness")
        .panel(plot)
        .caption("Untrained heads. Whiskers: 95 % of seeds.")
}

fn lying_bars() -> Figure {
    let names = ["full", "causal", "local (window 16)", "dilated by 4", "block-sparse", "4 sinks + window 16", "reverse"]
        .map(str::to_owned)
        .to_vec();
    let plot = BarPlot::new("", "", names, Axis::linear("score pairs computed (share of all)"))
        .bars("pairs", vec![1.0, 0.502, 0.061, 0.25, 0.28, 0.092, 0.502])
        .lying();
    Figure::new("pattern_cost", "What each pattern costs").panel(plot)
}

const SENTENCE: &str = "The animal didn't cross the street because it was too tired";

fn words() -> Vec<String> {
    SENTENCE.split(' ').enumerate().map(|(i, w)| if i == 0 { w.to_owned() } else { format!(" {w}") }).collect()
}

fn weights(n: usize, seed: u64, scale: f64, attention: &Attention<'_>) -> Result<Vec<f64>, regard::Error> {
    let (q, k) = (normal((1, 1, n, 16), seed), normal((1, 1, n, 16), seed + 1));
    Ok(attention.clone().scale(Scale::By(scale)).weights(&q, &k)?.iter().map(|w| f64::from(*w)).collect())
}

fn tokens() -> Result<Figure, Box<dyn Error>> {
    let words = words();
    let n = words.len();
    let map = HeatPlot::new("", n, n, weights(n, 3, 0.45, &Attention::new())?)?.tokens(&words, &words)?.show_values();
    Ok(Figure::new("tokens", "One head over a sentence").panel(map).caption("Row: the token that looks. Column: the token looked at."))
}

fn masked() -> Result<Figure, Box<dyn Error>> {
    let words = words();
    let n = words.len();
    let hidden = |visible: &dyn Fn(usize, usize) -> bool| (0..n * n).map(|c| !visible(c / n, c % n)).collect::<Vec<_>>();
    let causal = HeatPlot::new("Causal", n, n, weights(n, 3, 0.3, &Attention::new().causal())?)?
        .hidden(hidden(&|i, j| j <= i))?
        .tokens(&words, &words)?;
    let local =
        HeatPlot::new("Window of 2 on both sides", n, n, weights(n, 3, 0.3, &Attention::new().mask(Mask::window(Some(2), Some(2))))?)?
            .hidden(hidden(&|i, j| i.abs_diff(j) <= 2))?
            .tokens(&words, &words)?;
    Ok(Figure::new("masks", "What a mask hides")
        .panel(causal)
        .panel(local)
        .caption("Hatched cells are hidden: their weight is exactly zero."))
}

fn heads() -> Result<Figure, Box<dyn Error>> {
    let n = 24;
    let mut maps = Vec::new();
    for head in 0..8 {
        let values = weights(n, 10 + 2 * head, 0.15 + 0.05 * head as f64, &Attention::new().causal())?;
        let hidden = (0..n * n).map(|c| c % n > c / n).collect();
        maps.push(HeatPlot::new(format!("head {head}"), n, n, values)?.hidden(hidden)?);
    }
    Ok(Figure::grid("heads", "Eight heads of one layer", maps, 4).caption("One colour scale for all heads."))
}

fn long() -> Result<Figure, Box<dyn Error>> {
    let n = 4096;
    let mut q = normal((1, 1, n, 16), 5);
    for i in 0..n {
        for d in 0..8 {
            let angle = i as f32 * 0.02 * (d + 1) as f32;
            q[[0, 0, i, 2 * d]] = 1.1 * angle.cos() + 0.2 * q[[0, 0, i, 2 * d]];
            q[[0, 0, i, 2 * d + 1]] = 1.1 * angle.sin() + 0.2 * q[[0, 0, i, 2 * d + 1]];
        }
    }
    let cells = 256;
    let map = Attention::new().causal().scale(Scale::By(1.0)).heat_map(&q, &q, cells, cells)?;
    let values: Vec<f64> = map.mean.iter().map(|w| f64::from(*w)).collect();
    let hidden = (0..cells * cells).map(|c| c % cells > c / cells).collect();
    let map = HeatPlot::new("", cells, cells, values)?.hidden(hidden)?.pooled(n, n).norm(Norm::Log).value_title("mean weight in a cell");
    Ok(Figure::new("long", "4,096 tokens, pooled to 256 x 256 cells").panel(map))
}

fn similarity() -> Result<Figure, Box<dyn Error>> {
    let mut next = noise(11);
    let n = 8;
    let mut values = vec![1.0; n * n];
    for (i, j) in (0..n).flat_map(|i| (0..i).map(move |j| (i, j))) {
        let x = (0.3 * next()).clamp(-1.0, 1.0);
        (values[i * n + j], values[j * n + i]) = (x, x);
    }
    let mut map =
        HeatPlot::new("", n, n, values)?.map(ColourMap::PurpleOrange).limits(-1.0, 1.0).value_title("centred cosine").show_values();
    (map.row_title, map.col_title) = ("head".to_owned(), "head".to_owned());
    Ok(Figure::new("head_matrix", "How alike the heads are").panel(map))
}

fn table() -> Table {
    let column = |name: &str, title: &str| Column { name: name.to_owned(), title: title.to_owned() };
    let rows = D_K.iter().enumerate().flat_map(|(i, d)| {
        [("scaled", [1.74770, 1.72896, 1.72365, 1.72227, 1.72192][i]), ("unscaled", [1.28766, 0.67279, 0.31828, 0.15291, 0.07482][i])].map(
            |(mode, h)| {
                vec![
                    Value::Integer(*d as i64),
                    Value::Text(mode.to_owned()),
                    Value::Number(h),
                    Value::Number(h / 100.0),
                    Value::Flag(h > 1.0),
                ]
            },
        )
    });
    Table {
        name: "attention_sweep_results".to_owned(),
        caption: "Mean entropy by d_{k}".to_owned(),
        columns: vec![
            column("d_k", "d_{k}"),
            column("mode", "mode"),
            column("entropy", "mean entropy (nats)"),
            column("standard_error", "standard error"),
            column("above_one", "above 1 nat"),
        ],
        rows: rows.collect(),
        origin: vec![("version".to_owned(), "0.1.0".to_owned()), ("seed".to_owned(), "42".to_owned())],
    }
}

fn page(figures: Vec<Figure>) -> Page {
    let mut figures = figures.into_iter();
    let lead = Lead {
        formula: "softmax( Q K^{T} / \u{221a}d_{k} ) V".to_owned(),
        question: "Why divide by √d_{k}?".to_owned(),
        answer: vec![
            "The dot product of two random vectors of length d_{k} has standard deviation √d_{k}, so without the division the softmax \
             sees ever larger scores."
                .to_owned(),
            "At d_{k} = 256 one key of eight then takes 94 % of the weight on average, and the typical row has almost no gradient \
             left."
                .to_owned(),
            "Divided by √d_{k}, the same row looks the same at every size.".to_owned(),
        ],
        figure: figures.next(),
        ..Lead::default()
    };
    let claim = |text: &str, verdict, because: &str| Claim {
        document: "sheet".to_owned(),
        section: String::new(),
        text: text.to_owned(),
        verdict,
        because: because.to_owned(),
        edge: String::new(),
    };
    let mut sections = vec![
        Section {
            id: "sweep".to_owned(),
            title: "The sweep over d_{k}".to_owned(),
            intro: "Queries and keys are drawn from N(0, 1); `max weight` and entropy are averaged over rows.".to_owned(),
            claims: vec![
                claim(
                    "At d_{k} = 256 the largest unscaled weight is 0.9942.",
                    Verdict::LuckyDraw,
                    "The mean over seeds is 0.938; the published draw lies at the 93rd percentile.",
                ),
                claim(
                    "Gradients vanish without the scale.",
                    Verdict::WrongAsWorded,
                    "The median row's gradient vanishes; the norm of the whole gradient grows.",
                ),
                claim("Scaled entropy does not depend on d_{k}.", Verdict::Holds, "It moves by 0.03 nats between 4 and 1024."),
                claim("Maximum weights of 0.8, 0.95, 0.99 and 1.0.", Verdict::Illustrative, "No set-up gives all four."),
            ],
            figures: figures.by_ref().take(2).collect(),
            tables: vec![table().into()],
            notes: vec!["Mean saturation is a power law in d_{k}; only the median row saturates exponentially.".to_owned()],
            command: "regard lab sweep --d-k 4,16,64,256,1024 --seeds 200".to_owned(),
        },
        Section {
            id: "gallery".to_owned(),
            title: "Other kinds of figures".to_owned(),
            figures: figures.collect(),
            command: "regard lab patterns --window 16".to_owned(),
            ..Section::default()
        },
    ];
    sections[1].claims.push(claim("Heads are diverse.", Verdict::HoldsInPart, "So are any two random maps."));
    let origin = [("version", "0.1.0"), ("SIMD level", "avx2"), ("seed", "42"), ("command", "cargo run --example gallery")];
    Page {
        documents: vec![("sheet".to_owned(), "A problem sheet".to_owned())],
        title: "Attention, checked".to_owned(),
        subtitle: "Every experiment of the field's folklore, re-run and put against its true distribution".to_owned(),
        lead,
        sections,
        origin: origin.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec(),
        ..Page::default()
    }
}
