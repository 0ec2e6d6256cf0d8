//! Scratch memory that a thread reuses between calls, aligned to cache lines.

use crate::float::Real;
use std::cell::RefCell;

#[repr(align(64))]
#[derive(Debug, Clone, Copy)]
struct Line(#[expect(dead_code, reason = "only the bytes are used")] [u8; 64]);

/// Buffers that a thread keeps, and their lines in all: attention takes two or three at a time, a matrix product of 2048 columns needs 4.2
/// MiB.
const KEPT_BUFFERS: usize = 4;
const KEPT_LINES: usize = (16 << 20) / size_of::<Line>();

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// Memory of the thread, taken for a while and given back when dropped. Taken within each other, several are a stack: the same code gets
/// the same buffers the next time.
///
/// A guard rather than a function that takes a closure: a closure would not be compiled for the SIMD level.
#[derive(Debug)]
pub struct Scratch(Vec<Line>);

impl Scratch {
    /// The buffer that was given back last, or an empty one.
    pub fn take() -> Self {
        Self(BUFFERS.try_with(|all| all.borrow_mut().pop()).ok().flatten().unwrap_or_default())
    }

    /// Slices of the given lengths, each starting on a cache line. What they hold is unspecified values.
    pub fn slices<T: Real, const N: usize>(&mut self, lengths: [usize; N]) -> [&mut [T]; N] {
        const { assert!(size_of::<Line>().is_multiple_of(size_of::<T>()) && align_of::<Line>().is_multiple_of(align_of::<T>())) };
        let per_line = size_of::<Line>() / size_of::<T>();
        let lines = lengths.map(|n| n.div_ceil(per_line));
        let total = lines.iter().sum();
        if self.0.len() < total {
            // Not grown: what is in it need not be copied.
            self.0 = vec![Line([0; 64]); total];
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
        let lines = std::mem::take(&mut self.0);
        // While a thread ends there may be nothing to give it back to.
        let _ = BUFFERS.try_with(|all| {
            let mut all = all.borrow_mut();
            if all.len() < KEPT_BUFFERS && all.iter().map(Vec::len).sum::<usize>() + lines.len() <= KEPT_LINES {
                all.push(lines);
            }
        });
    }
}

/// `let` for slices of a [`Scratch`], each with its length: `slices! { memory => a: 3, b: n, }`.
#[doc(hidden)]
#[macro_export]
macro_rules! slices {
    ($memory:ident => $($name:ident: $len:expr,)*) => {
        let [$($name),*] = $memory.slices([$($len),*]);
    };
}
pub use slices;
