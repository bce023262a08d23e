//! Writes the bytes of streams into the files of a model.

use super::files::{Model, Place};
use super::layout::{Found, Tensor};
use crate::export::sink::{Temporary, zeros};
use crate::export::{publish_bytes, stream_name};
use outlive_io::write_all_at;
use outlive_store::{MemoryImage, RestoreSink};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, RegionLocation, Result};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// A tensor whose bytes lie in a stream as in its file.
struct CopyOut {
    /// Its first byte in the stream, and the byte behind its last one.
    begin: u64,
    end: u64,
    file: usize,
    /// Its first byte in the file.
    to: u64,
}

/// A tensor whose elements lie in another order.
struct Gather {
    tensor: Tensor,
    file: usize,
    to: u64,
}

/// Destination of a stream.
#[derive(Default)]
struct Destination {
    copies: Vec<CopyOut>,
    gathers: Vec<Gather>,
    /// The stream's bytes, if tensors have their elements in another order.
    memory: Option<Mutex<Vec<u8>>>,
}

/// The files of a model while they are written.
pub struct ModelSink {
    files: Vec<(Temporary, File)>,
    streams: BTreeMap<usize, Destination>,
    failure: Mutex<Option<Error>>,
}

impl ModelSink {
    /// Makes temporary files with headers in `dir`.
    ///
    /// # Errors
    /// Errors of the file system; `Full` if there is not enough memory.
    pub fn create(
        dir: &Path,
        checkpoint: &MemoryImage,
        model: &Model,
        found: &Found,
    ) -> Result<ModelSink> {
        let mut sink =
            ModelSink { files: Vec::new(), streams: BTreeMap::new(), failure: Mutex::default() };
        let stream_of = checkpoint.stream_of();
        for (number, file) in model.files.iter().enumerate() {
            let (temporary, mut opened) = Temporary::create(dir)?;
            let begun = opened.write_all(&file.head).and_then(|()| opened.set_len(file.bytes()));
            begun.map_err(|error| Error::io_named("writing", temporary.path(), &error))?;
            sink.files.push((temporary, opened));
            for (info, tensor) in file.header.tensors.iter().zip(&file.tensors) {
                let tensor = &found.tensors[*tensor];
                if tensor.bytes() == 0 {
                    continue;
                }
                let region = &checkpoint.regions()[tensor.region];
                let missing = || Error::bug("a region has no stream");
                let stream = *stream_of.get(stream_name(region)).ok_or_else(missing)?;
                let start = match region.location {
                    RegionLocation::Packed { offset } => offset,
                    RegionLocation::Own => 0,
                };
                let destination = sink.streams.entry(stream).or_default();
                let to = file.head.len() as u64 + info.begin;
                let begin = start + tensor.offset;
                if tensor.is_contiguous() {
                    let end = begin + tensor.bytes();
                    destination.copies.push(CopyOut { begin, end, file: number, to });
                    continue;
                }
                if destination.memory.is_none() {
                    let bytes = zeros(checkpoint.streams()[stream].tree.bytes)?;
                    destination.memory = Some(Mutex::new(bytes));
                }
                let tensor = Tensor { offset: begin, ..tensor.clone() };
                destination.gathers.push(Gather { tensor, file: number, to });
            }
        }
        Ok(sink)
    }

    /// Returns the streams to read.
    pub fn streams(&self) -> Vec<usize> {
        self.streams.keys().copied().collect()
    }

    fn put(&self, file: usize, bytes: &[u8], to: u64) {
        if self.failure.lock().is_some() {
            return;
        }
        let (temporary, file) = &self.files[file];
        if let Err(error) = write_all_at(file, bytes, to) {
            let error = Error::io_named("writing", temporary.path(), &error);
            self.failure.lock().get_or_insert(error);
        }
    }

    /// Makes all data durable, and gives the files their names; the index comes last.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn publish(mut self, model: &Model, place: &Place, force: bool) -> Result<()> {
        for destination in std::mem::take(&mut self.streams).into_values() {
            let Some(memory) = destination.memory else { continue };
            let memory = memory.into_inner();
            for Gather { tensor, file, to } in &destination.gathers {
                gather(tensor, &memory, &mut |bytes, at| self.put(*file, bytes, to + at));
            }
        }
        if let Some(error) = self.failure.lock().take() {
            return Err(error);
        }
        for ((temporary, opened), file) in self.files.into_iter().zip(&model.files) {
            temporary.publish(&opened, &place.dir, &file.name, force)?;
        }
        match model.index_name(place) {
            Some(name) => publish_bytes(&place.dir, name, &model.index(), force),
            None => Ok(()),
        }
    }
}

impl RestoreSink for ModelSink {
    fn write(&self, stream: usize, offset: u64, bytes: &[u8]) {
        let Some(destination) = self.streams.get(&stream) else { return };
        let end = offset + bytes.len() as u64;
        if let Some(memory) = &destination.memory {
            memory.lock()[offset as usize..end as usize].copy_from_slice(bytes);
        }
        for copy in destination.copies.iter().filter(|it| it.begin < end && offset < it.end) {
            let (from, until) = (copy.begin.max(offset), copy.end.min(end));
            let part = &bytes[(from - offset) as usize..(until - offset) as usize];
            self.put(copy.file, part, copy.to + (from - copy.begin));
        }
    }

    /// Does nothing: memory and files start as zeros.
    fn zero(&self, _stream: usize, _offset: u64, _length: u64) {}
}

/// Calls `put` with the elements of a tensor in the order of a file, and where they begin there.
fn gather(tensor: &Tensor, memory: &[u8], put: &mut dyn FnMut(&[u8], u64)) {
    /// Elements are passed on in steps of this length.
    const STEP_BYTES: usize = 1 << 20;
    let item_bytes = tensor.item_bytes as usize;
    let mut index = vec![0u64; tensor.shape.len()];
    let mut out = Vec::with_capacity(STEP_BYTES + item_bytes);
    let mut written = 0u64;
    let mut at = tensor.offset;
    for _ in 0..tensor.bytes() / tensor.item_bytes {
        out.extend_from_slice(&memory[at as usize..at as usize + item_bytes]);
        if out.len() >= STEP_BYTES {
            put(&out, written);
            written += out.len() as u64;
            out.clear();
        }
        for axis in (0..index.len()).rev() {
            index[axis] += 1;
            at += tensor.strides[axis];
            if index[axis] < tensor.shape[axis] {
                break;
            }
            at -= tensor.strides[axis] * index[axis];
            index[axis] = 0;
        }
    }
    put(&out, written);
}
