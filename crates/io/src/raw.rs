//! Raw speed of a device, for comparison: the same bytes in the same layout, without outlive around
//! them. `outlive-bench` measures everything against it.

use crate::{AlignedBuf, DirectFile, read_at, write_all_at};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, PAGE_BYTES, Result};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Layout of the bytes, and the load on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawLayout {
    /// Length of each file; the last one may be shorter. A multiple of `write_bytes`.
    pub file_bytes: u64,
    /// Length of each write and read: a multiple of 4096.
    pub write_bytes: usize,
    /// Threads, each with one write or read in flight.
    pub depth: usize,
    /// Whether a file's space is reserved before the file is written.
    pub preallocate: bool,
}

impl Default for RawLayout {
    /// Returns the layout of packs, which is also the fastest that was measured.
    fn default() -> Self {
        RawLayout {
            file_bytes: 64 << 20,
            write_bytes: 4 << 20,
            depth: crate::DEPTH_DEFAULT,
            preallocate: true,
        }
    }
}

/// Writes `total_bytes` (rounded up to whole writes) as files `raw-0`, `raw-1`, … in `dir`. Returns
/// the time it took, including creation and a sync of each file and of `dir`. The bytes come
/// straight from `data`, at least one write long. Some devices compress: for a fair result make the
/// data random, and longer than one write. Uses O_DIRECT unless the file system refuses it.
///
/// # Errors
/// `Invalid` for a layout that is not made of whole pages; `Full`; errors of the device. The files
/// then stay, as after success: see [`raw_remove`].
pub fn raw_write(
    dir: &Path,
    total_bytes: u64,
    layout: &RawLayout,
    data: &AlignedBuf,
) -> Result<Duration> {
    let run = RawRun::new(dir, total_bytes, layout)?;
    if data.len() < layout.write_bytes {
        return Err(Error::invalid("the data for a raw write must be at least one write long"));
    }
    let slices = (data.len() - layout.write_bytes) / PAGE_BYTES + 1;
    let started = Instant::now();
    run.each(
        Error::io,
        || OpenOptions::new().write(true).create(true).truncate(true).clone(),
        |file, index, offset| {
            // A prime step, so that neighbours differ and no bytes are written twice in a row.
            let at = (index as usize).wrapping_mul(7919) % slices * PAGE_BYTES;
            write_all_at(file, &data[at..at + layout.write_bytes], offset)
        },
        |file, bytes| match fallocate(file, FallocateFlags::empty(), 0, bytes) {
            Err(rustix::io::Errno::NOSPC) => Err(rustix::io::Errno::NOSPC.into()),
            _ => Ok(()),
        },
        |file| file.sync_data(),
    )?;
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(|error| Error::io("syncing the directory", dir, &error))?;
    Ok(started.elapsed())
}

/// Reads the files of [`raw_write`] with the same arguments and returns the time it took.
///
/// # Errors
/// As for `raw_write`; `Damaged` if the files are missing or short.
pub fn raw_read(dir: &Path, total_bytes: u64, layout: &RawLayout) -> Result<Duration> {
    let run = RawRun::new(dir, total_bytes, layout)?;
    let buffers: Mutex<Vec<AlignedBuf>> =
        Mutex::new((0..run.threads()).map(|_| AlignedBuf::zeroed(layout.write_bytes)).collect());
    // Touches them now: page faults are not the device's work.
    for buffer in buffers.lock().iter_mut() {
        buffer.fill(1);
    }
    let started = Instant::now();
    run.each(
        Error::io_stored,
        || OpenOptions::new().read(true).clone(),
        |file, _, offset| {
            let mut buffer = buffers.lock().pop().expect("there is one buffer a thread");
            let got = read_at(file, &mut buffer, offset);
            let whole = got.as_ref().is_ok_and(|got| *got == buffer.len());
            buffers.lock().push(buffer);
            got?;
            if whole { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
        },
        |_, _| Ok(()),
        |_| Ok(()),
    )?;
    Ok(started.elapsed())
}

/// Removes the files of [`raw_write`]; missing ones are no error.
///
/// # Errors
/// Errors of the file system.
pub fn raw_remove(dir: &Path, total_bytes: u64, layout: &RawLayout) -> Result<()> {
    let run = RawRun::new(dir, total_bytes, layout)?;
    for file in 0..run.files() {
        let path = run.path(file);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io("removing", &path, &error));
            }
            _ => {}
        }
    }
    Ok(())
}

struct RawRun<'a> {
    dir: &'a Path,
    layout: RawLayout,
    /// Number of writes, or reads, in all and per file.
    count: u64,
    per_file: u64,
}

/// A file while some of its writes are still to be done.
struct Open {
    file: Option<Arc<DirectFile>>,
    left: u64,
}

impl RawRun<'_> {
    fn new<'a>(dir: &'a Path, total_bytes: u64, layout: &RawLayout) -> Result<RawRun<'a>> {
        let write_bytes = layout.write_bytes as u64;
        let whole = write_bytes > 0
            && write_bytes.is_multiple_of(PAGE_BYTES as u64)
            && layout.file_bytes >= write_bytes
            && layout.file_bytes.is_multiple_of(write_bytes);
        if !whole || total_bytes == 0 {
            return Err(Error::invalid(format!(
                "{total_bytes} bytes cannot be laid out as {layout:?}: writes must be a multiple \
                 of {PAGE_BYTES} bytes, files a multiple of writes"
            )));
        }
        let count = total_bytes.div_ceil(write_bytes);
        Ok(RawRun { dir, layout: *layout, count, per_file: layout.file_bytes / write_bytes })
    }

    fn files(&self) -> u64 {
        self.count.div_ceil(self.per_file)
    }

    fn in_file(&self, file: u64) -> u64 {
        self.per_file.min(self.count - file * self.per_file)
    }

    fn threads(&self) -> u64 {
        (self.layout.depth.max(1) as u64).min(self.count)
    }

    fn path(&self, file: u64) -> PathBuf {
        self.dir.join(format!("raw-{file}"))
    }

    /// Does `work` at every offset, in order, on `depth` threads. The thread with the first work in
    /// a file opens the file; the thread with the last ends it. `fault` translates an error.
    fn each(
        &self,
        fault: fn(&str, &Path, &io::Error) -> Error,
        how: impl Fn() -> OpenOptions + Sync,
        work: impl Fn(&File, u64, u64) -> io::Result<()> + Sync,
        opened: impl Fn(&File, u64) -> io::Result<()> + Sync,
        ended: impl Fn(&File) -> io::Result<()> + Sync,
    ) -> Result<()> {
        let open: Vec<Mutex<Open>> = (0..self.files())
            .map(|file| Mutex::new(Open { file: None, left: self.in_file(file) }))
            .collect();
        let write_bytes = self.layout.write_bytes as u64;
        let one = |index: u64| -> io::Result<()> {
            let number = index / self.per_file;
            let state = &open[number as usize];
            let file = {
                let mut state = state.lock();
                match &state.file {
                    Some(file) => file.clone(),
                    None => {
                        let file =
                            Arc::new(DirectFile::open(&mut how(), &self.path(number), true)?);
                        if self.layout.preallocate {
                            opened(&file.file(), self.in_file(number) * write_bytes)?;
                        }
                        state.file = Some(file.clone());
                        file
                    }
                }
            };
            file.run(|file| work(file, index, index % self.per_file * write_bytes))?;
            let mut state = state.lock();
            state.left -= 1;
            if state.left > 0 {
                return Ok(());
            }
            state.file = None;
            drop(state);
            ended(&file.file())
        };
        let next = AtomicU64::new(0);
        let serve = || -> Result<()> {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= self.count {
                    return Ok(());
                }
                one(index).map_err(|error| {
                    next.store(self.count, Ordering::Relaxed); // the others may stop, too
                    fault("measuring raw I/O on", &self.path(index / self.per_file), &error)
                })?;
            }
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads()).map(|_| scope.spawn(serve)).collect();
            threads.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or_else(|_| Err(Error::bug("a thread of raw I/O panicked")))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_types::ErrorKind;

    #[test]
    fn exactly_the_requested_bytes_are_written_read_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let layout =
            RawLayout { file_bytes: 64 << 10, write_bytes: 16 << 10, depth: 3, preallocate: true };
        let mut data = AlignedBuf::zeroed(32 << 10);
        data.fill(0x5A);
        let total = (64 + 64 + 10) << 10;
        raw_write(dir.path(), total, &layout, &data).unwrap();
        let length = |name: &str| fs::read(dir.path().join(name)).unwrap().len();
        assert_eq!([length("raw-0"), length("raw-1"), length("raw-2")], [65536, 65536, 16384]);
        assert!(fs::read(dir.path().join("raw-2")).unwrap().iter().all(|byte| *byte == 0x5A));
        raw_read(dir.path(), total, &layout).unwrap();
        let error = raw_read(dir.path(), 2 * total, &layout).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
        raw_remove(dir.path(), total, &layout).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn refuses_a_layout_of_broken_pages() {
        let layout = RawLayout { write_bytes: 1000, file_bytes: 4000, ..RawLayout::default() };
        let dir = tempfile::tempdir().unwrap();
        let error = raw_write(dir.path(), 8000, &layout, &AlignedBuf::zeroed(4096)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}
