//! The forward pass: queries stay on their rank, and keys arrive in key order.

use crate::distributed::{Distributed, LocalBlock};
use crate::error::Result;
use crate::exchange::{Exchange, WireElement};
use crate::partition::concatenate;
use crate::resumable::{InPieces, Rows};
use ndarray::{Array, Array3, Array4, ArrayView, ArrayView4, Axis, Dimension, s};
use regard::{Finished, Real, RowStats, Saved, StatsOptions};

impl<X: Exchange> Distributed<'_, X> {
    /// [`regard::Attention::forward_saved`] of all tokens; the results are those of this rank's rows.
    ///
    /// # Errors
    /// As [`regard::Attention::forward_part`]; [`Error::Mismatch`](crate::Error::Mismatch) and [`Error::Refused`](crate::Error::Refused) on
    /// every rank where shapes or options differ or do not fit; [`Error::Disconnected`](crate::Error::Disconnected) and
    /// [`Error::Timeout`](crate::Error::Timeout), with the rank and the keys.
    pub fn forward_saved<E: WireElement>(&self, q: ArrayView4<'_, E>, k: ArrayView4<'_, E>, v: ArrayView4<'_, E>) -> Result<Saved<E>> {
        Ok(self.forward(q, k, v, None)?.0)
    }

    /// The same, with the statistics of this rank's rows: see [`regard::stats`].
    ///
    /// # Errors
    /// As [`Distributed::forward_saved`].
    pub fn forward_with_stats<E: WireElement>(
        &self,
        q: ArrayView4<'_, E>,
        k: ArrayView4<'_, E>,
        v: ArrayView4<'_, E>,
        options: StatsOptions,
    ) -> Result<(Saved<E>, RowStats<E::Real>)> {
        let (saved, stats) = self.forward(q, k, v, Some(options))?;
        Ok((saved, stats.expect("statistics are wanted")))
    }

    fn forward<E: WireElement>(
        &self,
        q: ArrayView4<'_, E>,
        k: ArrayView4<'_, E>,
        v: ArrayView4<'_, E>,
        stats: Option<StatsOptions>,
    ) -> Result<Finished<E>> {
        let blocks = self.forward_blocks(q, k, v, stats)?;
        let shape = [q.len_of(Axis(0)), q.len_of(Axis(1)), 0, v.len_of(Axis(3))];
        Ok(if blocks.is_empty() { without_rows(shape, stats) } else { join(blocks) })
    }

    /// The results of each block of this rank.
    pub(crate) fn forward_blocks<E: WireElement>(
        &self,
        q: ArrayView4<'_, E>,
        k: ArrayView4<'_, E>,
        v: ArrayView4<'_, E>,
        stats: Option<StatsOptions>,
    ) -> Result<Vec<Finished<E>>> {
        let scores = self.check([&q, &k, &v], Ok(()), "forward")?;
        self.check_options([&q, &k, &v], scores)?;
        let blocks = self.local_blocks();
        let begin = |LocalBlock { range, local, .. }: &LocalBlock| {
            let rows = self.attention.begin(q.slice(s![.., .., local.clone(), ..]), range.start, scores);
            stats.into_iter().fold(rows, Rows::with_stats)
        };
        let mut rows: Vec<_> = blocks.iter().map(begin).collect();
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let key_range = self.attention.key_ranges(scores)?;
        let visible: Vec<_> = blocks.into_iter().map(|block| key_range(block.range, 0..scores[3])).collect();
        self.for_each_piece(scores, &k, &v, |first_key, k, v| {
            let keys = first_key..first_key + k.len_of(Axis(2));
            for (rows, visible) in rows.iter_mut().zip(&visible) {
                // Only before the first and after the last visible key, as a split in between ends a sum; the last keys always, as they
                // give the results.
                if keys.end < scores[3] && (keys.end <= visible.start || visible.end <= keys.start) {
                    rows.skip(keys.clone())?;
                } else {
                    rows.absorb(first_key, k, v)?;
                }
            }
            Ok(())
        })?;
        rows.into_iter().map(|rows| Ok(rows.finish_with_stats()?)).collect()
    }
}

/// The results of a rank that has no rows.
fn without_rows<E: WireElement>(shape: [usize; 4], stats: Option<StatsOptions>) -> Finished<E> {
    let per_row = Array3::from_elem([shape[0], shape[1], 0], E::Real::ZERO);
    let keys = stats.map_or(0, |options| options.top_keys);
    let out_unrounded = if E::IS_REAL { None } else { Some(Array4::from_elem(shape, E::Real::ZERO)) };
    let saved = Saved { out: Array4::from_elem(shape, E::zeroed()), out_unrounded, row_max: per_row.clone(), row_sum: per_row.clone() };
    let stats = stats.map(|_| RowStats {
        entropy: per_row.clone(),
        max_weight: per_row.clone(),
        sum_of_squares: per_row.clone(),
        diagonal_mass: per_row.clone(),
        previous_token_mass: per_row.clone(),
        first_token_mass: per_row.clone(),
        local_mass: per_row.clone(),
        mean_distance: per_row,
        argmax: Array3::zeros([shape[0], shape[1], 0]),
        top_keys: Array4::zeros([shape[0], shape[1], 0, keys]),
        top_weights: Array4::from_elem([shape[0], shape[1], 0, keys], E::Real::ZERO),
    });
    (saved, stats)
}

/// The results of all blocks of a rank, concatenated.
fn join<E: WireElement>(blocks: Vec<Finished<E>>) -> Finished<E> {
    let (saved, stats): (Vec<_>, Vec<_>) = blocks.into_iter().unzip();
    let out_unrounded: Option<Vec<_>> = saved.iter().map(|saved| saved.out_unrounded.as_ref()).collect();
    let joined = Saved {
        out: concatenate(&views(saved.iter().map(|saved| &saved.out))),
        out_unrounded: out_unrounded.map(|x| concatenate(&views(x.into_iter()))),
        row_max: concatenate(&views(saved.iter().map(|saved| &saved.row_max))),
        row_sum: concatenate(&views(saved.iter().map(|saved| &saved.row_sum))),
    };
    let stats: Option<Vec<_>> = stats.into_iter().collect();
    macro_rules! join {
        ($stats:ident: $($name:ident),*) => { RowStats { $($name: concatenate(&views($stats.iter().map(|stats| &stats.$name))),)* } };
    }
    #[rustfmt::skip]
    let stats = stats.map(|stats| join!(stats: entropy, max_weight, sum_of_squares, diagonal_mass, previous_token_mass,
        first_token_mass, local_mass, mean_distance, argmax, top_keys, top_weights));
    (joined, stats)
}

fn views<'x, T, D: Dimension + 'x>(parts: impl Iterator<Item = &'x Array<T, D>>) -> Vec<ArrayView<'x, T, D>> {
    parts.map(|part| part.view()).collect()
}
