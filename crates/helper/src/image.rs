//! A held image, as the store reads it.

use crate::message::{Keep, decode_runs};
use outlive_format::Catalog;
use outlive_types::{
    Epoch, Error, FreezeReport, FreezeRequest, Frozen, PACKED_STREAM, PAGE_BYTES, PageSource,
    RegionDesc, RegionLocation, Result, Run, SharedRun, StreamDesc,
};
use rustix::process::{Signal, pidfd_send_signal};
use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// The image of a save whose program is gone.
#[derive(Debug)]
pub struct HeldImage {
    regions: Vec<RegionDesc>,
    compared: Vec<(String, Vec<u8>)>,
    baseline: Option<Epoch>,
    frozen: Arc<HeldPages>,
}

#[derive(Debug)]
struct HeldPages {
    regions: Vec<RegionDesc>,
    attachment: Vec<u8>,
    outputs: Vec<u8>,
    streams: Vec<StreamDesc>,
    runs: Vec<Run>,
    locations: Vec<SharedRun>,
    copies: Option<File>,
    child: Option<HeldChild>,
}

/// A frozen child of a program that is gone.
#[derive(Debug)]
struct HeldChild {
    memory: File,
    _lifeline: OwnedFd,
    pidfd: OwnedFd,
}

impl Drop for HeldChild {
    /// Ends the child: a process that the program has forked may have its lifeline, too.
    fn drop(&mut self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

impl HeldImage {
    /// Makes an image of a message and its descriptors.
    ///
    /// # Errors
    /// `Invalid` if they do not fit together.
    pub fn new(keep: &Keep, descriptors: Vec<OwnedFd>) -> Result<HeldImage> {
        let mut descriptors = descriptors.into_iter();
        let mut next = || {
            descriptors.next().ok_or_else(|| Error::invalid("an image came without a descriptor"))
        };
        let copies = keep.has_copies.then(&mut next).transpose()?.map(File::from);
        let child = match keep.has_child {
            true => Some(HeldChild { memory: next()?.into(), _lifeline: next()?, pidfd: next()? }),
            false => None,
        };
        let descs = |catalog: Catalog| catalog.regions.into_iter().map(|it| it.desc).collect();
        let mut catalog = Catalog::decode(&keep.catalog)?;
        let attachment = std::mem::take(&mut catalog.attachment);
        let outputs = std::mem::take(&mut catalog.outputs);
        let regions: Vec<RegionDesc> = descs(catalog);
        let (runs, locations) = decode_runs(&keep.runs).into_iter().unzip();
        let streams = streams_of(&regions);
        let frozen =
            HeldPages { regions, attachment, outputs, streams, runs, locations, copies, child };
        Ok(HeldImage {
            regions: descs(Catalog::decode(&keep.regions)?),
            compared: keep.compared.clone(),
            baseline: keep.baseline,
            frozen: Arc::new(frozen),
        })
    }
}

/// Returns the streams of an image: the packed one first, then those of the other regions.
fn streams_of(regions: &[RegionDesc]) -> Vec<StreamDesc> {
    let mut packed_end = None;
    let mut streams = Vec::new();
    for region in regions {
        match region.location {
            RegionLocation::Packed { offset } => {
                packed_end = packed_end.max(Some(offset + region.bytes));
            }
            RegionLocation::Own => {
                streams.push(StreamDesc { name: region.name.clone(), bytes: region.bytes });
            }
        }
    }
    if let Some(bytes) = packed_end {
        streams.insert(0, StreamDesc { name: PACKED_STREAM.to_owned(), bytes });
    }
    streams
}

impl PageSource for HeldImage {
    fn regions(&mut self) -> Result<Vec<RegionDesc>> {
        Ok(self.regions.clone())
    }

    fn compared(&mut self) -> Result<Vec<(String, Vec<u8>)>> {
        Ok(self.compared.clone())
    }

    fn freeze(&mut self, request: &FreezeRequest) -> Result<Box<dyn Frozen>> {
        if request.baseline != self.baseline {
            let name =
                |epoch: Option<Epoch>| epoch.map_or("no checkpoint".into(), |it| it.to_string());
            return Err(Error::retry(format!(
                "the image follows {}, and the job can only go on from {}",
                name(self.baseline),
                name(request.baseline)
            )));
        }
        // Pages that the store would like to rewrite (`FreezeRequest::also`) are not here.
        Ok(Box::new(SharedPages(self.frozen.clone())))
    }
}

/// An image at its freeze. It can be frozen again after a failure.
#[derive(Debug)]
struct SharedPages(Arc<HeldPages>);

impl Frozen for SharedPages {
    fn regions(&self) -> &[RegionDesc] {
        &self.0.regions
    }

    fn attachment(&self) -> &[u8] {
        &self.0.attachment
    }

    fn outputs(&self) -> &[u8] {
        &self.0.outputs
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
        let HeldPages { runs, locations, streams, copies, child, .. } = &*self.0;
        let Run { stream, first_page, .. } = runs[run];
        let page_bytes = PAGE_BYTES as u64;
        let stream_bytes = streams.get(stream as usize).map_or(0, |stream| stream.bytes);
        let left_bytes = stream_bytes.saturating_sub(first_page * page_bytes);
        let start = (u64::from(pages.start) * page_bytes).min(left_bytes);
        let end = (u64::from(pages.end) * page_bytes).min(left_bytes);
        scratch.resize((end - start) as usize, 0);
        let (file, at) = match locations[run] {
            SharedRun::Copied(at) => (copies.as_ref(), at),
            SharedRun::Forked(at) => (child.as_ref().map(|child| &child.memory), at),
        };
        let file = file.ok_or_else(|| Error::bug("a run is nowhere"))?;
        file.read_exact_at(scratch, at + start).map_err(|error| {
            // Neither comes back: no other attempt will succeed.
            Error::damaged(format!("the image of the program that is gone cannot be read: {error}"))
        })?;
        Ok(scratch)
    }

    fn report(&self) -> FreezeReport {
        FreezeReport {
            freeze: "helper: it held the image of a program that is gone".to_owned(),
            tracker: "that of the program".to_owned(),
            ..FreezeReport::default()
        }
    }

    fn release_live(&self) {}

    fn commit_baseline(&self, _committed: Option<Epoch>) {}
}
