//! Reading patterns for `regard plot`: weights, or Q and K, out of `.npy`, `.npz`, `.safetensors` and CSV files.
//!
//! Headers are not trusted: sizes are checked against the file before memory is allocated, and a file that is cut short,
//! of another kind, or made up gives an [`InputError`] that names it. Arrays of 16, 32 and 64 bit floats are read, in either byte
//! order, and in C or Fortran order: in pieces, into the one array that is kept, single precision or less as f32 and double as f64.

mod csv;
mod npy;
mod stored;
mod tensors;

use self::csv::read_csv;
use ndarray::{Array4, ArrayD, Axis};
use regard::Real;
use regard_files::limits::TEXT_BYTES;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Bytes of memory that one array may take at most. (A small archive can claim to hold a thousand times its size.)
const MAX_BYTES: u64 = 4 << 30;

/// Bytes of a CSV file that are read at most: as numbers in memory they take four times as much.
const MAX_CSV: u64 = 256 << 20;

/// Why a file could not be read as a pattern. Each says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The file cannot be opened or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The name of the file does not say what it is.
    #[error("{}: the name must end in .npy, .npz, .safetensors or .csv", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
    },
    /// The file is not what its name says, or damaged.
    #[error("{}: not a valid {kind} file: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it should be.
        kind: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// There are fewer or more bytes than the header says.
    #[error("{}: array {array} needs {expected} bytes by its header, but there are {got}; was the file cut short?", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// The array's name.
        array: String,
        /// Bytes that its shape requires.
        expected: u64,
        /// What there is.
        got: u64,
    },
    /// An array is larger than this program will read.
    #[error("{}: array {array} would take {bytes} bytes of memory; at most {MAX_BYTES} are taken", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The array's name.
        array: String,
        /// What it would take.
        bytes: u64,
    },
    /// A CSV file is longer than this program will read.
    #[error("{}: longer than {MAX_CSV} bytes; save the numbers as .npy", path.display())]
    LongCsv {
        /// The file.
        path: PathBuf,
    },
    /// The elements are not floating-point numbers.
    #[error("{}: array {array} has elements of type {dtype}; save it as float16, float32 or float64", path.display())]
    DType {
        /// The file.
        path: PathBuf,
        /// The array's name.
        array: String,
        /// The type, as the file calls it.
        dtype: String,
    },
    /// An array of this name is not in the file.
    #[error("{}: no array named {wanted}; there are: {known}", path.display())]
    NoArray {
        /// The file.
        path: PathBuf,
        /// The requested array.
        wanted: String,
        /// What there is.
        known: String,
    },
    /// The array has too few or too many dimensions.
    #[error("{}: array {array} has shape {shape:?}; {expected}", path.display())]
    Dimensions {
        /// The file.
        path: PathBuf,
        /// The array's name.
        array: String,
        /// Its shape.
        shape: Vec<usize>,
        /// What was expected.
        expected: &'static str,
    },
    /// A cell of a CSV file is not a number.
    #[error("{}: line {line}, column {column}: \"{text}\" is not a number", path.display())]
    Cell {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: u64,
        /// Column, from 1.
        column: usize,
        /// What stands there.
        text: String,
    },
    /// An element is NaN or infinite.
    #[error("{}: array {array} has {value} at {at:?}; a pattern must be finite numbers", path.display())]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The array's name.
        array: String,
        /// NaN or an infinity.
        value: f64,
        /// Where.
        at: Vec<usize>,
    },
    /// The numbers cannot be attention weights.
    #[error("{}: array {array}: row {row} of head {head} {problem}; are these scores? Give q and k, or the weights after the \
        softmax", path.display())]
    NotWeights {
        /// The file.
        path: PathBuf,
        /// The array's name.
        array: String,
        /// The head, from 0.
        head: usize,
        /// The row, from 0.
        row: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// Neither a list nor a file.
    #[error("{text:?} is one word, and no file has that name: give a token per key, as a list (the,cat,sat) or in a file, one per line")]
    OneToken {
        /// What was given.
        text: String,
    },
    /// A file could not be read.
    #[error(transparent)]
    Files(#[from] regard_files::Error),
}

/// An array out of a file, with where it came from.
#[derive(Debug, Clone, PartialEq)]
struct Loaded {
    /// The file.
    path: PathBuf,
    /// Its name in the file; the file's stem where arrays have no names.
    name: String,
    /// The numbers.
    values: Numbers,
    /// Names of the last axis, where a CSV file has them.
    column_names: Vec<String>,
}

/// Numbers in the precision that is needed for them, of any rank.
#[derive(Debug, Clone, PartialEq)]
enum Numbers {
    Single(ArrayD<f32>),
    Double(ArrayD<f64>),
}

/// `[batch, head, row, column]` in the precision of the file.
#[derive(Debug, Clone, PartialEq)]
pub enum Held {
    /// Of 16 and 32 bits.
    Single(Array4<f32>),
    /// Of 64 bits.
    Double(Array4<f64>),
}

impl From<Array4<f32>> for Held {
    fn from(numbers: Array4<f32>) -> Self {
        Self::Single(numbers)
    }
}

impl From<Array4<f64>> for Held {
    fn from(numbers: Array4<f64>) -> Self {
        Self::Double(numbers)
    }
}

impl Held {
    /// Length of each axis.
    pub fn shape(&self) -> &[usize] {
        match self {
            Self::Single(x) => x.shape(),
            Self::Double(x) => x.shape(),
        }
    }
}

/// What a plot is made of.
#[derive(Debug, Clone, PartialEq)]
pub enum Pattern {
    /// Weights, `[batch, head, query, key]`.
    Weights(Held),
    /// Queries and keys, `[batch, head, token, dim]` each, from which weights are computed without laying them out.
    QueriesKeys {
        /// Queries.
        q: Held,
        /// Keys.
        k: Held,
    },
}

/// Which arrays to take where a file has several; guessed where `None`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Names {
    /// Name of the weights.
    pub weights: Option<String>,
    /// Name of the queries.
    pub q: Option<String>,
    /// Name of the keys.
    pub k: Option<String>,
}

/// A pattern with the names that its file has for the keys (CSV headers), if any.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// The numbers.
    pub pattern: Pattern,
    /// Tokens, one per key; empty where the file has none.
    pub tokens: Vec<String>,
}

const WEIGHT_NAMES: [&str; 5] = ["weights", "attention", "attn", "attention_weights", "attn_weights"];
const QUERY_NAMES: [&str; 3] = ["q", "query", "queries"];
const KEY_NAMES: [&str; 3] = ["k", "key", "keys"];

/// Read weights, or Q and K, from one file.
///
/// A file with several arrays is searched for `q` and `k`, then for `weights` (also `attention`, `attn`), unless `names` says what to
/// take; a file with one array has weights.
///
/// # Errors
/// Any [`InputError`].
pub fn read_pattern(path: &Path, names: &Names) -> Result<Input, InputError> {
    let mut source = Source::open(path)?;
    let known = source.names();
    let find = |given: &Option<String>, usual: &[&str]| -> Option<String> {
        given.clone().or_else(|| known.iter().find(|n| usual.iter().any(|u| n.eq_ignore_ascii_case(u))).cloned())
    };
    let asked_for_weights = names.weights.is_some();
    let asked_for_vectors = names.q.is_some() || names.k.is_some();
    if !asked_for_weights {
        match (find(&names.q, &QUERY_NAMES), find(&names.k, &KEY_NAMES)) {
            (Some(q), Some(k)) => return vectors(source.read(&q)?, source.read(&k)?),
            (None, _) if asked_for_vectors => return Err(source.missing("q")),
            (_, None) if asked_for_vectors => return Err(source.missing("k")),
            _ => {}
        }
    }
    let weights = find(&names.weights, &WEIGHT_NAMES).or_else(|| (known.len() == 1).then(|| known[0].clone()));
    match weights {
        Some(name) => self::weights(source.read(&name)?),
        None => Err(source.missing("weights (nor q and k)")),
    }
}

/// Read Q from one file and K from another. Each is the file's only array, or is found by its name.
///
/// # Errors
/// Any [`InputError`].
pub fn read_vectors(q: &Path, k: &Path, names: &Names) -> Result<Input, InputError> {
    let one = |path: &Path, given: &Option<String>, usual: &[&str]| {
        let mut source = Source::open(path)?;
        let known = source.names();
        let found = given.clone().or_else(|| known.iter().find(|n| usual.iter().any(|u| n.eq_ignore_ascii_case(u))).cloned());
        match found.or_else(|| (known.len() == 1).then(|| known[0].clone())) {
            Some(name) => source.read(&name),
            None => Err(source.missing(usual[0])),
        }
    };
    vectors(one(q, &names.q, &QUERY_NAMES)?, one(k, &names.k, &KEY_NAMES)?)
}

/// Tokens from a text file, one per line, blanks kept; or, where no such file exists, from a list with commas, or with blanks.
///
/// # Errors
/// When it is neither, the file cannot be read, or has no lines.
pub fn read_tokens(text_or_path: &str) -> Result<Vec<String>, InputError> {
    let path = Path::new(text_or_path);
    if !path.exists() {
        let by_blanks: Vec<String> = text_or_path.split_whitespace().map(str::to_owned).collect();
        return match (text_or_path.contains(','), by_blanks.len()) {
            (true, _) => Ok(text_or_path.split(',').map(str::to_owned).collect()),
            (false, 2..) => Ok(by_blanks),
            _ => Err(InputError::OneToken { text: text_or_path.to_owned() }),
        };
    }
    Ok(regard_files::read_text(path, TEXT_BYTES.max)?.lines().map(str::to_owned).collect())
}

fn vectors(q: Loaded, k: Loaded) -> Result<Input, InputError> {
    let pattern = match (q.four("[.., token, dim]")?, k.four("[.., token, dim]")?) {
        // Weights are computed in one precision: that of the finer one.
        (Held::Single(q), Held::Double(k)) => Pattern::QueriesKeys { q: q.mapv(f64::from).into(), k: k.into() },
        (Held::Double(q), Held::Single(k)) => Pattern::QueriesKeys { q: q.into(), k: k.mapv(f64::from).into() },
        (q, k) => Pattern::QueriesKeys { q, k },
    };
    Ok(Input { pattern, tokens: Vec::new() })
}

fn weights(loaded: Loaded) -> Result<Input, InputError> {
    let (path, name, tokens) = (loaded.path.clone(), loaded.name.clone(), loaded.column_names.clone());
    let weights = loaded.four("[.., query, key]")?;
    let wrong = match &weights {
        Held::Single(weights) => row_that_is_none(weights),
        Held::Double(weights) => row_that_is_none(weights),
    };
    match wrong {
        Some((head, row, problem)) => Err(InputError::NotWeights { path, array: name, head, row, problem }),
        None => Ok(Input { pattern: Pattern::Weights(weights), tokens }),
    }
}

/// Head and number of the first row that cannot be weights, and why.
fn row_that_is_none<T: Real>(weights: &Array4<T>) -> Option<(usize, usize, String)> {
    let queries = weights.shape()[2].max(1);
    weights.rows().into_iter().enumerate().find_map(|(place, row)| {
        let sum: f64 = row.iter().map(|w| w.to_f64()).sum();
        let problem = match row.iter().map(|w| w.to_f64()).find(|w| *w < -1e-6) {
            Some(low) => format!("has a weight of {low}"),
            None if sum > 1.01 => format!("sums to {sum:.4}"),
            None => return None,
        };
        Some((place / queries, place % queries, problem))
    })
}

impl Loaded {
    /// With leading axes of one where there are fewer than four.
    fn four(self, expected: &'static str) -> Result<Held, InputError> {
        let Self { path, name: array, values, .. } = self;
        match values {
            Numbers::Single(values) => four(values, path, array, expected).map(Held::Single),
            Numbers::Double(values) => four(values, path, array, expected).map(Held::Double),
        }
    }
}

/// The same memory with four axes.
fn four<T: Real>(values: ArrayD<T>, path: PathBuf, array: String, expected: &'static str) -> Result<Array4<T>, InputError> {
    let shape = values.shape().to_vec();
    let wrong = |expected| InputError::Dimensions { path: path.clone(), array: array.clone(), shape: shape.clone(), expected };
    if !(2..=4).contains(&shape.len()) {
        return Err(wrong(match expected {
            "[.., token, dim]" => "expected 2 to 4 dimensions, [.., token, dim]",
            _ => "expected 2 to 4 dimensions, [.., query, key]",
        }));
    }
    if shape.contains(&0) {
        return Err(wrong("expected no empty dimension"));
    }
    if let Some((at, value)) = values.indexed_iter().find(|(_, v)| !v.to_f64().is_finite()) {
        use ndarray::Dimension as _;
        let (at, value) = (at.as_array_view().to_vec(), value.to_f64());
        return Err(InputError::NotFinite { path, array, value, at });
    }
    let mut values = values;
    while values.ndim() < 4 {
        values = values.insert_axis(Axis(0));
    }
    values.into_dimensionality().map_err(|_| wrong("expected 2 to 4 dimensions"))
}

/// An open file with arrays in it.
enum Source {
    Npy(PathBuf, File),
    Npz(npy::Archive),
    Tensors(tensors::Tensors),
    Csv(PathBuf, File),
}

impl Source {
    fn open(path: &Path) -> Result<Self, InputError> {
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("").to_ascii_lowercase();
        let file = || regard_files::open_file(path);
        match extension.as_str() {
            "npy" => Ok(Self::Npy(path.to_owned(), file()?)),
            "npz" => Ok(Self::Npz(npy::Archive::open(path, file()?)?)),
            "safetensors" => Ok(Self::Tensors(tensors::Tensors::open(path, file()?)?)),
            "csv" => Ok(Self::Csv(path.to_owned(), file()?)),
            _ => Err(InputError::Kind { path: path.to_owned() }),
        }
    }

    fn path(&self) -> &Path {
        match self {
            Self::Npy(path, _) | Self::Csv(path, _) => path,
            Self::Npz(archive) => archive.path(),
            Self::Tensors(tensors) => tensors.path(),
        }
    }

    /// Names of the arrays, sorted.
    fn names(&self) -> Vec<String> {
        match self {
            Self::Npy(path, _) | Self::Csv(path, _) => vec![stem(path)],
            Self::Npz(archive) => archive.names(),
            Self::Tensors(tensors) => tensors.names(),
        }
    }

    fn missing(&self, wanted: &str) -> InputError {
        let names = self.names();
        let mut known = names.iter().take(20).cloned().collect::<Vec<_>>().join(", ");
        if names.len() > 20 {
            known.push_str(&format!(" and {} more", names.len() - 20));
        }
        if known.is_empty() {
            known.push_str("none");
        }
        InputError::NoArray { path: self.path().to_owned(), wanted: wanted.to_owned(), known }
    }

    fn read(&mut self, name: &str) -> Result<Loaded, InputError> {
        if !self.names().iter().any(|n| n == name) {
            return Err(self.missing(name));
        }
        let path = self.path().to_owned();
        let (values, column_names) = match self {
            Self::Npy(_, file) => (npy::read_file(&path, file)?, Vec::new()),
            Self::Npz(archive) => (archive.read(name)?, Vec::new()),
            Self::Tensors(tensors) => (tensors.read(name)?, Vec::new()),
            Self::Csv(_, file) => {
                let (values, names) = read_csv(&path, file)?;
                (Numbers::Double(values.into_dyn()), names)
            }
        };
        Ok(Loaded { path, name: name.to_owned(), values, column_names })
    }
}

fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned())
}
