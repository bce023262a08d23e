//! Tests of the page kinds that memory may have during restores, and after them.

use super::*;
use crate::fill::MutRegion;
use crate::fill::Scatter;
use crate::lazy::{LazyMemory, LazyOptions};
use outlive_io::fresh::{Offered, PageKind, offer, prefer};
use outlive_io::mapped::flags_at;
use outlive_types::PAGE_BYTES;

/// Memory as `outlive.empty` makes it, which a restore should put into small pages.
struct Array {
    // Before the memory: the offer is withdrawn first.
    _offered: Offered,
    memory: AlignedBuf,
}

impl Array {
    fn new() -> Array {
        let memory = AlignedBuf::zeroed(FRESH_FROM_BYTES + PAGE_BYTES);
        let start = memory.as_ptr().expose_provenance();
        // SAFETY: the buffer is a mapping of its own that was never used, and is freed last.
        let (offered, _) = unsafe { offer(start..start + memory.len()) };
        prefer(PageKind::Small);
        Array { _offered: offered, memory }
    }

    /// Returns the region. The array must not be used otherwise before the region is dropped, or
    /// has ended.
    fn region(&mut self) -> MutRegion {
        // SAFETY: the buffer is initialised, and every test keeps it that long.
        unsafe { MutRegion::from_raw(self.memory.as_mut_ptr(), self.memory.len()) }
    }

    /// Whether all of it may get huge pages: `None` without advice.
    fn may_be_huge(&self) -> Option<bool> {
        let flags = flags_at(self.memory.as_ptr().addr() + self.memory.len() / 2);
        [" nh", " hg"].iter().position(|flag| flags.contains(flag)).map(|at| at > 0)
    }

    fn forbid_huge(&mut self) {
        let (start, length) = (self.memory.as_mut_ptr(), self.memory.len());
        // SAFETY: the buffer is ours, and advice does not change its content.
        assert_eq!(unsafe { libc::madvise(start.cast(), length, libc::MADV_NOHUGEPAGE) }, 0);
    }
}

#[test]
fn huge_pages_are_allowed_again_after_a_restore() {
    let mut array = Array::new();
    let scatter = Scatter::new(vec![array.region()]).unwrap();
    scatter.write(0, 0, &vec![7; array.memory.len()]);
    assert_eq!(array.may_be_huge(), Some(false));
    drop(scatter);
    assert_eq!(array.may_be_huge(), Some(true));
    assert!(array.memory.iter().all(|byte| *byte == 7));
}

#[test]
fn an_interrupted_restore_ends_its_advice_and_leaves_the_memory_alone() {
    let mut array = Array::new();
    let scatter = Scatter::new(vec![array.region()]).unwrap();
    scatter.write(0, 0, &[7; 10]);
    scatter.advice().end();
    assert_eq!(array.may_be_huge(), Some(true));
    // The reading thread drops it later. By then the memory may have another owner.
    array.forbid_huge();
    drop(scatter);
    assert_eq!(array.may_be_huge(), Some(false));
}

#[test]
fn huge_pages_are_allowed_again_once_a_lazy_restore_has_filled_the_memory() {
    for eager in [false, true] {
        let mut array = Array::new();
        let options = LazyOptions { user_only: true, eager, ..LazyOptions::default() };
        let memory = LazyMemory::new(vec![array.region()], options).unwrap();
        assert_eq!(memory.is_lazy(0), !eager, "{:?}", memory.how());
        memory.write(0, 0, &vec![7; array.memory.len()]);
        assert_eq!(array.may_be_huge(), Some(false));
        memory.end_advice();
        assert_eq!(array.may_be_huge(), Some(true), "the memory is still known");
        array.forbid_huge();
        memory.stop();
        drop(memory);
        assert_eq!(array.may_be_huge(), Some(false), "it was touched after its end");
        assert!(array.memory.iter().all(|byte| *byte == 7));
    }
}
