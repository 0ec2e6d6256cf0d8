//! `regard diff`: where two models differ first, in which heads, and why.

use super::{ABOUT_MODEL, Texts, VectorArgs, load, sources};
use crate::options::{Common, Out, Outcome, figure_files, table_files, write_files};
use crate::output::print_wrapped;
use anyhow::Result;
use clap::Args;
use regard_files::names;
use regard_lab::experiments::Progress;
use regard_lab::figure::{Axis, BarPlot, Figure, LinePlot, Series};
use regard_lab::{Folder, Table};
use regard_model::diff::{Difference, Side, compare};
use regard_model::{Edits, Model};
use std::path::PathBuf;

/// Heads in the figure.
const DRAWN: usize = 16;
/// What is drawn for a difference of zero, which has no logarithm.
const NOTHING: f64 = 1e-9;

/// Compare two models, or two settings of one: the first part that differs, the heads, and the most likely cause
///
/// Each layer of B reads what the same layer of A reads, so the first part that differs beyond
/// rounding is the place itself. Heads are ranked by how much their weights change, with the change
/// of what each is worth (the rise of the loss without it, to first order) and 95 % intervals over
/// texts. A cause is a single change of A's settings or tensors that gives B's results: rotary
/// pairing, theta, eps, softcap, scale, window, tied embeddings, norm placement, tokenizer, BOS,
/// quantisation type and others; `left` is the share of the difference that it does not explain.
/// Identical files give exactly zero.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  regard diff model-f16.gguf model-q4_0.gguf
  regard diff hf-folder/ converted.gguf --text \"Once upon a time\"
  regard diff --edits-b scale=off
  regard diff tuned/ built-in                   with the model that comes with regard
  regard diff base/ tuned/ --json --out compared")]
pub(crate) struct Diff {
    #[arg(value_name = "A", help = ABOUT_MODEL)]
    a: Option<PathBuf>,
    /// The other model [default: the same]
    #[arg(value_name = "B")]
    b: Option<PathBuf>,
    /// Edits of A, in the grammar of `regard surgery`
    #[arg(long, value_name = "EDITS", default_value = "")]
    edits_a: String,
    /// Edits of B
    #[arg(long, value_name = "EDITS", default_value = "")]
    edits_b: String,
    #[command(flatten)]
    vectors: VectorArgs,
    /// A text; may be given several times
    #[arg(long, value_name = "TEXT")]
    text: Vec<String>,
    /// A file with a text; may be given several times
    #[arg(long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// Number of built-in stories, where no text is given
    #[arg(long, default_value_t = 8, value_name = "N")]
    texts: usize,
    /// Tokens of each text, at most
    #[arg(long, default_value_t = 64, value_name = "N")]
    tokens: usize,
    #[command(flatten)]
    out: Out,
    #[command(flatten)]
    common: Common,
}

fn place(layer: Option<usize>, part: &str) -> String {
    layer.map_or_else(|| part.to_owned(), |layer| format!("L{layer}.{part}"))
}

fn tables(found: &Difference) -> [Table; 3] {
    let caption = "Where both models read the same: the largest difference over the largest number of A.";
    let columns = [("layer", "layer"), ("part", "part"), ("relative", "relative difference"), ("differs", "beyond rounding")];
    let mut parts = Table::new("diff", caption, &columns);
    for part in &found.parts {
        parts.push(vec![part.layer.into(), part.part.into(), part.relative.into(), part.differs.into()]);
    }
    let columns = [
        ("layer", "layer"),
        ("head", "head"),
        ("pattern", "total variation of its weights"),
        ("low", "95 % from"),
        ("high", "to"),
        ("effect", "change of its worth (nats)"),
        ("effect_low", "95 % from"),
        ("effect_high", "to"),
    ];
    let caption = format!("Heads by change of their weights, over {} texts.", found.texts);
    let mut heads = Table::new("diff_heads", &caption, &columns);
    let mut ranked: Vec<_> = found.heads.iter().collect();
    ranked.sort_by(|x, y| y.pattern.mean.total_cmp(&x.pattern.mean));
    for head in ranked {
        let (p, e) = (&head.pattern, head.effect.as_ref());
        heads.push(vec![
            head.layer.into(),
            head.head.into(),
            p.mean.into(),
            p.low.into(),
            p.high.into(),
            e.map(|e| e.mean).into(),
            e.map(|e| e.low).into(),
            e.map(|e| e.high).into(),
        ]);
    }
    let columns = [("cause", "cause"), ("what", "what"), ("left", "share of the difference that is left")];
    let mut causes = Table::new("diff_causes", "Single changes of A, the most likely cause first.", &columns);
    for cause in &found.causes {
        causes.push(vec![cause.name.into(), cause.what.clone().into(), cause.left.into()]);
    }
    [parts, heads, causes]
}

fn figure(found: &Difference, heads: &Table) -> Result<Figure> {
    let mut lines = LinePlot::new("by part", Axis::linear("layer"), Axis::log10("relative difference"));
    for name in ["q", "k", "v", "pattern", "attn_out", "mlp_out"] {
        let of: Vec<_> = found.parts.iter().filter(|part| part.part == name).collect();
        let x: Vec<f64> = of.iter().map(|part| part.layer.unwrap_or(0) as f64).collect();
        let y: Vec<f64> = of.iter().map(|part| part.relative.clamp(NOTHING, 1e9)).collect();
        lines = lines.series(Series::new(name, &x, &y));
    }
    let column = |name| -> Result<Vec<f64>> { Ok(regard_lab::figure::numbers(heads, name)?.into_iter().take(DRAWN).collect()) };
    let (layers, numbers) = (column("layer")?, column("head")?);
    let names = layers.iter().zip(numbers).map(|(layer, head)| format!("{layer}.{head}")).collect();
    let intervals = column("low")?.into_iter().zip(column("high")?).collect();
    let bars = BarPlot::new("heads that change most", "head", names, Axis::linear("total variation of its weights"));
    let caption = "Relative differences of parts that read the same (zero is drawn at 10^{-9}), and heads whose weights change most.";
    Ok(Figure::new("diff", "Where two models differ")
        .panel(lines)
        .panel(bars.bars_with_intervals("", column("pattern")?, intervals))
        .caption(caption))
}

/// What was found, in sentences.
fn said(found: &Difference) -> String {
    if found.identical {
        return "identical: every number has the same bits".to_owned();
    }
    let mut lines = vec![match found.first() {
        Some(part) => format!("first difference: {}, {:.1e} of its size", place(part.layer, part.part), part.relative),
        None => format!("no part differs beyond rounding; results differ by {:.1e} of their size", found.results),
    }];
    if let Some(loss) = &found.loss {
        lines.push(format!("loss: {:+.4} nats per token in B [{:+.4}, {:+.4}]", loss.mean, loss.low, loss.high));
    }
    match found.causes.first() {
        Some(cause) => {
            let left = match cause.left {
                Some(0.0) => "; explains all of it".to_owned(),
                Some(left) => format!("; leaves {:.0} % of the difference", 100.0 * left),
                None => String::new(),
            };
            lines.push(format!("most likely cause: {} ({}){left}", cause.name, cause.what));
        }
        None if found.first().is_some() => lines.push("no single change explains it".to_owned()),
        None => {}
    }
    lines.join("\n")
}

impl Diff {
    pub(super) fn run(self) -> Result<Outcome> {
        let bar = self.common.start("diff")?;
        let folder = Folder::open(&self.out.out, "diff")?;
        folder.reserve(&names::DIFF)?;
        let (edits_a, edits_b) = (Edits::parse(&self.edits_a)?, Edits::parse(&self.edits_b)?);
        let a: Model = self.vectors.given(load(self.a.as_deref())?)?;
        let b = match &self.b {
            Some(path) => self.vectors.given(load(Some(path))?)?,
            None => a.clone(),
        };
        let given = Texts { text: self.text, file: self.file, texts: self.texts, tokens: self.tokens };
        let (strings, texts) = if a.tokenizer().is_ok() {
            let strings = given.strings(&a)?;
            let texts = a.cut_texts(&strings.iter().map(String::as_str).collect::<Vec<_>>(), self.tokens)?;
            (strings, texts)
        } else {
            given.given()?;
            (Vec::new(), a.random_texts(self.texts, self.tokens, 1))
        };
        let (from_a, from_b) = (sources(&a, &edits_a)?, sources(&b, &edits_b)?);
        bar.expect((texts.len() + 2) as u64);
        let found = compare(
            Side { model: &a, edits: &edits_a, sources: &from_a },
            Side { model: &b, edits: &edits_b, sources: &from_b },
            &texts,
            &strings,
            |_, _| {
                bar.advance(1);
                true
            },
        )?;
        bar.hide();
        let tables = tables(&found);
        // Identical models have nothing to list.
        if self.common.json || !found.identical {
            self.common.show(&tables)?;
        }
        if !self.common.json && !self.common.quiet {
            print_wrapped(said(&found))?;
        }
        let mut files = table_files(&tables);
        files.extend(figure_files(&[figure(&found, &tables[1])?])?);
        write_files(folder, &files, &self.common)?;
        Ok(Outcome::Done)
    }
}
