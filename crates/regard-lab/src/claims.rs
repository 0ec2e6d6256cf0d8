//! What the documents claim, and what became of it: a function of the tables alone.
//!
//! A claim that rests on one draw is a *lucky draw* when fewer than one draw in ten is as extreme on that side; a claim that rests on several, when
//! more than a quarter of them lie outside the central 95 % of their distributions.

mod learning;

use crate::error::Result;
use crate::page::{Claim, Verdict};
use crate::published::{Document, MINI_REPORT, SURGEON_MAX};
use crate::table::{Table, Value};
use crate::table_text::prose_number as short;
use crate::tables::Tables;

/// A claim in its section.
#[derive(Debug, Clone)]
pub struct Judged {
    /// The section of the report.
    pub section: &'static str,
    /// Who says so.
    pub document: Document,
    /// What is said, in our words.
    pub claim: &'static str,
    /// What became of it.
    pub verdict: Verdict,
    /// Why.
    pub because: String,
}

impl Judged {
    /// For the page.
    pub fn on_page(&self) -> Claim {
        Claim { text: format!("{}: {}", self.document.short(), self.claim), verdict: self.verdict, because: self.because.clone() }
    }
}

const ROBUSTNESS: &str = "attention_robustness_summary";
const GRADIENTS: &str = "attention_gradients";

/// The columns that name a cell of the robustness table.
fn cell(seq: usize, d_k: usize, scaled: bool, statistic: &str) -> [(&'static str, Value); 4] {
    [("seq", seq.into()), ("d_k", d_k.into()), ("scaled", scaled.into()), ("statistic", statistic.into())]
}

/// The smaller tail of a percentile, in percent.
fn tail(percentile: f64) -> f64 {
    percentile.min(100.0 - percentile)
}

/// The percentiles of the numbers of each draw.
fn lucky(draws: &[&[f64]]) -> bool {
    let extreme = |limit: f64| draws.iter().filter(|numbers| numbers.iter().any(|&p| tail(p) < limit)).count();
    if draws.len() == 1 { extreme(10.0) == 1 } else { 4 * extreme(2.5) > draws.len() }
}

fn holds(ok: bool) -> Verdict {
    if ok { Verdict::Holds } else { Verdict::Wrong }
}

type Group = fn(&Tables) -> Result<Vec<Judged>>;

const GROUPS: [Group; 12] = [
    mini_report,
    surgeon_table,
    gradients,
    entropy,
    patterns,
    heads,
    checks,
    learning::masks,
    learning::scale,
    learning::trained_heads,
    learning::pairs,
    parity,
];

/// Every claim.
///
/// # Errors
/// When a table of the report is missing.
pub fn judge(tables: &Tables) -> Result<Vec<Judged>> {
    GROUPS.iter().map(|group| group(tables)).collect::<Result<Vec<_>>>().map(|groups| groups.into_iter().flatten().collect())
}

/// The claims that these tables can judge.
pub fn judge_what_is_there(tables: &Tables) -> Vec<Judged> {
    GROUPS.iter().filter_map(|group| group(tables).ok()).flatten().collect()
}

/// `published_claims`, for those who want the verdicts as data.
pub fn table(judged: &[Judged]) -> Table {
    let columns = [("section", "section"), ("document", "document"), ("claim", "claim"), ("verdict", "verdict"), ("because", "why")];
    let mut table = Table::new("published_claims", "What was published, and what became of it", &columns);
    for j in judged {
        table.push(vec![j.section.into(), j.document.title().into(), j.claim.into(), j.verdict.words().into(), j.because.as_str().into()]);
    }
    table
}

fn mini_report(tables: &Tables) -> Result<Vec<Judged>> {
    let mut all = Vec::new();
    let claims = [
        (false, "without the scale at d_{k} = 256 the largest weight averages 0.9942 and the entropy 0.0296"),
        (true, "with the scale at d_{k} = 256 the largest weight averages 0.3680 and the entropy 1.7256"),
    ];
    for (scaled, claim) in claims {
        let get = |statistic, column| tables.number(ROBUSTNESS, &cell(8, 256, scaled, statistic), column);
        let percentiles = [get("max_weight", "percentile")?, get("entropy", "percentile")?];
        let is_lucky = lucky(&[&percentiles]);
        let story = if is_lucky { "The numbers are reproduced digit for digit, but they are one draw" } else { "A typical draw" };
        let because = format!(
            "{story}: over {} draws the expectation is {} and {} (exact), a single matrix scatters by {} and {}, and the published values stand at the {} and {} percentile.",
            short(get("entropy", "seeds")?),
            short(get("max_weight", "exact")?),
            short(get("entropy", "exact")?),
            short(get("max_weight", "std")?),
            short(get("entropy", "std")?),
            ordinal(percentiles[0]),
            ordinal(percentiles[1]),
        );
        let verdict = if is_lucky { Verdict::LuckyDraw } else { Verdict::Holds };
        all.push(Judged { section: "robustness", document: Document::MiniReport, claim, verdict, because });
    }
    all.push(csv_as_a_whole(tables)?);
    let exact = |d_k, scaled| tables.number(ROBUSTNESS, &cell(8, d_k, scaled, "max_weight"), "exact");
    let (unscaled, scaled) =
        ([exact(4, false)?, exact(16, false)?, exact(64, false)?, exact(256, false)?], [exact(4, true)?, exact(256, true)?]);
    all.push(Judged {
        section: "sweep",
        document: Document::MiniReport,
        claim: "the larger d_{k}, the sharper attention without the scale; with it the distributions stay alike",
        verdict: holds(unscaled.is_sorted() && (scaled[1] - scaled[0]).abs() < 0.05),
        because: format!(
            "The expected largest weight of 8 goes {} without the scale, and only from {} to {} with it; all are exact expectations.",
            unscaled.map(short).join(", "),
            short(scaled[0]),
            short(scaled[1])
        ),
    });
    Ok(all)
}

fn csv_as_a_whole(tables: &Tables) -> Result<Judged> {
    let mut percentiles = Vec::new();
    for (d_k, scaled, _) in MINI_REPORT {
        for statistic in ["max_weight", "entropy", "norm_dq", "norm_dk"] {
            percentiles.push(tables.number(ROBUSTNESS, &cell(8, d_k, scaled, statistic), "percentile")?);
        }
    }
    let outside = percentiles.iter().filter(|p| tail(**p) < 2.5).count();
    let is_lucky = lucky(&percentiles.chunks(4).collect::<Vec<_>>());
    Ok(Judged {
        section: "robustness",
        document: Document::MiniReport,
        claim: "its CSV file: largest weight, entropy and gradient norms of eight cells, one draw each",
        verdict: if is_lucky { Verdict::LuckyDraw } else { Verdict::Holds },
        because: format!(
            "Reproduced to 2 x 10^{{-6}} from PyTorch's seeds; {outside} of {} numbers lie outside the central 95 % of their distributions, where {} would by chance. Eight draws show the trend, not the second digit.",
            percentiles.len(),
            short(0.05 * percentiles.len() as f64)
        ),
    })
}

fn surgeon_table(tables: &Tables) -> Result<Vec<Judged>> {
    let mut exact = [Vec::new(), Vec::new()];
    for (d_k, ..) in SURGEON_MAX {
        for (scaled, list) in [false, true].into_iter().zip(&mut exact) {
            list.push(short(tables.number(ROBUSTNESS, &cell(4, d_k, scaled, "max_weight"), "exact")?));
        }
    }
    Ok(vec![Judged {
        section: "robustness",
        document: Document::Surgeon,
        claim: "without the scale the largest weight is about 0.8, 0.95, 0.99, 1.0 at d_{k} = 16, 64, 256, 1024; with it about 0.5",
        verdict: Verdict::Illustrative,
        because: format!(
            "No number of tokens is given. Four tokens fit best: {} without and {} with the scale (exact). But the distance to 1 only halves when d_{{k}} is multiplied by four; the table lets it fall to a quarter and a fifth.",
            exact[0].join(", "),
            exact[1].join(", ")
        ),
    }])
}

fn gradients(tables: &Tables) -> Result<Vec<Judged>> {
    let get = |d_k: usize, scaled: bool, column| tables.number(GRADIENTS, &[("d_k", d_k.into()), ("scaled", scaled.into())], column);
    let because = format!(
        "The norm of all of dQ grows without the scale, {} at d_{{k}} = 16 and {} at 1024, against {} and {} with it. What vanishes is the median row: {} at 16, {} at 1024 ({} with the scale). {} % of the rows then hold 90 % of the squared norm: the gradient is not small, it is in few places.",
        short(get(16, false, "grad_norm_q")?),
        short(get(1024, false, "grad_norm_q")?),
        short(get(16, true, "grad_norm_q")?),
        short(get(1024, true, "grad_norm_q")?),
        short(get(16, false, "row_dq_median")?),
        short(get(1024, false, "row_dq_median")?),
        short(get(1024, true, "row_dq_median")?),
        short(100.0 * get(1024, false, "rows_holding_90_percent")?)
    );
    let grows = get(1024, false, "grad_norm_q")? > get(16, false, "grad_norm_q")?
        && get(1024, false, "grad_norm_q")? > get(1024, true, "grad_norm_q")?;
    let median_vanishes = get(1024, false, "row_dq_median")? < 1e-3 * get(1024, true, "row_dq_median")?;
    let verdict = if grows && median_vanishes { Verdict::WrongAsWorded } else { Verdict::Holds };
    let claims = [
        (Document::Surgeon, "without 1/sqrt(d_{k}) the gradients vanish for large d_{k}"),
        (Document::ProblemSheet, "at d_{k} = 512 without the scale the gradients are about 0, so nothing can be learned"),
        (Document::Insights, "without the scale the gradients vanish for all but the dominant positions, so the model cannot learn"),
    ];
    let briefly = format!(
        "The whole gradient is larger than with the scale at every width; it sits in the rows where two keys nearly tie, and only the typical row gets next to nothing (median {} at d_{{k}} = 256, {} with the scale).",
        short(get(256, false, "row_dq_median")?),
        short(get(256, true, "row_dq_median")?)
    );
    let mut all = Vec::new();
    for (place, (document, claim)) in claims.into_iter().enumerate() {
        let because = if place == 0 { because.clone() } else { briefly.clone() };
        all.push(Judged { section: "gradients", document, claim, verdict, because });
    }
    let norm = |scaled| tables.number(ROBUSTNESS, &cell(8, 256, scaled, "norm_dq"), "mean");
    all.push(Judged {
        section: "gradients",
        document: Document::MiniReport,
        claim: "its plot: the gradient norms of Q and K are larger without the scale",
        verdict: holds(norm(false)? > norm(true)?),
        because: format!(
            "At d_{{k}} = 256 and loss mean(out^{{2}}) the norm of dQ averages {} without and {} with the scale.",
            short(norm(false)?),
            short(norm(true)?)
        ),
    });
    Ok(all)
}

fn entropy(tables: &Tables) -> Result<Vec<Judged>> {
    let table = tables.get("attention_entropy")?;
    let published: Vec<f64> = table.rows.iter().map(|row| table.number(row, "percentile")).filter(|p| !p.is_nan()).collect();
    let outside = published.iter().filter(|p| tail(**p) < 2.5).count();
    let exact = |d_k: usize, scaled: bool| tables.number("attention_entropy", &[("d_k", d_k.into()), ("scaled", scaled.into())], "exact");
    let slope = (exact(512, false)? / exact(128, false)?).ln() / 4f64.ln();
    Ok(vec![
        Judged {
            section: "entropy",
            document: Document::Insights,
            claim: "its table of entropies at d_{k} = 8 to 512, without and with the scale",
            verdict: if lucky(&published.chunks(1).collect::<Vec<_>>()) { Verdict::LuckyDraw } else { Verdict::Holds },
            because: format!(
                "{} of its {} numbers lie inside the central 95 % of their distributions (20 tokens, one matrix each); the draws were not seeded, so they cannot be had again digit for digit.",
                published.len() - outside,
                published.len()
            ),
        },
        Judged {
            section: "entropy",
            document: Document::Insights,
            claim: "the entropy crashes without the scale, and attention becomes a one-hot choice; with the scale it is stable",
            verdict: holds(slope < -0.3 && (exact(512, true)? - exact(8, true)?).abs() < 0.05),
            because: format!(
                "Exact: from {} to {} nats without the scale, from {} to {} with it. The mean falls as a power, d_{{k}}^{{{}}}: rows in which two keys nearly tie keep it up.",
                short(exact(8, false)?),
                short(exact(512, false)?),
                short(exact(8, true)?),
                short(exact(512, true)?),
                format_args!("{slope:.2}")
            ),
        },
    ])
}

fn patterns(tables: &Tables) -> Result<Vec<Judged>> {
    let maps = tables.get("attention_patterns_maps")?;
    let above: f64 = maps
        .rows_where("pattern", "causal")
        .filter(|row| maps.number(row, "key") > maps.number(row, "query"))
        .map(|row| maps.number(row, "weight"))
        .sum();
    let pairs = |pattern: &str| tables.number("attention_patterns", &[("pattern", pattern.into())], "pairs");
    let empty = tables.get("attention_empty_rows")?;
    let nan = empty.rows.iter().filter(|row| empty.number(row, "textbook_sum").is_nan()).count();
    let zero = empty.rows.iter().all(|row| empty.number(row, "visible_keys") > 0.0 || empty.number(row, "regard_out") == 0.0);
    Ok(vec![
        Judged {
            section: "patterns",
            document: Document::Insights,
            claim: "full attention costs n^{2}, causal half of it, local attention n times the window, at the price of the global context",
            verdict: holds(pairs("local")? < pairs("causal")? && pairs("causal")? < pairs("full")?),
            because: format!(
                "Of {} pairs causal attention needs {} and the window {}; the time follows, because what is hidden is not computed.",
                short(pairs("full")?),
                short(pairs("causal")?),
                short(pairs("local")?)
            ),
        },
        Judged {
            section: "patterns",
            document: Document::Notebook,
            claim: "with a causal mask the heat map is lower-triangular",
            verdict: holds(above == 0.0),
            because: format!("The weights above the diagonal sum to exactly {above}, in every row."),
        },
        Judged {
            section: "patterns",
            document: Document::Surgeon,
            claim: "a row whose keys are all masked gives NaN in the softmax, and must be set to 0",
            verdict: holds(nan == 1 && zero),
            because: "The last query of a strictly-future mask sees nothing: NaN in the textbook softmax, exactly zero in Regard, where no NaN arises in the first place.".to_owned(),
        },
    ])
}

fn heads(tables: &Tables) -> Result<Vec<Judged>> {
    let get = |heads: usize, measure: &str, column| {
        tables.number("head_diversity", &[("heads", heads.into()), ("measure", measure.into())], column)
    };
    let percentiles = [get(2, "plain_cosine", "percentile")?, get(4, "plain_cosine", "percentile")?, get(8, "plain_cosine", "percentile")?];
    let explained = (get(4, "plain_cosine", "mean")? - get(4, "plain_cosine", "independent")?).abs() < 0.02
        && get(4, "centred_cosine", "mean")?.abs() < 0.02;
    Ok(vec![
        Judged {
            section: "heads",
            document: Document::Insights,
            claim: "the mean cosine of two heads' maps is 0.12, 0.17, 0.19 for 2, 4, 8 heads",
            verdict: if lucky(&percentiles.chunks(1).collect::<Vec<_>>()) { Verdict::LuckyDraw } else { Verdict::Holds },
            because: format!(
                "The means over many draws are {}, {}, {}; the published draws stand at the {}, {} and {} percentile.",
                short(get(2, "plain_cosine", "mean")?),
                short(get(4, "plain_cosine", "mean")?),
                short(get(8, "plain_cosine", "mean")?),
                ordinal(percentiles[0]),
                ordinal(percentiles[1]),
                ordinal(percentiles[2])
            ),
        },
        Judged {
            section: "heads",
            document: Document::Insights,
            claim: "low similarity shows that the heads learn different patterns",
            verdict: if explained { Verdict::WrongAsWorded } else { Verdict::Holds },
            because: format!(
                "Nothing was trained, and the number is that of independent random heads: 1 / (tokens x sum of squared weights) = {} for 4 heads, measured {}. It follows sharpness and length. The centred cosine, which asks the question, is {}.",
                short(get(4, "plain_cosine", "independent")?),
                short(get(4, "plain_cosine", "mean")?),
                short(get(4, "centred_cosine", "mean")?)
            ),
        },
        Judged {
            section: "heads",
            document: Document::Insights,
            claim: "a single head has similarity 1.00",
            verdict: Verdict::WrongAsWorded,
            because: "One head has no pair to compare: the 1.00 is the answer to an empty list, not a measurement.".to_owned(),
        },
    ])
}

fn checks(tables: &Tables) -> Result<Vec<Judged>> {
    let growth = |d_k: usize, column| tables.number("check_growth", &[("d_k", d_k.into())], column);
    let masking = |method: &str, column| tables.number("check_masking", &[("method", method.into())], column);
    let rank = |case: &str| tables.number("check_rank", &[("case", case.into())], "output_rank");
    let exact = |d_k, scaled| tables.number(ROBUSTNESS, &cell(8, d_k, scaled, "max_weight"), "exact");
    let test = tables.get("check_gradient_test")?;
    let unscaled: Vec<_> = test.rows_where("scaled", false).collect();
    let never_fails = unscaled.iter().all(|row| *test.value(row, "passes") == true.into());
    let least = unscaled.iter().map(|row| test.number(row, "smallest")).fold(f64::INFINITY, f64::min);
    let widths = tables.get("check_output_width")?;
    let by_values = widths.rows.iter().all(|row| widths.number(row, "out") == widths.number(row, "d_v"));
    let one = |document, claim, verdict, because| Judged { section: "checks", document, claim, verdict, because };
    Ok(vec![
        one(
            Document::Surgeon,
            "dot products of random vectors grow with sqrt(d_{k})",
            holds((growth(1024, "ratio")? - 1.0).abs() < 0.05 && (growth(16, "ratio")? - 1.0).abs() < 0.05),
            format!(
                "Their standard deviation is sqrt(d_{{k}}): measured {} at 16 and {} at 1024.",
                short(growth(16, "std")?),
                short(growth(1024, "std")?)
            ),
        ),
        one(
            Document::ProblemSheet,
            "at d_{k} = 512 dot products range from -50 to 50, scaled from -2.2 to 2.2",
            holds(growth(512, "within_50")? > 0.95),
            format!(
                "{} % of them lie inside, and the largest of 5 x 5 averages {} ({} scaled).",
                short(100.0 * growth(512, "within_50")?),
                short(growth(512, "largest")?),
                short(growth(512, "scaled_largest")?)
            ),
        ),
        one(
            Document::ProblemSheet,
            "at d_{k} = 64 the scale makes little difference",
            if exact(64, false)? - exact(64, true)? > 0.2 { Verdict::WrongAsWorded } else { Verdict::Holds },
            format!(
                "At 8 tokens the largest weight averages {} without and {} with the scale (exact).",
                short(exact(64, false)?),
                short(exact(64, true)?)
            ),
        ),
        one(
            Document::ProblemSheet,
            "gradients that do not vanish are shown by max |x.grad| > 10^{-8}",
            if never_fails { Verdict::WrongAsWorded } else { Verdict::Holds },
            format!(
                "Attention without the scale passes too, at every width: {} or more. The path through V never vanishes, so the test cannot fail.",
                short(least)
            ),
        ),
        one(
            Document::Surgeon,
            "hide with -inf, not with 0: softmax turns a score of 0 into weight",
            holds(
                masking("0 before the softmax", "hidden_weight")? > 0.0
                    && masking("-inf before the softmax (Regard)", "hidden_weight")? == 0.0,
            ),
            format!(
                "With 0 a hidden key keeps a weight of {} on average; with -inf exactly 0. Zeros after the softmax leave rows that sum to as little as {}.",
                short(masking("0 before the softmax", "hidden_weight")?),
                short(masking("0 after the softmax", "least_row_sum")?)
            ),
        ),
        one(
            Document::Surgeon,
            "the output is as wide as the values, whatever d_{k} is",
            holds(by_values),
            "The weights are tokens by tokens for every d_{k}; the output is a mixture of values.".to_owned(),
        ),
        one(
            Document::Surgeon,
            "attention is a convex combination, so the output cannot have a higher rank than the input",
            Verdict::HoldsInPart,
            format!(
                "True of one head and its values (3 in, {} out). Heads side by side can raise the rank: tokens of rank 2 give {} with 4 heads. And the softmax makes weights of rank {} out of scores of rank 1.",
                short(rank("values of rank 3")?),
                short(rank("rank-2 tokens, heads: 4")?),
                short(rank("softmax, d_k = 1")?)
            ),
        ),
    ])
}

fn parity(tables: &Tables) -> Result<Vec<Judged>> {
    let golden = tables.get("parity_golden")?;
    let all_agree = golden.rows.iter().all(|row| *golden.value(row, "agrees") == true.into());
    let worst = golden.rows_where("type", "float32").map(|row| golden.number(row, "out_error")).fold(0.0, f64::max);
    Ok(vec![Judged {
        section: "parity",
        document: Document::MiniReport,
        claim: "attention from scratch differs very little from PyTorch's",
        verdict: holds(all_agree),
        because: format!(
            "Ours differs by at most {} in float32 over {} stored cases.",
            short(worst),
            golden.rows_where("type", "float32").count()
        ),
    }])
}

/// `93rd`.
fn ordinal(percentile: f64) -> String {
    let n = percentile.round() as i64;
    let ending = match (n % 10, n % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{n}{ending}")
}
