//! Blocks come back, and no more are kept than promised.

use super::*;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 4).expect("sensible")
}

#[test]
fn a_block_comes_back_to_the_next_who_needs_as_much() {
    let memory = CachingAllocator::new();
    // SAFETY: layouts are sensible, every block is given back with its own, and only its own bytes are written.
    unsafe {
        let a = memory.alloc(layout(3_000_000));
        a.write_bytes(7, 3_000_000);
        memory.dealloc(a, layout(3_000_000));
        let b = memory.alloc(layout(3_000_100));
        assert_eq!(a, b, "about as large");
        let c = memory.alloc(layout(3_000_000));
        assert_ne!(b, c, "a block is handed out once");
        memory.dealloc(b, layout(3_000_100));
        let zeroed = memory.alloc_zeroed(layout(2_999_000));
        assert_eq!(zeroed, b);
        assert!(std::slice::from_raw_parts(zeroed, 2_999_000).iter().all(|&x| x == 0));
        let grown = memory.realloc(zeroed, layout(2_999_000), 9_000_000);
        grown.add(2_999_000).write_bytes(1, 6_001_000);
        assert!(std::slice::from_raw_parts(grown, 2_999_000).iter().all(|&x| x == 0));
        let shrunk = memory.realloc(grown, layout(9_000_000), 100);
        memory.dealloc(shrunk, layout(100));
        memory.dealloc(c, layout(3_000_000));
    }
}

#[test]
fn a_lock_that_is_never_freed_is_not_waited_for() {
    let memory = CachingAllocator::new();
    let _held = memory.kept();
    // SAFETY: the layout is sensible, and the block is given back with it.
    unsafe {
        let a = memory.alloc(layout(3_000_000));
        assert!(!a.is_null());
        memory.dealloc(a, layout(3_000_000));
    }
}

#[test]
fn no_more_is_kept_than_promised() {
    let memory = CachingAllocator::new();
    for size in [LARGE, 1 << 20, 5 << 20, 40 << 20, CachingAllocator::KEPT, CachingAllocator::KEPT + 1, 100] {
        let blocks: Vec<_> = (0..PLACES + 3)
            .map(|_| {
                // SAFETY: the layout is sensible.
                unsafe { memory.alloc(layout(size)) }
            })
            .collect();
        for block in blocks {
            assert!(!block.is_null());
            // SAFETY: it was allocated with this layout, and is given back once.
            unsafe { memory.dealloc(block, layout(size)) };
            let kept = memory.kept().expect("no other thread holds it");
            assert!(kept.bytes <= CachingAllocator::KEPT && kept.count <= PLACES);
            assert_eq!(kept.blocks.iter().flatten().map(|b| b.layout.size()).sum::<usize>(), kept.bytes);
        }
    }
}
