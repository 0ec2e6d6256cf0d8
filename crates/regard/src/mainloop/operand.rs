//! Operand K or V of a key tile: decides whether rows are read in place or copied, and finds non-finite elements.
//!
//! A weight of zero does not hide an infinity: `0 * inf` is NaN. So where a tile is partly visible and holds non-finite elements, a panel
//! gets rows with zeros in their place, and the list of them, so that the rows that do see them get them afterwards. A panel that sees
//! everything gets the rows as they are, whatever the panel before it got.

use super::tiles::{transpose_keys, transposed_len};
use super::tiling::{KV_TILE, Need};
use regard_simd::compressed::CompressedRows;
use regard_simd::scratch::Scratch;
use regard_simd::strided::Rows;
use regard_simd::tiles::{TILE, TILE_DEPTH, padded_pairs};
use regard_simd::{Real, Simd, Storage};
use std::ops::Range;

/// A non-finite element: key, dimension and what it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NonFinite<T> {
    pub(crate) key: usize,
    pub(crate) dim: usize,
    pub(crate) value: T,
}

/// Rows of K or V as they are stored, or widened.
#[derive(Clone, Copy)]
pub(crate) enum TileRows<'t, E: Storage> {
    Stored(Rows<'t, E>),
    Real(Rows<'t, E::Real>),
}

/// Rows of K or V as the caller has them: in the type of the call, or compressed, which are widened a tile at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source<'a, E: Storage> {
    Stored(Rows<'a, E>),
    Compressed(CompressedRows<'a>),
}

impl<'a, E: Storage> From<Rows<'a, E>> for Source<'a, E> {
    fn from(rows: Rows<'a, E>) -> Self {
        Self::Stored(rows)
    }
}

impl<E: Storage> Source<'_, E> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Stored(rows) => rows.len(),
            Self::Compressed(rows) => rows.len(),
        }
    }

    pub(crate) fn cols(&self) -> usize {
        match self {
            Self::Stored(rows) => rows.cols(),
            Self::Compressed(rows) => rows.cols(),
        }
    }

    fn has_unit_cols(&self) -> bool {
        matches!(self, Self::Stored(rows) if rows.has_unit_cols())
    }

    fn slice(self, rows: Range<usize>) -> Self {
        match self {
            Self::Stored(all) => Self::Stored(all.slice(rows)),
            Self::Compressed(all) => Self::Compressed(all.slice(rows)),
        }
    }

    /// Copy all rows, widened, into contiguous rows of `to`.
    fn copy<S: Simd<T = E::Real>>(&self, simd: S, to: &mut [E::Real]) {
        match self {
            Self::Stored(rows) => rows.copy(simd, to),
            Self::Compressed(rows) => rows.widen(simd, to),
        }
    }

    fn all_finite<S: Simd<T = E::Real>>(&self, simd: S) -> bool {
        match self {
            Self::Stored(rows) => rows.all_finite(simd),
            Self::Compressed(rows) => rows.all_finite(),
        }
    }
}

pub(crate) struct Operand<'a, E: Storage> {
    source: Source<'a, E>,
    /// The key that the first row of the source stands for.
    first_key: usize,
    keys: Range<usize>,
    /// Room for a tile of widened rows, where they cannot be read in place.
    copy: &'a mut [E::Real],
    copied: bool,
    /// The rows of the tile in pairs, where they do not lie so. Made only where it must be.
    pairs: Vec<E::Real>,
    paired: bool,
    /// The tile transposed, and the memory to do it; zeros in place of non-finite elements or not.
    transposed: Option<Scratch>,
    transposed_clean: Option<bool>,
    /// All elements of the tile are finite; `None`: not looked at yet.
    pub(crate) finite: Option<bool>,
    /// The widened rows with zeros in place of non-finite elements. Made only where it must be.
    clean: Vec<E::Real>,
    non_finite: Vec<NonFinite<E::Real>>,
}

impl<'a, E: Storage> Operand<'a, E> {
    /// Length of the copy buffer.
    pub(crate) fn copy_len<'s>(source: impl Into<Source<'s, E>>) -> usize {
        let source = source.into();
        if E::IS_REAL && source.has_unit_cols() { 0 } else { KV_TILE * source.cols() }
    }

    pub(crate) fn new(source: impl Into<Source<'a, E>>, first_key: usize, copy: &'a mut [E::Real]) -> Self {
        let source = source.into();
        let (pairs, clean, non_finite) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            source,
            first_key,
            keys: 0..0,
            copy,
            copied: false,
            pairs,
            paired: false,
            transposed: None,
            transposed_clean: None,
            finite: None,
            clean,
            non_finite,
        }
    }

    /// Move to a key tile. `finite`: whether all of it is finite, if known.
    pub(crate) fn begin(&mut self, keys: Range<usize>, finite: Option<bool>) {
        self.keys = keys;
        (self.copied, self.paired, self.transposed_clean) = (false, false, None);
        self.finite = finite;
        self.non_finite.clear();
    }

    /// Rows of some keys, as they are stored.
    fn stored(&self, keys: &Range<usize>) -> Source<'a, E> {
        self.source.slice(keys.start - self.first_key..keys.end - self.first_key)
    }

    /// Rows of some keys for lanes that multiply 16-bit elements. Calls with compressed rows have f32 or f64 queries, so there are none
    /// here.
    fn uncompressed(&self, keys: &Range<usize>) -> Rows<'a, E> {
        match self.stored(keys) {
            Source::Stored(rows) => rows,
            Source::Compressed(_) => unreachable!("calls with compressed rows have f32 or f64 queries"),
        }
    }

    /// Rows of some keys of the tile, whatever they hold.
    pub(crate) fn rows<S: Simd<T = E::Real>>(&mut self, simd: S, keys: &Range<usize>) -> Rows<'_, E::Real> {
        if let Source::Stored(stored) = self.stored(keys)
            && let Some(rows) = E::real_rows(stored).filter(Rows::has_unit_cols)
        {
            return rows;
        }
        if !self.copied {
            self.stored(&self.keys.clone()).copy(simd, self.copy);
            self.copied = true;
        }
        Rows::from_slice(self.copy, self.keys.len(), self.source.cols()).slice(self.local(keys))
    }

    /// Rows of some keys in pairs of elements, for lanes that [multiply pairs](Simd::PAIRS).
    pub(crate) fn pair_rows(&mut self, keys: &Range<usize>) -> Rows<'_, E::Real> {
        if let Some(rows) = self.uncompressed(keys).pairs() {
            return rows;
        }
        let (count, cols) = (self.keys.len(), self.source.cols().div_ceil(2));
        if !self.paired {
            let mut pairs = std::mem::take(&mut self.pairs);
            pairs.resize(count * cols, E::Real::ZERO);
            self.uncompressed(&self.keys.clone()).copy_pairs(&mut pairs, cols);
            (self.pairs, self.paired) = (pairs, true);
        }
        Rows::from_slice(&self.pairs, count, cols).slice(self.local(keys))
    }

    /// Rows of some keys for lanes that [multiply tiles](Simd::TILES): rows are filled up to whole tiles, and there are at least as many as
    /// a tile has. Those past the last key have no meaning.
    pub(crate) fn tile_rows(&mut self, keys: &Range<usize>) -> Rows<'_, E::Real> {
        let cols = self.source.cols();
        if cols.is_multiple_of(TILE_DEPTH)
            && keys.len() >= TILE
            && let Some(rows) = self.uncompressed(keys).pairs()
        {
            return rows;
        }
        let (count, ld) = (self.keys.len() + TILE, padded_pairs(cols));
        if !self.paired {
            let mut pairs = std::mem::take(&mut self.pairs);
            pairs.resize(count * ld, E::Real::ZERO);
            self.uncompressed(&self.keys.clone()).copy_pairs(&mut pairs, ld);
            (self.pairs, self.paired) = (pairs, true);
        }
        let first = keys.start - self.keys.start;
        Rows::from_slice(&self.pairs, count, ld).slice(first..first + keys.len().max(TILE))
    }

    /// The tile transposed for lanes that [multiply tiles](Simd::TILES), keys at their places in the whole tile; `clean`: with zeros in
    /// place of non-finite elements.
    pub(crate) fn transposed<S: Simd<T = E::Real>>(&mut self, simd: S, clean: bool) -> &[E::Real] {
        let mut scratch = self.transposed.take().unwrap_or_else(Scratch::take);
        let [to, memory] = scratch.slices(transposed_len(self.source.cols()));
        if self.transposed_clean != Some(clean) {
            let (keys, first) = (self.keys.clone(), self.keys.start % KV_TILE);
            if clean {
                transpose_keys(simd, self.zero_non_finite(simd, &keys), first, to, memory);
            } else {
                transpose_keys(simd, self.uncompressed(&keys), first, to, memory);
            }
            self.transposed_clean = Some(clean);
        }
        let [transposed, _] = self.transposed.insert(scratch).slices(transposed_len(self.source.cols()));
        transposed
    }

    /// Rows of some keys for few queries, which read elements as they are stored where these are neighbours.
    pub(crate) fn decode_rows<S: Simd<T = E::Real>>(&mut self, simd: S, keys: &Range<usize>) -> TileRows<'_, E> {
        match self.stored(keys) {
            Source::Stored(rows) if rows.has_unit_cols() => TileRows::Stored(rows),
            _ => TileRows::Real(self.rows(simd, keys)),
        }
    }

    /// Whether all elements of the tile are finite: of all of it, also where only a part is walked through, so that the answer may be kept.
    pub(crate) fn is_finite<S: Simd<T = E::Real>>(&mut self, simd: S) -> bool {
        let first = (self.keys.start / KV_TILE * KV_TILE).max(self.first_key);
        let last = (self.keys.start / KV_TILE * KV_TILE + KV_TILE).min(self.first_key + self.source.len());
        let (stored, finite) = (self.stored(&(first..last)), &mut self.finite);
        *finite.get_or_insert_with(|| stored.all_finite(simd))
    }

    /// Whether a panel may multiply a non-finite element that is hidden from some of its rows (or by a part of a weight).
    pub(crate) fn needs_care<S: Simd<T = E::Real>>(&mut self, simd: S, need: &Need) -> bool {
        // A weight is two parts where tiles are multiplied: an infinity would meet the zero of the second.
        (S::TILES || !need.sees_all()) && !self.is_finite(simd)
    }

    /// Rows for a panel that [needs care](Self::needs_care), zeros in place of non-finite elements.
    pub(crate) fn zero_non_finite<S: Simd<T = E::Real>>(&mut self, simd: S, keys: &Range<usize>) -> Rows<'_, E::Real> {
        let cols = self.source.cols();
        if self.non_finite.is_empty() {
            let mut clean = std::mem::take(&mut self.clean);
            clean.resize(self.keys.len() * cols, E::Real::ZERO);
            self.stored(&self.keys.clone()).copy(simd, &mut clean);
            for (at, x) in clean.iter_mut().enumerate().filter(|(_, x)| !x.is_finite()) {
                let value = std::mem::replace(x, E::Real::ZERO);
                self.non_finite.push(NonFinite { key: self.keys.start + at / cols, dim: at % cols, value });
            }
            self.clean = clean;
        }
        Rows::from_slice(&self.clean, self.keys.len(), cols).slice(self.local(keys))
    }

    /// The elements of these keys that were replaced by zeros.
    pub(crate) fn non_finite(&self, keys: &Range<usize>) -> impl Iterator<Item = NonFinite<E::Real>> {
        self.non_finite.iter().copied().filter(move |x| keys.contains(&x.key))
    }

    fn local(&self, keys: &Range<usize>) -> Range<usize> {
        keys.start - self.keys.start..keys.end - self.keys.start
    }
}
