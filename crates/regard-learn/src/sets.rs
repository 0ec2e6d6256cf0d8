//! Exercise sets of others: a folder with a folder per exercise.
//!
//! ```text
//! my-set/01_mean/exercise.toml    signature, cases, hints, mistakes
//!               text.md stub.py solution.py
//!               wrong/no-divide.py   an answer that makes the mistake `no-divide`
//! ```
//!
//! The oracle is `solution.py` called with float64; its results with float32 give the tolerance. A mistake is named only if its wrong
//! answer gives the learner's numbers on every case.

use crate::error::{Error, Result};
use crate::exercise::{Exercise, Files, Judging, Kind, Mistake, Output, Param, Programs};
use crate::files::read_answer;
use crate::rng::Rng;
use crate::value::{Case, Value, array};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The exercises of a set, or the built-in ones.
pub type List = &'static [&'static Exercise];

/// Largest size of a dimension.
const SIZE: usize = 4096;
/// Most elements of an argument, at sizes drawn or given.
const ELEMENTS: usize = 1 << 20;
/// Most random cases.
const RANDOM: usize = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    title: String,
    dims: Vec<String>,
    params: Vec<DescribedParam>,
    results: Vec<DescribedResult>,
    hints: [String; 3],
    #[serde(default)]
    idea: String,
    /// Text of each mistake by its id; `wrong/ID.py` makes it.
    mistakes: BTreeMap<String, String>,
    cases: Vec<DescribedCase>,
    /// Random cases with sizes up to `largest`.
    #[serde(default)]
    random: usize,
    #[serde(default = "seven")]
    largest: usize,
}

fn seven() -> usize {
    7
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DescribedParam {
    name: String,
    #[serde(default)]
    kind: DescribedKind,
    #[serde(default)]
    dims: Vec<String>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum DescribedKind {
    #[default]
    Array,
    Flags,
    Lengths,
    Number,
    Offset,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DescribedResult {
    name: String,
    #[serde(default)]
    dims: Vec<String>,
}

/// A case: sizes in the order of `dims`, and how large its numbers are.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct DescribedCase {
    label: String,
    sizes: Vec<usize>,
    #[serde(default = "one")]
    size: f64,
    /// Values of plain numbers by name; 1 unless given.
    #[serde(default)]
    numbers: BTreeMap<String, f64>,
}

fn one() -> f64 {
    1.0
}

/// A text for as long as the process lives: exercises are static.
fn leaked(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}

fn leaked_list<T>(list: Vec<T>) -> &'static [T] {
    Box::leak(list.into_boxed_slice())
}

fn names(list: &[String]) -> &'static [&'static str] {
    leaked_list(list.iter().map(|name| leaked(name)).collect())
}

fn bad(path: &Path, reason: impl std::fmt::Display) -> Error {
    Error::Usage(format!("{} is not an exercise: {reason}; docs/teaching.md has the format", path.display()))
}

/// Reads a set.
///
/// # Errors
/// A folder without exercises, or a file that is missing or has another format.
pub fn load(folder: &Path) -> Result<List> {
    let entries = std::fs::read_dir(folder).map_err(|reason| Error::file("read", folder, reason))?;
    let mut folders: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.join("exercise.toml").is_file()).collect();
    folders.sort();
    if folders.is_empty() {
        return Err(Error::Usage(format!("{} is not a set: no folder in it has an exercise.toml", folder.display())));
    }
    let exercises: Vec<&'static Exercise> = folders.iter().enumerate().map(|(at, folder)| read(folder, at + 1)).collect::<Result<_>>()?;
    Ok(leaked_list(exercises))
}

fn text(folder: &Path, name: &str) -> Result<&'static str> {
    let path = folder.join(name);
    let bytes = read_answer(&path)?;
    Ok(leaked(std::str::from_utf8(&bytes).map_err(|reason| bad(&path, reason))?))
}

/// The first size that a judge cannot hold, in words.
fn check_sizes(described: &Described) -> std::result::Result<(), String> {
    let within = |what: &str, value: usize, most: usize| {
        if value > most { Err(format!("{what} is {value}; it must be at most {most}")) } else { Ok(()) }
    };
    within("random", described.random, RANDOM)?;
    within("largest", described.largest, SIZE)?;
    let drawn = vec![described.largest.max(2); described.dims.len()];
    for (label, sizes) in described.cases.iter().map(|case| (case.label.as_str(), &case.sizes)).chain([("random", &drawn)]) {
        sizes.iter().try_for_each(|&size| within(&format!("a size of the case {label:?}"), size, SIZE))?;
        for param in &described.params {
            let size = |dim: &String| described.dims.iter().position(|d| d == dim).map_or_else(|| dim.parse().unwrap_or(1), |at| sizes[at]);
            let elements = param.dims.iter().map(size).fold(1, usize::saturating_mul);
            within(&format!("the number of elements of {} in the case {label:?}", param.name), elements, ELEMENTS)?;
        }
    }
    Ok(())
}

fn read(folder: &Path, number: usize) -> Result<&'static Exercise> {
    let path = folder.join("exercise.toml");
    let described: Described = toml::from_str(text(folder, "exercise.toml")?).map_err(|reason| bad(&path, reason.message()))?;
    let stem = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let name = leaked(stem.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_'));
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err(bad(folder, "its name must be a number, _ and the name of the function, such as 01_mean"));
    }
    let known = |dim: &String| described.dims.contains(dim) || dim.parse::<usize>().is_ok();
    let used = described.params.iter().map(|p| &p.dims).chain(described.results.iter().map(|r| &r.dims));
    if let Some(unknown) = used.flatten().find(|dim| !known(dim)) {
        return Err(bad(&path, format_args!("unknown dimension {unknown:?}")));
    }
    if let Some(case) = described.cases.iter().find(|case| case.sizes.len() != described.dims.len() || case.sizes.contains(&0)) {
        return Err(bad(&path, format_args!("the case {:?} needs a size of at least 1 for each of {:?}", case.label, described.dims)));
    }
    if described.cases.is_empty() {
        return Err(bad(&path, "it has no cases"));
    }
    check_sizes(&described).map_err(|reason| bad(&path, reason))?;
    let param = |one: &DescribedParam| Param {
        name: leaked(&one.name),
        kind: match one.kind {
            DescribedKind::Array => Kind::Array,
            DescribedKind::Flags => Kind::Flags,
            DescribedKind::Lengths => Kind::Lengths,
            DescribedKind::Number => Kind::Number,
            DescribedKind::Offset => Kind::Offset,
        },
        dims: names(&one.dims),
    };
    let params: &'static [Param] = leaked_list(described.params.iter().map(param).collect());
    let results: Vec<Output> = described.results.iter().map(|one| (leaked(&one.name), names(&one.dims))).collect();
    let mut wrong = Vec::new();
    let mut mistakes = Vec::new();
    for (id, text) in &described.mistakes {
        let file = folder.join("wrong").join(format!("{id}.py"));
        if !file.is_file() {
            return Err(bad(&path, format_args!("the mistake {id:?} has no {}", file.display())));
        }
        let mistake = Mistake { id: leaked(id), text: leaked(text) };
        mistakes.push(mistake);
        wrong.push((mistake, file));
    }
    let mut cases = described.cases.clone();
    cases.extend((0..described.random).map(|_| DescribedCase {
        label: "random".to_owned(),
        sizes: vec![0; described.dims.len()],
        size: 1.0,
        numbers: BTreeMap::new(),
    }));
    let largest = described.largest.max(2);
    let dim_names = names(&described.dims);
    let make = move |rng: &mut Rng| cases.iter().map(|case| made(params, dim_names, case, largest, rng)).collect::<Vec<Case>>();
    let hints = described.hints.each_ref().map(|hint| leaked(hint));
    let exercise = Exercise {
        number,
        name,
        title: leaked(&described.title),
        dims: dim_names,
        params,
        results: leaked_list(results),
        inputs: &[],
        judged: &[],
        mistakes: leaked_list(mistakes),
        mutants: &[],
        hints,
        idea: leaked(&described.idea),
        floor: 0.0,
        cases: |_| Vec::new(),
        possible: |_| true,
        judging: Judging::Programs(Programs { solution: folder.join("solution.py"), wrong, cases: Box::new(make) }),
        custom: None,
        files: Files {
            text: text(folder, "text.md")?,
            stub_py: text(folder, "stub.py")?,
            solution_py: text(folder, "solution.py")?,
            ..Files::EMPTY
        },
    };
    Ok(Box::leak(Box::new(exercise)))
}

/// A case with random numbers; sizes of 0 are drawn, all different.
fn made(params: &[Param], dims: &[&str], case: &DescribedCase, largest: usize, rng: &mut Rng) -> Case {
    let mut sizes = case.sizes.clone();
    let drawn = sizes.contains(&0);
    for at in 0..sizes.len() {
        while sizes[at] == 0 || (drawn && largest > sizes.len() && sizes[..at].contains(&sizes[at])) {
            sizes[at] = rng.size(1, largest);
        }
    }
    let size = |name: &str| dims.iter().position(|dim| *dim == name).map_or_else(|| name.parse().unwrap_or(1), |at| sizes[at]);
    let args = params.iter().map(|param| argument(param, case, &size, rng)).collect();
    Case::new(&case.label, &sizes, args)
}

fn argument(param: &Param, case: &DescribedCase, size: &dyn Fn(&str) -> usize, rng: &mut Rng) -> Value<f64> {
    let shape: Vec<usize> = param.dims.iter().map(|dim| size(dim)).collect();
    let count = shape.iter().product();
    match param.kind {
        Kind::Flags => Value::new(&shape, (0..count).map(|_| f64::from(u8::from(rng.chance(0.6)))).collect()),
        Kind::Lengths => Value::new(&shape, (0..count).map(|_| rng.size(0, 5) as f64).collect()),
        Kind::Number | Kind::Offset | Kind::Count | Kind::File => Value::number(case.numbers.get(param.name).copied().unwrap_or(1.0)),
        Kind::Array | Kind::State => {
            let numbers = rng.normals(count);
            array(&shape, numbers.into_iter().map(|x| (f64::from(x) * case.size) as f32).collect())
        }
    }
}
