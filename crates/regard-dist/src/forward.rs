//! The forward pass: queries stay where they are, and keys come in their order.

use crate::error::{Error, Result};
use crate::exchange::{Exchange, Number, Talk};
use crate::partition::{Partition, side_by_side};
use crate::rows::{InPieces, Rows};
use ndarray::{Array, Array3, Array4, ArrayView, ArrayView4, Axis, Dimension, s};
use regard::{Attention, Level, Part, Real, RowStats, RowsDone, RowsSoFar, Saved, StatsOptions};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Attention of tokens that several ranks share. Every rank makes the same calls, each with its own tokens: the blocks that the partition gives it,
/// one after the other.
pub struct Distributed<'a, X> {
    pub(crate) attention: &'a Attention<'a>,
    pub(crate) talk: Talk<'a, X>,
    pub(crate) partition: &'a Partition,
    pub(crate) progress: Option<&'a (dyn Fn(usize) + Sync)>,
    /// Nanoseconds.
    pub(crate) waited: AtomicU64,
}

/// The tokens of a range, axis 2.
pub(crate) fn tokens<'x, T>(x: &'x ArrayView4<'_, T>, range: &Range<usize>) -> ArrayView4<'x, T> {
    x.slice(s![.., .., range.clone(), ..])
}

/// One of a rank's blocks.
#[derive(Debug, Clone)]
pub(crate) struct Mine {
    /// Which of all blocks it is.
    pub(crate) block: usize,
    /// Its tokens in the whole.
    pub(crate) range: Range<usize>,
    /// Its tokens among those of the rank.
    pub(crate) here: Range<usize>,
}

impl<'a, X: Exchange> Distributed<'a, X> {
    /// Attention with these options, by ranks that share the tokens so.
    pub fn new(attention: &'a Attention<'a>, exchange: &'a X, partition: &'a Partition) -> Self {
        Self { attention, talk: Talk::new(exchange), partition, progress: None, waited: AtomicU64::new(0) }
    }

    /// Tell, during a forward pass, how many keys this rank has been through.
    #[must_use]
    pub fn with_progress(mut self, tell: &'a (dyn Fn(usize) + Sync)) -> Self {
        self.progress = Some(tell);
        self
    }

    /// How long the arithmetic of forward passes has waited for keys.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.load(Ordering::Relaxed))
    }

    /// [`Attention::forward_saved`] of all tokens; the results are those of this rank's rows.
    ///
    /// # Errors
    /// As [`Attention::forward_part`], which all ranks return alike where options and shapes are wrong; and [`Error::Lost`] or [`Error::Waited`], with the
    /// rank and the keys, where another rank does not answer.
    pub fn forward_saved<E: Number>(&self, q: ArrayView4<'_, E>, k: ArrayView4<'_, E>, v: ArrayView4<'_, E>) -> Result<Saved<E>> {
        Ok(self.forward(q, k, v, None)?.0)
    }

    /// The same, with the statistics of this rank's rows: see [`regard::stats`].
    ///
    /// # Errors
    /// As [`Distributed::forward_saved`].
    pub fn forward_with_stats<E: Number>(
        &self,
        q: ArrayView4<'_, E>,
        k: ArrayView4<'_, E>,
        v: ArrayView4<'_, E>,
        options: StatsOptions,
    ) -> Result<(Saved<E>, RowStats<E::Real>)> {
        let (saved, stats) = self.forward(q, k, v, Some(options))?;
        Ok((saved, stats.expect("they were asked for")))
    }

    fn forward<E: Number>(
        &self,
        q: ArrayView4<'_, E>,
        k: ArrayView4<'_, E>,
        v: ArrayView4<'_, E>,
        stats: Option<StatsOptions>,
    ) -> Result<RowsDone<E>> {
        let blocks = self.forward_blocks(q, k, v, stats)?;
        let shape = [q.len_of(Axis(0)), q.len_of(Axis(1)), 0, v.len_of(Axis(3))];
        Ok(if blocks.is_empty() { nothing(shape, stats) } else { join(blocks) })
    }

    /// The results of each block of this rank.
    pub(crate) fn forward_blocks<E: Number>(
        &self,
        q: ArrayView4<'_, E>,
        k: ArrayView4<'_, E>,
        v: ArrayView4<'_, E>,
        stats: Option<StatsOptions>,
    ) -> Result<Vec<RowsDone<E>>> {
        let scores = self.check([&q, &k, &v, &q], "forward")?;
        // What cannot be done is refused before anybody waits for anybody.
        let start = Part { batch: 0, query: 0, key: 0, whole: scores };
        let none = |x: &ArrayView4<'_, E>| tokens(x, &(0..0)).to_owned();
        self.attention.forward_part(start, &none(&q), &none(&k), &none(&v), &mut RowsSoFar::default())?;
        let mut rows: Vec<_> = self
            .mine()
            .iter()
            .map(|block| {
                let rows = self.attention.begin(q.slice(s![.., .., block.here.clone(), ..]), block.range.start, scores);
                stats.into_iter().fold(rows, Rows::with_stats)
            })
            .collect();
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let seen = self.attention.key_ranges(scores)?;
        let sights: Vec<_> = self.mine().into_iter().map(|block| seen(block.range, 0..scores[3])).collect();
        self.with_keys(scores, &k, &v, |first_key, k, v| {
            let keys = first_key..first_key + k.len_of(Axis(2));
            for (rows, sight) in rows.iter_mut().zip(&sights) {
                // Not between keys that are seen, where sums are put away; and there are results with the last keys, whatever is seen of them.
                if keys.end < scores[3] && (keys.end <= sight.start || sight.end <= keys.start) {
                    rows.skip(keys.clone())?;
                } else {
                    rows.absorb(first_key, k, v)?;
                }
            }
            Ok(())
        })?;
        rows.into_iter().map(|rows| Ok(rows.finish_with_stats()?)).collect()
    }

    pub(crate) fn others(&self) -> impl Iterator<Item = usize> {
        let rank = self.talk.rank();
        (0..self.partition.ranks()).filter(move |&other| other != rank)
    }

    /// The blocks of this rank.
    pub(crate) fn mine(&self) -> Vec<Mine> {
        let blocks = self.partition.blocks().iter().enumerate().filter(|(_, (_, owner))| *owner == self.talk.rank());
        let mut first = 0;
        let place = |(block, (range, _)): (usize, &(Range<usize>, usize))| {
            let here = first..first + range.len();
            first = here.end;
            Mine { block, range: range.clone(), here }
        };
        blocks.map(place).collect()
    }

    /// Shapes are those of this rank's part, and all ranks mean the same. Returned is the shape of all scores.
    pub(crate) fn check<E: Number>(&self, given: [&ArrayView4<'_, E>; 4], call: &str) -> Result<[usize; 4]> {
        let [q, k, v, d_out] = given;
        self.check_tokens([("q", q), ("k", k), ("v", v), ("d_out", d_out)])?;
        self.agree([q, k, v], call)?;
        let tokens = self.partition.tokens();
        Ok([q.len_of(Axis(0)), q.len_of(Axis(1)), tokens, tokens])
    }

    /// These have the tokens of this rank.
    pub(crate) fn check_tokens<E, const N: usize>(&self, given: [(&'static str, &ArrayView4<'_, E>); N]) -> Result<()> {
        let (rank, expected) = (self.talk.rank(), self.partition.count(self.talk.rank()));
        let other = given.into_iter().find(|(_, x)| x.len_of(Axis(2)) != expected);
        other.map_or(Ok(()), |(operand, x)| Err(Error::Tokens { operand, rank, got: x.shape().to_vec(), expected }))
    }

    /// All ranks mean the same.
    pub(crate) fn agree<E: Number>(&self, [q, k, v]: [&ArrayView4<'_, E>; 3], call: &str) -> Result<()> {
        if self.partition.ranks() != self.talk.exchange.ranks() {
            let got = self.partition.ranks();
            return Err(Error::Partition { what: "the number of ranks of the partition", got, requirement: "that of the exchange" });
        }
        let shape = |x: &ArrayView4<'_, E>| format!("[{}, {}, _, {}]", x.len_of(Axis(0)), x.len_of(Axis(1)), x.len_of(Axis(3)));
        let (number, blocks) = (std::any::type_name::<E>(), self.partition.blocks().len());
        let (tokens, level) = (self.partition.tokens(), Level::preferred().ok());
        // AVX2 and AVX-512 have the same bits.
        let level = if level == Some(Level::Portable) { "the portable level" } else { "vectors" };
        let owners: String = self.partition.blocks().iter().map(|(range, owner)| format!(" {}:{owner}", range.start)).collect();
        let digest = digest(owners.as_bytes());
        let (q_shape, k_shape, v_shape) = (shape(q), shape(k), shape(v));
        self.talk.agree(&format!(
            "{call} of {number}, q {q_shape}, k {k_shape}, v {v_shape}, {tokens} tokens in {blocks} blocks ({digest:016x}), {level}, version {}",
            env!("CARGO_PKG_VERSION")
        ))
    }
}

/// FNV-1a.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The results of no rows.
fn nothing<E: Number>(shape: [usize; 4], stats: Option<StatsOptions>) -> RowsDone<E> {
    let number = Array3::from_elem([shape[0], shape[1], 0], E::Real::ZERO);
    let keys = stats.map_or(0, |options| options.top_keys);
    let exact = if E::IS_REAL { None } else { Some(Array4::from_elem(shape, E::Real::ZERO)) };
    let saved = Saved { out: Array4::from_elem(shape, E::zeroed()), exact, row_max: number.clone(), row_sum: number.clone() };
    let stats = stats.map(|_| RowStats {
        entropy: number.clone(),
        max_weight: number.clone(),
        sum_of_squares: number.clone(),
        diagonal_mass: number.clone(),
        previous_token_mass: number.clone(),
        first_token_mass: number.clone(),
        local_mass: number.clone(),
        mean_distance: number,
        argmax: Array3::zeros([shape[0], shape[1], 0]),
        top_keys: Array4::zeros([shape[0], shape[1], 0, keys]),
        top_weights: Array4::from_elem([shape[0], shape[1], 0, keys], E::Real::ZERO),
    });
    (saved, stats)
}

/// The results of all blocks of a rank, side by side.
fn join<E: Number>(blocks: Vec<RowsDone<E>>) -> RowsDone<E> {
    let (saved, stats): (Vec<_>, Vec<_>) = blocks.into_iter().unzip();
    let exact: Option<Vec<_>> = saved.iter().map(|saved| saved.exact.as_ref()).collect();
    let joined = Saved {
        out: side_by_side(&views(saved.iter().map(|saved| &saved.out))),
        exact: exact.map(|exact| side_by_side(&views(exact.into_iter()))),
        row_max: side_by_side(&views(saved.iter().map(|saved| &saved.row_max))),
        row_sum: side_by_side(&views(saved.iter().map(|saved| &saved.row_sum))),
    };
    let stats: Option<Vec<_>> = stats.into_iter().collect();
    macro_rules! join {
        ($stats:ident: $($name:ident),*) => { RowStats { $($name: side_by_side(&views($stats.iter().map(|stats| &stats.$name))),)* } };
    }
    #[rustfmt::skip]
    let stats = stats.map(|stats| join!(stats: entropy, max_weight, sum_of_squares, diagonal_mass, previous_token_mass, first_token_mass, local_mass,
        mean_distance, argmax, top_keys, top_weights));
    (joined, stats)
}

fn views<'x, T, D: Dimension + 'x>(parts: impl Iterator<Item = &'x Array<T, D>>) -> Vec<ArrayView<'x, T, D>> {
    parts.map(|part| part.view()).collect()
}
