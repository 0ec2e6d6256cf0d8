//! Work in fixed pieces: the same pieces, and so the same bits, for any number of threads.

use rayon::prelude::*;

/// Rows of a piece. Large enough that packing a weight matrix per piece costs little (98 % of the speed of one product over all
/// rows, measured at depths 64 to 1536), small enough that a layer's intermediate rows stay in the second-level cache.
pub(crate) const PIECE_ROWS: usize = 256;

/// Run one function per piece, in parallel where there are several.
pub(crate) fn for_pieces<P: Send>(pieces: Vec<P>, f: impl Fn(usize, P) + Send + Sync) {
    if pieces.len() == 1 {
        pieces.into_iter().for_each(|piece| f(0, piece));
    } else {
        pieces.into_par_iter().with_max_len(1).enumerate().for_each(|(i, piece)| f(i, piece));
    }
}

/// `rows` rows of `width` elements, cut into pieces.
pub(crate) fn pieces<T>(x: &[T], width: usize) -> std::slice::Chunks<'_, T> {
    x.chunks((PIECE_ROWS * width).max(1))
}

/// The same, to write.
pub(crate) fn pieces_mut<T>(x: &mut [T], width: usize) -> std::slice::ChunksMut<'_, T> {
    x.chunks_mut((PIECE_ROWS * width).max(1))
}

/// How many pieces so many rows are cut into.
pub(crate) fn piece_count(rows: usize) -> usize {
    rows.div_ceil(PIECE_ROWS)
}
