//! Arrays, calls and cases: what goes to the learner's function and what comes back.

use crate::real::Real;

/// A row-major array; a plain number has no dimensions.
#[derive(Clone, Debug, PartialEq)]
pub struct Value<T> {
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its numbers.
    pub data: Vec<T>,
    /// Where the result must be exactly zero: hidden weights, rows that see nothing. Empty: nowhere.
    pub zeros: Vec<bool>,
}

impl<T: Copy> Value<T> {
    /// An array.
    pub fn new(shape: &[usize], data: Vec<T>) -> Self {
        debug_assert_eq!(shape.iter().product::<usize>(), data.len());
        Self { shape: shape.to_vec(), data, zeros: Vec::new() }
    }

    /// A plain number.
    pub fn number(x: T) -> Self {
        Self::new(&[], vec![x])
    }

    /// The last dimension.
    pub fn width(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// A row along the last dimension.
    pub fn row(&self, i: usize) -> &[T] {
        let w = self.width();
        &self.data[i * w..(i + 1) * w]
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.shape[..self.shape.len().saturating_sub(1)].iter().product()
    }

    /// Entry `i` of the first dimension.
    pub fn part(&self, i: usize) -> Self {
        let len: usize = self.shape[1..].iter().product();
        Self::new(&self.shape[1..], self.data[i * len..(i + 1) * len].to_vec())
    }

    /// Rows `from..to` of the first dimension.
    pub fn slice(&self, from: usize, to: usize) -> Self {
        let len: usize = self.shape[1..].iter().product();
        let mut shape = self.shape.clone();
        shape[0] = to - from;
        Self::new(&shape, self.data[from * len..to * len].to_vec())
    }

    /// Arrays of one shape, joined along a new first dimension.
    pub fn stack(parts: &[Self]) -> Self {
        let mut shape = vec![parts.len()];
        shape.extend(parts.first().map(|p| p.shape.clone()).unwrap_or_default());
        let mut all = Self { shape, data: Vec::new(), zeros: Vec::new() };
        for part in parts {
            all.data.extend(&part.data);
            all.zeros.extend(&part.zeros);
        }
        all
    }

    /// Arrays joined along the first dimension.
    pub fn join(parts: &[Self]) -> Self {
        let mut shape = parts.first().map(|p| p.shape.clone()).unwrap_or_default();
        if let Some(first) = shape.first_mut() {
            *first = parts.iter().map(|p| p.shape[0]).sum();
        }
        Self {
            shape,
            data: parts.iter().flat_map(|p| p.data.clone()).collect(),
            zeros: parts.iter().flat_map(|p| p.zeros.clone()).collect(),
        }
    }

    /// The same with exact zeros demanded where said.
    pub fn with_zeros(mut self, zeros: Vec<bool>) -> Self {
        self.zeros = zeros;
        self
    }

    /// Rows and columns exchanged.
    pub fn transposed(&self) -> Self {
        let (n, m) = (self.rows(), self.width());
        Self::new(&[m, n], (0..m * n).map(|x| self.data[(x % n) * m + x / n]).collect())
    }
}

impl<T: Real> Value<T> {
    /// Zeros.
    pub fn zero(shape: &[usize]) -> Self {
        Self::new(shape, vec![T::of(0.0); shape.iter().product()])
    }

    /// In another number type.
    pub fn to<U: Real>(&self) -> Value<U> {
        Value { shape: self.shape.clone(), data: self.data.iter().map(|x| U::of(x.value())).collect(), zeros: self.zeros.clone() }
    }

    /// The plain number.
    pub fn scalar(&self) -> T {
        self.data[0]
    }

    /// True where not 0.
    pub fn flag(&self, at: usize) -> bool {
        self.data[at].value() != 0.0
    }
}

/// One call of the learner's function: dimensions in the order of the Rust pattern, arguments in the order of the signature.
#[derive(Clone, Debug)]
pub struct Call<T> {
    /// Dimensions.
    pub dims: Vec<usize>,
    /// Arguments; masks are 0 and 1.
    pub args: Vec<Value<T>>,
}

impl<T: Real> Call<T> {
    /// In another number type.
    pub fn to<U: Real>(&self) -> Call<U> {
        Call { dims: self.dims.clone(), args: self.args.iter().map(Value::to).collect() }
    }
}

/// What makes an answer unusable before its numbers are looked at.
#[derive(Clone, Debug, PartialEq)]
pub enum Trouble {
    /// Shapes that do not fit: what a mutant has where the same mistake raises an exception.
    Shapes,
    /// An exception or a panic, with its class, text, and line in the learner's file.
    Raised {
        /// Class of the exception, or "panic".
        kind: String,
        /// Its text.
        text: String,
        /// Line of the learner's file.
        line: Option<usize>,
    },
    /// A result of another kind or shape: which one, and what it is.
    Form {
        /// What is wrong with it.
        text: String,
    },
    /// The function changed its argument of this name.
    ChangedInput {
        /// The argument.
        name: String,
    },
    /// `NotImplementedError`, `todo!()`.
    Todo,
    /// The runner is gone or was ended: nothing more can be asked of it.
    Gone(Gone),
    /// The judge was told to stop.
    Stopped,
}

/// How a runner came to its end.
#[derive(Clone, Debug, PartialEq)]
pub enum Gone {
    /// No answer in time, and the line it was in.
    Timeout {
        /// Seconds waited.
        seconds: f64,
        /// Line of the learner's file.
        line: Option<usize>,
    },
    /// More than a gibibyte.
    Memory {
        /// Resident bytes.
        bytes: u64,
    },
    /// It ended by itself.
    Exit {
        /// How.
        how: String,
    },
    /// It wrote something that is no answer.
    Garbled {
        /// What.
        text: String,
    },
}

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Gone::Timeout { seconds, .. } => write!(f, "no answer after {seconds:.0} s"),
            Gone::Memory { bytes } => write!(f, "it used {} MiB of memory", bytes >> 20),
            Gone::Exit { how } => f.write_str(how),
            Gone::Garbled { text } => write!(f, "it wrote what is not an answer: {text}"),
        }
    }
}

/// Results of a call, or why there are none.
pub type Reply<T> = Result<Vec<Value<T>>, Trouble>;

/// One judged case.
#[derive(Clone, Debug)]
pub struct Case {
    /// What is special about it.
    pub label: String,
    /// The call.
    pub call: Call<f64>,
    /// A second call whose hidden inputs differ; results must not change by a bit where `keeps` says so, per result.
    pub again: Option<Again>,
    /// How a session cuts its keys or tokens: lengths of the pieces. Empty: one call.
    pub pieces: Vec<usize>,
    /// Python gets views with strides.
    pub strided: bool,
}

/// The second call of a case.
#[derive(Clone, Debug)]
pub struct Again {
    /// The changed call.
    pub call: Call<f64>,
    /// Per result, which entries must keep their bits.
    pub keeps: Vec<Vec<bool>>,
    /// What was changed, in words.
    pub what: String,
}

impl Case {
    /// A plain case.
    pub fn new(label: impl Into<String>, dims: &[usize], args: Vec<Value<f64>>) -> Self {
        Self { label: label.into(), call: Call { dims: dims.to_vec(), args }, again: None, pieces: Vec::new(), strided: false }
    }

    /// How a session cuts `total` keys.
    pub fn tiles(&self, total: usize) -> Vec<usize> {
        if self.pieces.is_empty() { vec![total] } else { self.pieces.clone() }
    }

    /// The same, cut into pieces.
    pub fn cut(mut self, pieces: &[usize]) -> Self {
        self.pieces = pieces.to_vec();
        self
    }
}

/// An array of f32 numbers as the judge keeps it.
pub fn array(shape: &[usize], data: Vec<f32>) -> Value<f64> {
    Value::new(shape, data.into_iter().map(f64::from).collect())
}

/// An array of booleans.
pub fn flags(shape: &[usize], data: Vec<bool>) -> Value<f64> {
    Value::new(shape, data.into_iter().map(|x| if x { 1.0 } else { 0.0 }).collect())
}

/// A plain number.
pub fn number(x: f64) -> Value<f64> {
    Value::number(f64::from(x as f32))
}
