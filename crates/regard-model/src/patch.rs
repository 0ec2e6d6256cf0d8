//! Activation patching: the results of each head on one text, put into a run of another.
//!
//! ```text
//! margin    logit(token of the clean text) - logit(token of the corrupt text), after the last token
//! share     (margin with the patch - margin of the corrupt text) / (margin of the clean text - margin of the corrupt text)
//! ```
//!
//! Layers before the patch are those of the corrupt run, and the patches of a layer run together, a sequence for each: every number has the
//! bits of a run with the edit `L3.H1=patch:clean`.

use crate::edits::{Edits, LayerActivations, Sources};
use crate::error::{Error, Result};
use crate::model::{Model, Remember};
use ndarray::{Array3, ArrayViewMut4, Axis, Slice};
use regard_nn::layers::attention::Heads;
use regard_nn::layers::probe::{Attending, Probe};
use std::sync::atomic::AtomicBool;

/// Rows of a pass: patches of a layer share it.
const PATCH_ROWS: usize = 1024;

/// What is patched and measured.
#[derive(Debug, Clone, Copy, Default)]
pub struct PatchOptions {
    /// The tokens whose logits are compared; by default the most likely ones of the clean and of the corrupt text.
    pub tokens: Option<[u32; 2]>,
    /// Each position on its own, instead of all together.
    pub by_position: bool,
}

/// What patches of heads did.
#[derive(Debug, Clone)]
pub struct Patched {
    /// The tokens whose logits are compared.
    pub tokens: [u32; 2],
    /// The margin on the clean text.
    pub clean: f64,
    /// The margin on the corrupt text.
    pub corrupt: f64,
    /// The margin with each patch, `[layers, heads, positions]`; one position stands for all of them together.
    pub margins: Array3<f64>,
}

impl Patched {
    /// A margin as a share of the whole difference.
    pub fn share(&self, margin: f64) -> f64 {
        (margin - self.corrupt) / (self.clean - self.corrupt)
    }
}

/// Sequence `b` of the pass gets the clean results of head `places[b].0`, at one row or at all.
struct PatchHeads<'p> {
    sublayer: usize,
    clean: &'p LayerActivations,
    places: &'p [(usize, Option<usize>)],
    flag: &'p AtomicBool,
}

impl Probe<f32> for PatchHeads<'_> {
    fn interrupt(&self) -> Option<&AtomicBool> {
        Some(self.flag)
    }

    fn results(&self, number: usize, _: &Attending<'_>, _: &Heads<'_, f32>, mut z: ArrayViewMut4<'_, f32>) -> regard::Result<()> {
        if number == self.sublayer {
            for (b, &(head, row)) in self.places.iter().enumerate() {
                let rows = row.map_or(0..z.dim().2, |row| row..row + 1);
                let clean = self.clean.z.index_axis(Axis(0), head);
                let mut batch = z.index_axis_mut(Axis(0), b);
                let mut to = batch.index_axis_mut(Axis(0), head);
                to.slice_axis_mut(Axis(0), Slice::from(rows.clone())).assign(&clean.slice_axis(Axis(0), Slice::from(rows)));
            }
        }
        Ok(())
    }
}

impl Model {
    /// Patch each head's results on the clean text into a run of the corrupt text, which must be as long; `watch` gets the number of
    /// patches that are done, and of all.
    ///
    /// # Errors
    /// As [`Model::run`]; when the texts differ in length, there is no head, or both texts have the same margin.
    pub fn patch(&self, clean: &[u32], corrupt: &[u32], options: PatchOptions, mut watch: impl FnMut(usize, usize)) -> Result<Patched> {
        if !self.has_head() {
            return Err(Error::NoHead { what: "logits" });
        }
        self.check_plain("patches of all heads")?;
        if clean.len() != corrupt.len() {
            let reason = format!(
                "the clean text has {} tokens and the corrupt one {}: give texts with the same number of tokens (`regard tokens` lists \
                    them)",
                clean.len(),
                corrupt.len()
            );
            return Err(Error::Tokens { reason });
        }
        let (none, nothing) = (Edits::default(), Sources::default());
        let source = self.run(clean, &none, &nothing)?;
        let (hidden, memory) = self.forward(corrupt, &none, &nothing, Remember { streams: true, ..Remember::default() })?;
        let (weights, width, len) = (self.weights()?, self.width(), corrupt.len());
        let last = |rows: &[f32]| rows[rows.len() - width..].to_vec();
        let source_row = source.hidden().row(len - 1).to_vec();
        let tokens = match options.tokens {
            Some(tokens) => {
                self.check_tokens(&tokens)?;
                tokens
            }
            None => {
                let best = |row: &[f32]| Ok::<_, Error>(regard_nn::generate::argmax(&self.logits(row)?) as u32);
                let tokens = [best(&source_row)?, best(&last(&hidden))?];
                if tokens[0] == tokens[1] {
                    let piece = self.piece(tokens[0]);
                    let reason = format!("both texts have the same most likely next token: {piece:?}; give texts that differ in it");
                    return Err(Error::Tokens { reason });
                }
                tokens
            }
        };
        let [clean_margin, corrupt_margin] = [source_row, last(&hidden)].map(|row| self.margins(&row, tokens));
        let (clean_margin, corrupt_margin) = (clean_margin?[0], corrupt_margin?[0]);
        if clean_margin == corrupt_margin {
            let pieces = tokens.map(|token| self.piece(token));
            let reason = format!("both texts have the same margin of {:?} over {:?}: give texts that differ in it", pieces[0], pieces[1]);
            return Err(Error::Tokens { reason });
        }
        let shape = self.shape();
        let positions: Vec<Option<usize>> = if options.by_position { (0..len).map(Some).collect() } else { vec![None] };
        let places: Vec<(usize, Option<usize>)> =
            (0..shape.heads).flat_map(|head| positions.iter().map(move |position| (head, *position))).collect();
        let activations = source.activations();
        let mut margins = Vec::with_capacity(shape.layers * places.len());
        for (layer, activations) in activations.iter().enumerate().take(shape.layers) {
            for places in places.chunks((PATCH_ROWS / len).max(1)) {
                let (sublayer, clean) = (2 * layer, &**activations);
                let probe = PatchHeads { sublayer, clean, places, flag: self.cancel().flag() };
                let stream = memory.streams[sublayer].repeat(places.len());
                let pass = regard_nn::Pass { batch: places.len(), ..self.pass(len) };
                let rest = sublayer..2 * shape.layers;
                let rows = rayon::scope(|_| self.transformer().probe_part(&weights, &pass, rest, (&stream, &[]), &probe))?;
                let ends: Vec<f32> = rows.chunks(len * width).flat_map(last).collect();
                margins.extend(self.margins(&ends, tokens)?);
                watch(margins.len(), shape.layers * shape.heads * positions.len());
            }
        }
        let margins = Array3::from_shape_vec((shape.layers, shape.heads, positions.len()), margins).expect("one for each patch");
        Ok(Patched { tokens, clean: clean_margin, corrupt: corrupt_margin, margins })
    }

    /// The difference of two tokens' logits, for each of these rows.
    fn margins(&self, rows: &[f32], [right, wrong]: [u32; 2]) -> Result<Vec<f64>> {
        let logits = self.logits(rows)?;
        let margin = |logits: &[f32]| f64::from(logits[right as usize]) - f64::from(logits[wrong as usize]);
        Ok(logits.chunks(self.vocab()).map(margin).collect())
    }
}
