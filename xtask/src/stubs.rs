//! `cargo xtask stubs`: the functions with options in the type stubs of the Python package, made of the table that the package itself is made of.

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

/// The lines of the file that the made part lies between; what is around them is written by hand.
const FROM: &str = "# Made by `cargo xtask stubs` of python/src/table.rs, from here\n";
const TO: &str = "# to here.\n";

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
                "partition" => "Tuple[int, int | None]",
                "carrier" => "Any",
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
        Function::new("_forward_shared", &["q", "k", "v", "partition", "carrier"], &[], SAVED),
        Function::new("_backward_shared", &["q", "k", "v", "dout", "saved", "partition", "carrier"], &[], "Gradients"),
        Function::new("_forward_saved_varlen", PACKED, &[], SAVED),
        Function::new("_backward_varlen", &["q", "k", "v", "dout", "saved", "cu_seqlens_q", "cu_seqlens_k"], GRADIENTS, "Gradients"),
    ]
}

/// The functions that have all options.
fn made() -> String {
    let mut text = String::new();
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
    text
}

/// The file as it is, with these functions made anew.
fn renewed(there: &str) -> Result<String> {
    let (head, rest) = there.split_once(FROM).with_context(|| format!("a line is missing: {FROM}"))?;
    let (_, tail) = rest.split_once(TO).with_context(|| format!("a line is missing: {TO}"))?;
    Ok(format!("{head}{FROM}{}{TO}{tail}", made()))
}

fn file() -> PathBuf {
    root().join("python/package/regard/_regard.pyi")
}

pub(crate) fn run() -> Result<()> {
    let file = file();
    let there = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    fs::write(&file, renewed(&there)?).with_context(|| format!("cannot write {}", file.display()))?;
    println!("{} is written", file.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stubs_are_current() {
        let there = fs::read_to_string(file()).expect("the stubs are there");
        assert!(
            there == renewed(&there).expect("both lines are there"),
            "python/package/regard/_regard.pyi is not what the table says: run cargo xtask stubs"
        );
    }
}
