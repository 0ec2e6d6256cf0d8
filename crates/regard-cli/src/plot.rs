//! `regard plot`.

use crate::options::{Common, Out, Outcome, Unusable, figure_files, table_files, write_files};
use anyhow::Result;
use clap::{Args, ValueEnum};
use regard_lab::Folder;
use regard_lab::experiments::Progress;
use regard_lab::figure::Norm;
use regard_lab::pattern::input::{Input, Names, read_pattern, read_tokens, read_vectors};
use regard_lab::pattern::{CellValue, PlotOptions, plot};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CellArg {
    /// Mean weight of the pairs of a cell
    Mean,
    /// Largest weight of a cell
    Max,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ColoursArg {
    /// In proportion to the weight
    Linear,
    /// By its logarithm
    Log,
}

/// Draw the pattern of a head, or a grid of heads, from a file, with its statistics
///
/// FILE is .npy, .npz, .safetensors or .csv: weights [.., query, key], or q and k [.., token, dim], whose weights are computed in linear
/// memory, for 65,536 tokens and more. Long patterns are pooled into cells.
/// Writes attention_plot.svg, attention_plot.png and attention_plot.csv, one row of statistics per head.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  regard plot weights.npy --tokens the,cat,sat,on,the,mat\n  regard plot layer3.npz --head 5 --causal \
        --pool 256\n  regard plot q.npy --keys k.npy --causal")]
pub(crate) struct Plot {
    /// Weights, or q and k, or q alone with --keys
    file: PathBuf,
    /// A second file with the keys; FILE then has the queries
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// Name of the weights in the file
    #[arg(long, value_name = "NAME")]
    weights_name: Option<String>,
    /// Name of the queries in the file
    #[arg(long, value_name = "NAME")]
    q_name: Option<String>,
    /// Name of the keys in the file
    #[arg(long, value_name = "NAME")]
    k_name: Option<String>,
    /// Only this head, from 0; all heads as a grid otherwise
    #[arg(long, value_name = "N")]
    head: Option<usize>,
    /// Which batch entry, from 0
    #[arg(long, default_value_t = 0, value_name = "N")]
    batch: usize,
    /// Largest number of rows and columns of cells [default: 512, in a grid 128]
    #[arg(long, value_name = "N")]
    pool: Option<usize>,
    /// Value of a pooled cell
    #[arg(long, value_enum, default_value = "mean")]
    cell: CellArg,
    /// Colour scale [default: log where cells pool many pairs]
    #[arg(long, value_enum)]
    colours: Option<ColoursArg>,
    /// Hide keys after the query
    #[arg(long)]
    causal: bool,
    /// Align the last query with the last key
    #[arg(long)]
    align_end: bool,
    /// Half width of "local" in the statistics
    #[arg(long, default_value_t = 3, value_name = "N")]
    local_window: usize,
    /// Tokens: a list with commas, or a text file with one per line
    #[arg(long, value_name = "LIST|FILE")]
    tokens: Option<String>,
    /// Tokens of the queries, if they differ from those of the keys
    #[arg(long, value_name = "LIST|FILE")]
    query_tokens: Option<String>,
    /// Heads per row of the grid
    #[arg(long, value_name = "N")]
    columns: Option<usize>,
    #[command(flatten)]
    out: Out,
    #[command(flatten)]
    common: Common,
}

/// Errors of input files and options: exit code 2.
fn unusable(error: impl std::fmt::Display) -> anyhow::Error {
    Unusable(error.to_string()).into()
}

impl Plot {
    fn input(&self) -> Result<Input> {
        let names = Names { weights: self.weights_name.clone(), q: self.q_name.clone(), k: self.k_name.clone() };
        match &self.keys {
            Some(keys) => read_vectors(&self.file, keys, &names).map_err(unusable),
            None => read_pattern(&self.file, &names).map_err(unusable),
        }
    }

    pub(crate) fn run(self, words: &[OsString]) -> Result<Outcome> {
        let bar = self.common.start("plot")?;
        let folder = Folder::open(&self.out.out, "plot")?;
        folder.reserve(&regard_files::names::PLOT)?;
        let input = self.input()?;
        let listed = |tokens: &Option<String>| tokens.as_deref().map(read_tokens).transpose().map_err(unusable);
        let options = PlotOptions {
            head: self.head,
            batch: self.batch,
            pool: self.pool,
            cell: match self.cell {
                CellArg::Mean => CellValue::Mean,
                CellArg::Max => CellValue::Max,
            },
            causal: self.causal,
            align_end: self.align_end,
            local_window: self.local_window,
            norm: self.colours.map(|colours| match colours {
                ColoursArg::Linear => Norm::Linear,
                ColoursArg::Log => Norm::Log,
            }),
            tokens: listed(&self.tokens)?.unwrap_or(input.tokens),
            query_tokens: listed(&self.query_tokens)?,
            columns: self.columns,
        };
        let mut seen = (0, 0);
        let plotted = plot(&input.pattern, &options, &mut |done, all| {
            bar.expect(all.saturating_sub(seen.1) as u64);
            bar.advance(done.saturating_sub(seen.0) as u64);
            seen = (done.max(seen.0), all.max(seen.1));
        })
        .map_err(unusable)?;
        drop(bar);
        let (mut figure, mut table) = (plotted.figure, plotted.table);
        (figure.name, table.name) = ("attention_plot".to_owned(), "attention_plot".to_owned());
        table.origin = regard_lab::pattern::origin(&command_line(words))?;
        let tables = [table];
        let mut files = table_files(&tables);
        files.extend(figure_files(&[figure])?);
        write_files(folder, &files, &self.common)?;
        self.common.show(&tables)?;
        Ok(Outcome::Done)
    }
}

/// The command line without options that cannot change the result.
fn command_line(words: &[OsString]) -> Vec<String> {
    let mut words = words.iter().skip(1).map(|word| word.to_string_lossy().into_owned());
    let mut kept = vec!["regard".to_owned()];
    while let Some(word) = words.next() {
        match word.as_str() {
            "--json" | "--quiet" | "-q" => {}
            "--out" | "--threads" => _ = words.next(),
            other if other.starts_with("--out=") || other.starts_with("--threads=") => {}
            _ => kept.push(word),
        }
    }
    kept
}
