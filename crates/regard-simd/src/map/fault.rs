//! A handler of SIGBUS that names the mapped file which another program has shortened. Signals of other addresses go to the handler that
//! was there before.

use std::ffi::{c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

/// A map that is open, or a place for one: entries are never freed, so that the handler can walk over them.
#[derive(Debug)]
struct Entry {
    /// Addresses; equal where the place is free.
    start: AtomicUsize,
    end: AtomicUsize,
    /// The file's name; valid while the place is taken.
    path: AtomicPtr<Vec<u8>>,
    next: *const Entry,
}

// SAFETY: `next` points to an entry that is never freed or changed; the rest is atomic.
unsafe impl Sync for Entry {}
// SAFETY: as above.
unsafe impl Send for Entry {}

static FIRST: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());
static CHANGES: Mutex<()> = Mutex::new(());
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

fn entries() -> impl Iterator<Item = &'static Entry> {
    let mut next = FIRST.load(Ordering::Acquire).cast_const();
    std::iter::from_fn(move || {
        // SAFETY: null, or an entry that was leaked.
        let entry = unsafe { next.as_ref() }?;
        next = entry.next;
        Some(entry)
    })
}

/// The entry of an open map; dropped with it.
#[derive(Debug)]
pub(super) struct Watched(&'static Entry);

impl Watched {
    pub(super) fn new(bytes: &[u8], path: &Path) -> Self {
        install();
        let _held = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        let name = Box::into_raw(Box::new(path.as_os_str().as_bytes().to_vec()));
        let free = entries().find(|entry| entry.end.load(Ordering::Relaxed) == 0);
        let entry = free.unwrap_or_else(|| {
            let next = FIRST.load(Ordering::Relaxed).cast_const();
            let new = Entry { start: AtomicUsize::new(0), end: AtomicUsize::new(0), path: AtomicPtr::new(ptr::null_mut()), next };
            let new: &'static Entry = Box::leak(Box::new(new));
            FIRST.store(ptr::from_ref(new).cast_mut(), Ordering::Release);
            new
        });
        entry.path.store(name, Ordering::Release);
        entry.start.store(bytes.as_ptr() as usize, Ordering::Release);
        entry.end.store(bytes.as_ptr() as usize + bytes.len().max(1), Ordering::Release);
        Self(entry)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _held = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.end.store(0, Ordering::Release);
        self.0.start.store(0, Ordering::Release);
        let name = self.0.path.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: made by `Box::into_raw` in `new`; the handler reads names only of maps that are being read, which are not dropped
        // meanwhile.
        drop(unsafe { Box::from_raw(name) });
    }
}

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: zeros are a valid `sigaction`.
        let (mut ours, mut before): (libc::sigaction, libc::sigaction) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        ours.sa_sigaction = on_fault as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both point to values of this function.
        if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &mut before) } == 0 {
            let _ = BEFORE.set(before);
            // SAFETY: the handler has the signature that SA_SIGINFO asks for, and calls only functions that are safe in signal handlers.
            unsafe { libc::sigaction(libc::SIGBUS, &ours, ptr::null_mut()) };
        }
    });
}

fn write(text: &[u8]) {
    // SAFETY: pointer and length are a slice's.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system passes a valid siginfo to handlers with SA_SIGINFO.
    let address = unsafe { (*info).si_addr() } as usize;
    let inside = |entry: &&Entry| (entry.start.load(Ordering::Acquire)..entry.end.load(Ordering::Acquire)).contains(&address);
    if let Some(entry) = entries().find(inside) {
        write(b"error: ");
        // SAFETY: the map is being read, so that its entry and name are there.
        write(unsafe { &*entry.path.load(Ordering::Acquire) });
        write(b" was shortened by another program while it was in use: restore it and start again\n");
        // SAFETY: ends the process at once, as is allowed in signal handlers.
        unsafe { libc::_exit(1) };
    }
    match BEFORE.get() {
        Some(before) if before.sa_sigaction != libc::SIG_DFL && before.sa_sigaction != libc::SIG_IGN => {
            // SAFETY: the system gave us this handler with these flags.
            unsafe {
                if before.sa_flags & libc::SA_SIGINFO != 0 {
                    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = std::mem::transmute(before.sa_sigaction);
                    handler(signal, info, context);
                } else {
                    let handler: extern "C" fn(c_int) = std::mem::transmute(before.sa_sigaction);
                    handler(signal);
                }
            }
        }
        // SAFETY: back to the default; the access is made again and ends the process as it would have.
        _ => drop(unsafe { libc::signal(signal, libc::SIG_DFL) }),
    }
}
