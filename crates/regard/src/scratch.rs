//! Working memory that a thread keeps between calls, aligned to cache lines.

use crate::simd::Real;
use std::cell::Cell;

#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line(#[expect(dead_code, reason = "only the bytes are used")] [u8; 64]);

thread_local! {
    static LINES: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Memory of the thread, taken for a while. Given back when dropped (up to 4 MiB); a call in between gets other memory.
///
/// A guard rather than a function that takes a closure: a closure would not be compiled for the SIMD level.
pub(crate) struct Scratch(Vec<Line>);

impl Scratch {
    #[inline(always)]
    pub(crate) fn take() -> Self {
        Self(LINES.take())
    }

    /// Slices of the given lengths, each starting on a cache line. What they hold is arbitrary numbers.
    #[inline(always)]
    pub(crate) fn slices<T: Real, const N: usize>(&mut self, lengths: [usize; N]) -> [&mut [T]; N] {
        let per_line = size_of::<Line>() / size_of::<T>();
        let lines = lengths.map(|n| n.div_ceil(per_line));
        let total = lines.iter().sum();
        if self.0.len() < total {
            self.0.resize(total, Line([0; 64]));
        }
        let mut rest = &mut self.0[..];
        std::array::from_fn(|i| {
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(lines[i]);
            rest = tail;
            // SAFETY: `head` is `lines[i] * 64` initialised bytes, aligned to 64, borrowed mutably and exclusively; T is f32
            // or f64 (`Real` is sealed), for which every bit pattern is a value; lengths[i] fits by div_ceil.
            unsafe { std::slice::from_raw_parts_mut(head.as_mut_ptr().cast::<T>(), lengths[i]) }
        })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        const KEPT: usize = (4 << 20) / size_of::<Line>();
        if self.0.len() <= KEPT {
            LINES.set(std::mem::take(&mut self.0));
        }
    }
}
