//! Claims as data: `claims/*.toml` names each document, its section, a statement, the experiment, quantities of its tables, and rules.
//!
//! A claim with rules is judged from its file alone. A claim with a `reference` is a statement about other work: the reference is its
//! evidence. Any other claim is judged by the experiment's code under the same `id`, and `edge` states the rule of that code.
//!
//! ```toml
//! title = "A document"
//! name = "its short name"
//! [[claim]]
//! id = "scores-grow"
//! section = "2"
//! statement = "dot products grow with sqrt(d_{k})"
//! experiment = "checks"
//! because = "Their standard deviation at 1024 is {std}."
//! [claim.quantity]
//! std = { table = "check_growth", where = { d_k = 1024 }, column = "std" }
//! [[claim.rule]]
//! quantity = "std"
//! within = [31.0, 33.0]
//! ```

use crate::EXPERIMENTS;
use crate::error::{Error, Result};
use crate::judging::percent;
use crate::rules;
use crate::statistics::estimate::Estimate;
use regard_files::limits::CLAIMS_BYTES;
use regard_plot::page::Verdict;
use regard_plot::{Tables, Value, prose_number};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The claims of one document.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    pub title: String,
    /// Short name on the page.
    pub name: String,
    #[serde(default, rename = "claim")]
    pub claims: Vec<Claim>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    pub id: String,
    /// Section of the document, and whether the claim is a question or comes from elsewhere than its text.
    pub section: String,
    pub statement: String,
    pub experiment: String,
    /// Reason with `{quantity}` or `{quantity:percent}` in it; required with rules.
    #[serde(default)]
    pub because: String,
    /// Rule of the experiment's code, in words; `{NAME}` is a constant of `rules.rs`.
    #[serde(default)]
    edge: String,
    /// Published work that a statement about other work rests on.
    #[serde(default)]
    pub reference: String,
    /// Verdict where every rule is met.
    #[serde(default = "holds")]
    if_all: String,
    /// Verdict where some rules are met.
    #[serde(default = "in_part")]
    if_some: String,
    /// Verdict where no rule is met.
    #[serde(default = "wrong")]
    if_none: String,
    #[serde(default)]
    quantity: BTreeMap<String, Quantity>,
    #[serde(default, rename = "rule")]
    rules: Vec<Rule>,
}

fn holds() -> String {
    Verdict::Holds.words().to_owned()
}

fn in_part() -> String {
    Verdict::HoldsInPart.words().to_owned()
}

fn wrong() -> String {
    Verdict::Wrong.words().to_owned()
}

/// One cell of a table, with its interval where the table has one.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Quantity {
    table: String,
    #[serde(default, rename = "where")]
    at: BTreeMap<String, Cell>,
    column: String,
}

impl Quantity {
    fn words(&self) -> String {
        let at: Vec<String> = self.at.iter().map(|(column, cell)| format!("{column} = {}", Value::from(cell).to_field())).collect();
        format!("`{}.{}` ({})", self.table, self.column, at.join(", "))
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Cell {
    Flag(bool),
    Integer(i64),
    Number(f64),
    Text(String),
}

impl From<&Cell> for Value {
    fn from(cell: &Cell) -> Self {
        match cell {
            Cell::Flag(x) => (*x).into(),
            Cell::Integer(x) => Value::Integer(*x),
            Cell::Number(x) => Value::Number(*x),
            Cell::Text(x) => x.as_str().into(),
        }
    }
}

/// A condition on a quantity. Exactly one of the edges is given.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    quantity: String,
    above: Option<f64>,
    below: Option<f64>,
    within: Option<[f64; 2]>,
    /// Above another quantity, multiplied by `times`.
    exceeds: Option<String>,
    /// Below another quantity, multiplied by `times`.
    falls_below: Option<String>,
    #[serde(default = "one")]
    times: f64,
}

fn one() -> f64 {
    1.0
}

/// The documents that the report is about.
pub fn embedded() -> &'static [Source] {
    static SOURCES: OnceLock<Vec<Source>> = OnceLock::new();
    SOURCES.get_or_init(|| {
        [
            include_str!("../claims/mini_report.toml"),
            include_str!("../claims/surgeon.toml"),
            include_str!("../claims/problem_sheet.toml"),
            include_str!("../claims/notebook.toml"),
            include_str!("../claims/insights.toml"),
        ]
        .map(|text| parse(text).unwrap_or_else(|reason| panic!("an embedded file of claims: {reason}")))
        .to_vec()
    })
}

/// The claims of every `*.toml` file of a folder, in the order of the names.
///
/// # Errors
/// [`Error::Claims`] when a file cannot be read, is malformed, or has a claim that its own rules cannot decide.
pub fn read(folder: &Path) -> Result<Vec<Source>> {
    let refused = |path: &Path, reason: String| Error::Claims { path: path.to_owned(), reason };
    let unreadable = |e: std::io::Error| refused(folder, format!("cannot list the folder: {e}; give one with *.toml files"));
    let entries = std::fs::read_dir(folder).map_err(unreadable)?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    if files.is_empty() {
        return Err(refused(folder, "no *.toml file; see docs/claims.md".to_owned()));
    }
    let one = |path: &PathBuf| {
        let text = regard_files::read_text(path, CLAIMS_BYTES.max)?;
        let source = parse(&text).map_err(|reason| refused(path, reason))?;
        match source.claims.iter().find(|claim| claim.rules.is_empty() && claim.reference.is_empty()) {
            Some(claim) => Err(refused(path, format!("claim {} has no rule; add [[claim.rule]] or reference", claim.id))),
            None => Ok(source),
        }
    };
    files.iter().map(one).collect()
}

fn parse(text: &str) -> std::result::Result<Source, String> {
    let source: Source = toml::from_str(text).map_err(|e| e.to_string())?;
    source.claims.iter().try_for_each(Claim::check)?;
    Ok(source)
}

fn verdict(words: &str) -> Option<Verdict> {
    Verdict::ALL.into_iter().find(|verdict| verdict.words() == words)
}

impl Claim {
    /// Whether its rules decide it, rather than the experiment's code.
    pub fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }

    /// Whether a table of its quantities is one that experiments make, but not in this report: times without a timing.
    pub(crate) fn lacks_optional_table(&self, tables: &Tables) -> bool {
        let declared = |name: &str| EXPERIMENTS.iter().any(|experiment| experiment.tables().iter().any(|(table, _)| *table == name));
        self.quantity.values().any(|quantity| tables.find(&quantity.table).is_none() && declared(&quantity.table))
    }

    fn check(&self) -> std::result::Result<(), String> {
        let wrong = |reason: String| Err(format!("claim {}: {reason}", self.id));
        if !EXPERIMENTS.iter().any(|experiment| experiment.id() == self.experiment) {
            return wrong(format!("unknown experiment: {}; `regard --help` lists them", self.experiment));
        }
        for words in [&self.if_all, &self.if_some, &self.if_none] {
            if verdict(words).is_none() {
                let all: Vec<_> = Verdict::ALL.iter().map(|verdict| verdict.words()).collect();
                return wrong(format!("unknown verdict: {words}; choose one of {}", all.join(", ")));
            }
        }
        if self.has_rules() && self.because.is_empty() {
            return wrong("`because` is missing; give a sentence with {quantities}".to_owned());
        }
        for rule in &self.rules {
            let numbers = [rule.above.is_some(), rule.below.is_some(), rule.within.is_some()];
            let others = [rule.exceeds.is_some(), rule.falls_below.is_some()];
            if numbers.iter().chain(&others).filter(|edge| **edge).count() != 1 {
                return wrong("a rule needs exactly one of above, below, within, exceeds, falls_below".to_owned());
            }
            for name in [Some(&rule.quantity), rule.exceeds.as_ref(), rule.falls_below.as_ref()].into_iter().flatten() {
                if !self.quantity.contains_key(name) {
                    return wrong(format!("unknown quantity: {name}; define it in [claim.quantity]"));
                }
            }
        }
        Ok(())
    }

    /// The rule of the verdict, in words.
    pub fn edge(&self) -> String {
        if self.has_rules() {
            let rules = self.rules.iter().map(|rule| self.rule_words(rule)).collect::<Vec<_>>().join("; ");
            return if self.if_all == holds() { rules } else { format!("{} if {rules}", self.if_all) };
        }
        if !self.reference.is_empty() {
            return "none: by reference".to_owned();
        }
        rules::constants().iter().fold(self.edge.clone(), |edge, (name, value)| edge.replace(&format!("{{{name}}}"), value))
    }

    fn rule_words(&self, rule: &Rule) -> String {
        let times = if rule.times == 1.0 { String::new() } else { format!("{} x ", prose_number(rule.times)) };
        let of = |name: &str| self.quantity[name].words();
        let than = match rule {
            Rule { above: Some(edge), .. } => format!("above {}", prose_number(*edge)),
            Rule { below: Some(edge), .. } => format!("below {}", prose_number(*edge)),
            Rule { within: Some([low, high]), .. } => format!("from {} to {}", prose_number(*low), prose_number(*high)),
            Rule { exceeds: Some(other), .. } => format!("above {times}{}", of(other)),
            Rule { falls_below: Some(other), .. } => format!("below {times}{}", of(other)),
            Rule { .. } => String::new(),
        };
        format!("{} {than}", of(&rule.quantity))
    }

    fn value(&self, name: &str, tables: &Tables) -> Result<Estimate> {
        let quantity = &self.quantity[name];
        let at: Vec<(&str, Value)> = quantity.at.iter().map(|(column, cell)| (column.as_str(), cell.into())).collect();
        let value = tables.number(&quantity.table, &at, &quantity.column)?;
        if tables.get(&quantity.table)?.position(&format!("{}_low", quantity.column)).is_none() {
            return Ok(Estimate::exact(value));
        }
        let end = |which: &str| tables.number(&quantity.table, &at, &format!("{}_{which}", quantity.column));
        Ok(Estimate { value, low: end("low")?, high: end("high")? })
    }

    fn decide(&self, rule: &Rule, tables: &Tables) -> Result<Option<bool>> {
        let value = self.value(&rule.quantity, tables)?;
        Ok(match rule {
            Rule { above: Some(edge), .. } => value.above(*edge),
            Rule { below: Some(edge), .. } => value.below(*edge),
            Rule { within: Some([low, high]), .. } => value.within(*low, *high),
            Rule { exceeds: Some(other), .. } => value.exceeds(self.value(other, tables)?.map(|x| rule.times * x)),
            Rule { falls_below: Some(other), .. } => self.value(other, tables)?.map(|x| rule.times * x).exceeds(value),
            Rule { .. } => None,
        })
    }

    /// Verdict and reason by its rules.
    ///
    /// # Errors
    /// When a table or a row is missing.
    pub fn judge(&self, tables: &Tables) -> Result<(Verdict, String)> {
        let answers = self.rules.iter().map(|rule| self.decide(rule, tables)).collect::<Result<Vec<_>>>()?;
        let met = answers.iter().filter(|answer| **answer == Some(true)).count();
        let words = match () {
            () if answers.contains(&None) => None,
            () if met == answers.len() => Some(&self.if_all),
            () if met > 0 => Some(&self.if_some),
            () => Some(&self.if_none),
        };
        let mut because = self.because.clone();
        for name in self.quantity.keys() {
            let value = self.value(name, tables)?;
            let plain = if value.low == value.high { prose_number(value.value) } else { value.words() };
            because = because.replace(&format!("{{{name}}}"), &plain).replace(&format!("{{{name}:percent}}"), &percent(value));
        }
        Ok((words.and_then(|words| verdict(words)).unwrap_or(Verdict::Undecided), because))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regard_plot::Table;

    const FILE: &str = r#"
        title = "A document"
        name = "doc"
        [[claim]]
        id = "a"
        section = "1"
        statement = "x is large"
        experiment = "sweep"
        because = "x is {x}, y {y}, a share of {x:percent}."
        [claim.quantity]
        x = { table = "t", where = { d_k = 4, scaled = true, name = "n" }, column = "x" }
        y = { table = "t", where = { d_k = 4 }, column = "y" }
        [[claim.rule]]
        quantity = "x"
        above = 0.2
        [[claim.rule]]
        quantity = "x"
        falls_below = "y"
        times = 2.0
    "#;

    fn tables(x: f64, half: f64, y: f64) -> Tables {
        let columns = ["d_k", "scaled", "name", "x", "x_low", "x_high", "y"].map(|c| (c, c));
        let mut table = Table::new("t", "", &columns);
        table.push(vec![4usize.into(), true.into(), "n".into(), x.into(), (x - half).into(), (x + half).into(), y.into()]);
        Tables::from(vec![table])
    }

    #[test]
    fn rules_of_a_file_decide_its_claims() {
        let claim = parse(FILE).unwrap().claims.remove(0);
        let judge = |x, half, y| claim.judge(&tables(x, half, y)).unwrap();
        assert_eq!(judge(0.5, 0.01, 1.0), (Verdict::Holds, "x is 0.500 \u{b1} 0.010, y 1, a share of 50.0 \u{b1} 1.0 %.".to_owned()));
        assert_eq!(judge(0.5, 0.01, 0.1).0, Verdict::HoldsInPart, "not below twice y");
        assert_eq!(judge(0.1, 0.01, 0.01).0, Verdict::Wrong);
        assert_eq!(judge(0.5, 0.4, 1.0).0, Verdict::Undecided, "the interval reaches the edge");
        assert_eq!(judge(f64::NAN, 0.0, 1.0).0, Verdict::Undecided);
    }

    #[test]
    fn a_malformed_file_is_refused_with_the_reason() {
        for (from, to, reason) in [
            ("experiment = \"sweep\"", "experiment = \"swep\"", "unknown experiment: swep"),
            ("above = 0.2", "above = 0.2\nbelow = 1.0", "exactly one of"),
            ("quantity = \"x\"\n        above", "quantity = \"z\"\n        above", "unknown quantity: z"),
            ("statement", "statment", "unknown field `statment`"),
            ("because", "if_all = \"maybe\"\n        because", "unknown verdict: maybe"),
        ] {
            let error = parse(&FILE.replace(from, to)).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        let folder = tempfile::tempdir().unwrap();
        assert!(read(folder.path()).unwrap_err().to_string().contains("no *.toml file"));
        std::fs::write(folder.path().join("a.toml"), &FILE[..FILE.find("[[claim.rule]]").unwrap()]).unwrap();
        assert!(read(folder.path()).unwrap_err().to_string().contains("claim a has no rule"));
        std::fs::write(folder.path().join("a.toml"), FILE).unwrap();
        assert_eq!(read(folder.path()).unwrap()[0].claims.len(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn files_that_cannot_be_claims_are_named() {
        let refused = |plant: &dyn Fn(&Path), reason: &str| {
            let folder = tempfile::tempdir().unwrap();
            plant(&folder.path().join("b.toml"));
            let error = read(folder.path()).unwrap_err().to_string();
            assert!(error.contains("b.toml") && error.contains(reason), "{error}");
        };
        refused(&|path| std::os::unix::fs::symlink("/dev/zero", path).unwrap(), "is a device");
        refused(&|path| std::fs::create_dir(path).unwrap(), "is a directory");
        refused(&|path| std::fs::write(path, vec![b'#'; (1 << 20) + 1]).unwrap(), "1048576 bytes");
        refused(&|path| std::fs::write(path, b"title = \"\xff\"").unwrap(), "UTF-8");
    }

    #[test]
    fn every_claim_has_its_own_id_and_section() {
        let claims: Vec<&Claim> = embedded().iter().flat_map(|source| &source.claims).collect();
        let ids: std::collections::BTreeSet<&str> = claims.iter().map(|claim| claim.id.as_str()).collect();
        assert_eq!((ids.len(), claims.len()), (60, 60));
        assert!(claims.iter().all(|claim| !claim.section.is_empty() && !claim.statement.is_empty()));
        // Each states the rule of its verdict, and no constant of it is unknown.
        for claim in &claims {
            let edge = claim.edge();
            let known = edge.split('{').skip(1).all(|rest| !rest.starts_with(|c: char| c.is_ascii_uppercase()));
            assert!(!edge.is_empty() && known, "{}: {edge:?}", claim.id);
            assert!(claim.edge.is_empty() || !claim.has_rules(), "{} has rules and an edge", claim.id);
        }
        for (name, _) in rules::constants() {
            let used = claims.iter().any(|claim| claim.edge.contains(&format!("{{{name}}}")));
            assert!(used || name == "DECISIVE", "no claim uses {name}");
        }
        assert!(claims.iter().filter(|claim| claim.has_rules()).count() >= 12);
    }
}
