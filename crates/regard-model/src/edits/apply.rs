//! Edits at work: a [`Probe`] that changes what a pass computes, and writes down what it saw.
//!
//! An edit of scores that all heads of a layer share is made in the one call that attends. Where heads or rows differ, these heads attend
//! again, each for itself, and their rows are put in place. Edits of z come last.

use super::{Action, Edit, Edits, Patch, Pattern, Shape, Slot, Sources};
use crate::cancel::Cancel;
use crate::hooks::{Hook, Site};
use ndarray::{Array2, Array3, ArrayView2, ArrayView4, ArrayViewMut4, ArrayViewMutD, Axis};
use regard::{Mask, Scale};
use regard_nn::layers::attention::{Heads, HeadsMut};
use regard_nn::layers::probe::{Attending, Change, Probe};
use regard_nn::random::Draws;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a layer's attention worked with, `[heads, rows, dim]` each; keys and values have heads of their own number.
#[derive(Debug, Clone)]
pub struct LayerActivations {
    /// Queries, after norms and positions.
    pub q: Array3<f32>,
    /// Keys.
    pub k: Array3<f32>,
    /// Values.
    pub v: Array3<f32>,
    /// Results before W_O, after edits.
    pub z: Array3<f32>,
    /// Query heads that attended with other operands than these.
    pub(crate) own: HashMap<usize, Operands>,
    /// Of the layer's cross-attention, where it has one: keys and values are those of what the decoder reads.
    pub(crate) cross: Option<Arc<LayerActivations>>,
}

/// Operands of one query head, `[rows, dim]`.
#[derive(Debug, Clone)]
pub(crate) struct Operands {
    pub(crate) q: Array2<f32>,
    pub(crate) k: Array2<f32>,
    pub(crate) v: Array2<f32>,
}

/// A probe that edits and remembers.
pub(crate) struct EditProbe<'e> {
    edits: &'e Edits,
    sources: &'e Sources,
    shape: Shape,
    cancel: &'e Cancel,
    /// The rows of the pass, and the tokens of the text that they belong to.
    rows: Mutex<(Range<usize>, usize)>,
    tape: Option<Mutex<Vec<Arc<LayerActivations>>>>,
    networks: Option<Mutex<Vec<Vec<f32>>>>,
    streams: Option<Mutex<Vec<Vec<f32>>>>,
    hook: Option<&'e dyn Hook>,
    /// Layers have cross-attention between attention and network.
    cross: bool,
}

/// Which part of a layer a sublayer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Attention,
    Cross,
    Mlp,
}

/// What a pass is to write down.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Remember {
    pub(crate) heads: bool,
    pub(crate) networks: bool,
    pub(crate) streams: bool,
}

/// What a pass has written down.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) heads: Vec<Arc<LayerActivations>>,
    pub(crate) networks: Vec<Vec<f32>>,
    pub(crate) streams: Vec<Vec<f32>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The change that score edits of one place come to.
fn compose(edits: &[&Edit]) -> Change<'static> {
    let mut change = Change::default();
    for edit in edits {
        let only = match &edit.action {
            Action::Scale(scale) => {
                change.scale = Some(scale.map_or(Scale::Off, Scale::By));
                continue;
            }
            Action::Temp(x) => {
                change.temperature = Some(*x).filter(|x| *x != 1.0);
                continue;
            }
            Action::Mask(mask) => {
                change.mask = Some(mask.mask());
                continue;
            }
            Action::Weights(Pattern::Uniform) => {
                change.flat = true;
                continue;
            }
            Action::HideFirst => !Mask::first_keys(1) | Mask::window(Some(0), Some(0)),
            Action::Weights(Pattern::Own) => Mask::window(Some(0), Some(0)),
            Action::Weights(Pattern::Previous) => {
                (Mask::window(Some(1), None) & !Mask::reverse()) | (Mask::first_keys(1) & Mask::window(Some(0), Some(0)))
            }
            Action::Weights(Pattern::First) => Mask::first_keys(1),
            _ => continue,
        };
        change.only = Some(match change.only.take() {
            Some(before) => before & only,
            None => only,
        });
    }
    change
}

/// Edits of a layer's scores and patterns.
fn score_edits(edits: &Edits, layer: usize) -> Vec<&Edit> {
    let of_scores = |edit: &&Edit| {
        let slot = edit.action.slot();
        edit.on_layer(layer)
            && (matches!(slot, Slot::Scale | Slot::Temp | Slot::Mask | Slot::Hide) || matches!(edit.action, Action::Weights(_)))
    };
    edits.list().iter().filter(of_scores).collect()
}

fn of_all(edit: &Edit) -> bool {
    edit.part == super::Part::AllHeads && edit.rows == super::Rows::All
}

/// How all heads of a layer attend, as far as they share it.
pub(crate) fn layer_change(edits: &Edits, layer: usize) -> Change<'static> {
    let shared: Vec<&Edit> = score_edits(edits, layer).into_iter().filter(|edit| of_all(edit)).collect();
    compose(&shared)
}

/// How a head attends: changes, and the rows that each is for. `rows` of a text of `len`.
pub(crate) fn head_changes(
    edits: &Edits,
    shape: Shape,
    layer: usize,
    head: usize,
    rows: std::ops::Range<usize>,
    len: usize,
) -> Vec<(Change<'static>, Vec<usize>, bool)> {
    let all = score_edits(edits, layer);
    let mine: Vec<&Edit> = all.into_iter().filter(|edit| edit.heads(shape).contains(&head)).collect();
    let mut groups: BTreeMap<Vec<bool>, Vec<usize>> = BTreeMap::new();
    for row in rows {
        groups.entry(mine.iter().map(|edit| edit.rows.contains(row, len)).collect()).or_default().push(row);
    }
    let group = |(active, rows): (Vec<bool>, Vec<usize>)| {
        let edits: Vec<&Edit> = mine.iter().zip(&active).filter(|(_, active)| **active).map(|(edit, _)| *edit).collect();
        let shared = edits.iter().all(|edit| of_all(edit));
        (Change { head: Some(head), ..compose(&edits) }, rows, shared)
    };
    groups.into_iter().map(group).collect()
}

impl<'e> EditProbe<'e> {
    /// A probe for texts; edits were checked against the shape.
    pub(crate) fn new(edits: &'e Edits, sources: &'e Sources, shape: Shape, remember: Remember, cancel: &'e Cancel) -> Self {
        Self {
            edits,
            sources,
            shape,
            cancel,
            rows: Mutex::default(),
            tape: remember.heads.then(Mutex::default),
            networks: remember.networks.then(Mutex::default),
            streams: remember.streams.then(Mutex::default),
            hook: None,
            cross: false,
        }
    }

    /// The same probe, of layers with cross-attention.
    pub(crate) fn with_cross(self, cross: bool) -> Self {
        Self { cross, ..self }
    }

    /// The layer of a sublayer, and what it is of that.
    fn place(&self, number: usize) -> (usize, Kind) {
        match (self.cross, number % if self.cross { 3 } else { 2 }) {
            (true, part) => (number / 3, [Kind::Attention, Kind::Cross, Kind::Mlp][part]),
            (false, part) => (number / 2, [Kind::Attention, Kind::Mlp][part]),
        }
    }

    /// The same probe, with a hook.
    pub(crate) fn with_hook(self, hook: Option<&'e dyn Hook>) -> Self {
        Self { hook, ..self }
    }

    fn wants(&self, layer: usize, site: Site) -> bool {
        layer < self.shape.layers && self.hook.is_some_and(|hook| hook.wants(layer, site))
    }

    /// Edits of rows of the stream's width, and the hook.
    fn at_rows(&self, layer: usize, site: Site, rows: &mut [f32]) {
        self.edit_rows(layer, site, rows);
        if let (true, Some(hook)) = (self.wants(layer, site), self.hook) {
            let tokens = self.rows().0.len();
            let width = rows.len() / tokens.max(1);
            hook.at(layer, site, ArrayViewMutD::from_shape(vec![tokens, width], rows).expect("whole rows"));
        }
    }

    /// Calls the hook with heads of the only sequence.
    fn at_heads(&self, layer: usize, site: Site, heads: ArrayViewMut4<'_, f32>) {
        if let (true, Some(hook)) = (self.wants(layer, site), self.hook) {
            hook.at(layer, site, heads.index_axis_move(Axis(0), 0).into_dyn());
        }
    }

    /// Calls the hook with the weights; results of heads are made anew where it changes them.
    fn at_pattern(
        &self,
        number: usize,
        attending: &Attending<'_>,
        heads: &Heads<'_, f32>,
        z: &mut ArrayViewMut4<'_, f32>,
    ) -> regard::Result<()> {
        let (layer, _) = self.place(number);
        let (true, Some(hook)) = (self.wants(layer, Site::Pattern), self.hook) else { return Ok(()) };
        let mut weights = attending.attention(&self.change(number)).interrupt(self.cancel.flag()).weights(heads.q, heads.k)?;
        if hook.at(layer, Site::Pattern, weights.view_mut().index_axis_move(Axis(0), 0).into_dyn()) {
            let group = self.shape.heads / self.shape.kv_heads;
            for head in 0..self.shape.heads {
                let results = one(&weights.view(), head).dot(&one(&heads.v, head / group));
                z.view_mut().index_axis_move(Axis(0), 0).index_axis_move(Axis(0), head).assign(&results);
            }
        }
        Ok(())
    }

    /// The rows of the pass, and the tokens of the text.
    fn rows(&self) -> (Range<usize>, usize) {
        lock(&self.rows).clone()
    }

    pub(crate) fn memory(self) -> Memory {
        fn taken<T>(kept: Option<Mutex<Vec<T>>>) -> Vec<T> {
            kept.map(|kept| kept.into_inner().unwrap_or_else(PoisonError::into_inner)).unwrap_or_default()
        }
        Memory { heads: taken(self.tape), networks: taken(self.networks), streams: taken(self.streams) }
    }

    /// The operands of a head that are not the layer's own.
    fn operands(&self, layer: usize, head: usize, own: [ArrayView2<'_, f32>; 3], len: usize) -> Option<Operands> {
        let kv = head / (self.shape.heads / self.shape.kv_heads);
        let mut patched: Option<Operands> = None;
        for edit in self.edits.list().iter().filter(|edit| edit.on_layer(layer) && edit.heads(self.shape).contains(&head)) {
            let Action::Patch(name, what) = &edit.action else { continue };
            if *what == Patch::Z {
                continue;
            }
            let [q, k, v] = &own;
            let all = patched.get_or_insert_with(|| Operands { q: q.to_owned(), k: k.to_owned(), v: v.to_owned() });
            let put = |to: &mut Array2<f32>, site: Site, head: usize| {
                let Some(from) = self.sources.head(name, layer, site, head) else { return };
                for row in (0..len).filter(|row| edit.rows.contains(*row, len)) {
                    to.row_mut(row).assign(&from.row(source_row(row, len, from.nrows())));
                }
            };
            if matches!(what, Patch::Q | Patch::Weights) {
                put(&mut all.q, Site::Q, head);
            }
            if matches!(what, Patch::K | Patch::Weights) {
                put(&mut all.k, Site::K, kv);
            }
            if *what == Patch::V {
                put(&mut all.v, Site::V, kv);
            }
        }
        patched
    }

    /// Edits of z of one head.
    fn edit_results(&self, layer: usize, head: usize, mut z: ndarray::ArrayViewMut2<'_, f32>) {
        let (rows, len) = self.rows();
        for edit in self.edits.list().iter().filter(|edit| edit.on_layer(layer) && edit.action.slot() == Slot::Z) {
            if !edit.heads(self.shape).contains(&head) {
                continue;
            }
            let reference = self.sources.reference.as_deref();
            let pool = reference.map(|reference| reference.z[layer].index_axis(Axis(0), head));
            for (row, mut z) in rows.clone().zip(z.rows_mut()).filter(|(row, _)| edit.rows.contains(*row, len)) {
                match &edit.action {
                    Action::Zero => z.fill(0.0),
                    Action::Gain(x) => z.mapv_inplace(|z| z * *x as f32),
                    Action::Mean => {
                        if let Some(reference) = reference {
                            z.assign(&reference.mean_z(layer).row(head));
                        }
                    }
                    Action::Resample(seed) => {
                        if let Some(pool) = pool {
                            z.assign(&pool.row(drawn(*seed, layer, row, pool.nrows())));
                        }
                    }
                    Action::Patch(name, _) => {
                        if let Some(from) = self.sources.head(name, layer, Site::Z, head) {
                            z.assign(&from.row(source_row(row, len, from.nrows())));
                        }
                    }
                    Action::Add(name, factor) => {
                        z.iter_mut().zip(self.sources.vector(name)).for_each(|(z, x)| *z += *factor as f32 * x);
                    }
                    _ => {}
                }
            }
        }
    }
}

/// What the only sequence's attention worked with.
fn kept(heads: &Heads<'_, f32>, z: ArrayView4<'_, f32>, own: HashMap<usize, Operands>) -> LayerActivations {
    let kept = |x: ArrayView4<'_, f32>| x.index_axis_move(Axis(0), 0).as_standard_layout().into_owned();
    LayerActivations { q: kept(heads.q), k: kept(heads.k), v: kept(heads.v), z: kept(z), own, cross: None }
}

/// One head of the only sequence.
fn one<'a>(heads: &ArrayView4<'a, f32>, head: usize) -> ArrayView2<'a, f32> {
    heads.index_axis_move(Axis(0), 0).index_axis_move(Axis(0), head)
}

/// The row of a second text that stands for a row of the first: the same, or, for the last, its last.
fn source_row(row: usize, len: usize, theirs: usize) -> usize {
    if row + 1 == len { theirs - 1 } else { row.min(theirs - 1) }
}

/// A row of other texts, the same for all heads of a layer.
fn drawn(seed: u64, layer: usize, row: usize, rows: usize) -> usize {
    (Draws::at(seed, &[0x5E5A, layer as u64, row as u64]).bits() % rows.max(1) as u64) as usize
}

impl Probe<f32> for EditProbe<'_> {
    fn pass(&self, rows: Range<usize>, len: usize) {
        *lock(&self.rows) = (rows, len);
    }

    fn interrupt(&self) -> Option<&AtomicBool> {
        Some(self.cancel.flag())
    }

    fn stream(&self, number: usize, rows: &mut [f32]) {
        match self.place(number) {
            (layer, Kind::Mlp) => self.at_rows(layer, Site::ResidMid, rows),
            (_, Kind::Cross) => {}
            (layer, Kind::Attention) => {
                if layer > 0 {
                    self.at_rows(layer - 1, Site::ResidPost, rows);
                }
                self.at_rows(layer, Site::ResidPre, rows);
            }
        }
        if let Some(streams) = &self.streams {
            lock(streams).push(rows.to_vec());
        }
    }

    fn heads(&self, number: usize, heads: &mut HeadsMut<'_, f32>) {
        if let (layer, Kind::Attention) = self.place(number) {
            self.at_heads(layer, Site::Q, heads.q());
            self.at_heads(layer, Site::K, heads.k());
            self.at_heads(layer, Site::V, heads.v());
        }
    }

    fn change(&self, number: usize) -> Change<'_> {
        match self.place(number) {
            (_, Kind::Cross) => Change::default(),
            (layer, _) => layer_change(self.edits, layer),
        }
    }

    fn reads_heads(&self, number: usize) -> bool {
        let (layer, kind) = self.place(number);
        if kind == Kind::Cross {
            return self.tape.is_some();
        }
        let touched = self.edits.list().iter().any(|edit| edit.on_heads(layer));
        touched || self.tape.is_some() || self.wants(layer, Site::Pattern)
    }

    fn results(
        &self,
        number: usize,
        attending: &Attending<'_>,
        heads: &Heads<'_, f32>,
        mut z: ArrayViewMut4<'_, f32>,
    ) -> regard::Result<()> {
        let ((layer, kind), (rows, len)) = (self.place(number), self.rows());
        if kind == Kind::Cross {
            if let Some(tape) = &self.tape
                && let Some(layer) = lock(tape).last_mut()
            {
                // Edits are of self-attention: these are as the model has them.
                Arc::make_mut(layer).cross = Some(Arc::new(kept(heads, z.view(), HashMap::new())));
            }
            return Ok(());
        }
        self.at_pattern(number, attending, heads, &mut z)?;
        let group = self.shape.heads / self.shape.kv_heads;
        let mut own = HashMap::new();
        let touched = self.edits.list().iter().any(|edit| edit.on_heads(layer));
        for head in (0..self.shape.heads).filter(|_| touched) {
            let [q, k, v] = [one(&heads.q, head), one(&heads.k, head / group), one(&heads.v, head / group)];
            let mut results = z.view_mut().index_axis_move(Axis(0), 0).index_axis_move(Axis(0), head);
            let patched = self.operands(layer, head, [q, k, v], len);
            for (change, chosen, shared) in head_changes(self.edits, self.shape, layer, head, rows.clone(), len) {
                if shared && patched.is_none() {
                    continue;
                }
                let [q, k, v] = match &patched {
                    Some(own) => [own.q.view(), own.k.view(), own.v.view()],
                    None => [q, k, v],
                };
                let four = |x: ndarray::ArrayView2<'_, f32>| x.insert_axis(Axis(0)).insert_axis(Axis(0)).to_owned();
                let out = attending.attention(&change).interrupt(self.cancel.flag()).forward(&four(q), &four(k), &four(v))?.out;
                for row in chosen {
                    results.row_mut(row - rows.start).assign(&one(&out.view(), 0).row(row - rows.start));
                }
            }
            self.edit_results(layer, head, results);
            if let Some(patched) = patched {
                own.insert(head, patched);
            }
        }
        self.at_heads(layer, Site::Z, z.view_mut());
        if let Some(tape) = &self.tape {
            lock(tape).push(Arc::new(kept(heads, z.view(), own)));
        }
        Ok(())
    }

    fn wants_branch(&self, number: usize) -> bool {
        let (layer, site) = match self.place(number) {
            (layer, Kind::Attention) => (layer, Site::AttnOut),
            (_, Kind::Cross) => return false,
            (layer, Kind::Mlp) => (layer, Site::MlpOut),
        };
        let edited = |edit: &Edit| edit.on_layer(layer) && edit.site() == Some(site) && !edit.action.is_null();
        (site == Site::MlpOut && self.networks.is_some()) || self.wants(layer, site) || self.edits.list().iter().any(edited)
    }

    fn branch(&self, number: usize, rows: &mut [f32]) {
        let (layer, kind) = self.place(number);
        if kind == Kind::Attention {
            return self.at_rows(layer, Site::AttnOut, rows);
        }
        if let Some(networks) = &self.networks {
            lock(networks).push(rows.to_vec());
        }
        self.at_rows(layer, Site::MlpOut, rows);
    }
}

impl EditProbe<'_> {
    /// Edits of rows of the stream, or of what attention or network add to it.
    fn edit_rows(&self, layer: usize, site: Site, rows: &mut [f32]) {
        let edits: Vec<&Edit> = self.edits.list().iter().filter(|edit| edit.site() == Some(site) && edit.on_layer(layer)).collect();
        if edits.is_empty() {
            return;
        }
        let (of_text, len) = self.rows();
        let width = rows.len() / of_text.len().max(1);
        let reference = self.sources.reference.as_deref();
        for edit in edits {
            for (row, x) in of_text.clone().zip(rows.chunks_exact_mut(width.max(1))).filter(|(row, _)| edit.rows.contains(*row, len)) {
                match (&edit.action, reference) {
                    (Action::Zero, _) => x.fill(0.0),
                    (Action::Gain(gain), _) => x.iter_mut().for_each(|x| *x *= *gain as f32),
                    (Action::Add(name, factor), _) => {
                        x.iter_mut().zip(self.sources.vector(name)).for_each(|(x, v)| *x += *factor as f32 * v);
                    }
                    (Action::Patch(name, _), _) => {
                        if let Some(from) = self.sources.rows(name, layer, site) {
                            x.iter_mut().zip(from.row(source_row(row, len, from.nrows()))).for_each(|(x, from)| *x = *from);
                        }
                    }
                    (Action::Mean, Some(reference)) => x.copy_from_slice(reference.mean_mlp(layer, width)),
                    (Action::Resample(seed), Some(reference)) => {
                        let pool = &reference.networks[layer];
                        let from = drawn(*seed, layer, row, pool.len() / width.max(1));
                        x.copy_from_slice(&pool[from * width..(from + 1) * width]);
                    }
                    _ => {}
                }
            }
        }
    }
}
