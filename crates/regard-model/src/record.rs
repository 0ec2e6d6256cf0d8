//! Activations of a text that are kept: sources of patches.

use crate::edits::{Action, Arrays, Edits, Sources};
use crate::error::Result;
use crate::hooks::{Hook, Site};
use crate::model::Model;
use crate::run::Run;
use ndarray::ArrayViewMutD;
use std::sync::{Arc, Mutex, PoisonError};

/// Keeps the activations of a run that `wants` names.
struct Recorder<'w> {
    wants: &'w (dyn Fn(usize, Site) -> bool + Sync),
    kept: Mutex<Arrays>,
}

impl Hook for Recorder<'_> {
    fn wants(&self, layer: usize, site: Site) -> bool {
        (self.wants)(layer, site)
    }

    fn at(&self, layer: usize, site: Site, x: ArrayViewMutD<'_, f32>) -> bool {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).insert((layer, site), x.to_owned());
        false
    }
}

impl Model {
    /// Run tokens and keep the activations that `wants` names.
    ///
    /// # Errors
    /// As [`Model::run`].
    pub fn record(&self, ids: &[u32], wants: &(dyn Fn(usize, Site) -> bool + Sync)) -> Result<(Run, Arrays)> {
        let recorder = Recorder { wants, kept: Mutex::default() };
        let run = self.run_with(ids, &Edits::default(), &Sources::default(), &recorder)?;
        Ok((run, recorder.kept.into_inner().unwrap_or_else(PoisonError::into_inner)))
    }

    /// A second text for patches, with all that patches of these edits take from it.
    ///
    /// # Errors
    /// As [`Model::run`].
    pub fn source_for(&self, edits: &Edits, sources: &mut Sources, name: &str, ids: &[u32]) -> Result<()> {
        let wants = |layer: usize, site: Site| {
            let takes = |action: &Action| matches!(action, Action::Patch(from, _) if from == name);
            edits.list().iter().any(|edit| edit.on_layer(layer) && edit.site() == Some(site) && takes(&edit.action))
        };
        if !(0..self.shape().layers).any(|layer| Site::ALL.into_iter().any(|site| wants(layer, site))) {
            return self.source(sources, name, ids);
        }
        let (run, arrays) = self.record(ids, &wants)?;
        sources.texts.insert(name.to_owned(), run.activations());
        sources.arrays.insert(name.to_owned(), Arc::new(arrays));
        Ok(())
    }
}
