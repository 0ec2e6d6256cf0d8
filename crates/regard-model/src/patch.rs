//! Activation patching: an activation on one text, put into a run of another.
//!
//! ```text
//! margin    logit(token of the clean text) - logit(token of the corrupt text), after the last token
//! share     (margin with the patch - margin of the corrupt text) / (margin of the clean text - margin of the corrupt text)
//! ```
//!
//! Layers before the patch are those of the corrupt run, and the patches of a layer run together, a sequence for each: every number has the
//! bits of a run with the edit `L3.H1=patch:clean` (`L3.H1=patch:clean.q`, `L3.KV1=patch:clean.k`,
//! `L3.resid_pre=patch:clean`, ...). A position of `pattern` is a row of the weights.

use crate::edits::{Arrays, Edits, LayerActivations, Sources};
use crate::error::{Error, Result};
use crate::hooks::Site;
use crate::model::{Model, Remember};
use ndarray::{Array3, ArrayView2, ArrayView3, ArrayViewMut4, Axis, Slice};
use regard_nn::layers::attention::{Heads, HeadsMut};
use regard_nn::layers::probe::{Attending, Change, Probe};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Rows of a pass: patches of a layer share it.
const PATCH_ROWS: usize = 1024;

/// What is patched and measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PatchOptions {
    /// The activation that is taken from the clean text.
    pub site: Site,
    /// The tokens whose logits are compared; by default the most likely ones of the clean and of the corrupt text.
    pub tokens: Option<[u32; 2]>,
    /// Each position on its own, instead of all together.
    pub by_position: bool,
}

impl Default for PatchOptions {
    fn default() -> Self {
        Self { site: Site::Z, tokens: None, by_position: false }
    }
}

/// What patches did.
#[derive(Debug, Clone)]
pub struct Patched {
    /// The tokens whose logits are compared.
    pub tokens: [u32; 2],
    /// The margin on the clean text.
    pub clean: f64,
    /// The margin on the corrupt text.
    pub corrupt: f64,
    /// The margin with each patch, `[layers, heads, positions]`: of keys and values the heads of these, of rows of the stream's width one;
    /// one position stands for all of them together.
    pub margins: Array3<f64>,
}

impl Patched {
    /// A margin as a share of the whole difference.
    pub fn share(&self, margin: f64) -> f64 {
        (margin - self.corrupt) / (self.clean - self.corrupt)
    }
}

/// What the sequences of a pass get from the clean text.
enum Clean<'p> {
    /// Of each head, `[heads, tokens, dim]`.
    Heads(ArrayView3<'p, f32>),
    /// Rows of the stream's width.
    Rows(ArrayView2<'p, f32>),
}

/// Sequence `b` of the pass gets the clean activation of head `places[b].0`, at one row or at all.
struct PatchSite<'p> {
    /// The attention of the layer.
    sublayer: usize,
    site: Site,
    clean: Clean<'p>,
    places: &'p [(usize, Option<usize>)],
    flag: &'p AtomicBool,
}

impl PatchSite<'_> {
    fn rows(row: Option<usize>, len: usize) -> Range<usize> {
        row.map_or(0..len, |row| row..row + 1)
    }

    fn put_heads(&self, site: Site, mut heads: ArrayViewMut4<'_, f32>) {
        let (true, Clean::Heads(clean)) = (site == self.site, &self.clean) else { return };
        for (b, &(head, row)) in self.places.iter().enumerate() {
            let rows = Slice::from(Self::rows(row, heads.len_of(Axis(2))));
            let mut batch = heads.index_axis_mut(Axis(0), b);
            let mut to = batch.index_axis_mut(Axis(0), head);
            to.slice_axis_mut(Axis(0), rows).assign(&clean.index_axis(Axis(0), head).slice_axis(Axis(0), rows));
        }
    }

    fn put_rows(&self, site: Site, all: &mut [f32]) {
        let (true, Clean::Rows(clean)) = (site == self.site, &self.clean) else { return };
        let (len, width) = clean.dim();
        for (rows, &(_, row)) in all.chunks_exact_mut(len * width).zip(self.places) {
            for row in Self::rows(row, len) {
                rows[row * width..(row + 1) * width].iter_mut().zip(clean.row(row)).for_each(|(to, x)| *to = *x);
            }
        }
    }
}

impl Probe<f32> for PatchSite<'_> {
    fn interrupt(&self) -> Option<&AtomicBool> {
        Some(self.flag)
    }

    fn stream(&self, number: usize, rows: &mut [f32]) {
        let sites = [Site::ResidPre, Site::ResidMid, Site::ResidPost];
        if let Some(site) = number.checked_sub(self.sublayer).and_then(|place| sites.get(place)) {
            self.put_rows(*site, rows);
        }
    }

    fn heads(&self, number: usize, heads: &mut HeadsMut<'_, f32>) {
        if number == self.sublayer {
            self.put_heads(Site::Q, heads.q());
            self.put_heads(Site::K, heads.k());
            self.put_heads(Site::V, heads.v());
        }
    }

    fn results(&self, number: usize, _: &Attending<'_>, _: &Heads<'_, f32>, z: ArrayViewMut4<'_, f32>) -> regard::Result<()> {
        if number == self.sublayer {
            self.put_heads(Site::Z, z);
        }
        Ok(())
    }

    fn wants_branch(&self, number: usize) -> bool {
        match self.site {
            Site::AttnOut => number == self.sublayer,
            Site::MlpOut => number == self.sublayer + 1,
            _ => false,
        }
    }

    fn branch(&self, _: usize, rows: &mut [f32]) {
        self.put_rows(self.site, rows);
    }
}

/// Both texts as they were run.
struct Texts {
    clean: Vec<Arc<LayerActivations>>,
    corrupt: Vec<Arc<LayerActivations>>,
    /// Of the clean text, where the site is rows of the stream's width.
    rows: Arrays,
    /// The stream of the corrupt text before each sublayer.
    streams: Vec<Vec<f32>>,
}

impl Model {
    /// Patch activations of the clean text into a run of the corrupt text, which must be as long: of each head, or of each layer where the
    /// activation has no heads. `watch` gets the number of patches that are done, and of all.
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
        let (none, nothing, site) = (Edits::default(), Sources::default(), options.site);
        let (source, rows) = match site.has_heads() {
            true => (self.run(clean, &none, &nothing)?, Arrays::default()),
            false => self.record(clean, &|_, of| of == site)?,
        };
        let remember = Remember { streams: true, heads: site == Site::Pattern, ..Remember::default() };
        let (hidden, memory) = self.forward(corrupt, &none, &nothing, remember)?;
        let (width, len) = (self.width(), corrupt.len());
        let last = |rows: &[f32]| rows[rows.len() - width..].to_vec();
        let ends = [source.hidden().row(len - 1).to_vec(), last(&hidden)];
        let tokens = self.compared(options.tokens, &ends)?;
        let [clean_margin, corrupt_margin] = [self.margins(&ends[0], tokens)?[0], self.margins(&ends[1], tokens)?[0]];
        if clean_margin == corrupt_margin {
            let pieces = tokens.map(|token| self.piece(token));
            let reason = format!("both texts have the same margin of {:?} over {:?}: give texts that differ in it", pieces[0], pieces[1]);
            return Err(Error::Tokens { reason });
        }
        let texts = Texts { clean: source.activations(), corrupt: memory.heads, rows, streams: memory.streams };
        let shape = self.shape();
        let heads = match site {
            Site::Q | Site::Z | Site::Pattern => shape.heads,
            Site::K | Site::V => shape.kv_heads,
            _ => 1,
        };
        let positions: Vec<Option<usize>> = if options.by_position { (0..len).map(Some).collect() } else { vec![None] };
        let places: Vec<_> = (0..heads).flat_map(|head| positions.iter().map(move |position| (head, *position))).collect();
        let mut margins = Vec::with_capacity(shape.layers * places.len());
        for layer in 0..shape.layers {
            for places in places.chunks((PATCH_ROWS / len).max(1)) {
                let rows = self.patched(&texts, layer, site, places)?;
                let ends: Vec<f32> = rows.chunks(len * width).flat_map(last).collect();
                margins.extend(self.margins(&ends, tokens)?);
                watch(margins.len(), shape.layers * heads * positions.len());
            }
        }
        let margins = Array3::from_shape_vec((shape.layers, heads, positions.len()), margins).expect("one for each patch");
        Ok(Patched { tokens, clean: clean_margin, corrupt: corrupt_margin, margins })
    }

    /// The final rows of a sequence per place.
    fn patched(&self, texts: &Texts, layer: usize, site: Site, places: &[(usize, Option<usize>)]) -> Result<Vec<f32>> {
        let (weights, clean, len) = (self.weights()?, &texts.clean[layer], texts.streams[0].len() / self.width());
        let (sublayer, pass) = (2 * layer, self.pass(len));
        let mixed;
        let activation = match site {
            Site::Q => Clean::Heads(clean.q.view()),
            Site::K => Clean::Heads(clean.k.view()),
            Site::V => Clean::Heads(clean.v.view()),
            Site::Z => Clean::Heads(clean.z.view()),
            // The clean weights, made of clean queries and keys, with the values of the corrupt text.
            Site::Pattern => {
                let [q, k, v] = [&clean.q, &clean.k, &texts.corrupt[layer].v].map(|x| x.view().insert_axis(Axis(0)));
                let attention = self.layer(layer).expect("a layer of the model").attention(&pass, 0, &Change::default());
                mixed = attention.interrupt(self.cancel().flag()).forward(q, k, v)?.out.index_axis_move(Axis(0), 0);
                Clean::Heads(mixed.view())
            }
            _ => Clean::Rows(texts.rows[&(layer, site)].view().into_dimensionality().expect("rows of the stream's width")),
        };
        let site = if site == Site::Pattern { Site::Z } else { site };
        let probe = PatchSite { sublayer, site, clean: activation, places, flag: self.cancel().flag() };
        // A network that reads the rows of attention needs these, too.
        let first = if site == Site::ResidPost { sublayer + 2 } else { sublayer };
        let stream = texts.streams[first].repeat(places.len());
        let pass = regard_nn::Pass { batch: places.len(), ..pass };
        let rest = first..2 * self.shape().layers;
        let rows = rayon::scope(|_| self.transformer().probe_part(&weights, &pass, rest, (&stream, &[]), &probe))?;
        Ok(rows)
    }

    /// The tokens whose logits are compared; by default the most likely ones after the final rows of both texts.
    fn compared(&self, tokens: Option<[u32; 2]>, ends: &[Vec<f32>; 2]) -> Result<[u32; 2]> {
        if let Some(tokens) = tokens {
            self.check_tokens(&tokens)?;
            return Ok(tokens);
        }
        let best = |row: &[f32]| Ok::<_, Error>(regard_nn::generate::argmax(&self.logits(row)?) as u32);
        let tokens = [best(&ends[0])?, best(&ends[1])?];
        if tokens[0] == tokens[1] {
            let piece = self.piece(tokens[0]);
            let reason = format!("both texts have the same most likely next token: {piece:?}; give texts that differ in it");
            return Err(Error::Tokens { reason });
        }
        Ok(tokens)
    }

    /// The difference of two tokens' logits, for each of these rows.
    fn margins(&self, rows: &[f32], [right, wrong]: [u32; 2]) -> Result<Vec<f64>> {
        let logits = self.logits(rows)?;
        let margin = |logits: &[f32]| f64::from(logits[right as usize]) - f64::from(logits[wrong as usize]);
        Ok(logits.chunks(self.vocab()).map(margin).collect())
    }
}
