//! What an exercise is: signature, cases, formula, known mistakes, texts.

use crate::formula::How;
use crate::real::{Real, Tracked};
use crate::rng::Rng;
use crate::value::{Call, Case, Reply, Trouble, Value};

/// The learner's language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lang {
    /// Python with NumPy.
    Python,
    /// Rust, without crates.
    Rust,
    /// Python with PyTorch.
    Torch,
}

impl Lang {
    /// All of them.
    pub const ALL: [Self; 3] = [Lang::Python, Lang::Rust, Lang::Torch];

    /// Its name, which is also its folder.
    pub fn name(self) -> &'static str {
        match self {
            Lang::Python => "python",
            Lang::Rust => "rust",
            Lang::Torch => "torch",
        }
    }

    /// Ending of its files.
    pub fn ending(self) -> &'static str {
        match self {
            Lang::Python | Lang::Torch => "py",
            Lang::Rust => "rs",
        }
    }
}

/// What an argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// f32 array.
    Array,
    /// f32 array that a Rust answer updates in place.
    State,
    /// Booleans.
    Flags,
    /// Whole numbers, none negative.
    Lengths,
    /// A number.
    Number,
    /// A whole number that may be negative.
    Offset,
    /// A whole number that Rust has among its dimensions.
    Count,
    /// The bytes of a file, whose path is passed.
    File,
}

/// An argument.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Its dimensions by name.
    pub dims: &'static [&'static str],
}

/// An f32 array.
pub const fn input(name: &'static str, dims: &'static [&'static str]) -> Param {
    Param { name, kind: Kind::Array, dims }
}

/// Another argument.
pub const fn param(name: &'static str, kind: Kind, dims: &'static [&'static str]) -> Param {
    Param { name, kind, dims }
}

/// A result: its name and its dimensions, by name, number, or sum of both (`p+t`).
pub type Output = (&'static str, &'static [&'static str]);

/// A known mistake.
#[derive(Clone, Copy, Debug)]
pub struct Mistake {
    /// What it is called.
    pub id: &'static str,
    /// What is said of it.
    pub text: &'static str,
}

/// The formula in the number types that the judge needs.
pub struct Formula {
    /// The oracle, and the mutants.
    pub f64: fn(&Call<f64>, &How) -> Reply<f64>,
    /// Honest evaluations.
    pub f32: fn(&Call<f32>, &How) -> Reply<f32>,
    /// Magnitudes.
    pub tracked: fn(&Call<Tracked>, &How) -> Reply<Tracked>,
}

/// What is called: the learner's function, or a formula in its place.
pub type Callee<'a, T> = &'a mut dyn FnMut(&Call<T>) -> Reply<T>;

/// How a case becomes calls; one function in the number types that the judge needs.
pub struct Session {
    /// With the learner's function, or the oracle.
    pub f64: fn(&Case, Callee<'_, f64>) -> Reply<f64>,
    /// With an honest evaluation.
    pub f32: fn(&Case, Callee<'_, f32>) -> Reply<f32>,
    /// With magnitudes.
    pub tracked: fn(&Case, Callee<'_, Tracked>) -> Reply<Tracked>,
}

/// A formula, generic in its number, as three functions.
#[macro_export]
macro_rules! formula {
    ($function:ident) => {
        $crate::exercise::Formula { f64: $function::<f64>, f32: $function::<f32>, tracked: $function::<$crate::real::Tracked> }
    };
}

/// A session, generic in its number, as three functions.
#[macro_export]
macro_rules! session {
    ($function:path) => {
        $crate::exercise::Session { f64: $function, f32: $function, tracked: $function }
    };
}

/// One call with the arguments of the case.
pub fn plain<T: Real>(case: &Case, callee: Callee<'_, T>) -> Reply<T> {
    callee(&case.call.to())
}

/// The texts of an exercise.
pub struct Files {
    /// What it is about.
    pub text: &'static str,
    /// Where the learner starts.
    pub stub_py: &'static str,
    /// Where the learner starts.
    pub stub_rs: &'static str,
    /// A right answer.
    pub solution_py: &'static str,
    /// A right answer.
    pub solution_rs: &'static str,
    /// Known wrong answers, as changes of the solution.
    pub wrong_py: &'static str,
    /// Known wrong answers, as changes of the solution.
    pub wrong_rs: &'static str,
    /// Where the learner starts.
    pub stub_torch: &'static str,
    /// A right answer.
    pub solution_torch: &'static str,
    /// Known wrong answers, as changes of the solution.
    pub wrong_torch: &'static str,
}

impl Files {
    /// No texts.
    pub const EMPTY: Self = Self {
        text: "",
        stub_py: "",
        stub_rs: "",
        solution_py: "",
        solution_rs: "",
        wrong_py: "",
        wrong_rs: "",
        stub_torch: "",
        solution_torch: "",
        wrong_torch: "",
    };
}

/// The files of the folder beside the module.
#[macro_export]
macro_rules! files {
    () => {
        $crate::exercise::Files {
            text: include_str!("text.md"),
            stub_py: include_str!("stub.py"),
            stub_rs: include_str!("stub.rs"),
            solution_py: include_str!("solution.py"),
            solution_rs: include_str!("solution.rs"),
            wrong_py: include_str!("wrong.py.txt"),
            wrong_rs: include_str!("wrong.rs.txt"),
            stub_torch: include_str!("stub_torch.py"),
            solution_torch: include_str!("solution_torch.py"),
            wrong_torch: include_str!("wrong_torch.py.txt"),
        }
    };
}

/// How an exercise is judged.
pub enum Judging {
    /// Numbers against the oracle's.
    Numbers {
        /// The formula.
        formula: Formula,
        /// How a case becomes calls.
        session: Session,
    },
    /// Exercise 14: names of models.
    Models,
    /// An exercise of a set: numbers against those of its solution.
    Programs(Programs),
}

/// The cases of a seed.
pub type CaseMaker = Box<dyn Fn(&mut Rng) -> Vec<Case> + Send + Sync>;

/// The programs of an exercise of a set.
pub struct Programs {
    /// The right answer, which is the oracle.
    pub solution: std::path::PathBuf,
    /// Wrong answers with the mistake that each makes.
    pub wrong: Vec<(Mistake, std::path::PathBuf)>,
    /// The cases of a seed.
    pub cases: CaseMaker,
}

/// What a PyTorch answer is where the gradient is the exercise: a `torch.autograd.Function`.
pub struct Custom {
    /// Name of the class.
    pub class: &'static str,
    /// Place of the gradient of its result among the arguments; the others are those of `forward`.
    pub d_out: usize,
    /// Number of arguments, from the first, that have a gradient.
    pub leaves: usize,
    /// What `forward` returns.
    pub forward: Formula,
}

/// An exercise.
pub struct Exercise {
    /// Its number, from 1.
    pub number: usize,
    /// Its name, which is the name of the function.
    pub name: &'static str,
    /// A line about it.
    pub title: &'static str,
    /// Names of the dimensions in the order of the Rust pattern.
    pub dims: &'static [&'static str],
    /// Arguments of the function.
    pub params: &'static [Param],
    /// Results of the function.
    pub results: &'static [Output],
    /// What a case consists of, where that is not the arguments.
    pub inputs: &'static [Param],
    /// What is compared, where that is not the results.
    pub judged: &'static [&'static str],
    /// Mistakes with a text.
    pub mistakes: &'static [Mistake],
    /// Mutants in the order in which they are tried: ids, or forms of one (`id/form`).
    pub mutants: &'static [&'static str],
    /// Three hints.
    pub hints: [&'static str; 3],
    /// The idea, said after a pass.
    pub idea: &'static str,
    /// Tolerance is at least this.
    pub floor: f64,
    /// The cases of a seed.
    pub cases: fn(&mut Rng) -> Vec<Case>,
    /// Which dimensions are possible.
    pub possible: fn(&[usize]) -> bool,
    /// How it is judged.
    pub judging: Judging,
    /// In PyTorch, the function with a backward pass of its own.
    pub custom: Option<Custom>,
    /// Its texts.
    pub files: Files,
}

impl std::fmt::Debug for Exercise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exercise").field("number", &self.number).field("name", &self.name).finish_non_exhaustive()
    }
}

impl Exercise {
    /// `01_similarity`
    pub fn file_stem(&self) -> String {
        format!("{:02}_{}", self.number, self.name)
    }

    /// Name of the learner's file.
    pub fn file_name(&self, lang: Lang) -> String {
        format!("{}.{}", self.file_stem(), lang.ending())
    }

    /// Where the learner starts.
    pub fn stub(&self, lang: Lang) -> &'static str {
        match lang {
            Lang::Python => self.files.stub_py,
            Lang::Rust => self.files.stub_rs,
            Lang::Torch => self.files.stub_torch,
        }
    }

    /// A right answer.
    pub fn solution(&self, lang: Lang) -> &'static str {
        match lang {
            Lang::Python => self.files.solution_py,
            Lang::Rust => self.files.solution_rs,
            Lang::Torch => self.files.solution_torch,
        }
    }

    /// Known wrong answers, as changes of the solution.
    pub fn wrong(&self, lang: Lang) -> &'static str {
        match lang {
            Lang::Python => self.files.wrong_py,
            Lang::Rust => self.files.wrong_rs,
            Lang::Torch => self.files.wrong_torch,
        }
    }

    /// What it is about, with what is different in a language.
    pub fn text(&self, lang: Lang) -> String {
        let text = self.files.text;
        match (&self.custom, lang) {
            (Some(custom), Lang::Torch) => format!(
                "{text}\nIn PyTorch: write the class `{}`, a `torch.autograd.Function` with `forward` and `backward`. The judge \
                 calls `{}.apply` and differentiates. `torch.autograd.grad` is not available: the gradient is yours to write.\n",
                custom.class, custom.class
            ),
            (None, Lang::Torch) => format!("{text}\nIn PyTorch: tensors in and out.\n"),
            _ => text.to_owned(),
        }
    }

    /// What a case consists of.
    pub fn inputs(&self) -> &'static [Param] {
        if self.inputs.is_empty() { self.params } else { self.inputs }
    }

    /// Name of a compared result.
    pub fn judged(&self, at: usize) -> &'static str {
        self.judged.get(at).copied().or_else(|| self.results.get(at).map(|r| r.0)).unwrap_or("the result")
    }

    /// Size of a dimension: a name, a number, or a sum of both.
    pub fn size(&self, dims: &[usize], name: &str) -> usize {
        let one = |word: &str| self.dims.iter().position(|d| *d == word).map_or_else(|| word.parse().unwrap_or(0), |at| dims[at]);
        name.split('+').map(one).sum()
    }

    /// The right shape of a result.
    pub fn shape(&self, dims: &[usize], output: &Output) -> Vec<usize> {
        output.1.iter().map(|name| self.size(dims, name)).collect()
    }

    /// `n=4, m=6`
    pub fn dims_text(&self, dims: &[usize]) -> String {
        self.dims.iter().zip(dims).map(|(name, size)| format!("{name}={size}")).collect::<Vec<_>>().join(", ")
    }

    /// The results in the right shapes, for sessions of several calls.
    pub fn shaped<T: Real>(&self, dims: &[usize], results: Vec<Value<T>>) -> Reply<T> {
        for (output, result) in self.results.iter().zip(&results) {
            let right = self.shape(dims, output);
            let flat = result.shape.len() == 1 && result.data.len() == right.iter().product::<usize>();
            if result.shape != right && !flat {
                let text = format!("{} has the shape {:?}; it must be {}", output.0, result.shape, shape_text(output, &right));
                return Err(Trouble::Form { text });
            }
        }
        Ok(results.into_iter().zip(self.results).map(|(result, output)| Value { shape: self.shape(dims, output), ..result }).collect())
    }

    /// The mistake of a mutant `id` or `id/form`, with the text of the form where it has its own.
    pub fn mistake(&self, mutant: &'static str) -> Mistake {
        let id = mutant.split('/').next().unwrap_or(mutant);
        let known = |name: &str| self.mistakes.iter().chain(COMMON).find(|m| m.id == name);
        known(mutant).or_else(|| known(id)).map_or(Mistake { id: "unnamed", text: "" }, |m| Mistake { id, text: m.text })
    }
}

/// `[n, dv] = [3, 2]`
pub fn shape_text(output: &Output, right: &[usize]) -> String {
    if output.1.is_empty() { "a plain number".to_owned() } else { format!("[{}] = {right:?}", output.1.join(", ")) }
}

/// Mistakes that are made in several exercises.
pub const COMMON: &[Mistake] = &[
    Mistake { id: "no-max", text: "exp overflows at scores of 1e4: subtract the row's maximum before exp" },
    Mistake { id: "columns", text: "columns sum to 1, not rows: the softmax runs over the wrong axis" },
    Mistake { id: "empty-nan", text: "a row that sees no key divides 0 by 0: it must be exactly 0" },
    Mistake {
        id: "empty-mean",
        text: "a finite number such as -1e9 is not -inf: a row that sees no key averages all the same, and hidden keys can win",
    },
    Mistake { id: "no-scale", text: "the numbers are those of a scale of 1: the scale is not used" },
    Mistake { id: "scale-after", text: "the scale is applied after the softmax: rows of weights sum to the scale, not to 1" },
    Mistake { id: "transposed", text: "rows and columns are exchanged" },
    Mistake { id: "dk-unscaled", text: "dk lacks the factor 1/sqrt(d)" },
    Mistake { id: "all-at-once", text: "one softmax over the whole matrix: each row must sum to 1" },
    Mistake { id: "one-max", text: "one maximum for all rows: rows far below it underflow to 0/0; each row needs its own" },
    Mistake { id: "hard", text: "only the largest score gets weight: that is argmax, not softmax" },
    Mistake { id: "base-2", text: "powers of 2 instead of e" },
    Mistake { id: "clipped", text: "large scores are flattened before exp: subtract the row's maximum instead of clipping" },
    Mistake { id: "unnormalised", text: "exp without its sum: rows of weights do not sum to 1" },
    Mistake { id: "logarithm", text: "these are logarithms of the softmax" },
    Mistake { id: "no-softmax", text: "the weights are the raw scores: there is no softmax" },
    Mistake { id: "scale-inverted", text: "the scale divides where it must multiply" },
    Mistake { id: "scale-twice", text: "the scale is applied twice" },
    Mistake { id: "scale-rooted", text: "the root of the scale is applied instead of the scale" },
    Mistake { id: "negated", text: "the smallest score gets the largest weight: a sign is wrong" },
    Mistake { id: "sigmoid", text: "the weights are a logistic function of each score: softmax divides by the row's sum" },
    Mistake { id: "own-scale", text: "the scale that is given is not used: the numbers are those of 1/sqrt(d)" },
    Mistake { id: "scale-inverted/root", text: "the scores are multiplied by sqrt(d): divide by it" },
    Mistake { id: "scale-after/out", text: "the scale multiplies out, after the softmax: it belongs on the scores" },
    Mistake { id: "scale-and-root", text: "the scores are divided by sqrt(d) on top of the scale that is given" },
    Mistake { id: "column-max", text: "the maximum of each column is subtracted: each row needs its own" },
    Mistake { id: "column-sum", text: "exp is divided by the sums of columns: divide by the sum of the row" },
    Mistake { id: "one-sum", text: "exp is divided by one sum of the whole matrix: each row has its own" },
    Mistake { id: "twice", text: "the softmax is applied twice: its result is the weights already" },
    Mistake { id: "cosine-scores", text: "the scores are cosines: attention uses the dot product, with its length" },
    Mistake { id: "distance-scores", text: "the scores are squared distances, negated: attention uses the dot product" },
    Mistake { id: "values-as-keys", text: "the scores are q v^T: compare queries with keys" },
    Mistake { id: "results-swapped", text: "the two results are exchanged: out first, then weights" },
    Mistake { id: "width-scale", text: "the scores are divided by d: divide by sqrt(d)" },
    Mistake { id: "value-width", text: "the scale is 1/sqrt(dv): scores are sums over d" },
    Mistake { id: "keys-as-values", text: "out mixes rows of k: it must mix rows of v" },
    Mistake { id: "queries-as-keys", text: "the scores are q q^T: k is not used" },
    Mistake { id: "transposed-scores", text: "the scores are k q^T: rows must be queries, columns keys" },
    Mistake { id: "weights-transposed", text: "out is weights^T v: it must be weights v" },
    Mistake { id: "no-mask", text: "nothing is hidden: the mask is not used" },
    Mistake { id: "mask-after", text: "the mask is applied after the softmax: visible weights do not sum to 1" },
    Mistake { id: "zero-scores", text: "hidden scores are set to 0, and exp(0) = 1: they must become -inf" },
    Mistake { id: "max-hidden", text: "the maximum is taken over hidden keys too: a large hidden score makes the visible ones underflow" },
    Mistake { id: "nan-from-value", text: "hidden values enter the product with weight 0, and 0 times NaN is NaN: leave them out" },
    Mistake { id: "nan-from-key", text: "a hidden NaN score stays NaN when -inf is added: select, do not add" },
    Mistake { id: "nan-spreads", text: "a visible NaN spoils hidden weights of its row too: these must be exactly 0" },
    Mistake { id: "input-changed", text: "the function writes into its arguments: work on a copy, the caller still needs them" },
    Mistake { id: "l2-normalised", text: "exp is divided by the root of its sum of squares: divide by the row's sum" },
    Mistake {
        id: "component-last-only",
        text: "the dot product is overwritten in its loop, and only the last component counts: add them up",
    },
    Mistake {
        id: "one-max/hidden",
        text: "one maximum for all rows, hidden scores included: rows far below it underflow; each row needs its own",
    },
    Mistake { id: "relu-scores", text: "negative scores become 0: softmax takes them as they are" },
    Mistake { id: "out-overwritten", text: "out is overwritten in its loop, and only the last key counts: add them up" },
    Mistake { id: "nan-swallowed/inputs", text: "NaN in k and v is set to 0: a visible NaN must show in its row" },
    Mistake { id: "one-in-sum", text: "the sum of exp has 1 added to it: rows of weights sum to less than 1" },
    Mistake {
        id: "added-epsilon",
        text: "a number that is too large for it is added to the sum of exp: rows of weights sum to less than 1",
    },
    Mistake { id: "numerator-unshifted", text: "the maximum is subtracted in the sum only: exp of the plain score stands above it" },
    Mistake {
        id: "absolute-max",
        text: "the largest |score| is subtracted: rows of negative scores underflow; subtract the largest score",
    },
    Mistake { id: "uniform", text: "all weights of a row are equal: the scores are not used" },
    Mistake {
        id: "keepdims-lost",
        text: "the sums of rows are taken for a row of numbers, and column j is divided by sum j: use keepdims=True",
    },
    Mistake {
        id: "keepdims-lost/max",
        text: "the maxima of rows are taken for a row of numbers, and maximum j is subtracted from column j: use keepdims=True",
    },
    Mistake {
        id: "keepdims-lost/both",
        text: "maxima and sums of rows are taken for rows of numbers, one for each column: use keepdims=True",
    },
    Mistake { id: "scores-returned", text: "the second result is the scores: return the weights, their softmax" },
    Mistake { id: "out-unnormalised", text: "out is made with exp before the division by its sum: out = weights @ v" },
    Mistake { id: "exp-returned", text: "the second result is exp before the division by its sum: return the weights" },
    Mistake { id: "scale-truncated", text: "the scale is cut to a whole number: int(0.5) is 0" },
    Mistake { id: "scale-absolute", text: "the sign of the scale is lost: it may be negative" },
    Mistake { id: "scale-halved", text: "the scale is half of what it must be" },
    Mistake { id: "component-missing", text: "the last component of q and k is left out of the dot product: the sum runs over all d" },
    Mistake {
        id: "component-missing/first",
        text: "the first component of q and k is left out of the dot product: the sum runs over all d",
    },
    Mistake { id: "nan-swallowed/weights", text: "weights that are NaN are set to 0: a visible NaN must show in its row" },
    Mistake { id: "nan-swallowed/out", text: "NaN in out is set to 0: a visible NaN must show in its row" },
    Mistake { id: "nan-swallowed/results", text: "NaN in the results is set to 0: a visible NaN must show in its row" },
    Mistake { id: "nan-swallowed", text: "a visible NaN becomes 0: what the row sees is broken, and its result must say so (NaN)" },
];
