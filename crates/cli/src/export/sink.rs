//! Writes restored bytes to temporary files, which get their names when they are complete.

use super::{ExportPlan, Item};
use crate::show::packed_slice;
use crate::tree::{self, TREE};
use outlive_dir::durable::publish;
use outlive_io::write_all_at;
use outlive_store::MemoryImage;
use outlive_types::sync::plain::{Mutex, MutexGuard};
use outlive_types::{Error, PACKED_STREAM, RegionLocation, Result, Rng, SystemRng};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Most open files; a process may often have 1024. The others are opened for each write.
const OPEN_MAX: usize = 256;

/// Output of the streams.
pub struct FileSink {
    /// Outputs by the stream's number.
    places: Vec<RegionOutput>,
    /// The first failure, after which nothing is written.
    failure: Mutex<Option<Error>>,
}

enum RegionOutput {
    /// The stream was not selected.
    Nowhere,
    /// The packed stream, whose regions become files at the end.
    Memory(Mutex<Vec<u8>>),
    /// A region of its own, after a header. At most [`OPEN_MAX`] files stay open.
    File { temporary: Temporary, file: Option<File>, header_bytes: u64, item: usize },
}

impl FileSink {
    /// Creates a temporary file in `dir` for each large region of the plan.
    pub fn create(dir: &Path, checkpoint: &MemoryImage, plan: &ExportPlan) -> Result<FileSink> {
        let mut places: Vec<RegionOutput> = Vec::new();
        places.resize_with(checkpoint.streams().len(), || RegionOutput::Nowhere);
        let stream_of = checkpoint.stream_of();
        let missing = || Error::bug("a region has no stream");
        for (number, item) in plan.items.iter().enumerate() {
            let name = super::stream_name(&item.region);
            let Some(stream) = stream_of.get(name) else {
                // If all regions of an image are empty, there is no packed stream for them.
                if item.region.bytes == 0 {
                    continue;
                }
                return Err(missing());
            };
            match (&places[*stream], item.region.location) {
                (RegionOutput::Nowhere, RegionLocation::Packed { .. }) => {
                    debug_assert_eq!(name, PACKED_STREAM);
                    let bytes = checkpoint.streams()[*stream].tree.bytes;
                    places[*stream] = RegionOutput::Memory(Mutex::new(zeros(bytes)?));
                }
                (RegionOutput::Nowhere, RegionLocation::Own) => {
                    places[*stream] = file_destination(dir, number, item)?;
                }
                _ => {}
            }
        }
        Ok(FileSink { places, failure: Mutex::new(None) })
    }

    fn failure(&self) -> MutexGuard<'_, Option<Error>> {
        self.failure.lock()
    }

    /// Writes bytes of a stream.
    pub fn write(&self, stream: usize, offset: u64, bytes: &[u8]) {
        match self.places.get(stream) {
            Some(RegionOutput::Memory(memory)) => {
                let mut memory = memory.lock();
                memory[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            Some(RegionOutput::File { temporary, file, header_bytes, .. }) => {
                if self.failure().is_some() {
                    return;
                }
                let written = match file {
                    Some(file) => write_all_at(file, bytes, header_bytes + offset),
                    None => temporary
                        .open()
                        .and_then(|file| write_all_at(&file, bytes, header_bytes + offset)),
                };
                if let Err(error) = written {
                    let error = Error::io_named("writing", &temporary.0, &error);
                    self.failure().get_or_insert(error);
                }
            }
            Some(RegionOutput::Nowhere) | None => {}
        }
    }

    /// Makes all data durable, gives the files their names, and returns the packed stream's bytes.
    pub fn finish(self, plan: &ExportPlan, dir: &Path, force: bool) -> Result<Vec<u8>> {
        if let Some(error) = self.failure.into_inner() {
            return Err(error);
        }
        let (mut packed, mut trees) = (Vec::new(), Trees { dir, force, unread: None });
        for place in self.places {
            match place {
                RegionOutput::Nowhere => {}
                RegionOutput::Memory(memory) => {
                    packed = memory.into_inner();
                }
                RegionOutput::File { temporary, file, item, .. } => {
                    let file = match file {
                        Some(file) => file,
                        None => temporary
                            .open()
                            .map_err(|error| Error::io_named("opening", &temporary.0, &error))?,
                    };
                    let item = &plan.items[item];
                    if item.region.dtype == TREE {
                        let bytes = fs::read(&temporary.0)
                            .map_err(|error| Error::io_named("reading", &temporary.0, &error))?;
                        trees.publish(item, &bytes)?;
                        continue;
                    }
                    temporary.publish(&file, dir, &item.file, force)?;
                }
            }
        }
        for item in &plan.items {
            if matches!(item.region.location, RegionLocation::Packed { .. }) {
                let bytes = packed_slice(&item.region, &packed)
                    .ok_or_else(|| Error::bug("a region lies beyond the packed stream"))?;
                if item.region.dtype == TREE {
                    trees.publish(item, bytes)?;
                    continue;
                }
                publish_bytes(dir, &item.file, &[&item.header, bytes].concat(), force)?;
            }
        }
        trees.unread.map_or(Ok(packed), Err)
    }
}

/// Writes trees of plain values as JSON. A tree that this build cannot read does not stop the
/// others.
struct Trees<'a> {
    dir: &'a Path,
    force: bool,
    unread: Option<Error>,
}

impl Trees<'_> {
    fn publish(&mut self, item: &Item, bytes: &[u8]) -> Result<()> {
        match tree::json(bytes) {
            Ok(mut text) => {
                text.push('\n');
                publish_bytes(self.dir, &item.file, text.as_bytes(), self.force)
            }
            Err(error) => {
                let what = format!(
                    "region {:?} is left out, and so is regions.json; the other files are written",
                    item.region.name
                );
                self.unread.get_or_insert(error.context(what));
                Ok(())
            }
        }
    }
}

fn file_destination(dir: &Path, number: usize, item: &Item) -> Result<RegionOutput> {
    let (temporary, mut file) = Temporary::create(dir)?;
    let header_bytes = item.header.len() as u64;
    file.write_all(&item.header)
        .and_then(|()| file.set_len(header_bytes + item.region.bytes))
        .map_err(|error| Error::io_named("writing", &temporary.0, &error))?;
    let file = (number < OPEN_MAX).then_some(file);
    Ok(RegionOutput::File { temporary, file, header_bytes, item: number })
}

/// Returns memory for a stream.
///
/// # Errors
/// `Full` if there is not so much.
pub fn zeros(length: u64) -> Result<Vec<u8>> {
    let too_much = || Error::full(format!("cannot allocate {length} bytes of memory"));
    let length = usize::try_from(length).map_err(|_| too_much())?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| too_much())?;
    bytes.resize(length, 0);
    Ok(bytes)
}

/// Writes a small file at once.
pub fn publish_bytes(dir: &Path, name: impl AsRef<Path>, bytes: &[u8], force: bool) -> Result<()> {
    let (temporary, mut file) = Temporary::create(dir)?;
    file.write_all(bytes).map_err(|error| Error::io_named("writing", &temporary.0, &error))?;
    temporary.publish(&file, dir, name, force)
}

/// A file that is removed unless it is published.
pub struct Temporary(PathBuf);

impl Temporary {
    /// Makes a file in `dir`.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn create(dir: &Path) -> Result<(Temporary, File)> {
        // Random: containers that share the directory may have processes with equal numbers, and
        // one would publish the file of another.
        let mut random = [0; 8];
        SystemRng.fill(&mut random);
        let path = dir.join(format!(".outlive-export-{:016x}", u64::from_le_bytes(random)));
        let file = File::options().write(true).create_new(true).open(&path);
        match file {
            Ok(file) => Ok((Temporary(path), file)),
            Err(error) => Err(Error::io_named("making", &path, &error)),
        }
    }

    fn open(&self) -> io::Result<File> {
        File::options().write(true).open(&self.0)
    }

    /// Returns where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes its data durable and gives it a name in `dir`.
    ///
    /// # Errors
    /// `Invalid` if the name is taken, unless `force`; errors of the file system.
    pub fn publish(
        self,
        file: &File,
        dir: &Path,
        name: impl AsRef<Path>,
        force: bool,
    ) -> Result<()> {
        let path = dir.join(name);
        file.sync_all().map_err(|error| Error::io_named("syncing", &self.0, &error))?;
        let named = if force { fs::rename(&self.0, &path) } else { publish(&self.0, &path) };
        named.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Error::invalid(format!(
                "{} has appeared meanwhile: choose another directory, or replace files with --force",
                path.display()
            )),
            _ => Error::io_named("making", &path, &error),
        })
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename it is gone already; otherwise it is no longer needed.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two programs may have the same process number, in containers that share the directory.
    #[test]
    fn of_two_that_write_to_one_directory_each_publishes_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let (one, mut first) = Temporary::create(dir.path()).unwrap();
        let (other, mut second) = Temporary::create(dir.path()).unwrap();
        second.write_all(b"begun").unwrap();
        first.write_all(b"whole").unwrap();
        one.publish(&first, dir.path(), "a", false).unwrap();
        assert_eq!(fs::read(dir.path().join("a")).unwrap(), b"whole");
        second.write_all(b", and ended").unwrap();
        other.publish(&second, dir.path(), "b", true).unwrap();
        assert_eq!(fs::read(dir.path().join("b")).unwrap(), b"begun, and ended");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
