//! Edits, heads and relations of real models.

use super::RealHeads;
use super::relations::relations;
use crate::error::{Result, require};
use crate::experiment::{Progress, defaults, origin, signed};
use crate::rows::{self, Row};
use crate::statistics::estimate::Estimate;
use clap::Args;
use regard_model::scores::NAMES;
use regard_model::{Edits, Evidence, HeadScores, Model, Outcome, Sources, paired_test};
use regard_plot::Table;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What the scale, the mask, the first token and single heads are worth in models from disk, and what heads look at
///
/// Each edit is made on several stories: the change of the loss, paired, with a bootstrap interval over stories. Of every kind of head
/// (previous token, first token, induction, ...) the one that is it most is taken out. Sentences with known subjects and synonyms show
/// whether any head attends to the subject of a verb, or at a synonym. Models with few heads are screened as a whole. Writes
/// real_edits.csv and three tables more. Without --model, of the small model that comes with regard.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Examples:\n  regard lab real-heads\n  regard lab real-heads --model target/models/stories15M/model.bin")]
pub struct RealHeadsConfig {
    /// Models, as `regard look` takes them; several separated by commas
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub model: Vec<PathBuf>,
    /// Stories, of 16; models with more than 64 heads read half of them
    #[arg(long, default_value_t = 16, value_name = "N")]
    pub texts: usize,
    /// Tokens of each, at most
    #[arg(long, default_value_t = 48, value_name = "N")]
    pub tokens: usize,
}

impl Default for RealHeadsConfig {
    fn default() -> Self {
        defaults()
    }
}

/// Stories that were written for this.
const STORIES: &str = include_str!("texts.txt");
/// Edits of all heads at once, and what they say.
pub(super) const EDITS: [(&str, &str); 7] = [
    ("scale=off", "no scale"),
    ("temp=2", "scores halved"),
    ("mask=full", "no mask"),
    ("mask=window:15,0", "the last 16 tokens only"),
    ("heads=hide:first", "the first token hidden"),
    ("heads=uniform", "even weights"),
    ("heads=previous", "the token before only"),
];
/// Models of more heads are not screened as a whole, and read half of the texts.
const SCREENED: usize = 64;
/// Of the intervals.
const SEED: u64 = 1;

/// What a head is called, as in edits.
pub(super) fn named(layer: usize, head: usize) -> String {
    format!("L{layer}.H{head}")
}

/// A change of the loss with the ends of its interval.
fn estimate(evidence: &Evidence) -> Estimate {
    Estimate { value: evidence.mean, low: evidence.low, high: evidence.high }
}

/// What a model is called: a file that is called as every other of its kind goes by its folder, and what a name has after a dot is about
/// the file.
fn name(path: &Path) -> String {
    let named = |part: Option<&std::ffi::OsStr>| part.map(|name| name.to_string_lossy().split('.').next().unwrap_or("").to_owned());
    let own = named(path.file_name()).filter(|name| name != "model" && !name.is_empty());
    own.or_else(|| named(path.parent().and_then(Path::file_name))).unwrap_or_else(|| path.display().to_string())
}

impl RealHeadsConfig {
    fn models(&self) -> Result<Vec<(String, Model)>> {
        if self.model.is_empty() {
            return Ok(vec![("small model".to_owned(), Model::built_in()?)]);
        }
        self.model.iter().map(|path| Ok((name(path), Model::load(path)?))).collect()
    }

    pub(super) fn work(&self) -> u64 {
        (self.model.len().max(1) * (EDITS.len() + NAMES.len() + 1)) as u64
    }

    /// `real_edits`, `real_kinds`, `real_relations`, `real_screen`.
    ///
    /// # Errors
    /// When a model cannot be read.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        let stories: Vec<&str> = STORIES.split("\n\n").map(str::trim).collect();
        require((4..=stories.len()).contains(&self.texts), "texts", self.texts, "4 to 16")?;
        require(self.tokens >= 16, "tokens", self.tokens, "at least 16")?;
        let [mut edits, mut kinds, mut related, mut screen] = tables();
        for (name, model) in self.models()? {
            let small = model.shape().layers * model.shape().heads <= SCREENED;
            let count = if small { self.texts } else { self.texts / 2 };
            let texts = model.cut_texts(&stories[..count], self.tokens)?;
            let mut outcomes = Vec::new();
            for (edit, _) in EDITS {
                outcomes.push(model.surgery(&texts, &Edits::parse(edit)?, &Sources::default(), |_, _| true)?);
                progress.advance(1);
            }
            let q = q_of(&outcomes);
            for (((edit, what), outcome), q) in EDITS.into_iter().zip(&outcomes).zip(q) {
                let (difference, n) = (&outcome.difference, texts.len());
                let intact = outcome.intact.iter().sum::<f64>() / n as f64;
                let row = Row::default().of(name.as_str()).of(edit).of(what).of(n).of(intact).estimate(estimate(difference));
                row.of(difference.worse).of(difference.p).of(q).of(outcome.changed.unwrap_or(f64::NAN)).put(&mut edits);
            }
            let screened = self.screen(&name, &model, &texts, &mut screen)?;
            self.kinds(&name, &model, &texts, screened.as_deref(), &mut kinds, progress)?;
            relations(&name, &model, &mut related)?;
            progress.advance(1);
        }
        Ok(signed(vec![edits, kinds, related, screen], &origin::<RealHeads>(self, SEED, "stories of our own")?))
    }

    /// Of every kind the head that is it most on the first half of the texts: how much on the second half, and what it is worth on all.
    fn kinds(
        &self,
        name: &str,
        model: &Model,
        texts: &[Vec<u32>],
        screened: Option<&[Outcome]>,
        table: &mut Table,
        progress: &dyn Progress,
    ) -> Result<()> {
        let (chosen, judged) = texts.split_at(texts.len() / 2);
        let (chosen, judged) = (model.classify(chosen, |_, _| true)?, model.classify(judged, |_, _| true)?);
        let mut rows: Vec<(&HeadScores, usize, Outcome)> = Vec::new();
        for i in 0..NAMES.len() {
            let score = |at: &usize| if chosen[*at].scores[i].is_nan() { f64::NEG_INFINITY } else { chosen[*at].scores[i] };
            let at = (0..chosen.len()).max_by(|a, b| score(a).total_cmp(&score(b))).unwrap_or(0);
            let head = &judged[at];
            let outcome = match screened.and_then(|all| all.get(at)) {
                Some(outcome) => outcome.clone(),
                None => {
                    let edits = Edits::parse(&format!("{}=zero", named(head.layer, head.head)))?;
                    model.surgery(texts, &edits, &Sources::default(), |_, _| true)?
                }
            };
            rows.push((head, i, outcome));
            progress.advance(1);
        }
        let outcomes: Vec<Outcome> = rows.iter().map(|(_, _, outcome)| outcome.clone()).collect();
        for ((head, i, outcome), q) in rows.into_iter().zip(q_of(&outcomes)) {
            let (low, high) = head.lift[i];
            let lift = Estimate { value: ((head.scores[i] - head.baselines[i]) / (1.0 - head.baselines[i])).max(low).min(high), low, high };
            let labelled = judged.iter().filter(|head| head.lift[i].0 > LABEL).count();
            let row = Row::default().of(name).of(NAMES[i]).of(named(head.layer, head.head));
            let row = row.of(head.scores[i]).of(head.baselines[i]).estimate(lift).of(labelled);
            row.estimate(estimate(&outcome.difference)).of(outcome.difference.p).of(q).put(table);
        }
        Ok(())
    }

    /// Every head of a small model, the costliest first.
    fn screen(&self, name: &str, model: &Model, texts: &[Vec<u32>], table: &mut Table) -> Result<Option<Vec<Outcome>>> {
        let (shape, labels) = (model.shape(), |head: &HeadScores| head.labels.join(" "));
        if shape.layers * shape.heads > SCREENED {
            return Ok(None);
        }
        let (totals, heads) = (model.screen(texts, &[], |_, _| true)?, model.classify(texts, |_, _| true)?);
        let direct = model.direct_effects(texts, |_, _| {})?;
        let mut order: Vec<usize> = (0..totals.len()).collect();
        order.sort_by(|a, b| totals[*b].difference.mean.total_cmp(&totals[*a].difference.mean));
        for (rank, at) in order.into_iter().enumerate() {
            let label = Some(labels(&heads[at])).filter(|label| !label.is_empty()).unwrap_or_else(|| "mixed".to_owned());
            let outcome = &totals[at];
            let row = Row::default().of(name).of(rank + 1).of(named(at / shape.heads, at % shape.heads)).of(label);
            let row = row.estimate(estimate(&outcome.difference)).of(outcome.difference.p).of(outcome.q.unwrap_or(f64::NAN));
            row.estimate(estimate(&direct[at])).put(table);
        }
        Ok(Some(totals))
    }
}

/// A label of `regard classify` needs the lower end of its interval above this.
const LABEL: f64 = 0.4;

fn q_of(outcomes: &[Outcome]) -> Vec<f64> {
    paired_test::benjamini_hochberg(&outcomes.iter().map(|outcome| outcome.difference.p).collect::<Vec<_>>())
}

fn tables() -> [Table; 4] {
    let (p, q) = (("p", "p of flipped signs"), ("q", "q, Benjamini-Hochberg"));
    [
        rows::table(
            "real_edits",
            "Edits of all heads: change of the loss, nats per token, over texts",
            &[
                ("model", "model"),
                ("edit", "edit"),
                ("what", "what it is"),
                ("texts", "texts"),
                ("intact", "loss as it is"),
                ("~change", "change of the loss"),
                ("worse", "texts that became worse"),
                p,
                q,
                ("changed", "share of likeliest tokens that changed"),
            ],
        ),
        rows::table(
            "real_kinds",
            "The head of each kind, chosen on half of the texts: its score on the other half, and what its removal costs",
            &[
                ("model", "model"),
                ("kind", "kind"),
                ("head", "head"),
                ("score", "score"),
                ("baseline", "of even weights"),
                ("~lift", "lift over even weights"),
                ("labelled", "heads with that label"),
                ("~total", "change of the loss without it"),
                p,
                q,
            ],
        ),
        rows::table(
            "real_relations",
            "Weight on the subject of a verb, or on a synonym: the head chosen with half of the words, tested with the other half",
            &[
                ("model", "model"),
                ("relation", "relation"),
                ("order", "it stands, seen from the other word"),
                ("head", "head"),
                ("sentences", "sentences"),
                ("~right", "weight on the word that belongs to it"),
                ("~wrong", "weight on the other word"),
                ("~excess", "difference"),
            ],
        ),
        rows::table(
            "real_screen",
            "Heads of a small model, the costliest first: change of the loss without each, nats per token, over texts",
            &[
                ("model", "model"),
                ("rank", "rank"),
                ("head", "head"),
                ("labels", "what it does"),
                ("~total", "change of the loss"),
                p,
                q,
                ("~direct", "direct effect"),
            ],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_names() {
        assert_eq!(name(Path::new("target/models/stories15M/model.bin")), "stories15M");
        assert_eq!(name(Path::new("a/SmolLM2-135M-Instruct.Q4_1.gguf")), "SmolLM2-135M-Instruct");
    }

    #[test]
    fn there_are_sixteen_stories_of_more_tokens_than_are_taken() {
        let stories: Vec<&str> = STORIES.split("\n\n").collect();
        assert_eq!(stories.len(), 16);
        // A token is a word at most.
        assert!(stories.iter().all(|story| story.split_whitespace().count() >= RealHeadsConfig::default().tokens - 4));
    }

    #[test]
    fn the_small_model_has_all_tables() {
        let config = RealHeadsConfig { texts: 4, tokens: 24, ..RealHeadsConfig::default() };
        let tables = config.run(&crate::experiment::Unwatched).expect("tables");
        let counts: Vec<usize> = tables.iter().map(|table| table.rows.len()).collect();
        let model = Model::built_in().expect("the small model").shape();
        assert_eq!(counts, [EDITS.len(), NAMES.len(), 4, model.layers * model.heads]);
        let screen = &tables[3];
        let totals: Vec<f64> = screen.rows.iter().map(|row| screen.number(row, "total")).collect();
        assert!(totals.windows(2).all(|pair| pair[0] >= pair[1]), "the costliest first: {totals:?}");
        assert!(RealHeadsConfig { texts: 17, ..config }.run(&crate::experiment::Unwatched).is_err());
    }
}
