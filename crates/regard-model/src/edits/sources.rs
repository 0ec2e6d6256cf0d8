//! What edits take from elsewhere: second texts, own arrays, named vectors, means and rows of other texts.

use super::apply::{LayerActivations, Memory};
use super::{Action, Edit, Edits, Patch, Rows, Shape};
use crate::error::{Error, Result};
use crate::hooks::Site;
use ndarray::{Array2, Array3, ArrayD, ArrayView2, ArrayView3, ArrayViewD, Axis, Ix2, Ix3};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

/// Activations by layer and site, in the shapes of [`Site`].
pub type Arrays = BTreeMap<(usize, Site), ArrayD<f32>>;

/// Named vectors that edits add.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vectors(BTreeMap<String, Arc<[f32]>>);

impl Vectors {
    /// One vector more, in place of an earlier one with its name.
    ///
    /// # Errors
    /// [`Error::Edit`] when it is empty or an element is not finite.
    pub fn insert(&mut self, name: &str, vector: &[f32]) -> Result<()> {
        let refused = |reason: String| Err(Error::Edit { edit: format!("add:{name}"), reason });
        match vector.iter().find(|x| !x.is_finite()) {
            Some(x) => refused(format!("the vector has the element {x}; all must be finite")),
            None if vector.is_empty() => refused("the vector has no elements".to_owned()),
            None => {
                self.0.insert(name.to_owned(), vector.into());
                Ok(())
            }
        }
    }

    /// The vectors of both; of two with one name, the others'.
    pub fn extend(&mut self, others: &Self) {
        self.0.extend(others.0.iter().map(|(name, vector)| (name.clone(), vector.clone())));
    }

    /// Their names, in order.
    pub fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }

    fn get(&self, name: &str) -> Option<&[f32]> {
        self.0.get(name).map(|vector| &**vector)
    }
}

/// What of a model the arrays of [`Sources`] must fit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dims {
    pub(crate) shape: Shape,
    pub(crate) head_dim: usize,
    pub(crate) width: usize,
}

/// Results of heads and networks on other texts, to take means or rows from.
#[derive(Debug, Clone, Default)]
pub struct Reference {
    /// Of each layer, `[heads, rows, dim]`.
    pub z: Vec<Array3<f32>>,
    /// Of each layer, rows of the network's result; empty where they are not needed.
    pub networks: Vec<Vec<f32>>,
    /// How many texts they are from.
    pub texts: usize,
    /// Mean rows, computed at the first use: of each layer's heads, `[heads, dim]`, and of each layer's network.
    means: OnceLock<Vec<Array2<f32>>>,
    network_means: OnceLock<Vec<Vec<f32>>>,
}

/// What edits take from other texts.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// Second texts by name, as they were attended to.
    pub texts: HashMap<String, Vec<Arc<LayerActivations>>>,
    /// Activations by the same names, which come before those of `texts`: of sites that these do not have, or own ones.
    pub arrays: HashMap<String, Arc<Arrays>>,
    /// For `add`.
    pub vectors: Vectors,
    /// For `mean` and `resample`.
    pub reference: Option<Arc<Reference>>,
}

fn mean_row(pool: &[f32], width: usize) -> Vec<f32> {
    let view = ArrayView2::from_shape((pool.len() / width.max(1), width), pool).expect("whole rows");
    view.mean_axis(Axis(0)).map(|mean| mean.to_vec()).unwrap_or_else(|| vec![0.0; width])
}

impl Sources {
    /// Whether edits find what they need, for a text of `len` tokens.
    ///
    /// # Errors
    /// [`Error::Edit`] with what is missing or has another shape.
    pub(crate) fn check(&self, edits: &Edits, len: usize, dims: Dims) -> Result<()> {
        let check = |edit: &Edit| match &edit.action {
            Action::Patch(name, what) => (0..dims.shape.layers)
                .filter(|layer| edit.on_layer(*layer))
                .flat_map(|layer| sites(edit, *what).iter().map(move |site| (layer, *site)))
                .try_for_each(|at| self.check_patch(edit, name, at, len, dims)),
            Action::Add(name, _) => self.check_vector(edit, name, dims),
            Action::Mean | Action::Resample(_) if self.reference.is_none() => Err("there are no other texts to take it from".to_owned()),
            _ => Ok(()),
        };
        edits.list().iter().try_for_each(|edit| check(edit).map_err(|reason| Error::Edit { edit: edit.to_string(), reason }))
    }

    fn check_patch(
        &self,
        edit: &Edit,
        name: &str,
        (layer, site): (usize, Site),
        len: usize,
        dims: Dims,
    ) -> std::result::Result<(), String> {
        if !self.texts.contains_key(name) && !self.arrays.contains_key(name) {
            return Err(format!("there is no text named {name:?}: give one"));
        }
        let Some(found) = self.find(name, layer, site) else {
            let site = site.name();
            return Err(format!(
                "{name:?} has no {site} of layer {layer}: keep it in the run (keep=[{site:?}]), or give a text or an array"
            ));
        };
        let rows = found.shape().len().saturating_sub(2);
        let theirs = found.shape().get(rows).copied().unwrap_or(0);
        let Dims { shape, head_dim, width } = dims;
        let expected = match site {
            Site::Q | Site::Z => vec![shape.heads, theirs, head_dim],
            Site::K | Site::V => vec![shape.kv_heads, theirs, head_dim],
            _ => vec![theirs, width],
        };
        if found.shape() != expected || theirs == 0 {
            let site = site.name();
            return Err(format!("{site} of layer {layer} of {name:?} has the shape {:?}; it must be {expected:?}", found.shape()));
        }
        if theirs != len && edit.rows != Rows::Last {
            return Err(format!("text {name:?} has {theirs} tokens and this one {len}: they must be as long, or the edit be of @last"));
        }
        Ok(())
    }

    fn check_vector(&self, edit: &Edit, name: &str, dims: Dims) -> std::result::Result<(), String> {
        let Some(vector) = self.vectors.get(name) else {
            let names = self.vectors.names();
            let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(format!("there is no vector named {name:?}: give a file of vectors; there are {there}"));
        };
        let (what, expected) = if edit.site().is_some() { ("the stream", dims.width) } else { ("a head", dims.head_dim) };
        if vector.len() != expected {
            return Err(format!("the vector {name:?} has {} elements; {what} has {expected}", vector.len()));
        }
        Ok(())
    }

    fn find(&self, name: &str, layer: usize, site: Site) -> Option<ArrayViewD<'_, f32>> {
        if let Some(array) = self.arrays.get(name).and_then(|arrays| arrays.get(&(layer, site))) {
            return Some(array.view());
        }
        let layer = self.texts.get(name)?.get(layer)?;
        let heads = match site {
            Site::Q => &layer.q,
            Site::K => &layer.k,
            Site::V => &layer.v,
            Site::Z => &layer.z,
            _ => return None,
        };
        Some(heads.view().into_dyn())
    }

    /// One head of a second text, `[rows, dim]`.
    pub(super) fn head(&self, name: &str, layer: usize, site: Site, head: usize) -> Option<ArrayView2<'_, f32>> {
        let heads = self.find(name, layer, site)?.into_dimensionality::<Ix3>().ok()?;
        (head < heads.len_of(Axis(0))).then(|| heads.index_axis_move(Axis(0), head))
    }

    /// Rows of the stream's width of a second text.
    pub(super) fn rows(&self, name: &str, layer: usize, site: Site) -> Option<ArrayView2<'_, f32>> {
        self.find(name, layer, site)?.into_dimensionality::<Ix2>().ok()
    }

    /// A vector that was checked.
    pub(super) fn vector(&self, name: &str) -> &[f32] {
        self.vectors.get(name).unwrap_or_default()
    }
}

/// What a patch takes.
fn sites(edit: &Edit, what: Patch) -> &'static [Site] {
    match (edit.site(), what) {
        (Some(Site::ResidPre), _) => &[Site::ResidPre],
        (Some(Site::ResidMid), _) => &[Site::ResidMid],
        (Some(Site::ResidPost), _) => &[Site::ResidPost],
        (Some(Site::AttnOut), _) => &[Site::AttnOut],
        (Some(_), _) => &[Site::MlpOut],
        (None, Patch::Z) => &[Site::Z],
        (None, Patch::Q) => &[Site::Q],
        (None, Patch::K) => &[Site::K],
        (None, Patch::V) => &[Site::V],
        (None, Patch::Weights) => &[Site::Q, Site::K],
    }
}

impl Reference {
    /// The mean row of each head of a layer, `[heads, dim]`.
    pub(super) fn mean_z(&self, layer: usize) -> ArrayView2<'_, f32> {
        let of_layer = |z: &Array3<f32>| z.mean_axis(Axis(1)).unwrap_or_else(|| Array2::zeros((z.dim().0, z.dim().2)));
        self.means.get_or_init(|| self.z.iter().map(of_layer).collect())[layer].view()
    }

    /// The mean row of a layer's network.
    pub(super) fn mean_mlp(&self, layer: usize, width: usize) -> &[f32] {
        &self.network_means.get_or_init(|| self.networks.iter().map(|rows| mean_row(rows, width)).collect())[layer]
    }

    /// One text more.
    pub(crate) fn add(&mut self, memory: Memory) {
        (self.means, self.network_means) = (OnceLock::new(), OnceLock::new());
        self.texts += 1;
        for (layer, tape) in memory.heads.into_iter().enumerate() {
            match self.z.get_mut(layer) {
                Some(known) => known.append(Axis(1), ArrayView3::from(&tape.z)).expect("the same heads"),
                None => self.z.push(Arc::unwrap_or_clone(tape).z),
            }
        }
        for (layer, rows) in memory.networks.into_iter().enumerate() {
            match self.networks.get_mut(layer) {
                Some(known) => known.extend(rows),
                None => self.networks.push(rows),
            }
        }
    }
}
