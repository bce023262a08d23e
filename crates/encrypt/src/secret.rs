//! Memory for keys, which core files leave out, and which is cleared when it is freed.
#![allow(unsafe_code)]

use outlive_types::{Error, PAGE_BYTES, Result};
use ring::rand::{SecureRandom, SystemRandom};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous, munmap};
use std::fmt;
use std::hint::black_box;
use std::ops::Deref;
use std::ptr::{self, NonNull};

/// Bytes of the stack that [`clear_stack`] clears: more than the functions take that derive keys.
const STACK_BYTES: usize = 16 << 10;

/// A secret value in pages of its own. Core files leave them out, and a swap file too if the system
/// lets this user lock memory.
pub struct Secret<T> {
    value: NonNull<T>,
}

impl<T> Secret<T> {
    const BYTES: usize = size_of::<T>().next_multiple_of(PAGE_BYTES);

    /// Moves the result of `make` to such memory, and clears the stack behind it.
    ///
    /// # Errors
    /// The system has no memory, or refuses to leave it out of core files.
    pub fn new(make: impl FnOnce() -> T) -> Result<Secret<T>> {
        const { assert!(align_of::<T>() <= PAGE_BYTES) };
        let failed =
            |error: Errno| Error::retry(format!("the system gives no memory for a key: {error}"));
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which overlaps nothing.
        let memory =
            unsafe { mmap_anonymous(ptr::null_mut(), Self::BYTES, access, MapFlags::PRIVATE) };
        let memory = memory.map_err(failed)?;
        // SAFETY: the mapping has this length, and no other code knows of it.
        if let Err(error) = unsafe { madvise(memory, Self::BYTES, Advice::LinuxDontDump) } {
            // SAFETY: as above.
            let _ = unsafe { munmap(memory, Self::BYTES) };
            return Err(failed(error));
        }
        // SAFETY: as above. A limit of locked memory is no reason to do without the key.
        let _ = unsafe { mlock(memory, Self::BYTES) };
        let value = memory.cast::<T>();
        // SAFETY: the mapping is long enough, aligned to a page, and writable.
        unsafe { fill(value, make) };
        clear_stack();
        let value = NonNull::new(value).ok_or_else(|| Error::bug("a mapping at address 0"))?;
        Ok(Secret { value })
    }
}

/// Writes the result of `make`. A function of its own, whose stack is below that of the caller.
///
/// # Safety
/// `value` is valid for writes of a `T`.
#[inline(never)]
unsafe fn fill<T>(value: *mut T, make: impl FnOnce() -> T) {
    // SAFETY: the caller's promise.
    unsafe { value.write(make()) };
}

/// Clears the part of the stack that functions called before have used.
#[inline(never)]
pub fn clear_stack() {
    let mut used = [0_u8; STACK_BYTES];
    // The compiler must take these bytes for used.
    black_box(&mut used);
}

impl<T> Secret<T> {
    /// Returns the value, to change it.
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: `new` has written the value, and only `drop` ends it; `self` is its only owner.
        unsafe { self.value.as_mut() }
    }
}

/// Fills bytes with random ones of the system.
///
/// # Errors
/// `Bug` if it has none.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<()> {
    let filled = SystemRandom::new().fill(bytes);
    filled.map_err(|_| Error::bug("the system gave no random bytes for a key"))
}

impl<T> Deref for Secret<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `new` has written the value, and only `drop` ends it.
        unsafe { self.value.as_ref() }
    }
}

impl<T> Drop for Secret<T> {
    fn drop(&mut self) {
        let memory = self.value.as_ptr();
        // SAFETY: the value is valid, and nothing uses it after this.
        unsafe {
            ptr::drop_in_place(memory);
            let bytes = memory.cast::<u8>();
            (0..Self::BYTES).for_each(|at| bytes.add(at).write_volatile(0));
            let _ = munmap(memory.cast(), Self::BYTES);
        }
    }
}

// SAFETY: it owns the value, as a box does.
unsafe impl<T: Send> Send for Secret<T> {}
// SAFETY: as above; a shared reference gives only `&T`.
unsafe impl<T: Sync> Sync for Secret<T> {}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
