//! An allocator that keeps large blocks for the next call, instead of handing them back to the system.
//!
//! Results of attention are megabytes, and made anew by every call. The system's allocator returns such blocks to the kernel as soon as
//! they are dropped, and the next call gets its memory page by page, each with a fault and a clearing: a quarter of the time of forward
//! and backward at (8, 12, 128, 64). A program that calls attention in a loop can declare
//!
//! ```
//! #[global_allocator]
//! static MEMORY: regard_simd::allocator::CachingAllocator = regard_simd::allocator::CachingAllocator::new();
//! # fn main() {}
//! ```
//!
//! and blocks are reused. The Python package does. At most [`CachingAllocator::KEPT`] bytes are kept; smaller blocks are the system's as
//! ever.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Blocks from here on are kept.
const LARGE: usize = 1 << 18;

/// Attempts to take the lock: some microseconds.
const TRIES: usize = 200;

/// Free blocks at most.
const PLACES: usize = 64;

/// The system's allocator with a cache of large blocks.
#[derive(Debug)]
pub struct CachingAllocator {
    kept: Mutex<FreeBlocks>,
}

/// Blocks, oldest first.
#[derive(Debug)]
struct FreeBlocks {
    blocks: [Option<Block>; PLACES],
    count: usize,
    bytes: usize,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    address: *mut u8,
    layout: Layout,
}

// SAFETY: a block in here belongs to the allocator alone.
unsafe impl Send for FreeBlocks {}

impl FreeBlocks {
    /// A block of exactly this layout, the youngest: it is most probably in a cache.
    fn take(&mut self, layout: Layout) -> Option<*mut u8> {
        let at = (0..self.count).rev().find(|&i| self.blocks[i].is_some_and(|b| b.layout == layout))?;
        self.remove(at).map(|block| block.address)
    }

    fn remove(&mut self, at: usize) -> Option<Block> {
        let block = self.blocks[at].take()?;
        self.blocks[at..self.count].rotate_left(1);
        self.count -= 1;
        self.bytes -= block.layout.size();
        Some(block)
    }

    fn push(&mut self, block: Block) {
        self.blocks[self.count] = Some(block);
        self.count += 1;
        self.bytes += block.layout.size();
    }
}

impl CachingAllocator {
    /// Bytes that are kept at most: the results of a forward and backward pass over 128,000 tokens of one head of 64.
    pub const KEPT: usize = 128 << 20;

    /// Nothing kept yet.
    pub const fn new() -> Self {
        Self { kept: Mutex::new(FreeBlocks { blocks: [None; PLACES], count: 0, bytes: 0 }) }
    }

    /// The cached blocks, or `None` while the lock is contended. It never blocks: after a fork the thread that held the lock may not exist;
    /// the system's allocator serves then.
    fn kept(&self) -> Option<MutexGuard<'_, FreeBlocks>> {
        for _ in 0..TRIES {
            match self.kept.try_lock() {
                Ok(kept) => return Some(kept),
                Err(TryLockError::Poisoned(kept)) => return Some(kept.into_inner()),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        None
    }

    fn take(&self, rounded: Layout) -> Option<*mut u8> {
        self.kept().and_then(|mut kept| kept.take(rounded))
    }

    /// The layout that is requested from the system for a block: the size is rounded up by an eighth at most, so that blocks of about a
    /// size are of one size. It depends on the layout alone, so that it is the same when the block comes back.
    fn rounded(layout: Layout) -> Option<Layout> {
        if layout.size() < LARGE {
            return None;
        }
        let step = layout.size().next_power_of_two() / 16;
        let size = layout.size().checked_next_multiple_of(step)?;
        Layout::from_size_align(size, layout.align().max(64)).ok()
    }
}

impl Default for CachingAllocator {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: a block comes from the system's allocator, with a layout that is at least as large and as aligned as the requested one and that
// is a function of it; it is in `kept` only after it was given back, and leaves it when it is handed out.
unsafe impl GlobalAlloc for CachingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller guarantees the layout, and the rounded one is larger.
        unsafe {
            Self::rounded(layout)
                .map_or_else(|| System.alloc(layout), |rounded| self.take(rounded).unwrap_or_else(|| System.alloc(rounded)))
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let rounded = Self::rounded(layout);
        if let Some(block) = rounded.and_then(|rounded| self.take(rounded)) {
            // SAFETY: the block is as large as its layout, and exclusively owned.
            unsafe { block.write_bytes(0, layout.size()) };
            return block;
        }
        // SAFETY: the caller guarantees the layout, and the rounded one is larger.
        unsafe { System.alloc_zeroed(rounded.unwrap_or(layout)) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        let Some(layout) = Self::rounded(layout) else {
            // SAFETY: a small block is the system's, of this very layout.
            return unsafe { System.dealloc(address, layout) };
        };
        let mut old = [None; PLACES];
        let kept = if layout.size() <= Self::KEPT { self.kept() } else { None };
        if let Some(mut kept) = kept {
            for old in &mut old {
                if kept.count < PLACES && kept.bytes + layout.size() <= Self::KEPT {
                    break;
                }
                *old = kept.remove(0);
            }
            kept.push(Block { address, layout });
        } else {
            old[0] = Some(Block { address, layout });
        }
        // The lock is free again: giving memory back takes a while.
        for block in old.into_iter().flatten() {
            // SAFETY: the block came from the system with this layout, and is not in use.
            unsafe { System.dealloc(block.address, block.layout) };
        }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees the size.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (Self::rounded(layout), Self::rounded(new)) {
            // SAFETY: a small block is the system's, of this very layout.
            (None, None) => unsafe { System.realloc(address, layout, size) },
            (Some(a), Some(b)) if a == b => address,
            // SAFETY: both blocks hold the smaller of the two sizes; the old one is given back once and not used again.
            _ => unsafe {
                let to = self.alloc(new);
                if !to.is_null() {
                    address.copy_to_nonoverlapping(to, layout.size().min(size));
                    self.dealloc(address, layout);
                }
                to
            },
        }
    }
}

#[cfg(test)]
#[path = "../tests/unit/allocator.rs"]
mod tests;
