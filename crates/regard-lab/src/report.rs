//! The report: every experiment, then the page, which is a function of the tables alone.

use crate::claims::{self, Judged};
use crate::draw;
use crate::error::Result;
use crate::experiments::{
    BenchConfig, ChecksConfig, EntropyConfig, HeadsConfig, Loss, Numbers, ParityConfig, PatternsConfig, Progress, RobustnessConfig,
    SweepConfig,
};
use crate::figure::Figure;
use crate::page::{Lead, Page, Section};
use crate::table::Value;
use crate::table_text::prose_number as short;
use crate::tables::Tables;
use crate::trained;
use std::path::PathBuf;

/// How large a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportConfig {
    /// Draws per cell.
    pub seeds: usize,
    /// Which draws.
    pub seed: u64,
    /// A Python with PyTorch to compare with, too.
    pub python: Option<PathBuf>,
    /// Measure times, too. Without them two reports with the same settings are the same, byte for byte.
    pub timing: bool,
    /// Train, too. Without it the results of trainings are those that are stored with the program.
    pub train: bool,
}

impl Default for ReportConfig {
    fn default() -> Self {
        Self { seeds: 2000, seed: 1, python: None, timing: true, train: false }
    }
}

/// What is drawn of the gradients.
const GRADIENT_D_K: [usize; 6] = [4, 16, 64, 256, 1024, 4096];

impl ReportConfig {
    /// The command that makes the same report.
    pub fn command(&self) -> String {
        let (timing, train) = (if self.timing { "" } else { " --no-timing" }, if self.train { " --train" } else { "" });
        format!("regard report --seeds {} --seed {}{timing}{train}", self.seeds, self.seed)
    }

    fn gradients(&self) -> SweepConfig {
        // The widest heads cost as much as all others together; a fifth of the draws still gives thousands of rows.
        let seeds = (self.seeds / 5).max(self.seeds.min(200));
        SweepConfig {
            d_k: GRADIENT_D_K.to_vec(),
            seeds,
            seed: self.seed,
            numbers: Numbers::Regard,
            loss: Loss::Unit,
            ..SweepConfig::default()
        }
    }

    /// Run every experiment.
    ///
    /// # Errors
    /// When a setting is not possible.
    pub fn run(&self, progress: &dyn Progress) -> Result<Tables> {
        let (seeds, seed) = (self.seeds, self.seed);
        let mut trained = if self.train { trained::again(seed, progress)? } else { trained::stored() };
        let mut tables = SweepConfig::default().run(progress)?;
        tables.extend(RobustnessConfig { seeds, seed, ..RobustnessConfig::default() }.run(progress)?);
        let mut gradients = self.gradients().run(progress)?.swap_remove(0);
        gradients.name = "attention_gradients".to_owned();
        tables.push(gradients);
        tables.extend(EntropyConfig { seeds, seed, ..EntropyConfig::default() }.run(progress)?);
        let timed_seq = PatternsConfig::default().timed_seq.filter(|_| self.timing);
        tables.extend(PatternsConfig { seed, timed_seq, ..PatternsConfig::default() }.run(progress)?);
        tables.extend(HeadsConfig { seeds, seed, ..HeadsConfig::default() }.run(progress)?);
        tables.extend(ChecksConfig { seeds: seeds.min(1000), seed, ..ChecksConfig::default() }.run(progress)?);
        tables.extend(ParityConfig { python: self.python.clone(), ..ParityConfig::default() }.run(progress)?);
        if self.timing {
            tables.extend(BenchConfig { seconds: 0.5, ..BenchConfig::default() }.run(progress)?);
        }
        tables.append(&mut trained);
        let mut tables = Tables::from(tables);
        let mut verdicts = claims::table(&claims::judge(&tables)?);
        verdicts.origin = tables.get("attention_robustness_summary")?.origin.clone();
        verdicts.origin.iter_mut().filter(|(key, _)| key == "command").for_each(|(_, value)| *value = self.command());
        tables.put(verdicts);
        Ok(tables)
    }
}

/// The page and its figures, out of the tables.
///
/// # Errors
/// When a table is missing or lacks what a figure needs.
pub fn render(tables: &Tables) -> Result<(Page, Vec<Figure>)> {
    let judged = claims::judge(tables)?;
    let lead = lead(tables)?;
    let drawn = draw::all(tables)?;
    let mut figures: Vec<Figure> = lead.figure.iter().cloned().collect();
    figures.extend(drawn.iter().cloned());
    let origin = tables.get("published_claims")?.origin.iter().filter(|(key, _)| key != "numbers").cloned().collect();
    let sections = SECTIONS.iter().map(|outline| outline.fill(tables, &judged, &drawn)).collect::<Result<Vec<_>>>()?;
    let page = Page {
        title: "Regard: attention, re-run and checked".to_owned(),
        subtitle: "Every experiment of five documents on scaled dot-product attention, run again over many draws, put against exact expectations, and judged claim by claim".to_owned(),
        lead,
        sections: sections.into_iter().flatten().collect(),
        origin,
    };
    Ok((page, figures))
}

fn lead(tables: &Tables) -> Result<Lead> {
    let exact = |d_k: usize, scaled: bool| {
        let at: [(&str, Value); 4] =
            [("seq", 8usize.into()), ("d_k", d_k.into()), ("scaled", scaled.into()), ("statistic", "max_weight".into())];
        tables.number("attention_robustness_summary", &at, "exact").map(short)
    };
    let gradient = |scaled: bool, column| {
        tables.number("attention_gradients", &[("d_k", 1024usize.into()), ("scaled", scaled.into())], column).map(short)
    };
    let answer = vec![
        format!(
            "The dot product of two random vectors of d_{{k}} numbers has the standard deviation sqrt(d_{{k}}), so without the scale wide heads make scores that differ by dozens, and the softmax gives nearly everything to one key: of 8 weights the largest averages {} at d_{{k}} = 256.",
            exact(256, false)?
        ),
        format!(
            "Divided by sqrt(d_{{k}}) the scores have standard deviation 1 at every width, and the same weight averages {} at d_{{k}} = 16 and {} at 1024: how sharp attention is, is then left to learning.",
            exact(16, true)?,
            exact(1024, true)?
        ),
        format!(
            "The gradient does not vanish without the scale, as is often said, it concentrates: at d_{{k}} = 1024 its norm is {} instead of {}, while the median row gets {} instead of {}.",
            gradient(false, "grad_norm_q")?,
            gradient(true, "grad_norm_q")?,
            gradient(false, "row_dq_median")?,
            gradient(true, "row_dq_median")?
        ),
    ];
    Ok(Lead { question: "Why divide by sqrt(d_{k})?".to_owned(), answer, figure: Some(draw::lead(tables)?) })
}

/// What a section is made of; its numbers come from the tables.
struct Outline {
    id: &'static str,
    title: &'static str,
    intro: &'static str,
    figures: &'static [&'static str],
    /// Tables with the columns that are shown; all of them where none are named.
    tables: &'static [(&'static str, &'static [&'static str])],
    notes: &'static [&'static str],
    command: &'static str,
    /// Left out of the page when its first table is not there.
    optional: bool,
}

const SWEEP_COLUMNS: &[&str] = &[
    "d_k",
    "scaled",
    "mean_max_weight",
    "mean_entropy",
    "mean_sum_of_squares",
    "grad_norm_q",
    "grad_norm_k",
    "row_dq_median",
    "row_d_scores_median",
    "score_min",
    "score_max",
];
const ROBUSTNESS_COLUMNS: &[&str] =
    &["seq", "d_k", "scaled", "statistic", "mean", "std", "ci_low", "ci_high", "exact", "deviation", "published", "percentile"];
const ENTROPY_COLUMNS: &[&str] = &["d_k", "scaled", "mean", "std", "ci_low", "ci_high", "exact", "deviation", "published", "percentile"];
const HEADS_COLUMNS: &[&str] = &["heads", "measure", "mean", "std", "q025", "q975", "independent", "published", "percentile"];
const GRADIENT_COLUMNS: &[&str] = &[
    "d_k",
    "scaled",
    "seeds",
    "grad_norm_q",
    "grad_norm_k",
    "grad_norm_v",
    "row_dq_rms",
    "row_dq_median",
    "row_d_scores_rms",
    "row_d_scores_median",
    "rows_below_1e_8",
    "rows_holding_90_percent",
];

const MASK_COLUMNS: &[&str] = &[
    "variant",
    "sees",
    "predicts",
    "train_loss",
    "validation_loss",
    "accuracy",
    "last_position_loss",
    "prefix_only_loss",
    "causal_mask_loss",
    "leak_before",
    "leak",
    "placeholder_q",
    "placeholder_e",
    "real_words",
    "surprise",
];

const SECTIONS: [Outline; 13] = [
    Outline {
        id: "sweep",
        title: "The sweep: one draw per width",
        intro: "Queries, keys and values of 8 tokens are drawn at random for d_{k} = 4, 16, 64, 256 and attended to without and with the scale. The draws are those of PyTorch's seeds 42 + d_{k}, made again without PyTorch, so that every number of the mini-report's CSV file appears here to 2 x 10^{-6}.",
        figures: &["attention_sweep", "gradient_norms_vs_dk", "attention_heatmap_gallery"],
        tables: &[("attention_sweep_results", SWEEP_COLUMNS)],
        notes: &[
            "One draw says little about the expectation: the next section has thousands.",
            "The five documents: Scaled Dot-Product Attention From Scratch (here: mini-report); The Attention Surgeon, a project sheet; Problem 3: Scaled Dot-Product Attention (problem sheet); Scaled Dot-Product Attention from Scratch, a notebook in NumPy; Attention Mechanisms: Experiment Results and Insights.",
        ],
        command: "regard sweep",
        optional: false,
    },
    Outline {
        id: "robustness",
        title: "Robustness: many draws, and the exact expectation",
        intro: "The same cells over many independent draws. The expectations are computed by quadrature: given q, the scores of a row are independent normal numbers whose spread is the chi-distributed length of q, so every expectation is an integral over that length, and no sampling is needed. `deviation` is the distance of the mean from it, in standard errors.",
        figures: &["attention_robustness", "published_percentiles"],
        tables: &[("attention_robustness_summary", ROBUSTNESS_COLUMNS)],
        notes: &[
            "A claim that rests on one draw is called a lucky draw when fewer than one draw in ten is as extreme on that side; a claim that rests on several, when more than a quarter of them lie outside the central 95 % of their distributions.",
        ],
        command: "regard robustness",
        optional: false,
    },
    Outline {
        id: "gradients",
        title: "Gradients: what vanishes, and what does not",
        intro: "The gradients of a loss in a random direction, scaled so that the gradient on each weight has variance 1, at widths up to 4096. For each row of dQ its own norm.",
        figures: &["attention_gradients"],
        tables: &[("attention_gradients", GRADIENT_COLUMNS)],
        notes: &[
            "Near ties explain it: a row whose two best keys are close together passes on a gradient that is multiplied by keys of length sqrt(d_{k}), all other rows pass on almost nothing. The root mean square of a row grows as d_{k}^{1/4}, its median falls exponentially.",
            "The gradient on V never vanishes: every row of weights sums to 1.",
        ],
        command: "regard sweep --numbers regard --loss unit --seeds 400 --d-k 4,16,64,256,1024,4096",
        optional: false,
    },
    Outline {
        id: "entropy",
        title: "Entropy against width",
        intro: "Entropy of the weights over 20 tokens. Uniform attention would have ln 20 = 3.0 nats, a one-hot choice 0.",
        figures: &["attention_entropy"],
        tables: &[("attention_entropy", ENTROPY_COLUMNS)],
        notes: &[],
        command: "regard entropy",
        optional: false,
    },
    Outline {
        id: "patterns",
        title: "Patterns: what a mask lets through, and what it costs",
        intro: "The same queries and keys under eight masks. A mask decides who may look at whom; hidden keys get exactly no weight, and cost nothing where a whole tile of them is hidden.",
        figures: &["attention_patterns", "attention_pattern_cost"],
        tables: &[("attention_patterns", &[]), ("attention_empty_rows", &[]), ("patterns_time", &[])],
        notes: &[
            "A row that sees nothing (the last query of a strictly-future mask) is NaN in a textbook softmax. Here it is zero, with a log-sum-exp of minus infinity, and a NaN in a hidden key does not reach any output.",
        ],
        command: "regard patterns",
        optional: false,
    },
    Outline {
        id: "heads",
        title: "Heads: is a low cosine diversity?",
        intro: "Untrained multi-head attention of width 64 over 20 tokens, weights of variance 2/64. Three measures of how alike two heads are: the cosine of their maps as published, the cosine after centring (a correlation), and the Jensen-Shannon divergence of their rows.",
        figures: &["head_similarity", "head_maps"],
        tables: &[("head_diversity", HEADS_COLUMNS), ("head_sharpness", &[])],
        notes: &[
            "All weights are positive, so two unrelated maps have a cosine well above 0: 1 / (tokens x sum of squared weights). Multiply the scores by 0.01 and unrelated heads are 99.96 % similar; make them sharp and they look diverse. The centred cosine stays near 0 throughout.",
        ],
        command: "regard heads",
        optional: false,
    },
    Outline {
        id: "checks",
        title: "Four questions, and a test that cannot fail",
        intro: "How do dot products grow with d_{k}? Why is a key hidden with -inf and not with 0? Who sets the width of the output? Can the output have a higher rank than the input? And: does `max |x.grad| > 1e-8` detect a missing scale?",
        figures: &["attention_checks"],
        tables: &[
            ("check_growth", &[]),
            ("check_masking", &[]),
            ("check_output_width", &[]),
            ("check_rank", &[]),
            ("check_gradient_test", &[]),
        ],
        notes: &[],
        command: "regard checks",
        optional: false,
    },
    Outline {
        id: "masks",
        title: "Masks in training: the cheater looks perfect",
        intro: "The same small language model (2 blocks, width 64, 4 heads, windows of 64 characters) is trained under six masks and then judged in five steps. Leak: tokens that a prediction must not depend on are changed, and the prediction must not move. Teacher-forced loss: what one usually looks at. Prefix alone: for each length only the tokens that would exist, so an honest model keeps its loss. Placeholder: the missing future is filled with one letter; a model that copies its target predicts that letter. Writing: 32 texts at temperature 1.",
        figures: &["mask_training", "mask_training_use"],
        tables: &[
            ("mask_training", MASK_COLUMNS),
            ("mask_training_samples", &["variant", "temperature", "written", "prompt", "real_words", "surprise"]),
            ("mask_training_baselines", &[]),
            ("mask_training_prefix", &[]),
        ],
        notes: &[
            "Why validation does not find it: in a held-out window the next token stands in the window too, one place further on, and the mask lets the model read it there. What is left of the loss comes from the one position whose target lies outside of the window. Only a test that takes the future away, as writing does, tells the two apart; the leak probe needs no training at all.",
            "A reverse mask is not wrong in itself. With the previous token as its target it is an honest model that writes from right to left. Wrong is a mask that shows the target.",
            "Without any mask a model can still write, badly, once its window is full: the last position of a full window was trained with the whole past and no future. At every shorter length it is lost, which the loss by length shows.",
            "Do not judge by greedy writing: a broken model that repeats one frequent word writes nothing but real words.",
        ],
        command: "regard masks",
        optional: true,
    },
    Outline {
        id: "scale-training",
        title: "The scale in training",
        intro: "The same language model with and without 1/sqrt(d_{k}), at head sizes 4, 16, 64 and 256. At every tenth of the training its heads and its gradients are looked at with the same held-out windows.",
        figures: &["scale_training", "scale_training_entropy", "scale_training_saturation"],
        tables: &[("scale_training", &[]), ("scale_training_gradients", &[])],
        notes: &[],
        command: "regard ablate-scale",
        optional: true,
    },
    Outline {
        id: "trained-heads",
        title: "Trained heads: do they learn different patterns?",
        intro: "What the section on untrained heads could not ask. The language model of the section on masks, with its causal mask, while it learns: what each head looks at, and how alike the heads of a block are.",
        figures: &["trained_heads", "trained_heads_look"],
        tables: &[("trained_heads_likeness", &[]), ("trained_heads", &[])],
        notes: &[
            "One training with one seed: the numbers say what happened here, not what happens always. A centred cosine under a causal mask begins near 1 because nearly uniform heads share the shape of the triangle.",
        ],
        command: "regard trained-heads",
        optional: true,
    },
    Outline {
        id: "pairs",
        title: "Cross-attention: reading one sequence, writing another",
        intro: "An encoder-decoder learns to write 3 to 12 letters backwards, and to write numbers below a million in words. Both need cross-attention: the decoder sees the input through nothing else. It is tried on inputs that were never trained on, and counts as right only when every token is.",
        figures: &["pairs_reverse", "pairs_number_words", "pairs_learning"],
        tables: &[("pairs_results", &[]), ("pairs_heads", &[]), ("pairs_examples", &[])],
        notes: &[
            "Some letters are read a column or two beside the anti-diagonal: self-attention of the encoder mixes neighbours, and where a letter ends up is for training to choose.",
        ],
        command: "regard pairs",
        optional: true,
    },
    Outline {
        id: "parity",
        title: "Parity with PyTorch",
        intro: "The attention that everything here was computed with, against answers of PyTorch's own mathematics in float64 that are stored in the program.",
        figures: &[],
        tables: &[("parity_golden", &[]), ("parity_torch", &[])],
        notes: &["`regard parity` also asks PyTorch itself, where a Python has it."],
        command: "regard parity",
        optional: false,
    },
    Outline {
        id: "bench",
        title: "Speed on this machine",
        intro: "Full attention of 8 heads of 1024 tokens, against ceilings measured in the same minute: multiply-adds in registers, and reading memory.",
        figures: &[],
        tables: &[("bench", &[])],
        notes: &["Times differ from run to run; all other tables of this page are the same for the same command."],
        command: "regard bench",
        optional: true,
    },
];

impl Outline {
    fn fill(&self, tables: &Tables, judged: &[Judged], figures: &[Figure]) -> Result<Option<Section>> {
        if self.optional && self.tables.iter().all(|(name, _)| tables.find(name).is_none()) {
            return Ok(None);
        }
        let shown = self.tables.iter().filter_map(|(name, columns)| {
            tables.find(name).map(|table| if columns.is_empty() { table.clone() } else { table.select(columns) })
        });
        let mut notes: Vec<String> = self.notes.iter().map(|note| (*note).to_owned()).collect();
        notes.extend(self.tables.first().and_then(|(name, _)| tables.find(name)).and_then(trained::note));
        Ok(Some(Section {
            id: self.id.to_owned(),
            title: self.title.to_owned(),
            intro: self.intro.to_owned(),
            claims: judged.iter().filter(|j| j.section == self.id).map(Judged::on_page).collect(),
            figures: self.figures.iter().filter_map(|name| figures.iter().find(|f| f.name == *name).cloned()).collect(),
            tables: shown.collect(),
            notes,
            command: self.command.to_owned(),
        }))
    }
}
