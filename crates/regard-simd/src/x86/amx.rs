//! AMX: products of bf16 in tile registers (`tdpbf16ps`), on Linux.
//!
//! A process has to ask the kernel for the tile registers, once, and a thread has to configure them. Other code on the thread may configure
//! them otherwise or release them at any time between two calls (and so may a nested driver), so every product looks at the
//! configuration first: reading it takes a twentieth of the time of writing it. [`ReleaseTiles`] gives the registers back
//! at the end of a task: they are large, and a thread that holds them is slower to switch.

use super::avx2::tokens;
use super::avx512::{Bf16, F32};
use crate::tiles::{Parts, TILE, TileProduct};
use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, _xgetbv, CpuidResult};
use std::sync::OnceLock;

tokens!(Amx; is_permitted());

/// The CPU has AMX and the kernel gives it to this process.
fn is_permitted() -> bool {
    static PERMITTED: OnceLock<bool> = OnceLock::new();
    *PERMITTED.get_or_init(|| {
        is_x86_feature_detected!("avx512dq") && Bf16::detect().is_some() && F32::detect().is_some() && has_tiles() && ask_kernel()
    })
}

/// Safe to call from Rust 1.94 on only.
#[allow(unused_unsafe)]
fn cpuid(leaf: u32, subleaf: u32) -> CpuidResult {
    // SAFETY: every 64-bit x86 CPU has the instruction.
    unsafe { __cpuid_count(leaf, subleaf) }
}

/// CPUID names AMX-TILE and AMX-BF16 and eight tiles of 16 rows of 64 bytes, and the kernel saves them.
fn has_tiles() -> bool {
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    const OSXSAVE: u32 = 1 << 27;
    const TILE_STATE: u64 = 0b11 << 17;
    #[target_feature(enable = "xsave")]
    fn enabled_state() -> u64 {
        // SAFETY: the function is called where CPUID says OSXSAVE.
        unsafe { _xgetbv(0) }
    }
    if cpuid(0, 0).eax < 0x1d || cpuid(1, 0).ecx & OSXSAVE == 0 || !is_x86_feature_detected!("xsave") {
        return false;
    }
    // SAFETY: the CPU has XSAVE, and the kernel has enabled it.
    let state = unsafe { enabled_state() };
    let features = cpuid(7, 0).edx;
    let palette = cpuid(0x1d, 1);
    let (bytes_per_row, tiles, rows) = (palette.ebx & 0xffff, palette.ebx >> 16, palette.ecx & 0xffff);
    features & (AMX_BF16 | AMX_TILE) == AMX_BF16 | AMX_TILE
        && state & TILE_STATE == TILE_STATE
        && bytes_per_row >= 64
        && tiles >= 8
        && rows >= 16
}

/// `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`, for all threads of the process.
fn ask_kernel() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XTILEDATA: libc::c_long = 18;
    // SAFETY: the call has no pointers; an old kernel answers with an error.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0 }
}

/// Gives the tile registers of this thread back when dropped.
pub(crate) struct ReleaseTiles(());

impl ReleaseTiles {
    pub(crate) fn new(_: Amx) -> Self {
        Self(())
    }
}

impl Drop for ReleaseTiles {
    fn drop(&mut self) {
        // SAFETY: the CPU has AMX, as the token said. No product is running on this thread, and the next one configures the tiles again.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
    }
}

/// The memory format of `ldtilecfg`.
#[repr(C, align(64))]
#[derive(PartialEq, Eq)]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_per_row: [u16; 16],
    rows: [u8; 16],
}

/// Eight whole tiles.
static WHOLE_TILES: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    bytes_per_row: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Configure eight whole tiles, unless they are.
///
/// # Safety
/// There must be an [`Amx`].
#[inline(always)]
unsafe fn configure() {
    let mut now = [0u64; 8];
    // SAFETY: the CPU has AMX and the process may use it. The first instruction writes 64 bytes to `now`.
    unsafe { asm!("sttilecfg [{}]", in(reg) now.as_mut_ptr(), options(nostack, preserves_flags)) };
    // SAFETY: both are 64 bytes, of which every pattern is a value.
    let whole: &[u64; 8] = unsafe { &*(&raw const WHOLE_TILES).cast() };
    if now != *whole {
        // SAFETY: as above; the instruction reads the 64 bytes of a valid configuration.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const WHOLE_TILES, options(nostack, preserves_flags, readonly)) };
    }
}

/// Strides and steps of the blocks of a product, in bytes.
#[repr(C)]
struct Block {
    // The assembly reads the first four from memory.
    /// From one tile of `b` to the one below it.
    b_step: usize,
    /// From the end of a part to the beginning of the next.
    a_part: isize,
    b_part: isize,
    steps: usize,
    parts: usize,
    a_stride: isize,
    b_stride: usize,
    c_stride: usize,
}

/// A block of one or two tiles by one or two tiles.
macro_rules! block {
    ($name:ident: $($zero:literal)*; $($load:literal)*; $($multiply:literal)*; $($store:literal)*; $($store_below:literal)*) => {
        /// # Safety
        /// The tiles must be configured. All tiles of the block must be valid: of `a` and `b` for reading, at `a` and (with a second row of
        /// tiles) `below`, of `c` for writing; `steps` and `parts` must not be zero.
        #[inline(always)]
        unsafe fn $name(block: &Block, [a, below]: [*const u8; 2], b: *const u8, c: *mut u8) {
            // SAFETY: the caller guarantees the tiles. Registers are named as outputs where they change; memory is written at `c` only.
            unsafe {
                asm!(
                    $($zero,)*
                    "2:",
                    "mov {step}, [{block} + 24]",
                    "3:",
                    $($load,)*
                    $($multiply,)*
                    "add {a}, 64",
                    "add {below}, 64",
                    "add {b}, [{block}]",
                    "dec {step}",
                    "jnz 3b",
                    "add {a}, [{block} + 8]",
                    "add {below}, [{block} + 8]",
                    "add {b}, [{block} + 16]",
                    "dec {parts}",
                    "jnz 2b",
                    $($store,)*
                    "mov {step}, {c_stride}",
                    "shl {step}, 4",
                    "add {c}, {step}",
                    $($store_below,)*
                    a = inout(reg) a => _,
                    below = inout(reg) below => _,
                    a_stride = in(reg) block.a_stride,
                    b = inout(reg) b => _,
                    b_stride = in(reg) block.b_stride,
                    c = inout(reg) c => _,
                    c_stride = in(reg) block.c_stride,
                    parts = inout(reg) block.parts => _,
                    step = out(reg) _,
                    block = in(reg) block,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    };
}

block!(two_by_two:
    "tilezero tmm0" "tilezero tmm1" "tilezero tmm2" "tilezero tmm3";
    "tileloadd tmm6, [{b} + {b_stride}*1]"
    "tileloadd tmm4, [{a} + {a_stride}*1]"
    "tileloadd tmm7, [{b} + {b_stride}*1 + 64]"
    "tileloadd tmm5, [{below} + {a_stride}*1]";
    "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm1, tmm4, tmm7" "tdpbf16ps tmm2, tmm5, tmm6" "tdpbf16ps tmm3, tmm5, tmm7";
    "tilestored [{c} + {c_stride}*1], tmm0" "tilestored [{c} + {c_stride}*1 + 64], tmm1";
    "tilestored [{c} + {c_stride}*1], tmm2" "tilestored [{c} + {c_stride}*1 + 64], tmm3");
block!(two_by_one:
    "tilezero tmm0" "tilezero tmm2";
    "tileloadd tmm6, [{b} + {b_stride}*1]"
    "tileloadd tmm4, [{a} + {a_stride}*1]"
    "tileloadd tmm5, [{below} + {a_stride}*1]";
    "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm2, tmm5, tmm6";
    "tilestored [{c} + {c_stride}*1], tmm0";
    "tilestored [{c} + {c_stride}*1], tmm2");
block!(one_by_two:
    "tilezero tmm0" "tilezero tmm1";
    "tileloadd tmm6, [{b} + {b_stride}*1]"
    "tileloadd tmm4, [{a} + {a_stride}*1]"
    "tileloadd tmm7, [{b} + {b_stride}*1 + 64]";
    "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm1, tmm4, tmm7";
    "tilestored [{c} + {c_stride}*1], tmm0" "tilestored [{c} + {c_stride}*1 + 64], tmm1";);
block!(one_by_one:
    "tilezero tmm0";
    "tileloadd tmm6, [{b} + {b_stride}*1]"
    "tileloadd tmm4, [{a} + {a_stride}*1]";
    "tdpbf16ps tmm0, tmm4, tmm6";
    "tilestored [{c} + {c_stride}*1], tmm0";);

/// The product of a task.
///
/// # Safety
/// As [`TileProduct`] says, and there must be an [`Amx`].
#[inline(always)]
pub(super) unsafe fn multiply(task: TileProduct<f32>) {
    let TileProduct { rows, columns, steps, parts, a, a_stride, b, b_stride, c, c_stride } = task;
    assert!(rows >= TILE && columns.is_multiple_of(TILE), "{rows} rows and {columns} columns in tiles");
    if steps == 0 {
        for row in 0..rows {
            // SAFETY: the caller guarantees `columns` elements in every row of c.
            unsafe { c.add(row * c_stride).write_bytes(0, columns) };
        }
        return;
    }
    const PAIR: usize = size_of::<f32>();
    let (b_stride, c_stride) = (b_stride * PAIR, c_stride * PAIR);
    let a_length = (steps * TILE * PAIR) as isize;
    let b_step = TILE * b_stride;
    let block = Block {
        b_step,
        a_part: if parts == Parts::B { -a_length } else { 0 },
        b_part: if parts == Parts::A { -((steps * b_step) as isize) } else { 0 },
        steps,
        parts: if parts == Parts::None { 1 } else { 2 },
        a_stride,
        b_stride,
        c_stride,
    };
    // SAFETY: there is an Amx.
    unsafe { configure() };
    let mut row = 0;
    while row < rows {
        // The last tile may overlap the one before; what comes out is the same.
        let (first, two) = if rows - row >= 2 * TILE { (row, true) } else { (row.min(rows - TILE), false) };
        let mut column = 0;
        while column < columns {
            // SAFETY: rows first..first + TILE (or twice as many) and the columns of the tiles exist, which the caller guarantees. Past
            // the last step the pointers may leave the allocation; they are not read there.
            unsafe {
                let a = a.byte_offset(first as isize * a_stride).cast::<u8>();
                let a = [a, a.wrapping_offset(TILE as isize * a_stride)];
                let b = b.add(column).cast::<u8>();
                let c = c.cast::<u8>().add(first * c_stride + column * PAIR);
                match (two, columns - column > TILE) {
                    (true, true) => two_by_two(&block, a, b, c),
                    (true, false) => two_by_one(&block, a, b, c),
                    (false, true) => one_by_two(&block, a, b, c),
                    (false, false) => one_by_one(&block, a, b, c),
                }
            }
            column += 2 * TILE;
        }
        row = first + if two { 2 * TILE } else { TILE };
    }
}
