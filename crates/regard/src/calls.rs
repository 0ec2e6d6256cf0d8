//! The calls of this crate, compiled once for each element type.
//!
//! The kernels are generic, and a generic function is compiled in every crate that uses it: minutes, for each of them. These are not
//! generic any more: what uses this crate links to them.

use crate::attention::{Attention, Plan};
use crate::backward::WithSquares;
use crate::block::Summaries;
use crate::element::Element;
use crate::error::Result;
use crate::forward::{self, EndsOf, SavedView};
use crate::maps::{HeadSimilarity, HeatMap};
use crate::matmul::{Chunk, Pack};
use crate::score::{RowBlock, Stage};
use crate::simd::{Kernel, Level, Real};
use crate::stats::StatsOptions;
use half::{bf16, f16};
use ndarray::{Array3, Array4, ArrayView4, ArrayViewMut4};
use std::mem::MaybeUninit;

/// See the methods of [`Attention`] of these names, and [`forward::run`].
#[expect(private_interfaces, reason = "nobody outside can name the trait")]
pub trait Calls: Sized {
    fn run(
        plan: &Plan<'_>,
        q: ArrayView4<'_, Self>,
        k: ArrayView4<'_, Self>,
        v: ArrayView4<'_, Self>,
        out: ArrayViewMut4<'_, MaybeUninit<Self>>,
        ends: EndsOf<'_, Self::Real>,
        stats: Option<StatsOptions>,
    ) -> Result<Vec<(RowBlock, Summaries)>>
    where
        Self: Element;
    fn gradients<'x>(
        attention: &Attention<'_>,
        q: ArrayView4<'x, Self>,
        k: ArrayView4<'x, Self>,
        v: ArrayView4<'x, Self>,
        saved: SavedView<'x, Self>,
        d_out: ArrayView4<'x, Self>,
        stats: bool,
    ) -> Result<WithSquares<Self>>
    where
        Self: Element;
    fn weights(attention: &Attention<'_>, q: ArrayView4<'_, Self>, k: ArrayView4<'_, Self>) -> Result<Array4<Self::Real>>
    where
        Self: Element;
    fn scores(attention: &Attention<'_>, q: ArrayView4<'_, Self>, k: ArrayView4<'_, Self>, stage: Stage) -> Result<Array4<Self::Real>>
    where
        Self: Element;
    fn heat_map(
        attention: &Attention<'_>,
        q: ArrayView4<'_, Self>,
        k: ArrayView4<'_, Self>,
        rows: usize,
        cols: usize,
    ) -> Result<HeatMap<Self::Real>>
    where
        Self: Element;
    fn column_sums(attention: &Attention<'_>, q: ArrayView4<'_, Self>, k: ArrayView4<'_, Self>) -> Result<Array3<Self::Real>>
    where
        Self: Element;
    fn head_similarity(attention: &Attention<'_>, q: ArrayView4<'_, Self>, k: ArrayView4<'_, Self>) -> Result<HeadSimilarity>
    where
        Self: Element;
}

macro_rules! calls {
    ($($t:ty),*) => {$(
        #[expect(private_interfaces, reason = "nobody outside can name the trait")]
        impl Calls for $t {
            fn run(
                plan: &Plan<'_>,
                q: ArrayView4<'_, Self>,
                k: ArrayView4<'_, Self>,
                v: ArrayView4<'_, Self>,
                out: ArrayViewMut4<'_, MaybeUninit<Self>>,
                ends: EndsOf<'_, <Self as Element>::Real>,
                stats: Option<StatsOptions>,
            ) -> Result<Vec<(RowBlock, Summaries)>> {
                forward::run(plan, q, k, v, out, ends, stats)
            }
            fn gradients<'x>(
                attention: &Attention<'_>,
                q: ArrayView4<'x, Self>,
                k: ArrayView4<'x, Self>,
                v: ArrayView4<'x, Self>,
                saved: SavedView<'x, Self>,
                d_out: ArrayView4<'x, Self>,
                stats: bool,
            ) -> Result<WithSquares<Self>> {
                attention.compute_gradients(q, k, v, saved, d_out, stats)
            }
            fn weights(a: &Attention<'_>, q: ArrayView4<'_, Self>, k: ArrayView4<'_, Self>) -> Result<Array4<<Self as Element>::Real>> {
                a.compute_weights(q, k)
            }
            fn scores(
                a: &Attention<'_>,
                q: ArrayView4<'_, Self>,
                k: ArrayView4<'_, Self>,
                stage: Stage,
            ) -> Result<Array4<<Self as Element>::Real>> {
                a.compute_scores(q, k, stage)
            }
            fn heat_map(
                a: &Attention<'_>,
                q: ArrayView4<'_, Self>,
                k: ArrayView4<'_, Self>,
                rows: usize,
                cols: usize,
            ) -> Result<HeatMap<<Self as Element>::Real>> {
                a.compute_heat_map(q, k, rows, cols)
            }
            fn column_sums(a: &Attention<'_>, q: ArrayView4<'_, Self>, k: ArrayView4<'_, Self>) -> Result<Array3<<Self as Element>::Real>> {
                a.compute_column_sums(q, k)
            }
            fn head_similarity(a: &Attention<'_>, q: ArrayView4<'_, Self>, k: ArrayView4<'_, Self>) -> Result<HeadSimilarity> {
                a.compute_head_similarity(q, k)
            }
        }
    )*};
}

calls!(f32, f64, f16, bf16);

/// See the kernels of [`crate::matmul`].
#[expect(private_interfaces, reason = "nobody outside can name the trait")]
pub trait Products: Sized {
    fn pack(level: Level, pack: Pack<'_, Self>);
    fn multiply(level: Level, chunk: Chunk<'_, Self>);
}

macro_rules! products {
    ($($t:ty),*) => {$(
        #[expect(private_interfaces, reason = "nobody outside can name the trait")]
        impl Products for $t {
            fn pack(level: Level, pack: Pack<'_, Self>) {
                <$t>::dispatch(level, Kernel(pack));
            }
            fn multiply(level: Level, chunk: Chunk<'_, Self>) {
                <$t>::dispatch(level, Kernel(chunk));
            }
        }
    )*};
}

products!(f32, f64);
