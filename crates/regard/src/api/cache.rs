//! Attention over keys and values in a storage of fewer bits: a quantised KV cache.

use super::{Element, View};
use crate::arrays::uninit;
use crate::error::{Result, check_shape};
use crate::forward::{Forward, Inputs, Outputs, as_uninit, row_array};
use crate::mainloop::operand::Source;
use crate::mainloop::scores::{KeyRows, tile_keys};
use crate::mainloop::tiling::QueryTile;
use crate::plan::{Attention, Dims, GlobalOffset, Plan};
use half::{bf16, f16};
use ndarray::{ArrayBase, ArrayView4, ArrayViewMut3, ArrayViewMut4, Ix4, ViewRepr};
use regard_simd::compressed::{CompressedRows, Q8Block, q8_blocks};
use regard_simd::{Real, Storage};

/// Keys or values `[batch, heads_kv, seq, dim]` in f16, bf16 or q8_0, with any strides: see [`Attention::forward_with_cache`].
#[derive(Debug, Clone, Copy)]
pub struct CacheView<'a> {
    blocks: Blocks<'a>,
    shape: [usize; 4],
}

/// A view with its element type spelled out, without which it would not be covariant in its lifetime.
type View4<'a, E> = ArrayBase<ViewRepr<&'a E>, Ix4, E>;

#[derive(Debug, Clone, Copy)]
enum Blocks<'a> {
    F16(View4<'a, f16>),
    Bf16(View4<'a, bf16>),
    Q8(View4<'a, Q8Block>),
}

impl<'a> From<ArrayView4<'a, f16>> for CacheView<'a> {
    fn from(x: ArrayView4<'a, f16>) -> Self {
        Self { shape: x.dim().into(), blocks: Blocks::F16(x) }
    }
}

impl<'a> From<ArrayView4<'a, bf16>> for CacheView<'a> {
    fn from(x: ArrayView4<'a, bf16>) -> Self {
        Self { shape: x.dim().into(), blocks: Blocks::Bf16(x) }
    }
}

impl<'a> CacheView<'a> {
    /// Rows of `dim` elements in blocks of 32, `[batch, heads_kv, seq, ceil(dim / 32)]`. Where `dim` is no multiple of 32, the rest of the
    /// last block of a row is not read.
    ///
    /// # Errors
    /// [`crate::Error::OutputShape`] when the last axis has another number of blocks.
    pub fn q8_0(blocks: ArrayView4<'a, Q8Block>, dim: usize) -> Result<Self> {
        let (batch, heads, seq, _) = blocks.dim();
        check_shape("the array of q8_0 blocks", blocks.shape(), &[batch, heads, seq, q8_blocks(dim)])?;
        Ok(Self { blocks: Blocks::Q8(blocks), shape: [batch, heads, seq, dim] })
    }

    /// `[batch, heads_kv, seq, dim]`.
    pub fn shape(&self) -> [usize; 4] {
        self.shape
    }
}

impl<E: Storage> KeyRows<E> for CacheView<'_> {
    fn of_tile(&self, plan: &Plan<'_>, tile: &QueryTile) -> Source<'_, E> {
        Source::Compressed(match &self.blocks {
            Blocks::F16(x) => CompressedRows::f16(tile_keys(plan, x, tile)),
            Blocks::Bf16(x) => CompressedRows::bf16(tile_keys(plan, x, tile)),
            Blocks::Q8(x) => CompressedRows::q8(tile_keys(plan, x, tile), self.shape[3]),
        })
    }
}

impl Attention<'_> {
    /// [`Attention::forward`] over keys and values in f16, bf16 or q8_0 (k and v may differ), for queries in f32 or f64.
    ///
    /// The result has the bits of [`Attention::forward`] over the widened keys and values, for any number of queries: decoding and chunked
    /// prefill alike. They are widened a tile at a time, never as a whole. An element that is not finite stays so, and what is hidden does
    /// not contribute; of q8_0 a whole block is NaN then (see [`Q8Block::quantise`]).
    ///
    /// ```
    /// use ndarray::{Array4, s};
    /// use regard::{Attention, CacheView, Q8Block};
    ///
    /// let x = Array4::<f32>::from_shape_fn((1, 2, 40, 64), |(_, h, j, d)| ((h + j * d) as f32).sin());
    /// let quantised = Array4::from_shape_fn((1, 2, 40, 2), |(b, h, j, block)| {
    ///     Q8Block::quantise(&x.slice(s![b, h, j, 32 * block..32 * (block + 1)]).to_vec())
    /// });
    /// let cache = CacheView::q8_0(quantised.view(), 64)?;
    /// let query = x.slice(s![.., .., 39.., ..]);
    /// let result = Attention::new().forward_with_cache(query, cache, cache)?;
    /// assert_eq!(result.out.shape(), [1, 2, 1, 64]);
    /// # Ok::<(), regard::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub fn forward_with_cache<'x, T: Element + Real>(&self, q: impl View<'x, T>, k: CacheView<'x>, v: CacheView<'x>) -> Result<Forward<T>> {
        let inputs = Inputs { q: q.into(), k, v };
        let plan = self.plan_with_cache(&inputs)?;
        let (mut out, mut lse) = (uninit("out", plan.dims.out())?, row_array(&plan, T::NEG_INFINITY)?);
        T::forward_with_cache(&plan, inputs, Outputs { lse: Some(lse.view_mut()), ..Outputs::new(out.view_mut()) })?;
        // SAFETY: the call succeeded, so every row of every query tile was written, and the tiles are all of `out`.
        Ok(Forward { out: unsafe { out.assume_init() }, lse })
    }

    /// [`Attention::forward_with_cache`] into the caller's buffers; `lse` may be left out.
    ///
    /// # Errors
    /// As [`Attention::forward_into`].
    pub fn forward_with_cache_into<'x, T: Element + Real>(
        &self,
        q: impl View<'x, T>,
        k: CacheView<'x>,
        v: CacheView<'x>,
        mut out: ArrayViewMut4<'_, T>,
        lse: Option<ArrayViewMut3<'_, T>>,
    ) -> Result<()> {
        let inputs = Inputs { q: q.into(), k, v };
        let plan = self.plan_with_cache(&inputs)?;
        let shape = plan.dims.out();
        check_shape("out", out.shape(), &shape)?;
        if let Some(lse) = &lse {
            check_shape("lse", lse.shape(), &shape[..3])?;
        }
        T::forward_with_cache(&plan, inputs, Outputs { lse, ..Outputs::new(as_uninit(&mut out)) })
    }

    fn plan_with_cache<T: Real>(&self, inputs: &Inputs<'_, T, CacheView<'_>>) -> Result<Plan<'_>> {
        let dims = Dims::check(inputs.q.shape(), &inputs.k.shape, Some(&inputs.v.shape))?;
        self.plan_part::<T>(dims, GlobalOffset { batch: 0, query: 0, key: 0, whole: dims.scores() })
    }
}
