//! The microscope: checkpoints from disk, every head looked at, surgery with its uncertainty.
//!
//! ```no_run
//! use regard_model::{Edits, Input, Model, Sources};
//!
//! let model = Model::load("path/to/model")?;
//! let ids = model.ids(Input::Text("Once upon a time"))?;
//! let intact = model.run(&ids, &Edits::default(), &Sources::default())?;
//! let without = model.run(&ids, &Edits::parse("L3.H1=zero")?, &Sources::default())?;
//! println!("{} {}", intact.loss()?, without.loss()?);
//! println!("{:?}", intact.weights(3, 1)?);
//! # Ok::<(), regard_model::Error>(())
//! ```
//!
//! # What it promises
//!
//! 1. **No second transformer**: a family is a table of names and a list of parts; computing is regard-nn's and regard's.
//! 2. **Nothing is folded or centred**: weights are those of the checkpoint. Files are mapped; quantised weights are widened a piece at
//!    a time.
//! 3. **Weights on demand**, from the kernel that made the output: a head, a row, a picture. Statistics of all heads are linear in memory.
//! 4. **A head is z, before W_O**: see [`edits`]. An edit that matches nothing is an error; null edits change exactly nothing.
//! 5. **Files are not trusted**: sizes are checked before anything is reserved, and pickles are never executed.
//!
//! ```text
//! open        from a path to files            formats/   one reader per format          families/   names and parts
//! tokens/     texts to tokens                 model       load, run, write               run         what can be asked of a run
//! edits/      grammar, and edits at work      scores      what heads do                  screen      what edits cost, on several texts
//! lens        after each layer               evidence    intervals and p                settings    config.json, with limits
//! view        tiles and means for viewers     steps       a head number by number
//! diff        two models: where, which heads, why       circuit     edges between heads, with their errors
//! front/      sound and images as rows            encoder_decoder     what a decoder reads
//! hooks       activations, read and changed           gradients   of a loss or of logits, by activation
//! unusual     rows unlike a head's usual ones         record      activations that patches take
//! vectors     files of vectors that edits add             metric      what ablations are judged by
//! neuron      one query and one key           evaluate    the loss of a long text        direct      heads without what follows
//! ```

#![forbid(unsafe_code)]

pub mod formats;
mod cancel;
pub mod circuit;
mod digest;
mod disk;
mod direct_effect;
mod encoder_decoder;
pub mod diff;
pub mod edits;
pub mod error;
mod evaluate;
mod gradients;
mod hooks;
pub mod paired_test;
pub mod families;
pub mod front;
pub mod hub;
mod lens;
mod metric;
mod model;
mod neuron;
mod open;
mod patch;
mod record;
mod run;
pub mod scores;
mod screen;
pub mod settings;
mod steps;
pub mod tokens;
mod tiles;
mod unusual;
mod vectors;

pub use cancel::Cancel;
pub use edits::{Arrays, Edits, Reference, Shape, Sources, Vectors};
pub use error::{Error, Result};
pub use evaluate::Evaluated;
pub use gradients::{ActivationGradients, Objective};
pub use hooks::{Hook, Site};
pub use lens::{Attribution, Lens, LogitOf};
pub use metric::{Metric, TokenMetric};
pub use model::{Generation, Input, Model, Pooling, TrainedOn};
pub use neuron::{KeyOfRow, Neuron};
pub use paired_test::Evidence;
pub use patch::{PatchOptions, Patched};
pub use run::Run;
pub use scores::HeadScores;
pub use screen::{Outcome, Screened};
pub use steps::Steps;
pub use tiles::{HeadStates, HeadSummary, Pool, Sink};
pub use unusual::{Unusual, UnusualRow};
