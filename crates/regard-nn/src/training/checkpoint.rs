//! Checkpoints: a safetensors file with everything that is needed to go on, and a JSON file beside it for people.
//!
//! Both are written beside and renamed, so a crash at any moment leaves the old file or the new one. All that resuming reads is in
//! the one safetensors file; the other has its checksum, by which one changed bit is found.

use crate::atomic::{Staged, write_atomic};
use crate::error::{Error, Result};
use crate::optim::Adam;
use crate::params::Layout;
use crate::train::{TrainConfig, Trainer};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

const FIRST: &str = "adam.first.";
const SECOND: &str = "adam.second.";
/// Which layout of this file.
const FORMAT: &str = "regard-nn 2";
/// The one entry of the metadata. The file lists entries in the order of a hash map, which differs from run to run: two would cost
/// the promise that the same state is the same bytes.
const METADATA: &str = "regard";
/// Where the summary has the checksum of the file beside it.
const SUM: &str = "sha256";
/// Where it has those of the files that are being replaced.
const REPLACES: &str = "replaces";

/// What the file says beside the tensors.
#[derive(Serialize, Deserialize)]
struct Metadata {
    format: String,
    step: u64,
    train: Option<TrainConfig>,
    model: Value,
    origin: Value,
}

/// What a checkpoint file holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    path: PathBuf,
    /// Steps done.
    pub step: u64,
    /// How it was trained; `None` when there are only parameters.
    pub train: Option<TrainConfig>,
    model: Value,
    origin: Value,
    verified: bool,
    tensors: HashMap<String, (Vec<usize>, Vec<f32>)>,
}

/// As `sha256sum` prints it.
fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(numbers: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 * numbers.len());
    for x in numbers {
        bytes.extend_from_slice(&x.to_le_bytes());
    }
    bytes
}

/// Save a training: parameters, moments, step, settings, and what the model is. The same state is the same bytes.
///
/// # Errors
/// [`Error::File`], and [`Error::Diverged`] for numbers that [`Checkpoint::read`] would refuse; an older checkpoint of the same name is
/// then untouched.
pub fn save(path: &Path, trainer: &Trainer, model: &impl Serialize) -> Result<()> {
    save_with(path, trainer, model, &())
}

/// The same, and where the model comes from: whatever its maker wants to find again with [`Checkpoint::origin`].
///
/// # Errors
/// As [`save`].
pub fn save_with(path: &Path, trainer: &Trainer, model: &impl Serialize, origin: &impl Serialize) -> Result<()> {
    save_with_moments(path, trainer, trainer.adam(), model, origin)
}

/// The same, with the [moments](Trainer::moments) of all ranks that share a training.
///
/// # Errors
/// As [`save`].
pub fn save_with_moments(path: &Path, trainer: &Trainer, adam: &Adam<f32>, model: &impl Serialize, origin: &impl Serialize) -> Result<()> {
    let refused = |reason: String| Error::Checkpoint { path: path.to_owned(), reason };
    if adam.first.len() != trainer.params().len() {
        return Err(refused("moments of one rank are not those of all".to_owned()));
    }
    let groups = [("", trainer.params()), (FIRST, &adam.first), (SECOND, &adam.second)];
    if groups.iter().any(|(_, numbers)| numbers.iter().any(|x| !x.is_finite())) {
        return Err(Error::Diverged { step: trainer.step(), loss: f64::NAN });
    }
    let mut data = Vec::new();
    for (prefix, numbers) in groups {
        for entry in trainer.layout().entries() {
            data.push((format!("{prefix}{}", entry.name), entry.shape.clone(), bytes_of(&numbers[entry.range.clone()])));
        }
    }
    let views = data
        .iter()
        .map(|(name, shape, bytes)| {
            Ok((name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).map_err(|e| refused(e.to_string()))?))
        })
        .collect::<Result<Vec<_>>>()?;
    let value = |json: serde_json::Result<Value>| json.map_err(|e| refused(e.to_string()));
    let (model, origin) = (value(serde_json::to_value(model))?, value(serde_json::to_value(origin))?);
    let metadata = Metadata { format: FORMAT.to_owned(), step: trainer.step(), train: Some(trainer.config().clone()), model, origin };
    let text = serde_json::to_string(&metadata).map_err(|e| refused(e.to_string()))?;
    let bytes = safetensors::serialize(views, Some(HashMap::from([(METADATA.to_owned(), text)]))).map_err(|e| refused(e.to_string()))?;
    let staged = Staged::write(path, &bytes)?;
    let Metadata { step, train, model, origin, .. } = metadata;
    let parameters = trainer.params().len();
    let (sum, json) = (digest(&bytes), path.with_extension("json"));
    let summary = |replaces: Vec<String>| {
        let mut summary =
            json!({ "step": step, "parameters": parameters, "sha256": sum, "model": model, "train": train, "origin": origin });
        if !replaces.is_empty() {
            summary[REPLACES] = replaces.into();
        }
        format!("{summary:#}\n")
    };
    // Killed between the two renames, the old file is still the one that the summary knows.
    let replaced: Vec<String> = known_digests(&json).unwrap_or_default().into_iter().filter(|old| *old != sum).collect();
    write_atomic(&json, summary(replaced.clone()).as_bytes())?;
    staged.commit()?;
    if replaced.is_empty() { Ok(()) } else { write_atomic(&json, summary(Vec::new()).as_bytes()) }
}

/// The checksums that the summary beside a checkpoint allows; `None` where there is no summary, or one without.
fn known_digests(json: &Path) -> Option<Vec<String>> {
    let summary: Value = serde_json::from_slice(&std::fs::read(json).ok()?).ok()?;
    let replaced = summary[REPLACES].as_array().into_iter().flatten();
    let known: Vec<String> = [&summary[SUM]].into_iter().chain(replaced).filter_map(|sum| sum.as_str().map(str::to_owned)).collect();
    (!known.is_empty()).then_some(known)
}

impl Checkpoint {
    /// Read a checkpoint and check that it is whole, has numbers in it, and the checksum that the summary beside it says.
    ///
    /// # Errors
    /// [`Error::File`] and [`Error::Checkpoint`].
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|source| Error::File { action: "read", path: path.to_owned(), source })?;
        let refused = |reason: String| Error::Checkpoint { path: path.to_owned(), reason };
        let broken = |e: safetensors::SafeTensorError| refused(format!("it is cut short or not a safetensors file ({e})"));
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(broken)?;
        let file = SafeTensors::deserialize(&bytes).map_err(broken)?;
        let entries = header.metadata().as_ref();
        let text =
            entries.and_then(|entries| entries.get(METADATA)).ok_or_else(|| refused("it was not written by a training".to_owned()))?;
        let unreadable = |e: serde_json::Error| refused(format!("its settings are unreadable ({e})"));
        let format = serde_json::from_str::<Value>(text).map_err(unreadable)?["format"].take();
        if format != FORMAT {
            return Err(refused(format!("its format is {format}, expected {FORMAT:?}")));
        }
        let Metadata { step, train, model, origin, .. } = serde_json::from_str(text).map_err(unreadable)?;
        let mut tensors = HashMap::new();
        for (name, view) in file.tensors() {
            if view.dtype() != Dtype::F32 {
                return Err(refused(format!("{name} is of type {:?}, expected F32", view.dtype())));
            }
            let numbers: Vec<f32> = view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            if let Some(bad) = numbers.iter().find(|x| !x.is_finite()) {
                return Err(refused(format!("{name} has {bad} in it")));
            }
            tensors.insert(name, (view.shape().to_vec(), numbers));
        }
        let json = path.with_extension("json");
        let known = known_digests(&json);
        let verified = known.is_some();
        if known.is_some_and(|known| !known.contains(&digest(&bytes))) {
            let json = json.file_name().unwrap_or_default().to_string_lossy();
            return Err(refused(format!(
                "it has another checksum than {json} says: it is damaged, or of another training; take it from a copy"
            )));
        }
        Ok(Self { path: path.to_owned(), step, train, model, origin, verified, tensors })
    }

    /// The summary beside it had a checksum, and it fits.
    pub fn verified(&self) -> bool {
        self.verified
    }

    fn refused(&self, reason: String) -> Error {
        Error::Checkpoint { path: self.path.clone(), reason }
    }

    /// What the model is, as it was given to [`save`].
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when it is another kind of model.
    pub fn model<M: DeserializeOwned>(&self) -> Result<M> {
        M::deserialize(&self.model).map_err(|e| self.refused(format!("it is of another kind of model ({e})")))
    }

    /// Where it comes from, as it was given to [`save_with`].
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when that was something else, or nothing.
    pub fn origin<O: DeserializeOwned>(&self) -> Result<O> {
        O::deserialize(&self.origin).map_err(|e| self.refused(format!("it does not say where it comes from ({e})")))
    }

    /// How it was trained.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when it does not say.
    pub fn settings(&self) -> Result<&TrainConfig> {
        self.train.as_ref().ok_or_else(|| self.refused("it does not say how it was trained: train anew".to_owned()))
    }

    /// Is it of a training with these settings? `steps` may differ.
    pub(crate) fn check_training(&self, config: &TrainConfig) -> Result<()> {
        let trained = self.settings()?;
        let settings = |config: &TrainConfig| {
            let mut all = serde_json::to_value(TrainConfig { steps: 0, ..config.clone() }).unwrap_or_default();
            // It is left out where it is 1.
            all["parts"] = config.parts.into();
            all
        };
        let (before, wanted) = (settings(trained), settings(config));
        let (Some(before), Some(wanted)) = (before.as_object(), wanted.as_object()) else { return Ok(()) };
        match before.iter().find(|(name, value)| wanted.get(*name) != Some(value)) {
            None => Ok(()),
            Some((name, value)) => {
                let other = wanted.get(name).map(ToString::to_string).unwrap_or_default();
                Err(self.refused(format!("it was trained with {name} {value}, which cannot become {other} on the way")))
            }
        }
    }

    fn gather(&self, layout: &Layout, prefix: &str) -> Result<Vec<f32>> {
        let mut numbers = Vec::with_capacity(layout.len());
        for entry in layout.entries() {
            let name = format!("{prefix}{}", entry.name);
            let (shape, values) = self.tensors.get(&name).ok_or_else(|| self.refused(format!("it has no tensor {name}")))?;
            if *shape != entry.shape {
                return Err(self.refused(format!("{name} has shape {shape:?}, the model needs {:?}", entry.shape)));
            }
            numbers.extend_from_slice(values);
        }
        Ok(numbers)
    }

    /// The parameters, for a model of this layout.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when it is of another shape.
    pub fn params(&self, layout: &Layout) -> Result<Vec<f32>> {
        self.gather(layout, "")
    }

    pub(crate) fn into_state(self, layout: &Layout) -> Result<(Vec<f32>, Adam<f32>, u64)> {
        let adam = Adam { start: 0, first: self.gather(layout, FIRST)?, second: self.gather(layout, SECOND)? };
        Ok((self.params(layout)?, adam, self.step))
    }
}
