//! A text as tokens, and windows of it, drawn by seed and step.

use crate::error::{Error, Result};
use crate::loss::IGNORE;
use crate::random::Draws;
use serde::{Deserialize, Serialize};

/// Tokens of the shortest repeated segment, where a window has room for it: shorter ones could be predicted by a fixed offset.
pub const SHORTEST_SEGMENT: usize = 24;

/// Tokens to learn from and tokens to be judged by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// The first nine tenths.
    pub train: Vec<u32>,
    /// The rest.
    pub validation: Vec<u32>,
    /// The token that every window begins with, where there is one.
    pub bos: Option<u32>,
}

impl Text {
    /// Split a text, of which both parts must hold a window of `context` tokens and its targets.
    ///
    /// # Errors
    /// [`Error::ShortText`].
    pub fn split(tokens: Vec<u32>, context: usize) -> Result<Self> {
        let cut = tokens.len() / 10 * 9 + tokens.len() % 10 * 9 / 10;
        let mut train = tokens;
        let validation = train.split_off(cut);
        let needed = context + 2;
        for (what, part) in [("the training text", &train), ("the validation text (the last tenth)", &validation)] {
            if part.len() < needed {
                return Err(Error::ShortText { what, got: part.len(), needed });
            }
        }
        Ok(Self { train, validation, bos: None })
    }

    /// The same, of which every window begins with a token of its own.
    #[must_use]
    pub fn begun(self, bos: Option<u32>) -> Self {
        Self { bos, ..self }
    }
}

/// What a row should predict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The token after it.
    #[default]
    Next,
    /// The token before it: a model that writes from right to left.
    Previous,
}

/// A batch of windows: tokens and targets, both `[batch, seq]`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Windows {
    /// Tokens.
    pub ids: Vec<u32>,
    /// Targets.
    pub targets: Vec<u32>,
}

impl Windows {
    /// `count` windows of `seq` tokens at random places; a text of at least `seq + 2` tokens.
    pub fn draw(tokens: &[u32], count: usize, seq: usize, target: Target, draws: &mut Draws) -> Self {
        let places = tokens.len() - seq - 1;
        Self::at((0..count).map(|_| draws.below(places)), tokens, seq, target)
    }

    /// `count` windows of `seq` tokens, spread evenly over a text of at least `seq + 2` tokens: a mean over them varies less than over
    /// random ones, and is the same for every seed.
    pub fn spread(tokens: &[u32], count: usize, seq: usize, target: Target) -> Self {
        let places = (tokens.len() - seq - 1) as u128;
        // The middles of as many equal parts.
        let start = |i: usize| (places * (2 * i as u128 + 1) / (2 * count as u128)) as usize;
        Self::at((0..count).map(start), tokens, seq, target)
    }

    /// The same windows after a token that begins texts: each loses its last target, and its first token becomes one.
    #[must_use]
    pub fn begun(mut self, bos: Option<u32>, seq: usize) -> Self {
        let Some(bos) = bos else { return self };
        self.targets.clone_from(&self.ids);
        for window in self.ids.chunks_mut(seq) {
            window.rotate_right(1);
            window[0] = bos;
        }
        self
    }

    /// Replace some windows by repeated random tokens: each with probability `share`, a segment of
    /// different tokens, of any length from [`SHORTEST_SEGMENT`] to half of a window, repeated to the end. The first time nothing can be
    /// known; from then on, what followed the same token before is what follows now, however far back that is. With `known` only that
    /// counts. `draws` are those of a window by its number.
    pub fn repeat(&mut self, share: f64, known: bool, seq: usize, vocab: usize, bos: Option<u32>, draws: impl Fn(usize) -> Draws) {
        let others: Vec<u32> = (0..vocab as u32).filter(|token| Some(*token) != bos).collect();
        let longest = (seq / 2).min(others.len());
        if longest == 0 {
            return;
        }
        let shortest = SHORTEST_SEGMENT.min(longest);
        for (number, (ids, targets)) in self.ids.chunks_mut(seq).zip(self.targets.chunks_mut(seq)).enumerate() {
            let mut draws = draws(number);
            if draws.uniform() >= share {
                continue;
            }
            let mut segment = others.clone();
            draws.shuffle(&mut segment);
            segment.truncate(shortest + draws.below(longest - shortest + 1));
            let tokens: Vec<u32> = bos.into_iter().chain(segment.iter().copied().cycle()).take(seq + 1).collect();
            ids.copy_from_slice(&tokens[..seq]);
            targets.copy_from_slice(&tokens[1..]);
            if known {
                // The first target that can be looked up follows the second saying of the first token.
                targets[..segment.len() + usize::from(bos.is_some())].fill(IGNORE);
            }
        }
    }

    fn at(starts: impl Iterator<Item = usize>, tokens: &[u32], seq: usize, target: Target) -> Self {
        let mut windows = Self::default();
        for start in starts {
            let (here, next) = (&tokens[start..start + seq], &tokens[start + 1..start + seq + 1]);
            let (ids, targets) = if target == Target::Next { (here, next) } else { (next, here) };
            windows.ids.extend_from_slice(ids);
            windows.targets.extend_from_slice(targets);
        }
        windows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_hold_neighbours() {
        let tokens: Vec<u32> = (0..500).collect();
        let text = Text::split(tokens, 8).expect("long enough");
        assert_eq!((text.train.len(), text.validation.len()), (450, 50));
        for target in [Target::Next, Target::Previous] {
            let w = Windows::draw(&text.train, 30, 8, target, &mut Draws::at(1, &[2]));
            assert_eq!(w.ids.len(), 240);
            let step = |a: u32, b: u32| i64::from(b) - i64::from(a);
            assert!(w.ids.iter().zip(&w.targets).all(|(&a, &b)| step(a, b) == if target == Target::Next { 1 } else { -1 }));
            assert!(w.ids.chunks(8).all(|w| w.windows(2).all(|w| w[1] == w[0] + 1)));
        }
    }

    #[test]
    fn parts_of_a_batch_are_drawn_without_the_parts_before_them() {
        let tokens: Vec<u32> = (0..500).collect();
        let at = || Draws::at(3, &[7]);
        let whole = Windows::draw(&tokens, 12, 8, Target::Next, &mut at());
        for part in 0..3 {
            let alone = Windows::draw(&tokens, 4, 8, Target::Next, &mut at().skip(4 * part as u64));
            assert_eq!(alone.ids, whole.ids[part * 32..(part + 1) * 32]);
            assert_eq!(alone.targets, whole.targets[part * 32..(part + 1) * 32]);
        }
    }

    #[test]
    fn spread_windows_cover_the_text_evenly() {
        let tokens: Vec<u32> = (0..109).collect();
        let w = Windows::spread(&tokens, 4, 8, Target::Next);
        assert_eq!(w.ids.chunks(8).map(|w| w[0]).collect::<Vec<_>>(), [12, 37, 62, 87]);
        assert!(w.ids.iter().zip(&w.targets).all(|(a, b)| a + 1 == *b));
        // The shortest text has one place.
        assert_eq!(Windows::spread(&tokens[..10], 3, 8, Target::Previous).ids.chunks(8).map(|w| w[0]).collect::<Vec<_>>(), [1, 1, 1]);
    }

    #[test]
    fn short_texts_are_refused() {
        // A tenth of the text must hold one window of 8, its target and one place to choose from.
        for tokens in [0, 1, 20, 89] {
            let refused = Text::split(vec![0; tokens], 8).expect_err("too short").to_string();
            assert!(refused.contains("give a longer text or a smaller context"), "{refused}");
        }
        assert_eq!(Text::split(vec![0; 100], 8).expect("just long enough").validation.len(), 10);
    }
}
