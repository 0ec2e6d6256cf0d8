//! The report: one self-contained HTML page that works from a file, offline, without any request.
//!
//! Light and dark follow the reader (with a switch), figures can be enlarged and read by mouse or keyboard, tables can be sorted and
//! saved as CSV. All texts are escaped. In prose `d_{k}` sets a subscript, `10^{-3}` a superscript and
//! `` `code` `` code.

mod html;

use crate::figure::{Figure, FigureError};
use crate::table::Table;

/// Verdict on a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// The claim agrees with its true distribution.
    Holds,
    /// True of part of what it says, shown in the sentence.
    HoldsInPart,
    /// Numbers without an experiment: they show a direction.
    Illustrative,
    /// A single draw, compared with its expectation.
    OneDraw,
    /// Several draws that chance rarely produces.
    LuckyDraw,
    /// The numbers are right, the sentence around them is not.
    WrongAsWorded,
    /// Does not hold.
    Wrong,
    /// The evidence does not reach: more draws or more trainings are needed.
    Undecided,
    /// A statement about other work, with its reference.
    ByReference,
    /// Could not be checked here; the sentence says why.
    NotChecked,
}

impl Verdict {
    /// All verdicts, from good to bad, then those without a result.
    pub const ALL: [Self; 10] = [
        Self::Holds,
        Self::HoldsInPart,
        Self::Illustrative,
        Self::OneDraw,
        Self::LuckyDraw,
        Self::WrongAsWorded,
        Self::Wrong,
        Self::Undecided,
        Self::ByReference,
        Self::NotChecked,
    ];

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::HoldsInPart => "holds in part",
            Self::Illustrative => "illustrative",
            Self::OneDraw => "one draw",
            Self::LuckyDraw => "lucky draw",
            Self::WrongAsWorded => "wrong as worded",
            Self::Wrong => "wrong",
            Self::Undecided => "undecided",
            Self::ByReference => "by reference",
            Self::NotChecked => "not checked",
        }
    }
}

/// A claim with its verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Short name of its document in [`Page::documents`]; may be empty.
    pub document: String,
    /// Section of the document; may be empty.
    pub section: String,
    /// The statement.
    pub text: String,
    pub verdict: Verdict,
    /// Why, in one sentence.
    pub because: String,
    /// The rule of the verdict; may be empty.
    pub edge: String,
}

/// A table on a page. Its CSV has all columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Shown {
    /// The table.
    pub table: Table,
    /// The columns that are seen, in this order; all where none are named.
    pub columns: Vec<String>,
}

impl From<Table> for Shown {
    fn from(table: Table) -> Self {
        Self { table, columns: Vec::new() }
    }
}

/// One experiment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Section {
    /// Anchor in the page, for example `sweep`.
    pub id: String,
    /// Heading.
    pub title: String,
    /// What is done and why, a few sentences.
    pub intro: String,
    /// Claims with their verdicts.
    pub claims: Vec<Claim>,
    /// Figures, in order.
    pub figures: Vec<Figure>,
    /// Tables, in order.
    pub tables: Vec<Shown>,
    /// Remarks, one paragraph each.
    pub notes: Vec<String>,
    /// The command that runs this experiment alone.
    pub command: String,
}

/// A question for students, and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Exercise {
    pub question: String,
    pub answer: String,
}

/// A topic of the core: a few sentences with a table or a figure, and an exercise.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Topic {
    /// Anchor in the page.
    pub id: String,
    pub title: String,
    /// Paragraphs.
    pub text: Vec<String>,
    pub tables: Vec<Shown>,
    pub figure: Option<Figure>,
    pub exercise: Exercise,
}

/// The opening: the answer, in one figure and a few sentences.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Lead {
    /// The question, as a heading.
    pub question: String,
    /// The formula that it is about, set on a line of its own.
    pub formula: String,
    /// The answer, sentence by sentence.
    pub answer: Vec<String>,
    /// The figure that shows it.
    pub figure: Option<Figure>,
    pub exercise: Exercise,
}

/// A report.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Page {
    /// Title of the page.
    pub title: String,
    /// A line below the title.
    pub subtitle: String,
    /// The answer first.
    pub lead: Lead,
    /// The core: what a lesson needs.
    pub core: Vec<Topic>,
    /// The documents whose claims are judged: the name that claims have, and the whole title.
    pub documents: Vec<(String, String)>,
    /// Rules of the verdicts for the methods box: what is decided, the edge, the false rate.
    pub methods: Vec<[String; 3]>,
    /// The experiments.
    pub sections: Vec<Section>,
    /// Where everything came from: version, seed, SIMD level, command line.
    pub origin: Vec<(String, String)>,
}

impl Page {
    /// The whole page as HTML.
    ///
    /// # Errors
    /// When a figure cannot be drawn.
    pub fn html(&self) -> Result<String, FigureError> {
        html::page(self)
    }

    /// Lead and core for printing, one topic per page: exercises with room to write, or with their answers.
    ///
    /// # Errors
    /// When a figure cannot be drawn.
    pub fn handout(&self, answers: bool) -> Result<String, FigureError> {
        html::handout(self, answers)
    }
}
