//! The program's large blocks. `malloc` and its kin here replace those of the GNU C library, and
//! keep a list. They take no lock and allocate nothing themselves.

use crate::stop;
use libc::c_void;
use std::ptr::null_mut;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

/// Most blocks that are listed; later ones are omitted.
const BLOCKS_MAX: usize = 64;
/// The address of a block while it is being listed.
const TAKEN: usize = 1;

struct Block {
    /// 0: the entry is empty.
    start: AtomicUsize,
    bytes: AtomicUsize,
}

static BLOCKS: [Block; BLOCKS_MAX] =
    [const { Block { start: AtomicUsize::new(0), bytes: AtomicUsize::new(0) } }; BLOCKS_MAX];
static LISTED_FROM: AtomicUsize = AtomicUsize::new(usize::MAX);
static REFUSED_FROM: AtomicUsize = AtomicUsize::new(usize::MAX);
static REFUSED_TO: AtomicUsize = AtomicUsize::new(0);

/// From now on lists blocks of at least `listed_from` bytes, and fails allocations of `refused`
/// sizes.
pub fn begin(listed_from: usize, refused: Option<(usize, usize)>) {
    LISTED_FROM.store(listed_from, SeqCst);
    if let Some((from, to)) = refused {
        REFUSED_FROM.store(from, SeqCst);
        REFUSED_TO.store(to, SeqCst);
    }
}

/// Whether no block is listed.
pub fn is_empty() -> bool {
    BLOCKS.iter().all(|block| block.start.load(SeqCst) <= TAKEN)
}

/// Returns the addresses and lengths of the listed blocks.
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
    // Each block of this size is a mapping of its own, with a header of 16 bytes.
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
/// As for malloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(bytes: usize) -> *mut c_void {
    if REFUSED_FROM.load(SeqCst) <= bytes && bytes <= REFUSED_TO.load(SeqCst) {
        // SAFETY: the C library's `errno` of this thread.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
        return null_mut();
    }
    // SAFETY: the arguments are passed on unchanged.
    let block = unsafe { __libc_malloc(bytes) };
    list(block, bytes);
    block
}

/// calloc(3).
///
/// # Safety
/// As for calloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    // SAFETY: the arguments are passed on unchanged.
    let block = unsafe { __libc_calloc(count, bytes) };
    // (The product did not overflow, or there would be no block.)
    list(block, count.wrapping_mul(bytes));
    block
}

/// realloc(3).
///
/// # Safety
/// As for realloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, bytes: usize) -> *mut c_void {
    // (If realloc fails, a large block stays but is no longer listed: it is omitted from then on.)
    unlist(block);
    // SAFETY: the arguments are passed on unchanged.
    let block = unsafe { __libc_realloc(block, bytes) };
    list(block, bytes);
    block
}

/// free(3).
///
/// # Safety
/// As for free(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    unlist(block);
    // SAFETY: the argument is passed on unchanged.
    unsafe { __libc_free(block) };
}
