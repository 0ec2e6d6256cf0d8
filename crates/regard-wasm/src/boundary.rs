//! The C ABI of the module. The host writes into memory from `alloc`, and reads an answer until it calls `free`.
//!
//! ```text
//! alloc(len) -> address              free(address, len)
//! request(address, len) -> answer    status, kind (0: JSON, 1: f32), length as u32, then the bytes; owns and frees its argument
//! file(name, len, bytes, len)        hands over a file; owns its arguments
//! event(address, len) -> 1           import: an event of an operation; 0 stops it
//! panicked(address, len)             import: the message of a panic, before the module ends
//! ```

use crate::answer;
use regard::MappedFile;
use serde_json::Value;
use std::alloc::Layout;
use std::sync::Once;

#[link(wasm_import_module = "tab")]
unsafe extern "C" {
    fn event(address: *const u8, len: usize) -> u32;
    fn panicked(address: *const u8, len: usize);
}

/// The layout of a `Vec<u8>`: a block becomes one without a copy.
fn layout(len: usize) -> Option<Layout> {
    Layout::array::<u8>(len.max(1)).ok()
}

/// Memory for `len` bytes, or null.
#[unsafe(no_mangle)]
extern "C" fn alloc(len: usize) -> *mut u8 {
    match layout(len) {
        // SAFETY: the layout has at least one byte.
        Some(layout) => unsafe { std::alloc::alloc(layout) },
        None => std::ptr::null_mut(),
    }
}

/// Frees memory of `alloc` or of an answer.
///
/// # Safety
/// `address` and `len` are those of one live block.
#[unsafe(no_mangle)]
unsafe extern "C" fn free(address: *mut u8, len: usize) {
    if let (false, Some(layout)) = (address.is_null(), layout(len)) {
        // SAFETY: the caller passes a block of `alloc` with its length, so the layout is the same.
        unsafe { std::alloc::dealloc(address, layout) };
    }
}

/// The bytes of a block, without a copy.
///
/// # Safety
/// As for [`free`]; all `len` bytes are initialised, and the caller does not use the block again.
unsafe fn taken(address: *mut u8, len: usize) -> Vec<u8> {
    // SAFETY: a block of `alloc` has the layout of a vector with this capacity, by the caller's contract it is live and initialised.
    unsafe { Vec::from_raw_parts(address, len, len.max(1)) }
}

fn send(value: Value) -> bool {
    let text = value.to_string();
    // SAFETY: the host reads `len` bytes of a live string and keeps no address.
    unsafe { event(text.as_ptr(), text.len()) != 0 }
}

/// Answers a request; the answer is a block of `12 + length` bytes.
///
/// # Safety
/// As for [`taken`].
#[unsafe(no_mangle)]
unsafe extern "C" fn request(address: *mut u8, len: usize) -> *mut u8 {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let text = info.to_string();
            // SAFETY: as in `send`.
            unsafe { panicked(text.as_ptr(), text.len()) };
        }));
    });
    // SAFETY: by the contract of this function.
    let bytes = unsafe { taken(address, len) };
    let (status, kind, body) = match answer(&bytes, &send) {
        Ok(made) => {
            let (kind, body) = made.body();
            (200, u32::from(kind == "application/octet-stream"), body)
        }
        Err(error) => (u32::from(error.0), 0, error.json().to_string().into_bytes()),
    };
    let block = alloc(12 + body.len());
    if block.is_null() {
        return block;
    }
    let header: Vec<u8> = [status, kind, body.len() as u32].iter().flat_map(|x| x.to_le_bytes()).collect();
    // SAFETY: the block has 12 bytes for the header and those of the body after it; none of them overlap.
    unsafe {
        std::ptr::copy_nonoverlapping(header.as_ptr(), block, header.len());
        std::ptr::copy_nonoverlapping(body.as_ptr(), block.add(header.len()), body.len());
    }
    block
}

/// Hands over a file: its name and its bytes, which are not copied. A file without bytes removes all those below its name.
///
/// # Safety
/// As for [`taken`], for both blocks.
#[unsafe(no_mangle)]
unsafe extern "C" fn file(name: *mut u8, name_len: usize, bytes: *mut u8, len: usize) {
    // SAFETY: by the contract of this function.
    let name = String::from_utf8_lossy(&unsafe { taken(name, name_len) }).into_owned();
    // SAFETY: by the contract of this function.
    let bytes = unsafe { taken(bytes, len) };
    if bytes.is_empty() {
        MappedFile::remove(name.as_ref());
    } else {
        MappedFile::insert(name, bytes);
    }
}

/// Random bytes for the seeds of hash tables: a fixed sequence, since a tab hashes nothing but the visitor's own data.
#[unsafe(no_mangle)]
unsafe extern "Rust" fn __getrandom_v03_custom(dest: *mut u8, len: usize) -> Result<(), getrandom_03::Error> {
    for i in 0..len {
        // SAFETY: getrandom passes `len` writable bytes.
        unsafe { dest.add(i).write((i as u8).wrapping_mul(157).wrapping_add(59)) };
    }
    Ok(())
}
