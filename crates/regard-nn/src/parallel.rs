//! Work in fixed pieces: the same pieces, and so the same bits, for any number of threads.

use rayon::prelude::*;

/// Run on a thread of the pool. From outside, every parallel loop would hand its work over and sleep until it is done; within, it just
/// begins.
pub(crate) fn in_pool<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    rayon::scope(|_| f())
}

/// Run one function per piece, in parallel where there are several.
pub(crate) fn for_pieces<P: Send>(pieces: Vec<P>, f: impl Fn(usize, P) + Send + Sync) {
    if pieces.len() == 1 {
        pieces.into_iter().for_each(|piece| f(0, piece));
    } else {
        pieces.into_par_iter().with_max_len(1).enumerate().for_each(|(i, piece)| f(i, piece));
    }
}

/// How rows are cut into pieces.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    rows: usize,
    piece: usize,
}

impl Cut {
    /// Pieces of a number of rows, which threads share: eight as soon as each has 256 rows. Products whose weights are not
    /// packed before pack them in every piece, which takes a thirtieth of the time with 512 rows.
    pub(crate) fn new(rows: usize) -> Self {
        Self { rows, piece: (rows / 8).clamp(256, 1024).next_multiple_of(64) }
    }

    /// For the rows of x.
    pub(crate) fn rows_of<T>(x: &[T], width: usize) -> Self {
        Self::new(x.len() / width.max(1))
    }

    /// How many pieces there are.
    pub(crate) fn count(self) -> usize {
        self.rows.div_ceil(self.piece)
    }

    /// The first row of a piece.
    pub(crate) fn first(self, piece: usize) -> usize {
        piece * self.piece
    }

    /// Rows of `width` elements in pieces.
    pub(crate) fn pieces<T>(self, x: &[T], width: usize) -> std::slice::Chunks<'_, T> {
        x.chunks((self.piece * width).max(1))
    }

    /// The same, to write.
    pub(crate) fn pieces_mut<T>(self, x: &mut [T], width: usize) -> std::slice::ChunksMut<'_, T> {
        x.chunks_mut((self.piece * width).max(1))
    }
}

/// Pieces of a buffer that may be empty: then there is nothing for each piece.
pub(crate) fn pieces_or_none<T>(cut: Cut, x: &mut [T], width: usize) -> Vec<&mut [T]> {
    if x.is_empty() { (0..cut.count()).map(|_| <&mut [T]>::default()).collect() } else { cut.pieces_mut(x, width).collect() }
}
