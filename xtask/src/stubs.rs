//! `cargo xtask stubs`: the type stubs of the Python package, made of the table of options that the package itself is made of.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::command::root;

/// A keyword: its name, its type, its default.
type Keyword = (&'static str, &'static str, &'static str);

macro_rules! option_table {
    (
        every function { $($name:ident: $type:literal, $help:literal;)* }
        functions with dropout { $($late:ident: $late_type:literal, $late_help:literal;)* }
    ) => {
        const OPTIONS: &[Keyword] = &[$((stringify!($name), $type, "None")),*];
        const DROPOUT: &[Keyword] = &[$((stringify!($late), $late_type, "None")),*];
    };
}

include!("../../python/src/table.rs");

const HEAD: &str = r#"# Made by `cargo xtask stubs` of python/src/table.rs.

from os import PathLike
from typing import Any, Callable, Literal, Mapping, Sequence, SupportsIndex, Tuple, Union, final, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._results import Figure, Gradients, GradientStatistics, HeadSimilarity, HeatMap, Lens, RowStates, Statistics, Table

_Floats = NDArray[Any]
_Causal = Union[bool, np.bool_, Literal["top_left", "bottom_right"]]
_Integers = Union[Sequence[int], NDArray[np.integer[Any]]]
_Window = Union[Tuple[Union[SupportsIndex, None], Union[SupportsIndex, None]], Sequence[Union[SupportsIndex, None]], NDArray[np.integer[Any]]]
_Offset = Union[SupportsIndex, _Integers]
_Range = Union[slice, Tuple[int, int], Sequence[int]]
_Region = Union[Tuple[_Range, _Range], Sequence[_Range]]
_Stage = Literal["raw", "softcap", "bias"]
_Level = Literal["portable", "avx2", "avx512"]

_Tokens = Union[str, Sequence[int], NDArray[np.integer[Any]]]
_Texts = Union[Sequence[_Tokens], None]
_Sink = Literal["show", "hide", "renormalise"]

__version__: str

@final
class _Table:
    name: str
    caption: str
    columns: list[Tuple[str, str]]
    origin: dict[str, str]
    def column(self, place: int) -> list[Any]: ...
    def csv(self) -> bytes: ...
    def __len__(self) -> int: ...

@final
class _Figure:
    name: str
    title: str
    caption: str
    alt: str
    def svg(self) -> str: ...
    def png(self) -> bytes: ...

def _experiments() -> list[dict[str, Any]]: ...
def _experiment(name: str, words: list[str], watch: Callable[[str, Any], None]) -> Tuple[list[_Table], list[_Figure], bool | None]: ...
def _plot_map(
    values: NDArray[np.float64],
    words: dict[str, str],
    rows: list[str] | None,
    keys: list[str] | None,
    pooled: Tuple[int, int] | None,
    limits: Tuple[float, float] | None,
) -> _Figure: ...
def _plot_grid(values: NDArray[np.float64], words: dict[str, str], names: Sequence[str], columns: int) -> _Figure: ...
def _plot_links(values: NDArray[np.float64], words: dict[str, str], names: Sequence[str], tokens: Tuple[Sequence[str], Sequence[str]], chosen: Sequence[int]) -> _Figure: ...
def _plot_lines(words: dict[str, str], x: Tuple[str, list[float], bool], series: list[Tuple[str, list[float]]]) -> _Figure: ...

def load(path: str | PathLike[str] | None = None) -> Model: ...

@final
class Model:
    family: str
    format: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    vocab: int
    context: int
    parameters: int
    def tokens(self, text: str) -> list[int]: ...
    def text(self, ids: _Tokens) -> str: ...
    def pieces(self, input: _Tokens) -> list[str]: ...
    def run(
        self, text_or_ids: _Tokens, edits: str = "", *, texts: Mapping[str, _Tokens] | None = None, reference: _Texts = None
    ) -> Run: ...
    def generate(
        self,
        text_or_ids: _Tokens,
        n: int,
        edits: str = "",
        temperature: float = 0.0,
        *,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        reference: _Texts = None,
    ) -> list[int]: ...
    def embed(self, text_or_ids: _Tokens) -> NDArray[np.float32]: ...
    def classify(self, texts: _Texts = None) -> Table: ...
    def screen(self, texts: _Texts = None, *, direct: bool = False) -> Table: ...
    def surgery(self, texts: _Texts, edits: str, *, reference: _Texts = None) -> Table: ...
    def lens(self, text_or_ids: _Tokens, edits: str = "", top: int = 5) -> Lens: ...
    def attribute(self, text_or_ids: _Tokens, row: int | None = None, token: int | None = None, edits: str = "") -> Table: ...

@final
class Run:
    ids: list[int]
    tokens: list[str]
    edits: str
    logits: NDArray[np.float32]
    loss: float
    losses: NDArray[np.float64]
    hidden: NDArray[np.float32]
    statistics: Statistics
    def weights(self, layer: int, head: int, rows: Tuple[int, int] | None = None) -> NDArray[np.float32]: ...
    def heat_map(self, layer: int, head: int, rows: int = 512, cols: int | None = None, *, sink: _Sink = "show") -> HeatMap: ...
    def picture(self, layer: int | None = None, head: int | None = None, *, sink: _Sink = "show") -> Figure: ...
    def neuron(self, layer: int, head: int, query: int, key: int) -> Table: ...
    def row(self, layer: int, head: int, query: int) -> Table: ...
    def q(self, layer: int, rotated: bool = True) -> NDArray[np.float32]: ...
    def k(self, layer: int, rotated: bool = True) -> NDArray[np.float32]: ...
    def v(self, layer: int) -> NDArray[np.float32]: ...
    def z(self, layer: int) -> NDArray[np.float32]: ...
    def __len__(self) -> int: ...

@final
class Mask:
    @staticmethod
    def everything() -> Mask: ...
    @staticmethod
    def causal() -> Mask: ...
    @staticmethod
    def reverse() -> Mask: ...
    @staticmethod
    def strictly_future() -> Mask: ...
    @staticmethod
    def window(left: SupportsIndex | None, right: SupportsIndex | None) -> Mask: ...
    @staticmethod
    def first_keys(count: SupportsIndex) -> Mask: ...
    @staticmethod
    def key_lengths(lengths: _Integers) -> Mask: ...
    @staticmethod
    def documents(queries: ArrayLike, keys: ArrayLike | None = None) -> Mask: ...
    @staticmethod
    def blocks(table: ArrayLike, q_block: SupportsIndex, kv_block: SupportsIndex) -> Mask: ...
    @staticmethod
    def dense(visible: ArrayLike) -> Mask: ...
    def __and__(self, other: Mask) -> Mask: ...
    def __or__(self, other: Mask) -> Mask: ...
    def __invert__(self) -> Mask: ...

"#;

const TAIL: &str = r#"def merge(out_a: ArrayLike, lse_a: ArrayLike, out_b: ArrayLike, lse_b: ArrayLike) -> tuple[_Floats, _Floats]: ...
def alibi_slopes(heads: int) -> list[float]: ...
def set_num_threads(n: int | None) -> None: ...
def get_num_threads() -> int: ...
def simd_level() -> _Level: ...
def _command(words: Sequence[str]) -> int: ...
def _chosen_num_threads() -> int | None: ...
"#;

const QKV: &[&str] = &["q", "k", "v"];
const QK: &[&str] = &["q", "k"];
const PACKED: &[&str] = &["q", "k", "v", "cu_seqlens_q", "cu_seqlens_k"];
const GRADIENTS: &[Keyword] = &[("mask_gradient", "bool", "True"), ("scale_gradient", "bool", "False")];
const PART: &[Keyword] = &[("region", "_Region | None", "None"), ("states", "RowStates | None", "None")];

/// A function: its positional arguments, its own keywords, what it returns.
struct Function {
    name: &'static str,
    positional: &'static [&'static str],
    own: Vec<Keyword>,
    dropout: bool,
    returns: &'static str,
}

impl Function {
    fn new(name: &'static str, positional: &'static [&'static str], own: &[Keyword], returns: &'static str) -> Self {
        Self { name, positional, own: own.to_vec(), dropout: true, returns }
    }

    fn without_dropout(self) -> Self {
        Self { dropout: false, ..self }
    }

    fn write(&self, to: &mut String) {
        let _ = writeln!(to, "def {}(", self.name);
        for name in self.positional {
            let kind = match *name {
                "cu_seqlens_q" | "cu_seqlens_k" => "_Integers",
                "saved" => "Sequence[Any]",
                "v" if self.name == "statistics" => "ArrayLike | None = None",
                _ => "ArrayLike",
            };
            let _ = writeln!(to, "    {name}: {kind},");
        }
        to.push_str("    *,\n");
        let dropout = if self.dropout { DROPOUT } else { &[] };
        for (name, kind, default) in self.own.iter().chain(OPTIONS).chain(dropout) {
            // A keyword without a default tells overloads apart.
            let default = if default.is_empty() { String::new() } else { format!(" = {default}") };
            let _ = writeln!(to, "    {name}: {kind}{default},");
        }
        let _ = writeln!(to, ") -> {}: ...", self.returns);
    }
}

/// What `attention` returns depends on what it is asked for.
fn attention_overloads() -> Vec<Function> {
    const WEIGHTS: [Keyword; 2] = [("return_weights", "Literal[False]", "False"), ("return_weights", "Literal[True]", "")];
    const SCORES: [Keyword; 2] = [("return_scores", "None", "None"), ("return_scores", "_Stage", "")];
    const LSE: [Keyword; 2] = [("return_lse", "Literal[False]", "False"), ("return_lse", "Literal[True]", "")];
    let mut all = Vec::new();
    for lse in LSE {
        for (weights, scores) in [(WEIGHTS[0], SCORES[0]), (WEIGHTS[1], SCORES[0]), (WEIGHTS[0], SCORES[1])] {
            let results = 1 + usize::from(weights.2.is_empty() || scores.2.is_empty()) + usize::from(lse.2.is_empty());
            let returns = ["_Floats", "tuple[_Floats, _Floats]", "tuple[_Floats, _Floats, _Floats]"][results - 1];
            all.push(Function::new("attention", QKV, &[weights, scores, lse], returns));
        }
    }
    let any = [("return_weights", "bool", "False"), ("return_scores", "_Stage | None", "None"), ("return_lse", "bool", "False")];
    all.push(Function::new("attention", QKV, &any, "_Floats | tuple[_Floats, _Floats] | tuple[_Floats, _Floats, _Floats]"));
    all
}

fn functions() -> Vec<Function> {
    const VJP: &[&str] = &["q", "k", "v", "dout"];
    const SAVED: &str = "tuple[_Floats, _Floats | None, _Floats, _Floats]";
    let counts = [("local_window", "SupportsIndex", "3"), ("top_keys", "SupportsIndex", "0")];
    let cells = [&[("rows", "SupportsIndex", "512"), ("cols", "SupportsIndex", "512")], PART].concat();
    vec![
        Function::new("attention_vjp", VJP, GRADIENTS, "Gradients"),
        Function::new("gradient_statistics", VJP, &[], "GradientStatistics"),
        Function::new("attention_varlen_vjp", &["q", "k", "v", "dout", "cu_seqlens_q", "cu_seqlens_k"], GRADIENTS, "Gradients"),
        Function::new("weights", QK, PART, "_Floats"),
        Function::new("statistics", QKV, &counts, "Statistics").without_dropout(),
        Function::new("row_states", QK, &[], "RowStates").without_dropout(),
        Function::new("heat_map", QK, &cells, "HeatMap").without_dropout(),
        Function::new("column_sums", QK, &[], "_Floats").without_dropout(),
        Function::new("head_similarity", QK, &[], "HeadSimilarity").without_dropout(),
        Function::new("_forward_saved", QKV, &[], SAVED),
        Function::new("_backward", &["q", "k", "v", "dout", "saved"], GRADIENTS, "Gradients"),
        Function::new("_forward_saved_varlen", PACKED, &[], SAVED),
        Function::new("_backward_varlen", &["q", "k", "v", "dout", "saved", "cu_seqlens_q", "cu_seqlens_k"], GRADIENTS, "Gradients"),
    ]
}

/// The whole file.
fn text() -> String {
    let mut text = HEAD.to_owned();
    for overload in attention_overloads() {
        text.push_str("@overload\n");
        overload.write(&mut text);
    }
    for (kind, default, returns) in [("Literal[False]", "False", "_Floats"), ("Literal[True]", "", "tuple[_Floats, _Floats]")] {
        text.push_str("@overload\n");
        Function::new("attention_varlen", PACKED, &[("return_lse", kind, default)], returns).write(&mut text);
    }
    for function in functions() {
        function.write(&mut text);
    }
    text + TAIL
}

fn file() -> PathBuf {
    root().join("python/package/regard/_regard.pyi")
}

pub(crate) fn run() -> Result<()> {
    let file = file();
    fs::write(&file, text()).with_context(|| format!("cannot write {}", file.display()))?;
    println!("{} is written", file.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stubs_are_current() {
        let there = fs::read_to_string(file()).expect("the stubs are there");
        assert!(there == text(), "python/package/regard/_regard.pyi is not what the table says: run cargo xtask stubs");
    }
}
