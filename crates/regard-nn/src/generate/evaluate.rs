//! The loss of a whole text: every token but the first is predicted exactly once.
//!
//! ```text
//! tokens            a b c d e f g h i          context 4, stride 2
//! first window      a b c d                    predicts b c d e
//! second                c d e f                predicts     f g       d and e were predicted already
//! last                      e f g h            predicts         h i
//! ```
//!
//! A stride as long as the context reads each token once, and the first tokens of each window have little to go by. A shorter one
//! gives every token at least `context - stride` tokens before it, and costs `context / stride` times as much.

use crate::error::{Error, Result};
use crate::layers::stack::Keep;
use crate::lm::LanguageModel;
use crate::look::{MaskKind, Pass};
use crate::loss::{IGNORE, Loss};

/// Rows of one forward pass, and numbers of its logits, at most.
const ROWS: usize = 4096;
const LOGITS: usize = 1 << 25;

/// Where the windows of a text begin, and which of their targets were predicted already.
fn starts(tokens: usize, seq: usize, stride: usize) -> Vec<(usize, usize)> {
    let last = tokens - 1 - seq;
    let mut starts: Vec<(usize, usize)> =
        (0..last).step_by(stride).map(|start| (start, if start == 0 { 0 } else { seq - stride })).collect();
    // The last window ends with the text, however much it overlaps the one before.
    let predicted = starts.last().map_or(0, |(start, _)| start + seq);
    starts.push((last, predicted.saturating_sub(last)));
    starts
}

/// The loss of a text, window by window, `stride` tokens apart; `watch` is told how many windows are done, of how many.
///
/// # Errors
/// [`Error::Config`] for a stride of 0 or beyond the context, [`Error::ShortText`] when there is nothing to predict, and what the model says.
pub fn evaluate(model: &LanguageModel, params: &[f32], tokens: &[u32], stride: usize, mut watch: impl FnMut(usize, usize)) -> Result<Loss> {
    let context = model.config().context;
    if stride == 0 || stride > context {
        let requirement = format!("from 1 to the context ({context})");
        return Err(Error::Config { name: "the stride", value: stride.to_string(), requirement });
    }
    if tokens.len() < 2 {
        return Err(Error::ShortText { what: "the text", got: tokens.len(), needed: 2 });
    }
    let seq = context.min(tokens.len() - 1);
    let starts = starts(tokens.len(), seq, stride.min(seq));
    let rows = ROWS.min(LOGITS / model.config().vocab);
    let weights = model.weights(params);
    let (mut loss, mut done) = (Loss::default(), 0);
    let mut pass = None;
    for group in starts.chunks((rows / seq).max(1)) {
        let (mut ids, mut targets) = (Vec::with_capacity(group.len() * seq), Vec::with_capacity(group.len() * seq));
        for &(start, predicted) in group {
            ids.extend_from_slice(&tokens[start..start + seq]);
            targets.extend(std::iter::repeat_n(IGNORE, predicted));
            targets.extend_from_slice(&tokens[start + 1 + predicted..start + 1 + seq]);
        }
        let mut planned = pass.take().unwrap_or_else(|| model.plan(group.len(), seq, Keep::Discard));
        if planned.shape().0 != group.len() {
            planned = model.plan(group.len(), seq, Keep::Discard);
        }
        loss += model.loss(&weights, &ids, &targets, &Pass::new(group.len(), seq, MaskKind::Causal), &mut planned)?;
        pass = Some(planned);
        done += group.len();
        watch(done, starts.len());
    }
    Ok(loss)
}
