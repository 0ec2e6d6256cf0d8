//! Published numbers, each with the document that contains it.

/// A document whose numbers and claims are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Document {
    /// A report with a notebook and two CSV files; draws by PyTorch seeds.
    MiniReport,
    /// A project sheet of a course, with a table of what to expect.
    Surgeon,
    /// A problem sheet with tests.
    ProblemSheet,
    /// A notebook in NumPy.
    Notebook,
    /// Results and insights of experiments in NumPy.
    Insights,
}

/// The statistic that a number is a value of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Statistic {
    /// Mean over the rows of the largest weight.
    MaxWeight,
    /// Mean over the rows of the entropy in nats.
    Entropy,
    /// Mean over the rows of the sum of the squared weights.
    SumOfSquares,
    /// Frobenius norm of the gradient on Q, for the loss `mean(out^2)`.
    NormDq,
    /// The same for K.
    NormDk,
    /// Mean cosine of the flattened maps of two heads; `d_k` is the number of heads.
    HeadCosine,
}

impl Statistic {
    /// Name in tables.
    pub const fn word(self) -> &'static str {
        match self {
            Self::MaxWeight => "max_weight",
            Self::Entropy => "entropy",
            Self::SumOfSquares => "sum_of_squares",
            Self::NormDq => "norm_dq",
            Self::NormDk => "norm_dk",
            Self::HeadCosine => "head_cosine",
        }
    }
}

/// One published number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Number {
    pub document: Document,
    pub statistic: Statistic,
    /// Tokens.
    pub seq: usize,
    /// Head dimension.
    pub d_k: usize,
    pub scaled: bool,
    pub value: f64,
}

/// The mini-report's CSV: d_k, scaled, then mean largest weight, mean entropy, norms of dQ and dK. Its text quotes the two last rows.
pub const MINI_REPORT: [(usize, bool, [f64; 4]); 8] = [
    (4, false, [0.472408, 1.490452, 0.172545, 0.160474]),
    (4, true, [0.285367, 1.896224, 0.049016, 0.052782]),
    (16, false, [0.834383, 0.440413, 0.196614, 0.227972]),
    (16, true, [0.469838, 1.517427, 0.082821, 0.093654]),
    (64, false, [0.824134, 0.525305, 0.489251, 0.521016]),
    (64, true, [0.282738, 1.849734, 0.030680, 0.035202]),
    (256, false, [0.994217, 0.029603, 0.175975, 0.188997]),
    (256, true, [0.367958, 1.725610, 0.039397, 0.041567]),
];

/// Results and Insights: d_k, entropy unscaled and scaled, at 20 tokens.
pub const INSIGHTS_ENTROPY: [(usize, f64, f64); 6] =
    [(8, 1.50, 2.65), (32, 0.51, 2.55), (64, 0.42, 2.54), (128, 0.25, 2.51), (256, 0.13, 2.54), (512, 0.07, 2.56)];

/// Results and Insights: number of heads, mean cosine of two heads' maps, at 20 tokens. (Its 1.00 for one head has no pair behind it.)
pub const INSIGHTS_HEADS: [(usize, f64); 3] = [(2, 0.12), (4, 0.17), (8, 0.19)];

/// The project sheet's table of expected values: d_k, largest weight without and with the scale. No number of tokens is given.
pub const SURGEON_MAX: [(usize, f64, f64); 4] = [(16, 0.8, 0.5), (64, 0.95, 0.5), (256, 0.99, 0.5), (1024, 1.0, 0.5)];

/// The problem sheet: at d_k = 512 the scores are said to lie within these, unscaled and scaled.
pub const PROBLEM_SHEET_RANGE: (usize, f64, f64) = (512, 50.0, 2.2);

/// Every number whose set-up is known, so that it can be compared with its distribution.
pub fn numbers() -> Vec<Number> {
    let mut all = Vec::new();
    for (d_k, scaled, values) in MINI_REPORT {
        let statistics = [Statistic::MaxWeight, Statistic::Entropy, Statistic::NormDq, Statistic::NormDk];
        for (statistic, value) in statistics.into_iter().zip(values) {
            all.push(Number { document: Document::MiniReport, statistic, seq: 8, d_k, scaled, value });
        }
    }
    for (d_k, unscaled, scaled) in INSIGHTS_ENTROPY {
        for (is_scaled, value) in [(false, unscaled), (true, scaled)] {
            all.push(Number { document: Document::Insights, statistic: Statistic::Entropy, seq: 20, d_k, scaled: is_scaled, value });
        }
    }
    for (heads, value) in INSIGHTS_HEADS {
        all.push(Number { document: Document::Insights, statistic: Statistic::HeadCosine, seq: 20, d_k: heads, scaled: true, value });
    }
    all
}

/// The published number of that cell.
pub(crate) fn number(statistic: Statistic, seq: usize, d_k: usize, scaled: bool) -> Option<f64> {
    let same = |n: &Number| (n.statistic, n.seq, n.d_k, n.scaled) == (statistic, seq, d_k, scaled);
    numbers().into_iter().find(same).map(|n| n.value)
}
