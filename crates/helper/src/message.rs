//! The messages between programs, the helper and its workers. All of them are of one build.

use outlive_format::{Catalog, CatalogRegion, Mark, Remarks};
use outlive_pool::Pool;
use outlive_store::group::GroupOptions;
use outlive_store::{KeptSave, SaveNotes};
use outlive_types::{
    Epoch, Error, Fingerprint, JobName, Rank, RegionDesc, Result, Run, SharedImage, SharedRun,
};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd};

/// A message. Its descriptors follow in the order that is named.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Message {
    /// A program introduces itself, and its job if it has one. Descriptors: its pidfd, and the read
    /// end of a pipe of which it holds the other one until it ends or becomes another program.
    Hello(Program, Option<JobId>),
    /// The answer to `Hello`: the helper will see the end of the program. To `Settle`: it is at work.
    Welcome,
    /// An image, of the program that speaks; to a worker, of the program that is gone. Descriptors:
    /// the file of copies if there are any; the child's memory, lifeline and pidfd if there is one.
    Keep(Box<Keep>),
    /// The answer: whether the helper holds the image.
    Kept(bool),
    /// The program needs its image no longer.
    Forget,
    /// A program is about to use this job: a second answer comes when no save of a program that is gone
    /// is being completed.
    Settle(JobId),
    /// The answer: what was completed, a sentence each.
    Settled(Vec<String>),
}

/// Environment in which a worker opens the pool of a program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Program {
    /// Names and values of variables.
    pub variables: Vec<(Vec<u8>, Vec<u8>)>,
    /// Its directory.
    pub directory: Vec<u8>,
    /// Command line of `outlive`, up to its subcommand, that starts its worker.
    pub command: Vec<Vec<u8>>,
}

/// A job of a pool.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct JobId {
    /// Id of the pool.
    pub pool_id: String,
    /// Location of the pool, which tells it from its copies.
    pub location: String,
    /// Name of the job.
    pub job: String,
}

impl JobId {
    /// Names a job.
    pub fn new(pool: &Pool, job: &JobName) -> JobId {
        let (pool_id, location) = pool.identity();
        JobId { pool_id, location, job: job.as_str().to_owned() }
    }
}

/// The group of a rank that has saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RankGroup {
    /// Number of ranks.
    pub ranks: u32,
    /// Time for which its ranks wait for each other, in milliseconds.
    pub patience_ms: u64,
}

impl RankGroup {
    /// Returns the group of a program's job.
    pub fn of(group: &GroupOptions) -> RankGroup {
        let patience_ms = u64::try_from(group.patience.as_millis()).unwrap_or(u64::MAX);
        RankGroup { ranks: group.coordinator.size(), patience_ms }
    }
}

/// A save, of which a program has handed over the image.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Keep {
    /// The job.
    pub of: JobId,
    /// The rank that has saved.
    pub rank: Rank,
    /// Its group; `None` without one.
    pub group: Option<RankGroup>,
    /// The epoch of the checkpoint.
    pub epoch: Epoch,
    /// The session in which the program would have committed it.
    pub session: [u8; 12],
    /// The epoch that the image follows.
    pub baseline: Option<Epoch>,
    /// The notes of the checkpoint.
    pub notes: Notes,
    /// Whether there is a file of copies.
    pub has_copies: bool,
    /// Whether there is a child.
    pub has_child: bool,
    /// In a group, the regions that ranks compare. They are small.
    pub compared: Vec<(String, Vec<u8>)>,
    /// The catalog of the image, encoded: regions, attachment, outputs.
    #[serde(skip)]
    pub catalog: Vec<u8>,
    /// In a group, all regions of the rank, as a catalog.
    #[serde(skip)]
    pub regions: Vec<u8>,
    /// The runs, encoded: see [`encode_runs`].
    #[serde(skip)]
    pub runs: Vec<u8>,
}

/// [`SaveNotes`] as they travel: a metric may be infinite, which JSON cannot say.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Notes {
    pinned: bool,
    mark: u8,
    label: String,
    tags: Vec<String>,
    metrics: Vec<(String, u64)>,
}

impl From<&SaveNotes> for Notes {
    fn from(notes: &SaveNotes) -> Notes {
        let mark = Mark::ALL.iter().position(|mark| *mark == notes.remarks.mark).unwrap_or(0);
        let metrics = notes.metrics.iter().map(|(name, value)| (name.clone(), value.to_bits()));
        Notes {
            pinned: notes.remarks.pinned,
            mark: mark as u8,
            label: notes.remarks.label.clone(),
            tags: notes.remarks.tags.clone(),
            metrics: metrics.collect(),
        }
    }
}

impl From<&Notes> for SaveNotes {
    fn from(notes: &Notes) -> SaveNotes {
        let mark = Mark::ALL.get(usize::from(notes.mark)).copied().unwrap_or(Mark::None);
        let metrics =
            notes.metrics.iter().map(|(name, bits)| (name.clone(), f64::from_bits(*bits)));
        SaveNotes {
            remarks: Remarks {
                pinned: notes.pinned,
                suspect: false,
                mark,
                label: notes.label.clone(),
                tags: notes.tags.clone(),
            },
            metrics: metrics.collect(),
        }
    }
}

impl Keep {
    /// Returns the number of ranks whose images belong together.
    pub fn ranks(&self) -> u32 {
        self.group.map_or(1, |group| group.ranks)
    }

    /// Describes a save of a rank, and of its group if there is one.
    ///
    /// # Errors
    /// `Invalid` for regions that no checkpoint can hold.
    pub fn new(
        of: JobId,
        rank: Rank,
        group: Option<RankGroup>,
        save: &KeptSave<'_>,
    ) -> Result<Keep> {
        let KeptSave { frozen, shared, .. } = save;
        Ok(Keep {
            of,
            rank,
            group,
            epoch: save.epoch,
            session: save.session.0,
            baseline: save.baseline,
            notes: save.notes.into(),
            has_copies: shared.copies.is_some(),
            has_child: shared.child.is_some(),
            compared: save.compared.clone(),
            catalog: encode_catalog(frozen.regions(), frozen.attachment(), frozen.outputs())?,
            regions: encode_catalog(&save.regions, &[], &[])?,
            runs: encode_runs(frozen.runs(), &shared.runs),
        })
    }
}

/// Returns the descriptors of an image, in the order of [`Message::Keep`].
pub fn descriptors_of(shared: &SharedImage) -> Vec<BorrowedFd<'_>> {
    let copies = shared.copies.iter().map(|file| file.as_fd());
    let child = shared.child.iter();
    let child =
        child.flat_map(|child| [child.memory.as_fd(), child.lifeline.as_fd(), child.pidfd.as_fd()]);
    copies.chain(child).collect()
}

impl Message {
    /// Encodes a message: its length as JSON, the JSON, and then the long parts, each after its
    /// length.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let json = serde_json::to_vec(self).expect("a message has only strings as keys");
        put(&mut bytes, &json);
        if let Message::Keep(keep) = self {
            [&keep.catalog, &keep.regions, &keep.runs]
                .iter()
                .for_each(|part| put(&mut bytes, part));
        }
        bytes
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// `Invalid` for other bytes.
    pub fn decode(mut bytes: &[u8]) -> Result<Message> {
        let json = take(&mut bytes)?;
        let mut message = serde_json::from_slice(json)
            .map_err(|error| Error::invalid(format!("a message to the helper: {error}")))?;
        if let Message::Keep(keep) = &mut message {
            for part in [&mut keep.catalog, &mut keep.regions, &mut keep.runs] {
                *part = take(&mut bytes)?.to_vec();
            }
        }
        Ok(message)
    }
}

fn put(bytes: &mut Vec<u8>, part: &[u8]) {
    bytes.extend((part.len() as u64).to_le_bytes());
    bytes.extend(part);
}

fn take<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8]> {
    let cut = || {
        let (length, rest) = bytes.split_first_chunk::<8>()?;
        rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)
    };
    let (part, rest) = cut().ok_or_else(|| Error::invalid("a message to the helper is cut off"))?;
    *bytes = rest;
    Ok(part)
}

/// Bytes of an encoded run.
const RUN_BYTES: usize = 24;
/// Bit of a run's location that says that it is an address of the child. No address of a program
/// has it.
const IN_CHILD: u64 = 1 << 63;

/// Encodes runs and their locations.
fn encode_runs(runs: &[Run], locations: &[SharedRun]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(runs.len() * RUN_BYTES);
    for (run, location) in runs.iter().zip(locations) {
        bytes.extend(run.stream.to_le_bytes());
        bytes.extend(run.pages.to_le_bytes());
        bytes.extend(run.first_page.to_le_bytes());
        let location = match location {
            SharedRun::Copied(at) => *at,
            SharedRun::Forked(at) => *at | IN_CHILD,
        };
        bytes.extend(location.to_le_bytes());
    }
    bytes
}

/// Decodes runs and their locations.
pub fn decode_runs(bytes: &[u8]) -> Vec<(Run, SharedRun)> {
    let (all, _) = bytes.as_chunks::<RUN_BYTES>();
    let u32_at = |run: &[u8; RUN_BYTES], at: usize| {
        u32::from_le_bytes(run[at..at + 4].try_into().expect("four bytes"))
    };
    let u64_at = |run: &[u8; RUN_BYTES], at: usize| {
        u64::from_le_bytes(run[at..at + 8].try_into().expect("eight bytes"))
    };
    let of = |run: &[u8; RUN_BYTES]| {
        let location = match u64_at(run, 16) {
            at if at & IN_CHILD > 0 => SharedRun::Forked(at ^ IN_CHILD),
            at => SharedRun::Copied(at),
        };
        let (stream, pages, first_page) = (u32_at(run, 0), u32_at(run, 4), u64_at(run, 8));
        (Run { stream, pages, first_page }, location)
    };
    all.iter().map(of).collect()
}

/// Encodes regions as a catalog without trees.
///
/// # Errors
/// `Invalid` for regions that no checkpoint can hold.
fn encode_catalog(regions: &[RegionDesc], attachment: &[u8], outputs: &[u8]) -> Result<Vec<u8>> {
    let of = |desc: &RegionDesc| CatalogRegion { desc: desc.clone(), root: Fingerprint::ZERO };
    Catalog {
        regions: regions.iter().map(of).collect(),
        attachment: attachment.to_vec(),
        outputs: outputs.to_vec(),
    }
    .encode()
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_types::{Distribution, RegionLocation};

    fn region(name: &str) -> RegionDesc {
        RegionDesc {
            name: name.to_owned(),
            dtype: "<f8".to_owned(),
            shape: vec![3],
            bytes: 24,
            location: RegionLocation::Packed { offset: 0 },
            distribution: Distribution::Replicated,
        }
    }

    #[test]
    fn a_message_comes_through_whole_and_a_cut_one_is_refused() {
        let metrics = vec![("a".to_owned(), f64::INFINITY), ("b".to_owned(), -0.0)];
        let tags = vec!["a".to_owned(), "ü".to_owned()];
        let remarks =
            Remarks { pinned: true, mark: Mark::Bad, label: "ü\0".into(), tags, suspect: false };
        let notes = SaveNotes { remarks, metrics };
        let runs = [
            (Run { stream: 0, pages: 1, first_page: 0 }, SharedRun::Copied(0)),
            (Run { stream: u32::MAX, pages: 512, first_page: 1 << 50 }, SharedRun::Copied(1 << 40)),
            (Run { stream: 1, pages: 7, first_page: 9 }, SharedRun::Forked(0x7fff_ffff_f000)),
        ];
        let (only, at): (Vec<Run>, Vec<SharedRun>) = runs.into_iter().unzip();
        let keep = Keep {
            of: JobId { pool_id: "p".into(), location: "/a b".into(), job: "job".into() },
            rank: 3,
            group: Some(RankGroup { ranks: 4, patience_ms: 5 }),
            epoch: u64::MAX,
            session: [7; 12],
            baseline: Some(7),
            notes: Notes::from(&notes),
            has_copies: true,
            has_child: false,
            compared: vec![("step".to_owned(), vec![0, 255])],
            catalog: encode_catalog(&[region("x")], b"tree", b"").unwrap(),
            regions: encode_catalog(&[], b"", b"").unwrap(),
            runs: encode_runs(&only, &at),
        };
        let message = Message::Keep(Box::new(keep.clone()));
        let bytes = message.encode();
        assert_eq!(Message::decode(&bytes).unwrap(), message);
        assert_eq!(SaveNotes::from(&keep.notes), notes);
        assert_eq!(decode_runs(&keep.runs), runs);
        for length in 0..bytes.len() {
            assert!(Message::decode(&bytes[..length]).is_err(), "{length} of {}", bytes.len());
        }
        assert_eq!(Message::decode(&Message::Forget.encode()).unwrap(), Message::Forget);
    }
}
