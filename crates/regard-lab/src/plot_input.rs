//! Reading patterns for `regard plot`: weights, or Q and K, out of `.npy`, `.npz`, `.safetensors` and CSV files.
//!
//! Nothing is believed that a header says: sizes are checked against the file before memory is asked for, and a file that is cut short,
//! of another kind, or made up gives an [`InputError`] that names it. Arrays of 16, 32 and 64 bit floats are read, in either byte
//! order, and in C or Fortran order.

mod npy;
mod tensors;

use ndarray::{Array2, Array4, ArrayD, Axis, IxDyn, ShapeBuilder};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Bytes that one array may have at most, unpacked. (A small archive can claim to hold a thousand times its size.)
const MAX_BYTES: u64 = 8 << 30;

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
        /// What its shape asks for.
        expected: u64,
        /// What there is.
        got: u64,
    },
    /// An array is larger than this program will read.
    #[error("{}: array {array} has {bytes} bytes; at most {MAX_BYTES} are read", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The array's name.
        array: String,
        /// Its size.
        bytes: u64,
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
        /// What was asked for.
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
    #[error("{}: array {array}: row {row} of head {head} {problem}; are these scores? Give q and k, or the weights after the softmax", path.display())]
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
    /// A list of tokens is empty.
    #[error("{}: no tokens; give one per line", path.display())]
    NoTokens {
        /// The file.
        path: PathBuf,
    },
}

/// An array out of a file, with where it came from.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The file.
    pub path: PathBuf,
    /// Its name in the file; the file's stem where arrays have no names.
    pub name: String,
    /// The numbers. Single precision stays exact in double.
    pub values: ArrayD<f64>,
    /// Names of the last axis, where a CSV file has them.
    pub column_names: Vec<String>,
}

/// What a plot is made of.
#[derive(Debug, Clone, PartialEq)]
pub enum Pattern {
    /// Weights, `[batch, head, query, key]`.
    Weights(Array4<f64>),
    /// Queries and keys, `[batch, head, token, dim]` each, from which weights are computed without laying them out.
    QueriesKeys {
        /// Queries.
        q: Array4<f32>,
        /// Keys.
        k: Array4<f32>,
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

/// Tokens from a text file, one per line, blanks kept; or from a list with commas, where no such file exists.
///
/// # Errors
/// When the file cannot be read, or has no lines.
pub fn read_tokens(text_or_path: &str) -> Result<Vec<String>, InputError> {
    let path = Path::new(text_or_path);
    if !path.is_file() && text_or_path.contains(',') {
        return Ok(text_or_path.split(',').map(str::to_owned).collect());
    }
    let text = std::fs::read_to_string(path).map_err(|source| InputError::Io { path: path.to_owned(), source })?;
    let tokens: Vec<String> = text.lines().map(str::to_owned).collect();
    if tokens.is_empty() { Err(InputError::NoTokens { path: path.to_owned() }) } else { Ok(tokens) }
}

fn vectors(q: Loaded, k: Loaded) -> Result<Input, InputError> {
    Ok(Input {
        pattern: Pattern::QueriesKeys {
            q: q.four("[.., token, dim]")?.mapv(|x| x as f32),
            k: k.four("[.., token, dim]")?.mapv(|x| x as f32),
        },
        tokens: Vec::new(),
    })
}

fn weights(loaded: Loaded) -> Result<Input, InputError> {
    let (path, name, tokens) = (loaded.path.clone(), loaded.name.clone(), loaded.column_names.clone());
    let weights = loaded.four("[.., query, key]")?;
    for (place, row) in weights.rows().into_iter().enumerate() {
        let sum: f64 = row.sum();
        let problem = if let Some(low) = row.iter().find(|w| **w < -1e-6) {
            format!("has a weight of {low}")
        } else if sum > 1.01 {
            format!("sums to {sum:.4}")
        } else {
            continue;
        };
        let queries = weights.shape()[2].max(1);
        return Err(InputError::NotWeights { path, array: name, head: place / queries, row: place % queries, problem });
    }
    Ok(Input { pattern: Pattern::Weights(weights), tokens })
}

impl Loaded {
    /// With leading axes of one where there are fewer than four.
    fn four(self, expected: &'static str) -> Result<Array4<f64>, InputError> {
        let shape = self.values.shape().to_vec();
        let wrong = |expected| InputError::Dimensions { path: self.path.clone(), array: self.name.clone(), shape: shape.clone(), expected };
        if !(2..=4).contains(&shape.len()) {
            return Err(wrong(match expected {
                "[.., token, dim]" => "expected 2 to 4 dimensions, [.., token, dim]",
                _ => "expected 2 to 4 dimensions, [.., query, key]",
            }));
        }
        if shape.contains(&0) {
            return Err(wrong("expected no empty dimension"));
        }
        let mut values = self.values.view();
        while values.ndim() < 4 {
            values = values.insert_axis(Axis(0));
        }
        if let Some((at, value)) = self.values.indexed_iter().find(|(_, v)| !v.is_finite()) {
            use ndarray::Dimension as _;
            let at = at.as_array_view().to_vec();
            return Err(InputError::NotFinite { path: self.path.clone(), array: self.name.clone(), value: *value, at });
        }
        values.to_owned().into_dimensionality().map_err(|_| wrong("expected 2 to 4 dimensions"))
    }
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
        let file = || {
            let opened = File::open(path).and_then(|f| {
                // A folder opens, but cannot be read.
                if f.metadata()?.is_dir() { Err(std::io::Error::other("is a folder")) } else { Ok(f) }
            });
            opened.map_err(|source| InputError::Io { path: path.to_owned(), source })
        };
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
                (values.into_dyn(), names)
            }
        };
        Ok(Loaded { path, name: name.to_owned(), values, column_names })
    }
}

fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned())
}

/// Numbers in lines; lines that begin with `#` are comments, and a first line without any number is a header.
fn read_csv(path: &Path, file: &mut File) -> Result<(Array2<f64>, Vec<String>), InputError> {
    let malformed = |reason: String| InputError::Malformed { path: path.to_owned(), kind: "CSV", reason };
    let mut reader = csv::ReaderBuilder::new().has_headers(false).comment(Some(b'#')).from_reader(file);
    let (mut values, mut header, mut cols, mut rows) = (Vec::new(), Vec::new(), 0, 0usize);
    for record in reader.records() {
        let record = record.map_err(|e| malformed(e.to_string()))?;
        let line = record.position().map_or(0, csv::Position::line);
        let numbers: Vec<Option<f64>> = record.iter().map(|cell| cell.trim().parse().ok()).collect();
        if rows == 0 && header.is_empty() && numbers.iter().all(Option::is_none) {
            header = record.iter().map(str::to_owned).collect();
            continue;
        }
        cols = numbers.len();
        for (column, number) in numbers.into_iter().enumerate() {
            let text = || record.get(column).unwrap_or("").to_owned();
            values.push(number.ok_or_else(|| InputError::Cell { path: path.to_owned(), line, column: column + 1, text: text() })?);
        }
        rows += 1;
    }
    let values = Array2::from_shape_vec((rows, cols), values).map_err(|e| malformed(e.to_string()))?;
    if rows == 0 { Err(malformed("no line of numbers".to_owned())) } else { Ok((values, header)) }
}

/// How an element is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stored {
    F16,
    Bf16,
    F32,
    F64,
}

impl Stored {
    fn size(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// Bytes as numbers.
    fn numbers(self, bytes: &[u8], big_endian: bool) -> Vec<f64> {
        fn each<const N: usize>(bytes: &[u8], big_endian: bool, f: impl Fn([u8; N]) -> f64) -> Vec<f64> {
            let turned = |chunk: &[u8]| {
                let mut b = [0; N];
                b.copy_from_slice(chunk);
                if big_endian {
                    b.reverse();
                }
                f(b)
            };
            bytes.chunks_exact(N).map(turned).collect()
        }
        match self {
            Self::F16 => each(bytes, big_endian, |b| half::f16::from_le_bytes(b).to_f64()),
            Self::Bf16 => each(bytes, big_endian, |b| half::bf16::from_le_bytes(b).to_f64()),
            Self::F32 => each(bytes, big_endian, |b| f64::from(f32::from_le_bytes(b))),
            Self::F64 => each(bytes, big_endian, f64::from_le_bytes),
        }
    }
}

/// Bytes that an array of this shape has, if that can be said in 64 bits.
fn byte_length(shape: &[usize], stored: Stored) -> Option<u64> {
    shape.iter().try_fold(stored.size() as u64, |n, &d| n.checked_mul(d as u64))
}

/// Put numbers into their shape.
fn shaped(shape: &[usize], fortran: bool, values: Vec<f64>) -> Option<ArrayD<f64>> {
    ArrayD::from_shape_vec(IxDyn(shape).set_f(fortran), values).ok()
}
