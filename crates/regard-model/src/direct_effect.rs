//! The direct effect of heads: what the loss becomes where a head's writing is taken out of the last stream alone.
//!
//! ```text
//! total     the head is zero, and every later layer sees that            Model::screen
//! direct    logits of norm(last stream - z_h W_O^h): later layers are as they were
//! ```
//!
//! Later heads repair much of what is missing (arXiv 2307.15771, 2402.15390), and build on what is there: the two need not agree in sign.

use crate::edits::{Edits, Sources};
use crate::error::{Error, Result};
use crate::metric::Metric;
use crate::model::{Model, Remember};
use crate::paired_test::Evidence;
use ndarray::Axis;
use regard_nn::linear::Write;

impl Model {
    /// The direct effect of every head on the losses of texts, head by head; `watch` gets the number of finished heads and their total,
    /// over all texts.
    ///
    /// # Errors
    /// As [`Model::losses`]; [`Error::NoHead`] for models whose norms stand after sums, where a head has no writing of its own.
    pub fn direct_effects(&self, texts: &[Vec<u32>], watch: impl FnMut(usize, usize)) -> Result<Vec<Evidence>> {
        self.direct_effects_by(texts, &Metric::Loss, watch)
    }

    /// The same on a metric of each text.
    ///
    /// # Errors
    /// As [`Model::direct_effects`]; when the metric does not fit the texts.
    pub fn direct_effects_by(&self, texts: &[Vec<u32>], metric: &Metric, mut watch: impl FnMut(usize, usize)) -> Result<Vec<Evidence>> {
        metric.check(self, texts)?;
        if !self.is_linear() {
            return Err(Error::NoHead { what: "a direct effect: its norms or its head are not linear" });
        }
        let shape = self.shape();
        let (heads, width, dim) = (shape.layers * shape.heads, self.width(), self.head_dim());
        let mut differences: Vec<Vec<f64>> = vec![Vec::with_capacity(texts.len()); heads];
        for (text, ids) in texts.iter().enumerate() {
            let remember = Remember { streams: true, heads: true, ..Remember::default() };
            let (hidden, memory) = self.forward(ids, &Edits::default(), &Sources::default(), remember)?;
            let intact = metric.value(self, text, ids, &hidden)?;
            let weights = self.weights()?;
            let last = &memory.streams[self.sublayers()];
            for (head, differences) in differences.iter_mut().enumerate() {
                let (layer, number) = (head / shape.heads, head % shape.heads);
                let output = self.layer(layer).expect("as many as layers").output();
                let z = memory.heads[layer].z.index_axis(Axis(0), number);
                let mut rows = last.clone();
                let (mut alone, mut written) = (vec![0f32; output.inputs()], vec![0f32; width]);
                for (row, z) in rows.chunks_exact_mut(width).zip(z.outer_iter()) {
                    alone[number * dim..(number + 1) * dim].iter_mut().zip(z).for_each(|(to, z)| *to = *z);
                    output.matrix(&weights).row_product(&alone, &mut written, Write::Replace);
                    row.iter_mut().zip(&written).for_each(|(x, w)| *x -= w);
                }
                self.transformer().stack().apply_last_norm(&weights, &mut rows);
                differences.push(metric.value(self, text, ids, &rows)? - intact);
                watch(text * heads + head + 1, texts.len() * heads);
            }
        }
        Ok(differences.iter().enumerate().map(|(head, differences)| Evidence::of(differences, head as u64)).collect())
    }
}
