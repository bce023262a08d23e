//! A source that owns its memory: for programs that prefer a borrow to a promise not to write, such
//! as benchmarks and tests.
#![allow(unsafe_code)]

use crate::track::TrackerChoice;
use crate::{ChangeTracker, MemorySource, Region};
use outlive_io::AlignedBuf;
use outlive_types::{
    Epoch, FreezeReport, FreezeRequest, Frozen, PageSource, RegionDesc, Result, Run, StreamDesc,
};
use std::ops::Range;
use std::sync::Arc;

/// One region of bytes with its tracker, page-aligned and in huge pages where the system has them.
/// It is frozen like a program's own memory, partly live if necessary. While a reader may still use
/// it, [`OwnedSource::edit`] returns `None`.
#[derive(Debug)]
pub struct OwnedSource {
    name: String,
    memory: Arc<AlignedBuf>,
    tracker: Arc<ChangeTracker>,
    threads: usize,
    outputs: Vec<u8>,
}

impl OwnedSource {
    /// Returns `length` zero bytes as the region `name`, tracked in the best way for this system,
    /// on up to `threads` threads.
    pub fn zeroed(name: impl Into<String>, length: usize, threads: usize) -> OwnedSource {
        OwnedSource::new(name, AlignedBuf::zeroed(length), threads)
    }

    /// Returns `memory` as the region `name`, tracked in the same way.
    pub fn new(name: impl Into<String>, memory: AlignedBuf, threads: usize) -> OwnedSource {
        let tracker = Arc::new(ChangeTracker::with(TrackerChoice::Auto));
        let (name, memory) = (name.into(), Arc::new(memory));
        OwnedSource { name, memory, tracker, threads, outputs: Vec::new() }
    }

    /// Returns zeros as [`OwnedSource::zeroed`], with a tracker of the caller's.
    pub fn tracked(
        name: impl Into<String>,
        length: usize,
        threads: usize,
        tracker: ChangeTracker,
    ) -> OwnedSource {
        let memory = Arc::new(AlignedBuf::zeroed(length));
        let (name, tracker) = (name.into(), Arc::new(tracker));
        OwnedSource { name, memory, tracker, threads, outputs: Vec::new() }
    }

    /// Sets the outputs that the next checkpoints cover, encoded.
    pub fn set_outputs(&mut self, outputs: Vec<u8>) {
        self.outputs = outputs;
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.memory
    }

    /// Returns the bytes for writing. `None` as long as a frozen image with live runs exists: wait
    /// for that save.
    pub fn edit(&mut self) -> Option<&mut [u8]> {
        Arc::get_mut(&mut self.memory).map(|memory| &mut memory[..])
    }

    /// Returns the state that is kept between saves. Without it the next save is a full one.
    pub fn tracker(&self) -> &Arc<ChangeTracker> {
        &self.tracker
    }
}

impl PageSource for OwnedSource {
    fn freeze(&mut self, request: &FreezeRequest) -> Result<Box<dyn Frozen>> {
        let bytes = &self.memory[..];
        let shape = vec![bytes.len() as u64];
        // SAFETY: the memory is written only through `edit`. It takes `self` exclusively, so not
        // before this call returns, and afterwards only if no `OwnedFrozen` holds the memory. One
        // with live runs holds it until it is dropped. One without never touches it again.
        let region =
            unsafe { Region::from_raw(&self.name, "|u1", shape, bytes.as_ptr(), bytes.len()) };
        let tracker = Arc::clone(&self.tracker);
        let mut source = MemorySource::new(tracker, vec![region], Vec::new(), self.threads);
        source.set_outputs(self.outputs.clone());
        let inner = source.freeze(request)?;
        let memory = (inner.live_runs() > 0).then(|| Arc::clone(&self.memory));
        Ok(Box::new(OwnedFrozen { inner, _memory: memory }))
    }
}

/// Keeps the memory as long as its live runs can be read. The fields are dropped in this order.
struct OwnedFrozen {
    inner: Box<dyn Frozen>,
    _memory: Option<Arc<AlignedBuf>>,
}

impl Frozen for OwnedFrozen {
    fn regions(&self) -> &[RegionDesc] {
        self.inner.regions()
    }

    fn attachment(&self) -> &[u8] {
        self.inner.attachment()
    }

    fn outputs(&self) -> &[u8] {
        self.inner.outputs()
    }

    fn streams(&self) -> &[StreamDesc] {
        self.inner.streams()
    }

    fn runs(&self) -> &[Run] {
        self.inner.runs()
    }

    fn changed_pages(&self) -> u64 {
        self.inner.changed_pages()
    }

    fn live_runs(&self) -> usize {
        self.inner.live_runs()
    }

    fn bytes<'a>(&'a self, run: usize, scratch: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        self.inner.bytes(run, scratch)
    }

    fn read<'a>(
        &'a self,
        run: usize,
        pages: Range<u32>,
        scratch: &'a mut Vec<u8>,
    ) -> Result<&'a [u8]> {
        self.inner.read(run, pages, scratch)
    }

    fn report(&self) -> FreezeReport {
        self.inner.report()
    }

    fn release_live(&self) {
        self.inner.release_live();
    }

    fn commit_baseline(&self, committed: Option<Epoch>) {
        self.inner.commit_baseline(committed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_types::{FreezeMode, PAGE_BYTES};

    fn freeze(source: &mut OwnedSource, freeze_bytes_max: u64) -> Box<dyn Frozen> {
        let baseline = source.tracker().baseline();
        let freeze = FreezeMode::Copy;
        let request =
            FreezeRequest { baseline, freeze_bytes_max, freeze, ..FreezeRequest::default() };
        source.freeze(&request).unwrap()
    }

    fn held(frozen: &dyn Frozen, run: usize) -> Vec<u8> {
        frozen.bytes(run, &mut Vec::new()).unwrap().to_vec()
    }

    #[test]
    fn memory_is_editable_unless_an_image_may_read_it() {
        let mut source = OwnedSource::zeroed("state", 40 * PAGE_BYTES + 5, 1);
        source.edit().unwrap()[7] = 9;
        let frozen = freeze(&mut source, 0);
        assert!(frozen.live_runs() > 0);
        assert!(source.edit().is_none(), "the runs are live");
        assert_eq!(held(&*frozen, 0)[7], 9);
        frozen.release_live();
        assert!(source.edit().is_none(), "slices of live runs may still be in use");
        frozen.commit_baseline(Some(1));
        drop(frozen);
        source.edit().unwrap()[PAGE_BYTES] = 1;

        let frozen = freeze(&mut source, u64::MAX);
        assert_eq!((frozen.live_runs(), frozen.runs().len()), (0, 1));
        source.edit().expect("everything was copied")[PAGE_BYTES] = 2;
        assert_eq!(held(&*frozen, 0)[0], 1);
    }

    #[test]
    fn an_image_may_outlive_its_source() {
        let mut source = OwnedSource::zeroed("state", 20 * PAGE_BYTES, 1);
        source.edit().unwrap().fill(3);
        let frozen = freeze(&mut source, 0);
        drop(source);
        assert!(held(&*frozen, 0).iter().all(|byte| *byte == 3));
    }
}
