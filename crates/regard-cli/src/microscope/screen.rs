//! `regard screen`: every head taken out, one by one.

use super::{ABOUT_MODEL, Texts, load};
use crate::options::{Common, Out, Outcome, Unusable, figure_files, table_files, write_files};
use anyhow::Result;
use clap::Args;
use regard_files::names;
use regard_lab::experiments::Progress;
use regard_lab::figure::{Axis, BarPlot, Figure};
use regard_lab::{Folder, Table};
use regard_model::{Metric, Model, Screened, TokenMetric};
use std::path::PathBuf;

/// Ablate every head, one at a time, and measure the loss over several texts; an interrupted run is resumed
///
/// With --token the measure is the prediction after the last token of each text instead.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  regard screen\n  regard screen stories15M/model.bin --texts 16 --tokens 256 --out \
    screened\n  regard screen --text \"Emma loves the c\" --token a --minus o")]
pub(crate) struct Screen {
    #[arg(value_name = "MODEL", help = ABOUT_MODEL)]
    model: Option<PathBuf>,
    /// Also measure the direct effect: the head's output is removed from the last residual stream only, so later layers do not react
    #[arg(long)]
    direct: bool,
    /// Measure the probability of this token, a text, after each text instead of the loss; once, or once for each text
    #[arg(long, value_name = "TEXT")]
    token: Vec<String>,
    /// With --token: the difference of both tokens' logits instead of the probability
    #[arg(long, value_name = "TEXT", requires = "token")]
    minus: Vec<String>,
    #[command(flatten)]
    texts: Texts,
    #[command(flatten)]
    out: Out,
    #[command(flatten)]
    common: Common,
}

/// Everything that decides the values of a head: the program, the model's content, the metric and the tokens.
fn setting(model: &Model, texts: &[Vec<u32>], metric: &Metric) -> Result<String> {
    let tokens = match metric {
        Metric::Loss => regard_files::digest(serde_json::to_vec(texts)?),
        Metric::Tokens(_) => regard_files::digest(serde_json::to_vec(&(texts, metric))?),
    };
    let level = regard::Level::preferred().map_err(regard::Error::from)?.name();
    Ok(format!("screen {} {level} {} {tokens}", env!("CARGO_PKG_VERSION"), model.digest()?))
}

impl Screen {
    fn metric(&self, model: &Model) -> Result<Metric> {
        if self.token.is_empty() {
            return Ok(Metric::Loss);
        }
        if !self.minus.is_empty() && self.minus.len() != self.token.len() {
            let (tokens, minus) = (self.token.len(), self.minus.len());
            return Err(Unusable(format!("{tokens} --token and {minus} --minus are given; give as many of both")).into());
        }
        let of = |(number, token): (usize, &String)| {
            let minus = self.minus.get(number).map(|minus| model.token(minus)).transpose()?;
            Ok(TokenMetric { position: None, token: model.token(token)?, minus })
        };
        Ok(Metric::Tokens(self.token.iter().enumerate().map(of).collect::<Result<_>>()?))
    }

    pub(super) fn run(self) -> Result<Outcome> {
        let bar = self.common.start("screen")?;
        let folder = Folder::open(&self.out.out, "screen")?;
        folder.reserve(&names::SCREEN)?;
        let bar = bar.resuming(&self.out.out)?;
        let model = load(self.model.as_deref())?;
        let texts = self.texts.ids(&model)?;
        self.texts.warn_foreign(&model, &bar);
        let shape = model.shape();
        let metric = self.metric(&model)?;
        let setting = setting(&model, &texts, &metric)?;
        let step = |layer: usize, head: usize| format!("{setting} L{layer}.H{head}");
        let stored = |(layer, head)| bar.recall(&step(layer, head)).and_then(|text| serde_json::from_str::<Screened>(&text).ok());
        let known: Vec<Screened> = (0..shape.layers).flat_map(|l| (0..shape.heads).map(move |h| (l, h))).filter_map(stored).collect();
        bar.expect((shape.layers * shape.heads) as u64);
        let outcomes = model.screen_by(&texts, &metric, &known, |head, _| {
            if !known.contains(head)
                && let Ok(text) = serde_json::to_string(head)
            {
                // A step that is not stored costs time, not results.
                let _ = bar.remember(&step(head.layer, head.head), &text);
            }
            bar.advance(1);
            true
        })?;
        let mut seen = 0;
        let direct = if self.direct {
            let (all, heads) = (texts.len() * shape.layers * shape.heads, shape.layers * shape.heads);
            bar.expect((heads + all) as u64);
            Some(model.direct_effects_by(&texts, &metric, |done, _| {
                bar.advance((done - seen) as u64);
                seen = done;
            })?)
        } else {
            None
        };
        bar.hide();
        let changed = format!("change of the {}", metric.name());
        let mut columns = vec![
            ("layer", "layer"),
            ("head", "head"),
            ("change", changed.as_str()),
            ("low", "lower 95 % bound"),
            ("high", "upper 95 % bound"),
            ("worse", if metric == Metric::Loss { "texts with a higher loss" } else { "texts with a higher value" }),
            ("p", "p"),
            ("q", "q"),
        ];
        if direct.is_some() {
            columns.extend([("direct", "direct effect"), ("direct_low", "lower 95 % bound"), ("direct_high", "upper 95 % bound")]);
        }
        let what = if metric == Metric::Loss { "loss" } else { metric.name() };
        let caption =
            format!("Change of the {what} when the head is ablated, {}; q is Benjamini-Hochberg's.", self.texts.described(&texts));
        let mut table = Table::new("screen", &caption, &columns);
        for (i, outcome) in outcomes.iter().enumerate() {
            let d = &outcome.difference;
            let mut row = vec![
                (i / shape.heads).into(),
                (i % shape.heads).into(),
                d.mean.into(),
                d.low.into(),
                d.high.into(),
                d.worse.into(),
                d.p.into(),
                outcome.q.into(),
            ];
            if let Some(direct) = direct.as_ref().map(|direct| &direct[i]) {
                row.extend([direct.mean.into(), direct.low.into(), direct.high.into()]);
            }
            table.push(row);
        }
        let names = (0..outcomes.len()).map(|i| format!("{}.{}", i / shape.heads, i % shape.heads)).collect();
        let mut bars = BarPlot::new("", "head", names, Axis::linear(&changed)).bars_with_intervals(
            "without the head",
            outcomes.iter().map(|o| o.difference.mean).collect(),
            outcomes.iter().map(|o| (o.difference.low, o.difference.high)).collect(),
        );
        if let Some(direct) = &direct {
            let (means, ends) = (direct.iter().map(|d| d.mean).collect(), direct.iter().map(|d| (d.low, d.high)).collect());
            bars = bars.bars_with_intervals("direct effect", means, ends);
        }
        let figure = Figure::new("screen", "What each head is worth").panel(bars).caption(caption);
        self.common.show(std::slice::from_ref(&table))?;
        let mut files = table_files(&[table]);
        files.extend(figure_files(&[figure])?);
        write_files(folder, &files, &self.common)?;
        bar.ended();
        Ok(Outcome::Done)
    }
}
