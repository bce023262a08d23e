//! The tensors of a model as the regions of a save. Bytes are read when the save needs them, so the
//! model need not fit into memory.

use super::model::{Model, StoredTensor};
use outlive_types::{
    BLOCK_PAGES, Distribution, Epoch, Error, FreezeReport, FreezeRequest, Frozen,
    PACKED_BELOW_BYTES, PACKED_STREAM, PAGE_BYTES, PageSource, RegionDesc, RegionLocation, Result,
    Run, StreamDesc,
};
use serde_json::json;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Alignment of packed regions, so that restored arrays can be read in place.
const PACKED_ALIGN_BYTES: u64 = 16;

/// A model to save.
pub struct ModelSource(Arc<Pages>);

struct Pages {
    regions: Vec<RegionDesc>,
    streams: Vec<StreamDesc>,
    runs: Vec<Run>,
    attachment: Vec<u8>,
    /// The packed stream.
    packed: Vec<u8>,
    files: Vec<File>,
    /// File of each stream, and where its first byte is there; `None` for the packed one.
    places: Vec<Option<(usize, u64)>>,
}

impl ModelSource {
    /// Returns the source of a model. Python restores its leaves as tensors of PyTorch if
    /// `as_tensors`, else as arrays.
    ///
    /// # Errors
    /// `Invalid` for a tensor that no checkpoint can hold; errors of the files.
    pub fn new(model: Model, as_tensors: bool) -> Result<ModelSource> {
        let attachment = skeleton(model.tensors.len(), as_tensors);
        let mut pages = Pages {
            regions: Vec::with_capacity(model.tensors.len()),
            streams: Vec::new(),
            runs: Vec::new(),
            attachment,
            packed: Vec::new(),
            files: model.files,
            places: Vec::new(),
        };
        for tensor in &model.tensors {
            pages.add(tensor)?;
        }
        if !pages.packed.is_empty()
            || pages.regions.iter().any(|it| it.location != RegionLocation::Own)
        {
            let bytes = pages.packed.len() as u64;
            pages.streams.insert(0, StreamDesc { name: PACKED_STREAM.to_owned(), bytes });
            pages.places.insert(0, None);
        }
        pages.runs = runs_of(&pages.streams)?;
        Ok(ModelSource(Arc::new(pages)))
    }
}

impl Pages {
    fn add(&mut self, tensor: &StoredTensor) -> Result<()> {
        let StoredTensor { info, file, at } = tensor;
        let refused = |why: &str| Error::invalid(format!("the tensor {:?} {why}", info.name));
        let dtype = info.dtype.text.ok_or_else(|| {
            refused(&format!(
                "has elements of the type {}, which no checkpoint can hold",
                info.dtype.name
            ))
        })?;
        let shape = info.dtype.stored_shape(&info.shape);
        let shape = shape.ok_or_else(|| refused("has an odd number of elements in a row"))?;
        let bytes = info.end - info.begin;
        // Python's names of leaves are paths.
        let name = match info.name.is_empty() {
            true => "~".to_owned(),
            false => info.name.replace('~', "~0").replace('/', "~1"),
        };
        let location = if bytes < PACKED_BELOW_BYTES as u64 {
            let offset = (self.packed.len() as u64).next_multiple_of(PACKED_ALIGN_BYTES);
            self.packed.resize((offset + bytes) as usize, 0);
            let into = &mut self.packed[offset as usize..];
            self.files[*file].read_exact_at(into, *at).map_err(|error| unread(&error))?;
            RegionLocation::Packed { offset }
        } else {
            self.streams.push(StreamDesc { name: name.clone(), bytes });
            self.places.push(Some((*file, *at)));
            RegionLocation::Own
        };
        let distribution = Distribution::Local;
        let dtype = dtype.to_owned();
        self.regions.push(RegionDesc { name, dtype, shape, bytes, location, distribution });
        Ok(())
    }
}

/// Returns the skeleton of a flat dict (docs/format.md).
fn skeleton(leaves: usize, as_tensors: bool) -> Vec<u8> {
    let nodes = json!([[0, "", "dict"]]);
    let whole = match as_tensors {
        false => json!({ "outlive.python": 1, "nodes": nodes, "fortran": [] }),
        true => json!({
            "outlive.python": 3,
            "nodes": nodes,
            "fortran": [],
            "tensors": (0..leaves).collect::<Vec<_>>(),
            "notes": [],
        }),
    };
    whole.to_string().into_bytes()
}

/// Returns all pages of all streams, block by block.
fn runs_of(streams: &[StreamDesc]) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for (number, stream) in streams.iter().enumerate() {
        let number = u32::try_from(number)
            .map_err(|_| Error::invalid("the model has more tensors than a checkpoint can hold"))?;
        let pages = stream.bytes.div_ceil(PAGE_BYTES as u64);
        for first_page in (0..pages).step_by(BLOCK_PAGES) {
            let count = (pages - first_page).min(BLOCK_PAGES as u64) as u32;
            runs.push(Run { stream: number, pages: count, first_page });
        }
    }
    Ok(runs)
}

fn unread(error: &std::io::Error) -> Error {
    Error::retry(format!("a file of the model cannot be read, or has changed: {error}"))
}

impl PageSource for ModelSource {
    fn regions(&mut self) -> Result<Vec<RegionDesc>> {
        Ok(self.0.regions.clone())
    }

    fn freeze(&mut self, _request: &FreezeRequest) -> Result<Box<dyn Frozen>> {
        // Every page is reported, whatever the baseline; equal ones are not stored again.
        Ok(Box::new(FrozenModel(self.0.clone())))
    }
}

struct FrozenModel(Arc<Pages>);

impl Frozen for FrozenModel {
    fn regions(&self) -> &[RegionDesc] {
        &self.0.regions
    }

    fn attachment(&self) -> &[u8] {
        &self.0.attachment
    }

    fn streams(&self) -> &[StreamDesc] {
        &self.0.streams
    }

    fn runs(&self) -> &[Run] {
        &self.0.runs
    }

    fn read<'a>(
        &'a self,
        run: usize,
        pages: Range<u32>,
        scratch: &'a mut Vec<u8>,
    ) -> Result<&'a [u8]> {
        let Pages { runs, streams, packed, files, places, .. } = &*self.0;
        let Run { stream, first_page, .. } = runs[run];
        let stream = stream as usize;
        let page = |page: u32| (first_page + u64::from(page)) * PAGE_BYTES as u64;
        let end = page(pages.end).min(streams[stream].bytes);
        let start = page(pages.start).min(end);
        let Some((file, at)) = places[stream] else {
            return Ok(&packed[start as usize..end as usize]);
        };
        scratch.resize((end - start) as usize, 0);
        files[file].read_exact_at(scratch, at + start).map_err(|error| unread(&error))?;
        Ok(scratch)
    }

    fn report(&self) -> FreezeReport {
        FreezeReport {
            freeze: "none: files of a model are read".to_owned(),
            tracker: "none: all pages are compared with those that are stored".to_owned(),
            ..FreezeReport::default()
        }
    }

    fn release_live(&self) {}

    fn commit_baseline(&self, _committed: Option<Epoch>) {}
}
