//! `regard surgery`: what edits cost.

use super::{Texts, VectorArgs, load, said, sources};
use crate::options::{Common, Outcome, Unusable};
use crate::output::{note, print};
use crate::progress::Bar;
use anyhow::Result;
use clap::Args;
use regard_lab::Table;
use regard_lab::experiments::Progress;
use regard_model::edits::{Action, Edit};
use regard_model::{Edits, Generation, Input, Model};
use std::path::Path;

/// Edit a model and measure the change of loss, predictions and text over several texts, with an interval
///
/// Each text is one observation: differences are paired, the interval is over texts, p is from a sign-flip test. An
/// edit that matches nothing is an error; one that changes no bit says so.
#[derive(Args, Debug)]
#[command(override_usage = "regard surgery [OPTIONS] [MODEL] <EDITS>")]
#[command(after_help = "Examples:
  regard surgery scale=off
  regard surgery stories15M/model.bin L1.H5=zero --texts 32
  regard surgery model.gguf \"mask=window:15,0~or~first:4\" --file book.txt --prompt \"Once upon a time\"
  regard surgery L1.H2=zero --ablations
  regard surgery heads=hide:first --explain

Edits, joined by /:
  L3.H1=zero, L5.H1,5=mean, L2.mlp=gain:0.5   heads or MLPs: zero, mean, resample:SEED, gain:X
  L1.resid=add:NAME*2                         a vector of --vectors, added to the stream before layer 1; also to
                                              resid_mid, resid_post, attn_out, mlp_out; there also zero and gain:X
  heads=uniform, heads=hide:first             the weights of heads
  scale=off, temp=2                           the scores
  mask=window:15,0~or~first:4                 which keys are visible; mask=full, mask=causal")]
pub(crate) struct Surgery {
    /// The edits; before them the model, if it is not the built-in one
    #[arg(value_name = "EDITS", num_args = 1..=2, required = true)]
    words: Vec<String>,
    #[command(flatten)]
    texts: Texts,
    /// Compare zero, mean and resample ablation of the heads or MLPs that the edits name
    #[arg(long, alias = "ways")]
    ablations: bool,
    /// Continue this text before and after the edits
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    #[command(flatten)]
    vectors: VectorArgs,
    /// Explain the edits without running anything
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    common: Common,
}

/// The same edits with zero, mean and rows of other texts.
fn ablations(edits: &Edits) -> Result<Vec<Edits>> {
    let replaced = |action: Action| {
        let with = |edit: &Edit| match edit.action {
            Action::Zero | Action::Mean | Action::Resample(_) | Action::Gain(_) => {
                Ok(Edit { action: action.clone(), ..edit.clone() }.to_string())
            }
            _ => Err(Unusable(format!("{edit} is not of a head's or a network's result: --ablations is for zero, mean and resample"))),
        };
        let all: Vec<String> = edits.list().iter().map(with).collect::<Result<_, Unusable>>()?;
        Ok(Edits::parse(&all.join("/"))?)
    };
    [Action::Zero, Action::Mean, Action::Resample(1)].into_iter().map(replaced).collect()
}

impl Surgery {
    /// Several edits, a row each.
    /// Each ablation of the same heads, a row each.
    fn compare(&self, model: &Model, texts: &[Vec<u32>], ablations: &[Edits], bar: Bar) -> Result<Outcome> {
        let columns = [
            ("edits", "edits"),
            ("change", "change of the loss (nats per token)"),
            ("low", "lower 95 % bound"),
            ("high", "upper 95 % bound"),
            ("worse", "texts with a higher loss"),
            ("p", "p (sign-flip test)"),
            ("divergence", "KL divergence of predictions (nats per token)"),
            ("changed", "share of changed top predictions"),
        ];
        let caption = format!(
            "Change of the loss by each ablation, {}; mean and resample take activations from other stories.",
            self.texts.described(texts)
        );
        let mut table = Table::new("ablations", &caption, &columns);
        bar.expect((ablations.len() * texts.len()) as u64);
        for edits in ablations {
            let outcome = model.surgery(texts, edits, &sources(model, edits)?, |_, _| {
                bar.advance(1);
                true
            })?;
            let d = &outcome.difference;
            table.push(vec![
                outcome.edits.clone().into(),
                d.mean.into(),
                d.low.into(),
                d.high.into(),
                d.worse.into(),
                d.p.into(),
                outcome.divergence.into(),
                outcome.changed.into(),
            ]);
        }
        drop(bar);
        self.common.show_whole(&[table])?;
        Ok(Outcome::Done)
    }

    pub(super) fn run(self) -> Result<Outcome> {
        let bar = self.common.start("surgery")?;
        let (path, text) = match self.words.as_slice() {
            [edits] => (None, edits),
            [model, edits, ..] => (Some(Path::new(model)), edits),
            [] => return Err(Unusable("edits are missing, as in `regard surgery scale=off`".to_owned()).into()),
        };
        let edits = Edits::parse(text)?;
        if self.explain {
            print(edits.explain())?;
            return Ok(Outcome::Done);
        }
        let model = self.vectors.given(load(path)?)?;
        let texts = self.texts.ids(&model)?;
        self.texts.warn_foreign(&model, &bar);
        if self.ablations {
            return self.compare(&model, &texts, &ablations(&edits)?, bar);
        }
        let sources = sources(&model, &edits)?;
        bar.expect(texts.len() as u64);
        let outcome = model.surgery(&texts, &edits, &sources, |_, _| {
            bar.advance(1);
            true
        })?;
        let difference = &outcome.difference;
        let columns = [("what", "what"), ("value", "value")];
        let mut table =
            Table::new("surgery", &format!("Loss with and without the edits, {}.{}", self.texts.described(&texts), said(&edits)), &columns);
        let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len().max(1) as f64;
        for (what, value) in [
            ("loss without the edits (nats per token)", mean(&outcome.intact)),
            ("loss with the edits (nats per token)", mean(&outcome.edited)),
            ("change", difference.mean),
            ("change, lower 95 % bound", difference.low),
            ("change, upper 95 % bound", difference.high),
            ("standard deviation over texts", difference.deviation),
            ("texts", difference.texts as f64),
            ("texts with a higher loss", difference.worse as f64),
            ("p (sign-flip test)", difference.p),
            ("smallest p with this number of texts", difference.least_p),
            ("KL divergence of predictions (nats per token)", outcome.divergence.unwrap_or(f64::NAN)),
            ("share of changed top predictions", outcome.changed.unwrap_or(f64::NAN)),
        ] {
            table.push(vec![what.into(), value.into()]);
        }
        drop(bar);
        self.common.show_whole(&[table])?;
        if difference.least_p > 0.05 {
            note(format_args!(
                "{} texts cannot give a p below {:.3}; use more texts (--texts, --text, --file)",
                difference.texts, difference.least_p
            ));
        }
        if outcome.divergence == Some(0.0) && outcome.intact == outcome.edited {
            note("the edits changed no bit of any loss");
        }
        if let (Some(prompt), false) = (&self.prompt, self.common.json) {
            let ids = model.ids(Input::Text(prompt))?;
            for (what, edits) in [("before", &Edits::default()), ("after", &edits)] {
                let new = model.generate(&ids, &Generation::greedy(60), edits, &sources, |_| true)?;
                print(format_args!("{what}: {prompt}{}", model.tokenizer()?.decode(&new)?))?;
            }
        }
        Ok(Outcome::Done)
    }
}
