//! Entry points, compiled once for each element type.
//!
//! A generic function is compiled again in every crate that uses it, which takes minutes for the kernels. The functions of `Entry` are
//! not generic: other crates link to them.

use crate::backward::{self as backward_pass, GradientOutputs, GradientSums};
use crate::error::Result;
use crate::forward::attend::Splits;
use crate::forward::schedule::{self, Running};
use crate::forward::{Inputs, Outputs, SavedView};
use crate::instruments::stats::StatSums;
use crate::instruments::{
    HeadSimilarity, HeatMap, HeatMapState, Rectangle, RowStats, SoftmaxDenominators, StatsOptions, columns, heat_map, similarity, stats,
    weights,
};
use crate::mainloop::scores::Stage;
use crate::plan::Plan;
use half::{bf16, f16};
use ndarray::{Array3, Array4, ArrayView4};
use regard_simd::Storage;

mod backward;
mod cache;
mod forward;
mod instruments;
mod packed;
mod pieces;
mod state_bytes;

pub use cache::CacheView;
pub use pieces::{Finished, PartInputs, PartSums, RunningAttention};

/// What a tensor may hold: f32 and f64, or f16 and bf16 with f32 arithmetic. Sealed.
pub trait Element: Entry {}

impl Element for f32 {}
impl Element for f64 {}
impl Element for f16 {}
impl Element for bf16 {}

/// A tensor `[batch, head, seq, dim]` to be read, with any strides: an array by reference, or a view.
pub trait View<'x, E: 'x>: Into<ArrayView4<'x, E>> {}

impl<'x, E: 'x, X: Into<ArrayView4<'x, E>>> View<'x, E> for X {}

/// Declares each function of the list in the trait [`Entry`], and implements it for the types by calling the function on the right.
macro_rules! entries {
    ({$($t:ty),*} $functions:tt) => {
        entries!(@trait $functions);
        $(entries!(@impl $t $functions);)*
    };
    (@trait {$(fn $name:ident($($arg:ident: $ty:ty),*) -> $result:ty = $f:path;)*}) => {
        /// Private: seals [`Element`].
        #[expect(private_interfaces, reason = "the trait cannot be named outside")]
        pub trait Entry: Storage {
            $(fn $name($($arg: $ty),*) -> $result where Self: Storage;)*
        }
    };
    (@impl $t:ty {$(fn $name:ident($($arg:ident: $ty:ty),*) -> $result:ty = $f:path;)*}) => {
        #[expect(private_interfaces, reason = "the trait cannot be named outside")]
        impl Entry for $t {
            $(fn $name($($arg: $ty),*) -> $result {
                $f($($arg),*)
            })*
        }
    };
}

entries!({f32, f64, f16, bf16} {
    fn forward(
        plan: &Plan<'_>, inputs: Inputs<'_, Self>, outputs: Outputs<'_, Self>
    ) -> Result<()> = forward_unobserved;
    fn forward_with_cache(
        plan: &Plan<'_>, inputs: Inputs<'_, Self, CacheView<'_>>, outputs: Outputs<'_, Self>
    ) -> Result<()> = forward_with_cache_unobserved;
    fn forward_part(
        plan: &Plan<'_>, inputs: Inputs<'_, Self>, outputs: Option<Outputs<'_, Self>>,
        states: &mut Running<Self::Real, ()>, ahead: &[Splits<Self::Real, ()>]
    ) -> Result<()> = forward_part_unobserved;
    fn precompute_splits(
        plan: &Plan<'_>, inputs: Inputs<'_, Self>
    ) -> Result<Vec<Splits<Self::Real, ()>>> = schedule::run_splits_ahead;
    fn forward_with_stats(
        plan: &Plan<'_>, inputs: Inputs<'_, Self>, outputs: Outputs<'_, Self>, options: StatsOptions
    ) -> Result<RowStats<Self::Real>> = stats::forward_with_stats;
    fn forward_part_with_stats(
        plan: &Plan<'_>, inputs: Inputs<'_, Self>, outputs: Option<Outputs<'_, Self>>,
        states: &mut Running<Self::Real, StatSums<Self::Real>>, options: StatsOptions
    ) -> Result<RowStats<Self::Real>> = stats::forward_part_with_stats;
    fn backward(
        plan: &Plan<'_>, inputs: Inputs<'_, Self>, saved: SavedView<'_, Self>, d_out: ArrayView4<'_, Self>,
        outputs: GradientOutputs<'_, Self>, stats: bool
    ) -> Result<GradientSums> = backward_pass::run;
    fn backward_part(
        plan: &Plan<'_>, inputs: Inputs<'_, Self>, saved: SavedView<'_, Self>, d_out: ArrayView4<'_, Self>,
        outputs: GradientOutputs<'_, Self::Real>, stats: bool
    ) -> Result<GradientSums> = backward_pass::run;
    fn weights(
        plan: &Plan<'_>, q: ArrayView4<'_, Self>, k: ArrayView4<'_, Self>, states: &SoftmaxDenominators<Self::Real>,
        of: Rectangle
    ) -> Result<Array4<Self::Real>> = weights::weights;
    fn scores(
        plan: &Plan<'_>, q: ArrayView4<'_, Self>, k: ArrayView4<'_, Self>, stage: Stage
    ) -> Result<Array4<Self::Real>> = weights::scores;
    fn heat_map(
        plan: &Plan<'_>, q: ArrayView4<'_, Self>, k: ArrayView4<'_, Self>, states: &SoftmaxDenominators<Self::Real>,
        of: Rectangle, cells: [usize; 2]
    ) -> Result<HeatMap<Self::Real>> = heat_map::heat_map;
    fn heat_map_part(
        plan: &Plan<'_>, q: ArrayView4<'_, Self>, k: ArrayView4<'_, Self>, states: &SoftmaxDenominators<Self::Real>,
        of: Rectangle, cells: [usize; 2], so_far: &mut HeatMapState<Self::Real>
    ) -> Result<()> = heat_map::heat_map_part;
    fn column_sums(
        plan: &Plan<'_>, q: ArrayView4<'_, Self>, k: ArrayView4<'_, Self>, states: &SoftmaxDenominators<Self::Real>
    ) -> Result<Array3<Self::Real>> = columns::column_sums;
    fn head_similarity(
        plan: &Plan<'_>, q: ArrayView4<'_, Self>, k: ArrayView4<'_, Self>, states: &SoftmaxDenominators<Self::Real>
    ) -> Result<HeadSimilarity> = similarity::head_similarity;
});

fn forward_unobserved<E: Storage>(plan: &Plan<'_>, inputs: Inputs<'_, E>, outputs: Outputs<'_, E>) -> Result<()> {
    schedule::run(plan, &inputs, outputs, &|_, _| ()).map(|_| ())
}

fn forward_with_cache_unobserved<E: Storage>(plan: &Plan<'_>, inputs: Inputs<'_, E, CacheView<'_>>, outputs: Outputs<'_, E>) -> Result<()> {
    schedule::run(plan, &inputs, outputs, &|_, _| ()).map(|_| ())
}

fn forward_part_unobserved<E: Storage>(
    plan: &Plan<'_>,
    inputs: Inputs<'_, E>,
    outputs: Option<Outputs<'_, E>>,
    states: &mut Running<E::Real, ()>,
    ahead: &[Splits<E::Real, ()>],
) -> Result<()> {
    schedule::run_part(plan, &inputs, outputs, states, ahead, &|_, _| ()).map(|_| ())
}
