//! The program's large blocks: `malloc` and its kin stand before those of the GNU C library, and keep a
//! list. They take no lock and allocate nothing themselves.

use crate::stop;
use libc::c_void;
use std::ptr::null_mut;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

/// Most blocks that are listed; later ones are left out.
const BLOCKS_MAX: usize = 64;
/// The address of a block that is being listed.
const TAKEN: usize = 1;

struct Block {
    /// 0: there is none.
    start: AtomicUsize,
    bytes: AtomicUsize,
}

static BLOCKS: [Block; BLOCKS_MAX] =
    [const { Block { start: AtomicUsize::new(0), bytes: AtomicUsize::new(0) } }; BLOCKS_MAX];
static LISTED_FROM: AtomicUsize = AtomicUsize::new(usize::MAX);
static REFUSED_FROM: AtomicUsize = AtomicUsize::new(usize::MAX);
static REFUSED_TO: AtomicUsize = AtomicUsize::new(0);

/// From now on blocks of so many bytes are listed, and `refused` sizes not to be had.
pub fn begin(listed_from: usize, refused: Option<(usize, usize)>) {
    LISTED_FROM.store(listed_from, SeqCst);
    if let Some((from, to)) = refused {
        REFUSED_FROM.store(from, SeqCst);
        REFUSED_TO.store(to, SeqCst);
    }
}

/// Whether there is none.
pub fn is_empty() -> bool {
    BLOCKS.iter().all(|block| block.start.load(SeqCst) <= TAKEN)
}

/// Addresses and lengths of the blocks that there are.
pub fn blocks() -> Vec<(usize, usize)> {
    let all = BLOCKS.iter().map(|block| (block.start.load(SeqCst), block.bytes.load(SeqCst)));
    all.filter(|(start, _)| *start > TAKEN).collect()
}

fn list(start: *mut c_void, bytes: usize) {
    if start.is_null() || bytes < LISTED_FROM.load(SeqCst) || stop::is_ours() {
        return;
    }
    let free = |block: &&Block| block.start.compare_exchange(0, TAKEN, SeqCst, SeqCst).is_ok();
    if let Some(block) = BLOCKS.iter().find(free) {
        block.bytes.store(bytes, SeqCst);
        block.start.store(start.addr(), SeqCst);
    }
}

fn unlist(start: *mut c_void) {
    // Blocks of this size are mapped each by itself, behind a header of 16 bytes.
    if start.addr() % 4096 == 16
        && let Some(block) = BLOCKS.iter().find(|block| block.start.load(SeqCst) == start.addr())
    {
        block.start.store(0, SeqCst);
    }
}

// SAFETY: glibc exports its allocator by these names, with the signatures of malloc(3).
unsafe extern "C" {
    fn __libc_malloc(bytes: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, bytes: usize) -> *mut c_void;
    fn __libc_realloc(block: *mut c_void, bytes: usize) -> *mut c_void;
    fn __libc_free(block: *mut c_void);
}

/// malloc(3).
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(bytes: usize) -> *mut c_void {
    if REFUSED_FROM.load(SeqCst) <= bytes && bytes <= REFUSED_TO.load(SeqCst) {
        // SAFETY: the C library's own place for the thread's `errno`.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
        return null_mut();
    }
    // SAFETY: passed on as it came.
    let block = unsafe { __libc_malloc(bytes) };
    list(block, bytes);
    block
}

/// calloc(3).
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    // SAFETY: passed on as it came.
    let block = unsafe { __libc_calloc(count, bytes) };
    // (It did not overflow, or there would be no block.)
    list(block, count.wrapping_mul(bytes));
    block
}

/// realloc(3).
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, bytes: usize) -> *mut c_void {
    // (If it fails, a large block stays and is not listed any more: it is left out from then on.)
    unlist(block);
    // SAFETY: passed on as it came.
    let block = unsafe { __libc_realloc(block, bytes) };
    list(block, bytes);
    block
}

/// free(3).
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    unlist(block);
    // SAFETY: passed on as it came.
    unsafe { __libc_free(block) };
}
