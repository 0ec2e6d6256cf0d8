//! Encoder-decoders, and models that read sound or images.
//!
//! The encoder is a [`Model`] of its own. The decoder is the model itself, once it has been handed what the encoder read: from then on it
//! runs, writes and is edited as any other.
//!
//! ```no_run
//! use regard_model::front::sound::Sound;
//! use regard_model::{Edits, Generation, Input, Model, Sources};
//!
//! let model = Model::load("tiny.en.pt")?;
//! let sound = Sound::read("speech.wav".as_ref())?;
//! let (none, nothing) = (Edits::default(), Sources::default());
//! let decoder = model.reading(&model.read(Input::Sound(&sound), &none, &nothing)?)?;
//! let mut ids = decoder.start_ids().to_vec();
//! ids.extend(decoder.generate(&ids, &Generation::greedy(100), &none, &nothing, |_| true)?);
//! let run = decoder.run(&ids, &none, &nothing)?;
//! println!("{:?}", run.cross().map(|cross| cross.weights(0, 0)));
//! # Ok::<(), regard_model::Error>(())
//! ```

use crate::cancel::Cancel;
use crate::edits::{EditProbe, Edits, Sources};
use crate::error::{Error, Result};
use crate::families::Writing;
use crate::front::Front;
use crate::front::sound::SECONDS_PER_ROW;
use crate::model::{Input, Model, Remember};
use crate::run::Run;
use regard_nn::layers::stack::Memory;
use regard_nn::tensors::Weights;

impl Writing {
    /// What may be written next, of logits that are changed in place.
    pub(crate) fn rule(&self, first: bool, logits: &mut [f32]) {
        if let (true, Some(forced)) = (first, self.forced) {
            logits.iter_mut().enumerate().filter(|(id, _)| *id != forced as usize).for_each(|(_, x)| *x = f32::NEG_INFINITY);
            return;
        }
        let also: &[u32] = if first { &self.suppressed_first } else { &[] };
        for &id in self.suppressed.iter().chain(also) {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

impl Model {
    /// Layers have cross-attention.
    pub(crate) fn has_cross(&self) -> bool {
        self.encoder().is_some()
    }

    /// The first sublayer of a layer.
    pub(crate) fn first_of(&self, layer: usize) -> usize {
        layer * if self.has_cross() { 3 } else { 2 }
    }

    /// A probe of a pass.
    pub(crate) fn probe<'e>(&'e self, edits: &'e Edits, sources: &'e Sources, remember: Remember) -> EditProbe<'e> {
        EditProbe::new(edits, sources, self.shape(), remember, self.cancel()).with_cross(self.has_cross())
    }

    /// Rows that cross-attention reads.
    pub(crate) fn memory(&self) -> &[f32] {
        self.source_run().map_or(&[], Run::rows)
    }

    /// A decoder has something to read.
    pub(crate) fn check_reading(&self) -> Result<()> {
        if self.has_cross() && self.source_run().is_none() {
            let what = self.encoder().and_then(Self::front_kind).map_or("a source text", |_| "sound");
            return Err(Error::Tokens { reason: format!("the decoder of {} reads what its encoder read: give it {what}", self.family()) });
        }
        Ok(())
    }

    /// What has no meaning, or no implementation, for encoder-decoders.
    pub(crate) fn check_plain(&self, what: &str) -> Result<()> {
        if self.has_cross() {
            let reason = format!("{what} of encoder-decoders are not supported; use a model without an encoder");
            return Err(Error::Tokens { reason });
        }
        Ok(())
    }

    /// What the encoder of an encoder-decoder makes of a text, sound or an image; of other models, what they make of it themselves.
    ///
    /// # Errors
    /// As [`Model::run`]; when the model reads something else, or that has another size.
    pub fn read(&self, input: Input<'_>, edits: &Edits, sources: &Sources) -> Result<Run> {
        if let Some(encoder) = self.encoder() {
            return encoder.with_cancel(self.cancel()).read(input, edits, sources);
        }
        let Some(front) = self.front() else { return self.run(&self.ids(input)?, edits, sources) };
        crate::formats::check_unchanged(&*self.tensor_source().archive)?;
        let w = Weights::bind(front.layout(), self.tensor_source())?;
        let rows = match (input, front.kind) {
            (Input::Sound(sound), Front::Sound { mels, frames }) => front.sound(&w, sound.log_mel(mels, 2 * frames)?.view())?,
            (Input::Features(features), _) => front.sound(&w, features)?,
            (Input::Pixels(pixels), _) => front.image(&w, pixels)?,
            (Input::Image(image), Front::Image { channels, side, .. }) => {
                front.image(&w, self.architecture().pixels.of(image, channels, side)?.view())?
            }
            (_, Front::Sound { .. }) => return Err(Error::Tokens { reason: "the model reads sound; give it a WAV file".to_owned() }),
            (_, Front::Image { .. }) => return Err(Error::Tokens { reason: "the model reads images; give it a PNG file".to_owned() }),
        };
        // Rows have numbers instead of tokens.
        let ids: Vec<u32> = (0..).take(rows.len() / self.width()).collect();
        self.check(&ids, edits, sources)?;
        let probe = self.probe(edits, sources, Remember { heads: true, ..Remember::default() });
        let (hidden, memory) = self.through(&self.weights()?, &rows, 0..self.sublayers(), probe)?;
        let filled = if let Input::Sound(sound) = input { (sound.seconds() / SECONDS_PER_ROW).ceil() as usize } else { ids.len() };
        Ok(Run::new(self.with_cancel(&Cancel::new()), ids, edits.clone(), hidden, memory.heads).filled_up_to(filled))
    }

    /// The same model, whose decoder reads this run of its encoder.
    ///
    /// # Errors
    /// When the model is no encoder-decoder, or the run is of another model.
    pub fn reading(&self, run: &Run) -> Result<Self> {
        let Some(encoder) = self.encoder() else {
            return Err(Error::Tokens { reason: format!("{} has no encoder; run the text itself", self.family()) });
        };
        if !encoder.is_same(run.model()) {
            return Err(Error::Tokens { reason: "the run is of another model; read the source with this model's encoder".to_owned() });
        }
        Ok(self.with_reading(run.clone()))
    }

    /// The tokens that a decoder begins with.
    pub fn start_ids(&self) -> &[u32] {
        &self.architecture().writing.start
    }

    /// The share of each expert that tokens go through in a layer, `[tokens]` of `(expert, share)`; empty for models without experts.
    ///
    /// # Errors
    /// As [`Model::run`], and [`Error::Outside`].
    pub fn routing(&self, ids: &[u32], edits: &Edits, sources: &Sources, layer: usize) -> Result<Vec<Vec<(usize, f32)>>> {
        if layer >= self.shape().layers {
            return Err(Error::Outside { what: "layer", number: layer, count: self.shape().layers });
        }
        let (_, memory) = self.forward(ids, edits, sources, Remember { streams: true, ..Remember::default() })?;
        let network = self.first_of(layer + 1) - 1;
        Ok(self.transformer().stack().routing(&self.weights()?, network, &memory.streams[network]))
    }
}

impl Run {
    /// The run of the encoder that the decoder read.
    pub fn encoder(&self) -> Option<&Self> {
        self.model().source_run()
    }

    /// It is seen through its cross-attention.
    pub fn is_cross(&self) -> bool {
        self.model().is_cross_handle()
    }

    /// The same run seen through its cross-attention: maps and statistics of tokens over what the decoder read.
    pub fn cross(&self) -> Option<Self> {
        let layers = self.activations().iter().map(|layer| layer.cross.clone()).collect::<Option<Vec<_>>>()?;
        let model = self.model().of_cross();
        Some(Self::new(model, self.ids().to_vec(), Edits::default(), self.rows().to_vec(), layers))
    }

    /// As what cross-attention reads.
    pub(crate) fn as_memory(&self) -> Memory<'_, f32> {
        Memory { rows: self.rows(), seq: self.len(), lengths: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_leave_the_tokens_that_may_be_written() {
        let writing = Writing { suppressed: vec![1, 900], suppressed_first: vec![2], ..Writing::default() };
        let left = |writing: &Writing, first: bool| {
            let mut logits = [0.5f32; 4];
            writing.rule(first, &mut logits);
            logits.map(f32::is_finite)
        };
        assert_eq!(left(&writing, true), [true, false, false, true]);
        assert_eq!(left(&writing, false), [true, false, true, true]);
        let forced = Writing { forced: Some(3), ..writing };
        assert_eq!(left(&forced, true), [false, false, false, true]);
        assert_eq!(left(&forced, false), [true, false, true, true]);
    }
}
