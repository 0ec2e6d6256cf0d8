//! Why a head looks there: which parts of the stream make a score, through its queries and its keys.
//!
//! ```text
//! score(i, j) = scale q_i . k_j = sum over parts a of the query's row and b of the key's row of   scale q_a . k_b
//! ```
//!
//! Norms keep the scale of the whole row, and positions only turn, so that the sum is exact but for rounding.

use crate::edits::{Edits, Remember, Sources};
use crate::error::{Error, Result};
use crate::model::Model;
use ndarray::Array2;
use regard::Scale;
use regard_nn::layers::probe::Operand;
use regard_nn::linear::Write;

/// A score as a sum of parts.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoreParts {
    /// `embedding`, `L0.H1`, `L0.bias`, `L0.mlp`, and `constant` for what norm and projection add; the same for queries and keys.
    pub parts: Vec<String>,
    /// What each part of the query's row and each part of the key's row make together, `[query part, key part]`.
    pub products: Array2<f64>,
    /// Their sum.
    pub sum: f64,
    /// The score itself, scaled, before softcap, bias and mask.
    pub score: f64,
}

impl Model {
    /// Which parts make the score of a query and a key of a head.
    ///
    /// # Errors
    /// [`Error::Outside`]; [`Error::NoHead`] for norms after branches or sums.
    pub fn score_parts(&self, ids: &[u32], layer: usize, head: usize, query: usize, key: usize) -> Result<ScoreParts> {
        let shape = self.shape();
        for (what, number, count) in
            [("layer", layer, shape.layers), ("head", head, shape.heads), ("query", query, ids.len()), ("key", key, ids.len())]
        {
            if number >= count {
                return Err(Error::Outside { what, number, count });
            }
        }
        let stack = self.transformer().stack();
        if !stack.is_additive() {
            return Err(Error::NoHead { what: "parts of a score: its norms stand after branches or sums" });
        }
        let remember = Remember { heads: true, networks: true, streams: true };
        let (_, memory) = self.forward(ids, &Edits::default(), &Sources::default(), remember)?;
        let (weights, width, dim) = (self.weights()?, self.width(), self.head_dim());
        let of_row = |row: usize| -> (Vec<String>, Vec<f32>) {
            let rows = row * width..(row + 1) * width;
            let (mut names, mut parts) = (vec!["embedding".to_owned()], memory.streams[0][rows.clone()].to_vec());
            for before in 0..layer {
                let output = self.layer(before).expect("a layer of the model").output();
                for (number, z) in memory.heads[before].z.outer_iter().enumerate() {
                    let (mut alone, mut written) = (vec![0f32; output.inputs()], vec![0f32; width]);
                    alone[number * dim..(number + 1) * dim].iter_mut().zip(z.row(row)).for_each(|(to, z)| *to = *z);
                    output.matrix(&weights).row_product(&alone, &mut written, Write::Replace);
                    names.push(format!("L{before}.H{number}"));
                    parts.extend(written);
                }
                if let Some(bias) = output.bias(&weights) {
                    names.push(format!("L{before}.bias"));
                    parts.extend_from_slice(bias);
                }
                names.push(format!("L{before}.mlp"));
                parts.extend_from_slice(&memory.networks[before][rows.clone()]);
            }
            (names, parts)
        };
        let made = |operand: Operand, head: usize, row: usize| {
            let (names, parts) = of_row(row);
            let whole = &memory.streams[2 * layer][row * width..(row + 1) * width];
            (names, stack.operand_parts(&weights, 2 * layer, (operand, head), row, whole, &parts))
        };
        let kv = head / (shape.heads / shape.kv_heads);
        let ((mut names, q), (_, k)) = (made(Operand::Q, head, query), made(Operand::K, kv, key));
        names.push("constant".to_owned());
        let attention = self.layer(layer).expect("a layer of the model").config();
        let scale = match Scale::from(attention.scale) {
            Scale::InvSqrtDim => 1.0 / (dim as f64).sqrt(),
            Scale::Off => 1.0,
            Scale::By(x) => x,
        };
        let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let products = Array2::from_shape_fn((names.len(), names.len()), |(a, b)| {
            scale * product(&q[a * dim..(a + 1) * dim], &k[b * dim..(b + 1) * dim])
        });
        let of_heads = |heads: &ndarray::Array3<f32>, head: usize, row: usize| heads.index_axis(ndarray::Axis(0), head).row(row).to_vec();
        let tape = &memory.heads[layer];
        let score = scale * product(&of_heads(&tape.q, head, query), &of_heads(&tape.k, kv, key));
        Ok(ScoreParts { parts: names, sum: products.sum(), products, score })
    }
}
