//! Checkpoints: a safetensors file with everything that resuming needs, and a JSON summary beside it.
//!
//! Both are replaced atomically, so a crash at any moment leaves the old file or the new one. The summary has the checksum of the
//! safetensors file: one changed bit is found.

use crate::error::{Error, Result};
use crate::optim::Adam;
use crate::tensors::layout::Layout;
use crate::training::trainer::{TrainConfig, Trainer};
use regard_files::limits::{CHECKPOINT_BYTES, STATE_BYTES};
use regard_files::{Output, Stamp, digest, read_bytes};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

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

fn bytes_of(numbers: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 * numbers.len());
    for x in numbers {
        bytes.extend_from_slice(&x.to_le_bytes());
    }
    bytes
}

/// Bytes of a checkpoint and of the summary beside it.
#[derive(Debug)]
pub(crate) struct Encoded {
    pub(crate) weights: Vec<u8>,
    sha256: String,
    summary: Value,
}

impl Encoded {
    /// The files in the order of writing, which a kill may stop anywhere: until the weights are replaced, the summary allows the old ones
    /// too.
    pub(crate) fn files<'n>(self, weights: &'n str, summary: &'n str, folder: &Path) -> Vec<(&'n str, Vec<u8>)> {
        let replaced: Vec<String> = known_digests(&folder.join(summary)).unwrap_or_default();
        let replaced: Vec<String> = replaced.into_iter().filter(|old| *old != self.sha256).collect();
        let text = |summary: &Value| format!("{summary:#}\n").into_bytes();
        let after = text(&self.summary);
        if replaced.is_empty() {
            return vec![(summary, after), (weights, self.weights)];
        }
        let mut during = self.summary;
        during[REPLACES] = replaced.into();
        vec![(summary, text(&during)), (weights, self.weights), (summary, after)]
    }
}

/// Encode a training: parameters, [moments](Trainer::moments) of all ranks, step, settings, the model and its origin. The same state gives
/// the same bytes.
///
/// # Errors
/// [`Error::Diverged`] for values that [`Checkpoint::read`] would refuse, [`Error::Checkpoint`].
pub(crate) fn encode(path: &Path, trainer: &Trainer, adam: &Adam<f32>, model: &impl Serialize, origin: &impl Serialize) -> Result<Encoded> {
    let refused = |reason: String| Error::Checkpoint { path: path.to_owned(), reason };
    if adam.first.len() != trainer.params().len() {
        return Err(refused("moments of one rank are not those of all".to_owned()));
    }
    let groups = [("", trainer.params()), (FIRST, &adam.first), (SECOND, &adam.second)];
    if groups.iter().any(|(_, values)| values.iter().any(|x| !x.is_finite())) {
        return Err(Error::Diverged { step: trainer.step(), loss: f64::NAN });
    }
    let mut data = Vec::new();
    for (prefix, values) in groups {
        for entry in trainer.layout().entries() {
            data.push((format!("{prefix}{}", entry.name), entry.shape.clone(), bytes_of(&values[entry.range.clone()])));
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
    let weights = safetensors::serialize(views, Some(HashMap::from([(METADATA.to_owned(), text)]))).map_err(|e| refused(e.to_string()))?;
    let Metadata { step, train, model, origin, .. } = metadata;
    let (parameters, sha256) = (trainer.params().len(), digest(&weights));
    let summary = json!({ "step": step, "parameters": parameters, "sha256": sha256, "model": model, "train": train, "origin": origin });
    Ok(Encoded { weights, sha256, summary })
}

/// Save a training to a path of the caller's, with a summary beside it; regular files are replaced. A training in a folder uses the
/// folder's record.
///
/// # Errors
/// [`Error::Files`], [`Error::Diverged`] and [`Error::Checkpoint`]; an older checkpoint of the same name is then unchanged.
pub fn save(path: &Path, trainer: &Trainer, adam: &Adam<f32>, model: &impl Serialize, origin: &impl Serialize) -> Result<()> {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (folder, weights, summary) = (path.parent().unwrap_or(Path::new("")), name(path), name(&path.with_extension("json")));
    for (name, bytes) in encode(path, trainer, adam, model, origin)?.files(&weights, &summary, folder) {
        Output::reserve_new(&folder.join(name), true)?.write(&bytes)?;
    }
    Ok(())
}

/// The checksums that the summary beside a checkpoint allows; `None` where there is no summary, or one without.
fn known_digests(json: &Path) -> Option<Vec<String>> {
    let summary: Value = serde_json::from_slice(&read_bytes(json, STATE_BYTES.max).ok()?).ok()?;
    let replaced = summary[REPLACES].as_array().into_iter().flatten();
    let known: Vec<String> = [&summary[SUM]].into_iter().chain(replaced).filter_map(|sum| sum.as_str().map(str::to_owned)).collect();
    (!known.is_empty()).then_some(known)
}

/// How often a checkpoint is read again while a training replaces it, and the pause after each, longer than the steps of a file system's
/// clock.
const ATTEMPTS: usize = 200;
const PAUSE: Duration = Duration::from_millis(12);

impl Checkpoint {
    /// Read a checkpoint and verify that it is whole, finite, and has the checksum in the summary beside it. While a training replaces both
    /// files, they are read again until they belong together.
    ///
    /// # Errors
    /// [`Error::Files`] and [`Error::Checkpoint`].
    pub fn read(path: &Path) -> Result<Self> {
        let json = path.with_extension("json");
        let stamps = || [path, &json].map(Stamp::at);
        let (mut before, mut unchanged) = (stamps(), 0);
        for _ in 0..ATTEMPTS {
            let bytes = read_bytes(path, CHECKPOINT_BYTES.max)?;
            let mut checkpoint = Self::parse(path, &bytes)?;
            let (known, sha256) = (known_digests(&json), digest(&bytes));
            checkpoint.verified = known.is_some();
            if known.is_none_or(|known| known.contains(&sha256)) {
                return Ok(checkpoint);
            }
            std::thread::sleep(PAUSE);
            let now = stamps();
            unchanged = if now == before { unchanged + 1 } else { 0 };
            // Neither file was replaced during two attempts: they do not belong together.
            if unchanged == 2 {
                break;
            }
            before = now;
        }
        let json = json.file_name().unwrap_or_default().to_string_lossy();
        let reason = format!("its checksum is not the one in {json}: it is damaged, or of another training; take it from a copy");
        Err(Error::Checkpoint { path: path.to_owned(), reason })
    }

    fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let refused = |reason: String| Error::Checkpoint { path: path.to_owned(), reason };
        let broken = |e: safetensors::SafeTensorError| refused(format!("it is cut short or not a safetensors file ({e})"));
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(broken)?;
        let file = SafeTensors::deserialize(bytes).map_err(broken)?;
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
            let values: Vec<f32> = view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            if let Some(bad) = values.iter().find(|x| !x.is_finite()) {
                return Err(refused(format!("{name} has {bad} in it")));
            }
            tensors.insert(name, (view.shape().to_vec(), values));
        }
        Ok(Self { path: path.to_owned(), step, train, model, origin, verified: false, tensors })
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

    /// Where it comes from, as it was given to [`save`].
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
