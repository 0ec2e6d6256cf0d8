//! [`Run`]: one text through a model, and everything that can be asked of it afterwards.
//!
//! It has queries, keys, values and results of every head, which is linear in the text. Weights are made on demand by the kernel that
//! made the output: a head, a row, a rectangle, or a picture of any length.

use crate::cancel::Cancel;
use crate::edits::{Edits, LayerActivations, Sources, head_changes, layer_change};
use crate::error::{Error, Result};
use crate::hooks::{Hook, Site};
use crate::model::{Model, Remember};
use crate::tiles::Sink;
use ndarray::{Array1, Array2, Array3, ArrayView2, ArrayView4, Axis};
use regard::{HeatMap, Rectangle, RowStats, StatsOptions};
use regard_nn::layers::positions::Angles;
use regard_nn::layers::probe::Change;
use std::ops::Range;
use std::sync::Arc;

/// Rows of an edited head whose weights are summed at a time.
const STRIP: usize = 64;

/// One text through a model: a handle that is cheap to clone, with views that may be computed side by side.
#[derive(Debug, Clone)]
pub struct Run {
    model: Model,
    made: Arc<Made>,
}

/// What a pass left, which views only read.
#[derive(Debug)]
struct Made {
    ids: Vec<u32>,
    edits: Edits,
    hidden: Vec<f32>,
    layers: Vec<Arc<LayerActivations>>,
    /// Rows that are not of the silence that sound is filled up with.
    filled: usize,
}

/// The loss of each next token, in nats.
pub(crate) fn row_losses(model: &Model, ids: &[u32], hidden: &[f32]) -> Result<Vec<f64>> {
    model.check_loss(ids)?;
    model.losses_of(&model.weights()?, &hidden[..(ids.len() - 1) * model.width()], &ids[1..])
}

fn four<'a>(x: ArrayView2<'a, f32>) -> ArrayView4<'a, f32> {
    x.insert_axis(Axis(0)).insert_axis(Axis(0))
}

impl Run {
    pub(crate) fn new(model: Model, ids: Vec<u32>, edits: Edits, hidden: Vec<f32>, layers: Vec<Arc<LayerActivations>>) -> Self {
        let filled = ids.len();
        Self { model, made: Arc::new(Made { ids, edits, hidden, layers, filled }) }
    }

    /// The same run, of which the rows after the first are silence.
    pub(crate) fn filled_up_to(mut self, filled: usize) -> Self {
        let filled = filled.clamp(1, self.len());
        Arc::get_mut(&mut self.made).expect("a new run").filled = filled;
        self
    }

    /// The same run, whose views end when the flag is set.
    #[must_use]
    pub fn with_cancel(&self, cancel: &Cancel) -> Self {
        Self { model: self.model.with_cancel(cancel), made: self.made.clone() }
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Its tokens.
    pub fn ids(&self) -> &[u32] {
        &self.made.ids
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.made.ids.len()
    }

    /// Keys that its rows may see: as many as tokens; of cross-attention, the rows that the decoder reads.
    pub fn keys(&self) -> usize {
        self.made.layers.first().map_or(self.len(), |layer| layer.k.len_of(Axis(1)))
    }

    /// Rows and keys that are not of the silence that sound is filled up with: what pictures show.
    pub fn filled(&self) -> [usize; 2] {
        let keys = if self.is_cross() { self.encoder().map_or(self.keys(), |read| read.made.filled) } else { self.made.filled };
        [self.made.filled, keys]
    }

    /// Rows see those before them only.
    pub fn is_causal(&self) -> bool {
        self.model.is_causal() && !self.is_cross()
    }

    /// Its rows and its keys as people read them.
    pub fn pieces(&self) -> [Vec<String>; 2] {
        let of = |run: &Self| run.ids().iter().map(|id| run.model.piece(*id)).collect::<Vec<_>>();
        let rows = of(self);
        let keys = if self.is_cross() { self.encoder().map(of) } else { None };
        [rows.clone(), keys.unwrap_or(rows)]
    }

    /// Always false: a run has at least one token.
    pub fn is_empty(&self) -> bool {
        self.made.ids.is_empty()
    }

    /// The edits that it was run with.
    pub fn edits(&self) -> &Edits {
        &self.made.edits
    }

    /// The final hidden states, after the last norm, `[tokens, width]`.
    pub fn hidden(&self) -> ArrayView2<'_, f32> {
        ArrayView2::from_shape((self.len(), self.model.width()), &self.made.hidden).expect("a row per token")
    }

    /// The same, one row after the other.
    pub(crate) fn rows(&self) -> &[f32] {
        &self.made.hidden
    }

    /// What every head worked with: a second text of [`Sources::texts`], with the edits of this run.
    pub fn activations(&self) -> Vec<Arc<LayerActivations>> {
        self.made.layers.clone()
    }

    /// Logits of all tokens, `[tokens, vocab]`.
    ///
    /// # Errors
    /// [`Error::NoHead`].
    pub fn logits(&self) -> Result<Array2<f32>> {
        let logits = self.model.logits(&self.made.hidden)?;
        Ok(Array2::from_shape_vec((self.len(), self.model.vocab()), logits).expect("a row per token"))
    }

    /// The loss of each next token, in nats.
    ///
    /// # Errors
    /// [`Error::NoHead`], and when there are fewer than two tokens.
    pub fn losses(&self) -> Result<Vec<f64>> {
        row_losses(&self.model, &self.made.ids, &self.made.hidden)
    }

    /// Their mean.
    ///
    /// # Errors
    /// As [`Run::losses`].
    pub fn loss(&self) -> Result<f64> {
        let losses = self.losses()?;
        Ok(losses.iter().sum::<f64>() / losses.len() as f64)
    }

    /// One vector for the text, as sentence-transformers' folders say; else the mean over all tokens.
    pub fn embedding(&self) -> Array1<f32> {
        let pooling = self.model.pooling();
        let pooled = match pooling {
            Some(pooling) if pooling.first => self.hidden().row(0).to_owned(),
            _ => self.hidden().mean_axis(Axis(0)).expect("at least one token"),
        };
        match pooling {
            Some(pooling) if pooling.normalised => {
                let norm = pooled.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt().max(1e-12);
                pooled.mapv(|x| (f64::from(x) / norm) as f32)
            }
            _ => pooled,
        }
    }

    fn tape(&self, layer: usize) -> Result<&LayerActivations> {
        self.made.layers.get(layer).map(|layer| &**layer).ok_or(Error::Outside {
            what: "layer",
            number: layer,
            count: self.made.layers.len(),
        })
    }

    /// Queries of a layer, `[heads, tokens, head_dim]`, as they attended: after norms and positions; before positions with `rotated` false.
    ///
    /// # Errors
    /// [`Error::Outside`].
    pub fn q(&self, layer: usize, rotated: bool) -> Result<Array3<f32>> {
        Ok(self.turned(&self.tape(layer)?.q, rotated))
    }

    /// Keys of a layer, `[kv_heads, tokens, head_dim]`; as [`Run::q`].
    ///
    /// # Errors
    /// [`Error::Outside`].
    pub fn k(&self, layer: usize, rotated: bool) -> Result<Array3<f32>> {
        Ok(self.turned(&self.tape(layer)?.k, rotated))
    }

    /// Values of a layer, `[kv_heads, tokens, head_dim]`.
    ///
    /// # Errors
    /// [`Error::Outside`].
    pub fn v(&self, layer: usize) -> Result<&Array3<f32>> {
        Ok(&self.tape(layer)?.v)
    }

    /// Results of a layer's heads before W_O, `[heads, tokens, head_dim]`.
    ///
    /// # Errors
    /// [`Error::Outside`].
    pub fn z(&self, layer: usize) -> Result<&Array3<f32>> {
        Ok(&self.tape(layer)?.z)
    }

    /// Values that a head read.
    pub(crate) fn values_of(&self, layer: usize, head: usize, kv: usize) -> Result<ArrayView2<'_, f32>> {
        let tape = self.tape(layer)?;
        Ok(tape.own.get(&head).map_or_else(|| tape.v.index_axis(Axis(0), kv), |own| own.v.view()))
    }

    fn angles(&self) -> Option<Angles<f32>> {
        let rotary = self.model.layer(0).and_then(|attention| attention.config().rotary);
        rotary.map(|rotary| Angles::new(rotary, self.model.head_dim(), self.len()))
    }

    fn turned(&self, heads: &Array3<f32>, rotated: bool) -> Array3<f32> {
        let mut heads = heads.clone();
        if let (Some(angles), false) = (self.angles(), rotated) {
            for mut head in heads.outer_iter_mut() {
                for (position, mut row) in head.outer_iter_mut().enumerate() {
                    angles.rotate(row.as_slice_mut().expect("standard layout"), position, true);
                }
            }
        }
        heads
    }

    /// A query or key of one token, before rotation.
    pub(crate) fn before_positions(&self, row: &[f32], position: usize) -> Vec<f32> {
        let mut row = row.to_vec();
        if let Some(angles) = self.angles() {
            angles.rotate(&mut row, position, true);
        }
        row
    }

    fn check_rows(&self, rows: &Range<usize>) -> Result<()> {
        if rows.start > rows.end || rows.end > self.len() {
            return Err(Error::Outside { what: "row", number: rows.end, count: self.len() });
        }
        Ok(())
    }

    /// Queries and keys of one head, and how its rows attend: `what` gets the attention and the rows that it is for. With `only`, of the
    /// keys that they see, these.
    pub(crate) fn each_group<R>(
        &self,
        layer: usize,
        head: usize,
        rows: Range<usize>,
        only: Option<regard::Mask<'static>>,
        mut what: impl FnMut(&regard::Attention<'_>, [ArrayView4<'_, f32>; 3], &[usize]) -> Result<R>,
    ) -> Result<Vec<R>> {
        let (shape, tape) = (self.model.shape(), self.tape(layer)?);
        if head >= shape.heads {
            return Err(Error::Outside { what: "head", number: head, count: shape.heads });
        }
        self.check_rows(&rows)?;
        let kv = head / (shape.heads / shape.kv_heads);
        let operands = match tape.own.get(&head) {
            Some(own) => [own.q.view(), own.k.view(), own.v.view()],
            None => [tape.q.index_axis(Axis(0), head), tape.k.index_axis(Axis(0), kv), tape.v.index_axis(Axis(0), kv)],
        };
        let (attention, pass) = (self.model.layer(layer).expect("as many as tapes"), self.model.pass(self.len()));
        let groups = head_changes(&self.made.edits, shape, layer, head, rows, self.len());
        let mut each = |(mut change, rows, _): (Change<'static>, Vec<usize>, bool)| {
            change.only = match (change.only.take(), only.clone()) {
                (Some(before), Some(only)) => Some(before & only),
                (before, only) => before.or(only),
            };
            what(&attention.attention(&pass, 0, &change).interrupt(self.model.cancel().flag()), operands.map(four), &rows)
        };
        groups.into_iter().map(&mut each).collect()
    }

    /// The weights of some rows of a head, over all keys, `[rows, tokens]`.
    ///
    /// # Errors
    /// [`Error::Outside`].
    pub fn weights_of(&self, layer: usize, head: usize, rows: Range<usize>) -> Result<Array2<f32>> {
        self.weights_without(layer, head, rows, Sink::Show)
    }

    /// The same, with or without the first key.
    ///
    /// # Errors
    /// [`Error::Outside`].
    pub fn weights_without(&self, layer: usize, head: usize, rows: Range<usize>, sink: Sink) -> Result<Array2<f32>> {
        let states = self.head_states(layer, head, sink)?;
        self.check_rows(&rows)?;
        self.exact(&states, Rectangle { rows, keys: 0..self.keys() })
    }

    /// The weights of a head, `[tokens, keys]`: quadratic in memory.
    ///
    /// # Errors
    /// [`Error::Outside`].
    pub fn weights(&self, layer: usize, head: usize) -> Result<Array2<f32>> {
        self.weights_of(layer, head, 0..self.len())
    }

    /// A head's weights as a picture of at most `rows x cols` cells, whatever the length; where edits are of some rows only, that of the
    /// first rows' way.
    ///
    /// # Errors
    /// [`Error::Outside`].
    pub fn heat_map(&self, layer: usize, head: usize, rows: usize, cols: usize) -> Result<HeatMap<f32>> {
        self.heat_map_without(layer, head, [rows, cols], Sink::Show)
    }

    /// The same of a part of rows and keys.
    ///
    /// # Errors
    /// [`Error::Outside`].
    pub fn heat_map_of(&self, layer: usize, head: usize, of: Rectangle, cells: [usize; 2], sink: Sink) -> Result<HeatMap<f32>> {
        let states = self.head_states(layer, head, sink)?;
        self.map(&states, of, cells)
    }

    /// The same of at most `cells` rows and columns, with or without the first key.
    ///
    /// # Errors
    /// [`Error::Outside`].
    pub fn heat_map_without(&self, layer: usize, head: usize, cells: [usize; 2], sink: Sink) -> Result<HeatMap<f32>> {
        self.heat_map_of(layer, head, Rectangle { rows: 0..self.len(), keys: 0..self.keys() }, cells, sink)
    }

    /// What every row of every head of a layer attended to, and the logarithm of what its softmax was divided by, `[1, heads, tokens]`
    /// each: linear in memory.
    ///
    /// # Errors
    /// [`Error::Outside`].
    pub fn layer_statistics(&self, layer: usize, options: StatsOptions) -> Result<(RowStats<f32>, Array3<f32>)> {
        let tape = self.tape(layer)?;
        let (attention, pass) = (self.model.layer(layer).expect("as many as tapes"), self.model.pass(self.len()));
        let change: Change<'_> = layer_change(&self.made.edits, layer);
        let batch = |x: &'_ Array3<f32>| x.clone().insert_axis(Axis(0));
        let (q, k) = (batch(&tape.q), batch(&tape.k));
        // Values of no width: the weights are what is asked about.
        let v = ndarray::Array4::<f32>::zeros((1, self.model.shape().kv_heads, self.keys(), 0));
        let (forward, mut stats) =
            attention.attention(&pass, 0, &change).interrupt(self.model.cancel().flag()).forward_with_stats(&q, &k, &v, options)?;
        let mut lse = forward.lse;
        for head in 0..self.model.shape().heads {
            let groups = head_changes(&self.made.edits, self.model.shape(), layer, head, 0..self.len(), self.len());
            if !tape.own.contains_key(&head) && groups.iter().all(|(_, _, shared)| *shared) {
                continue;
            }
            self.each_group(layer, head, 0..self.len(), None, |attention, [q, k, v], rows| {
                let none = v.slice_axis(Axis(3), ndarray::Slice::from(0..0));
                let (forward, own) = attention.forward_with_stats(q, k, none, options)?;
                for &row in rows {
                    copy_row(&own, &mut stats, head, row);
                    lse[[0, head, row]] = forward.lse[[0, 0, row]];
                }
                Ok(())
            })?;
        }
        Ok((stats, lse))
    }

    /// The weight that each key gets from all queries, of every head of a layer, `[heads, tokens]`: linear in memory.
    ///
    /// # Errors
    /// [`Error::Outside`].
    pub fn layer_column_sums(&self, layer: usize) -> Result<Array2<f32>> {
        let tape = self.tape(layer)?;
        let (attention, pass) = (self.model.layer(layer).expect("as many as tapes"), self.model.pass(self.len()));
        let change = layer_change(&self.made.edits, layer);
        let [q, k] = [&tape.q, &tape.k].map(|x| x.view().insert_axis(Axis(0)));
        let attention = attention.attention(&pass, 0, &change).interrupt(self.model.cancel().flag());
        let mut sums = attention.column_sums(q, k)?.index_axis_move(Axis(0), 0);
        for head in 0..self.model.shape().heads {
            let groups = head_changes(&self.made.edits, self.model.shape(), layer, head, 0..self.len(), self.len());
            if !tape.own.contains_key(&head) && groups.iter().all(|(_, _, shared)| *shared) {
                continue;
            }
            let mut sum = sums.index_axis_mut(Axis(0), head);
            sum.fill(0.0);
            for first in (0..self.len()).step_by(STRIP) {
                sum += &self.weights_of(layer, head, first..self.len().min(first + STRIP))?.sum_axis(Axis(0));
            }
        }
        Ok(sums)
    }
}

impl Model {
    /// [`Model::run`] with hooks. What a site has is seen after edits of it; `attn_out` and `mlp_out` are added to the stream apart from
    /// the products that make them, which may change the last bits.
    ///
    /// # Errors
    /// As [`Model::run`]; a hook of `pattern` in a layer that has edits.
    pub fn run_with(&self, ids: &[u32], edits: &Edits, sources: &Sources, hook: &dyn Hook) -> Result<Run> {
        for layer in (0..self.shape().layers).filter(|layer| hook.wants(*layer, Site::Pattern)) {
            if let Some(edit) = edits.list().iter().find(|edit| edit.on_layer(layer)) {
                let reason = format!("layer {layer} has a hook of its pattern, which an edit cannot be combined with");
                return Err(Error::Edit { edit: edit.to_string(), reason });
            }
        }
        let (hidden, memory) = self.forward_with(ids, edits, sources, Remember { heads: true, ..Remember::default() }, Some(hook))?;
        Ok(Run::new(self.with_cancel(&Cancel::new()), ids.to_vec(), edits.clone(), hidden, memory.heads))
    }

    /// [`Model::run`], layer by layer, to the same bits: after each layer `done` gets a run with the heads of the layers so far and without
    /// final rows, whose maps and statistics of heads can be looked at.
    ///
    /// # Errors
    /// As [`Model::run`].
    pub fn run_by_layers(&self, ids: &[u32], edits: &Edits, sources: &Sources, mut done: impl FnMut(&Run)) -> Result<Run> {
        self.check(ids, edits, sources)?;
        let weights = self.weights()?;
        let sublayers = self.sublayers();
        let handle = self.with_cancel(&Cancel::new());
        let of_layers = |hidden, layers: &[_]| Run::new(handle.clone(), ids.to_vec(), edits.clone(), hidden, layers.to_vec());
        let each = self.first_of(1);
        let (begun, mut rows, mut layers) = match self.before_edits(ids, edits) {
            Some(known) => known,
            None => (0, self.embedded(&weights, ids)?, Vec::new()),
        };
        (1..=layers.len()).for_each(|count| done(&of_layers(Vec::new(), &layers[..count])));
        let keeps = layers.is_empty() && self.keeps_streams(ids, edits);
        let mut streams = Vec::new();
        for first in (begun..sublayers).step_by(each) {
            let remember = Remember { heads: true, streams: keeps, ..Remember::default() };
            let probe = self.probe(edits, sources, remember);
            let (next, memory) = self.through(&weights, &rows, first..sublayers.min(first + each), probe)?;
            rows = next;
            layers.extend(memory.heads);
            streams.extend(memory.streams);
            done(&of_layers(Vec::new(), &layers));
        }
        if keeps {
            self.keep(ids, streams, &rows, &layers);
        }
        Ok(of_layers(rows, &layers))
    }

    /// Copies of a layer's projections of queries, keys and values, `[heads, width, head_dim]`, and of the output, `[heads, head_dim,
    /// width]`.
    ///
    /// # Errors
    /// [`Error::Outside`].
    pub fn projections(&self, layer: usize) -> Result<[Array3<f32>; 4]> {
        let attention = self.layer(layer).ok_or(Error::Outside { what: "layer", number: layer, count: self.shape().layers })?;
        Ok(attention.projections(&self.weights()?))
    }
}

fn copy_row(from: &RowStats<f32>, to: &mut RowStats<f32>, head: usize, row: usize) {
    macro_rules! copy {
        ($($name:ident),*) => { $(to.$name[[0, head, row]] = from.$name[[0, 0, row]];)* };
    }
    copy!(entropy, max_weight, sum_of_squares, diagonal_mass, previous_token_mass, first_token_mass, local_mass, mean_distance, argmax);
    for top in 0..to.top_keys.dim().3 {
        to.top_keys[[0, head, row, top]] = from.top_keys[[0, 0, row, top]];
        to.top_weights[[0, head, row, top]] = from.top_weights[[0, 0, row, top]];
    }
}
