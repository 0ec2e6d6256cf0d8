//! Small tasks that need the right position of a sequence, and their trainings: associative recall and copying a marked symbol.
//!
//! A model is an embedding, one mixer (`mixers.rs`) and a linear layer; it answers at the last position.

pub(crate) mod mixers;

use crate::error::Result;
use crate::learning::Watch;
use crate::trainings::Progress;
use mixers::{Matrix, Mixer, MixerKind, Roles};
use ndarray::Array2;
use regard_nn::loss::cross_entropy;
use regard_nn::optim::{Adam, OptimConfig, norm};
use regard_nn::random::Draws;
use regard_nn::tensors::layout::Layout;
use serde::{Deserialize, Serialize};

/// Different keys, and values or symbols: chance is 1 / 16.
const KEYS: usize = 64;
pub(crate) const VALUES: usize = 16;
/// Tokens after keys and values: a mark, the question, and no token.
const MARK: usize = KEYS + VALUES;
const QUESTION: usize = MARK + 1;
const BLANK: usize = MARK + 2;
const TOKENS: usize = MARK + 3;
pub(crate) const WIDTH: usize = 24;
/// Pairs or symbols in training: from 4 to this.
pub(crate) const TRAINED: usize = 16;
const SHORTEST: usize = 4;
const BATCH: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// Pairs of key and value, then a key: its value is the answer.
    Recall,
    /// The same, but the answer is the value of the next key in a fixed order: what is sought differs from what is given.
    Next,
    /// Symbols, one of them marked: it is the answer.
    Copy,
}

impl Task {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Recall => "recall",
            Self::Next => "recall of the next key",
            Self::Copy => "copy",
        }
    }
}

/// Two tokens per position, time-major, the question last; and the answers.
struct Examples {
    tokens: Vec<[usize; 2]>,
    answers: Vec<u32>,
}

/// `count` examples of `length` pairs or symbols; the answer is `back` positions before the question, or anywhere.
fn draw(task: Task, count: usize, length: usize, back: Option<usize>, draws: &mut Draws) -> Examples {
    let mut tokens = vec![[BLANK; 2]; (length + 1) * count];
    let mut answers = Vec::new();
    let mut keys: Vec<usize> = (0..KEYS).collect();
    for b in 0..count {
        let at = back.map_or_else(|| draws.below(length), |back| length - back);
        draws.shuffle(&mut keys);
        let values: Vec<usize> = (0..length).map(|_| draws.below(VALUES)).collect();
        for t in 0..length {
            let mark = if t == at { MARK } else { BLANK };
            tokens[t * count + b] = if task == Task::Copy { [KEYS + values[t], mark] } else { [keys[t], KEYS + values[t]] };
        }
        let asked = match task {
            Task::Copy => BLANK,
            Task::Recall => keys[at],
            Task::Next => (keys[at] + KEYS - 1) % KEYS,
        };
        tokens[length * count + b] = [asked, QUESTION];
        answers.push(values[at] as u32);
    }
    Examples { tokens, answers }
}

/// Embedding, mixer, linear layer.
pub(crate) struct Model {
    layout: Layout,
    mixer: Mixer,
    embedding: Matrix,
    head: Matrix,
    /// Parameters of the mixer.
    pub(crate) parameters: usize,
}

impl Model {
    pub(crate) fn new(kind: MixerKind) -> Self {
        let mut layout = Layout::new();
        let mixer = Mixer::new(&mut layout, kind, WIDTH);
        let parameters = layout.len();
        // Two embeddings are added at a position: variance 1 together.
        let embedding = Matrix::with_deviation(&mut layout, "embedding", [TOKENS, WIDTH], 0.5f64.sqrt());
        let head = Matrix::new(&mut layout, "head", [WIDTH, VALUES]);
        Self { layout, mixer, embedding, head, parameters }
    }

    fn rows(&self, p: &[f64], tokens: &[[usize; 2]]) -> Array2<f64> {
        let table = self.embedding.of(p);
        let mut x = Array2::zeros((tokens.len(), WIDTH));
        for (mut row, pair) in x.rows_mut().into_iter().zip(tokens) {
            pair.iter().for_each(|token| row += &table.row(*token));
        }
        x
    }

    /// Adds the gradient of the mean loss to `g`; returns the loss.
    fn learn(&self, p: &[f64], g: &mut [f64], examples: &Examples) -> f64 {
        let count = examples.answers.len();
        let x = self.rows(p, &examples.tokens);
        let (y, saved) = self.mixer.forward(p, &x, count);
        let mut logits = y.dot(&self.head.of(p));
        let mut losses = vec![0.0; count];
        let slice = logits.as_slice_mut().expect("a product is contiguous");
        let loss = cross_entropy(slice, &examples.answers, Some(count as f64), &mut losses);
        self.head.add(g, &y.t().dot(&logits));
        let dx = self.mixer.backward(p, g, &x, &saved, &logits.dot(&self.head.of(p).t()));
        let mut table = Array2::zeros((TOKENS, WIDTH));
        for (row, pair) in dx.rows().into_iter().zip(&examples.tokens) {
            for token in pair {
                let mut to = table.row_mut(*token);
                to += &row;
            }
        }
        self.embedding.add(g, &table);
        loss.mean()
    }

    /// Share of right answers over `count` examples.
    fn right(&self, p: &[f64], task: Task, count: usize, (length, back): (usize, Option<usize>), seed: u64) -> f64 {
        let mut draws = Draws::at(seed, &[0x7E57, length as u64, back.unwrap_or(0) as u64]);
        let examples = draw(task, count, length, back, &mut draws);
        let y = self.mixer.forward(p, &self.rows(p, &examples.tokens), count).0;
        let mut logits = y.dot(&self.head.of(p));
        let slice = logits.as_slice_mut().expect("a product is contiguous");
        cross_entropy(slice, &examples.answers, None, &mut vec![0.0; count]).accuracy()
    }
}

/// A point of a training: the step, mean loss and mean gradient norm since the point before.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) step: u64,
    pub(crate) loss: f64,
    pub(crate) gradient: f64,
}

/// One training and its tests.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Trained {
    /// Share of right answers at each of the tested lengths.
    pub(crate) lengths: Vec<f64>,
    /// At length [`TRAINED`], by the distance of the answer, from 1.
    pub(crate) distances: Vec<f64>,
    /// At length [`TRAINED`] with the trained matrices in other roles.
    pub(crate) swapped: Vec<f64>,
    pub(crate) curve: Vec<Point>,
}

/// What to test after a training.
pub(crate) struct Tests<'t> {
    pub(crate) lengths: &'t [usize],
    pub(crate) swapped: &'t [Roles],
    /// Examples of each test.
    pub(crate) examples: usize,
}

/// Points of a curve.
const POINTS: u64 = 20;

pub(crate) fn train(kind: MixerKind, task: Task, steps: u64, seed: u64, tests: &Tests<'_>, watch: Watch<'_>) -> Result<Trained> {
    let mut model = Model::new(kind);
    let optim = OptimConfig { rate: 5e-3, ..OptimConfig::default() };
    let mut p: Vec<f64> = model.layout.init(seed);
    let (mut g, mut adam) = (vec![0.0; p.len()], Adam::new(p.len()));
    let every = (steps / POINTS).max(1);
    let (mut curve, mut sums) = (Vec::new(), [0.0; 2]);
    for step in 1..=steps {
        let mut draws = Draws::at(seed, &[0x7A5C, step]);
        let length = SHORTEST + draws.below(TRAINED - SHORTEST + 1);
        let loss = model.learn(&p, &mut g, &draw(task, BATCH, length, None, &mut draws));
        let gradient = norm(&g);
        adam.update(&optim, &model.layout, &mut p, &mut g, gradient, step, optim.rate_at(step, steps));
        sums = [sums[0] + loss, sums[1] + gradient];
        if step % every == 0 {
            curve.push(Point { step, loss: sums[0] / every as f64, gradient: sums[1] / every as f64 });
            sums = [0.0; 2];
            watch(&Progress { stage: "training", step, steps, loss: Some(loss) });
        }
    }
    let lengths = tests.lengths.iter().map(|&length| model.right(&p, task, tests.examples, (length, None), seed)).collect();
    let distances = (1..=TRAINED).map(|back| model.right(&p, task, tests.examples / 4, (TRAINED, Some(back)), seed)).collect();
    let own = model.mixer.clone();
    let swapped = tests.swapped.iter().map(|roles| {
        model.mixer = own.with_roles(*roles);
        model.right(&p, task, tests.examples, (TRAINED, None), seed)
    });
    Ok(Trained { lengths, distances, swapped: swapped.collect(), curve })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_example_has_its_answer_where_it_says() {
        for task in [Task::Recall, Task::Next, Task::Copy] {
            let (count, length) = (50, 9);
            let examples = draw(task, count, length, Some(3), &mut Draws::at(1, &[2]));
            for b in 0..count {
                let at = |t: usize| examples.tokens[t * count + b];
                let asked = at(length)[0];
                let matches = |t: &usize| match task {
                    Task::Copy => at(*t)[1] == MARK,
                    Task::Recall => at(*t)[0] == asked,
                    Task::Next => at(*t)[0] == (asked + 1) % KEYS,
                };
                let found: Vec<usize> = (0..length).filter(matches).collect();
                assert_eq!(found, [length - 3], "{task:?}");
                let value = if task == Task::Copy { at(length - 3)[0] } else { at(length - 3)[1] };
                assert_eq!(value, KEYS + examples.answers[b] as usize);
            }
        }
    }

    #[test]
    fn the_gradient_of_the_loss_is_that_of_finite_differences() {
        let model = Model::new(MixerKind::Gru);
        let p: Vec<f64> = model.layout.init(1);
        let examples = draw(Task::Recall, 4, 5, None, &mut Draws::at(3, &[4]));
        let mut g = vec![0.0; p.len()];
        model.learn(&p, &mut g, &examples);
        for i in (0..p.len()).step_by(p.len() / 40) {
            let moved = |by: f64| {
                let mut p = p.clone();
                p[i] += by;
                model.learn(&p, &mut vec![0.0; p.len()], &examples)
            };
            let known = (moved(1e-6) - moved(-1e-6)) / 2e-6;
            assert!((g[i] - known).abs() < 1e-7, "parameter {i}: {} instead of {known}", g[i]);
        }
    }
}
