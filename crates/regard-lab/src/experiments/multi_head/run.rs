//! Split, attend, concatenate, project.

use super::MultiHead;
use crate::error::Result;
use crate::experiment::{Progress, defaults, origin, signed};
use crate::learning::brief;
use crate::statistics::draws::Draw;
use clap::Args;
use ndarray::{Array2, Array4, Axis, Slice};
use regard::Attention;
use regard_plot::Table;
use serde::Serialize;

/// Multi-head attention step by step: split, attend, concatenate, project with W_O, with every shape
///
/// Writes multi_head_shapes.csv, multi_head.csv and multi_head_maps.csv.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard lab multi-head --seed 2")]
pub struct MultiHeadConfig {
    /// Seed of tokens and projections
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Default for MultiHeadConfig {
    fn default() -> Self {
        defaults()
    }
}

const BATCH: usize = 2;
const SEQ: usize = 6;
const WIDTH: usize = 16;
/// Numbers of heads that are compared.
pub(super) const HEADS: [usize; 4] = [1, 2, 4, 8];
/// The number of heads whose shapes and maps are shown.
const SHOWN: usize = 4;

/// Rows `[batch * seq, width]` as `[batch, heads, seq, d_k]`.
fn split(x: &Array2<f64>, heads: usize) -> Array4<f64> {
    let four = x.clone().into_shape_with_order((BATCH, SEQ, heads, WIDTH / heads)).expect("the width is divisible");
    four.permuted_axes([0, 2, 1, 3]).as_standard_layout().into_owned()
}

/// The inverse of [`split`].
fn concatenate(x: &Array4<f64>) -> Array2<f64> {
    let rows = x.view().permuted_axes([0, 2, 1, 3]).as_standard_layout().into_owned();
    rows.into_shape_with_order((BATCH * SEQ, WIDTH)).expect("the same number of elements")
}

fn shape(of: &[usize]) -> String {
    format!("[{}]", of.iter().map(usize::to_string).collect::<Vec<_>>().join(", "))
}

fn largest(a: &Array2<f64>, b: &Array2<f64>) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

impl MultiHeadConfig {
    /// `multi_head_shapes`, each step with its shape; `multi_head`, by the number of heads; `multi_head_maps`, weights of each head.
    ///
    /// # Errors
    /// When the library refuses an input.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        let mut draw = Draw::named(self.seed, "multi-head", [SEQ, WIDTH], 0);
        let mut normal = |rows: usize, size: f64| {
            let mut x = Array2::zeros((rows, WIDTH));
            draw.normal(x.as_slice_mut().expect("a new array is contiguous"));
            x * size
        };
        let x = normal(BATCH * SEQ, 1.0);
        let size = (WIDTH as f64).powf(-0.5);
        let [w_q, w_k, w_v, w_o] = [2.0 * size, 2.0 * size, size, size].map(|size| normal(WIDTH, size));
        let columns = [
            ("heads", "heads"),
            ("d_k", "d_{k} of a head"),
            ("parameters", "parameters"),
            ("undone", "concat(split(x)) against x, largest difference"),
            ("by_head", "Concat(heads) W_{O} against the sum of heads times their rows of W_{O}"),
        ];
        let mut table = Table::new("multi_head", "Two ways to the same output, in f64", &columns);
        let shapes = [("step", "step"), ("formula", "formula"), ("shape", "shape"), ("elements", "elements")];
        let caption = format!("Shapes with batch {BATCH}, {SEQ} tokens, width {WIDTH} and {SHOWN} heads");
        let mut shapes = Table::new("multi_head_shapes", &caption, &shapes);
        let maps = [("head", "head"), ("query", "query"), ("key", "key"), ("weight", "weight")];
        let mut maps = Table::new("multi_head_maps", "Weights of each head, first sequence", &maps);
        for heads in HEADS {
            let d_k = WIDTH / heads;
            let [q, k, v] = [&w_q, &w_k, &w_v].map(|w| split(&x.dot(w), heads));
            let attention = Attention::new().threads(1);
            let (weights, mixed) = (attention.weights(&q, &k)?, attention.forward(&q, &k, &v)?.out);
            let joined = concatenate(&mixed);
            let out = joined.dot(&w_o);
            let mut by_head = Array2::zeros(out.raw_dim());
            for h in 0..heads {
                let rows = mixed.index_axis(Axis(1), h).as_standard_layout().into_owned();
                let rows = rows.into_shape_with_order((BATCH * SEQ, d_k)).expect("the rows of one head");
                by_head += &rows.dot(&w_o.slice_axis(Axis(0), Slice::from(h * d_k..(h + 1) * d_k)));
            }
            let differences = [largest(&concatenate(&split(&x, heads)), &x), largest(&out, &by_head)].map(brief);
            let mut cells = vec![heads.into(), d_k.into(), (4 * WIDTH * WIDTH).into()];
            cells.extend(differences);
            table.push(cells);
            if heads == SHOWN {
                let three = |x: &Array2<f64>| vec![BATCH, SEQ, x.ncols()];
                let steps = [
                    ("input", "X", three(&x)),
                    ("project", "Q = X W_{Q}, also K and V", three(&x.dot(&w_q))),
                    ("split", "Q as heads, also K and V", q.shape().to_vec()),
                    ("score", "Q K^{T} / sqrt(d_{k})", weights.shape().to_vec()),
                    ("softmax", "weights, rows sum to 1", weights.shape().to_vec()),
                    ("mix", "weights V", mixed.shape().to_vec()),
                    ("concatenate", "Concat(head_{1}, ..., head_{h})", three(&joined)),
                    ("project", "Concat(...) W_{O}", three(&out)),
                ];
                for (step, formula, of) in steps {
                    shapes.push(vec![step.into(), formula.into(), shape(&of).into(), of.iter().product::<usize>().into()]);
                }
                for ((_, h, i, j), weight) in weights.indexed_iter().filter(|((b, ..), _)| *b == 0) {
                    maps.push(vec![h.into(), i.into(), j.into(), brief(*weight)]);
                }
            }
            progress.advance(1);
        }
        Ok(signed(vec![shapes, table, maps], &origin::<MultiHead>(self, self.seed, "normal numbers by Regard")?))
    }
}
