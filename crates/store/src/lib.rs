//! Checkpoints of one job: `save` makes them, `commit` makes them exist, `restore` gives them back.
//!
//! The layers, from the bottom up: `tree` and `images` are the parts of checkpoints; `commit` is
//! the log; `index` finds the extents; `read` gives verified bytes. On it stand `save`, `restore`,
//! `retention`, `verify`, `gc`, `scrub` and `diff`; on these a program's `job`, and `copy`. Nothing
//! imports from a layer above (`scripts/circles.py` checks it).
//!
//! The store takes a program's memory as an `impl PageSource` and a [`Pool`](outlive_pool::Pool);
//! it knows nothing of kernels, file systems or networks.

pub mod commit;
pub mod copy;
pub mod diff;
mod fill;
pub mod gc;
pub mod group;
pub mod images;
pub mod index;
mod job;
mod paced_lock;
pub mod read;
mod read_at;
mod recreate;
mod redundancy;
mod restore;
pub mod retention;
pub mod save;
pub mod scrub;
pub mod tree;
mod trim;
mod verify;

pub use commit::mark_suspect;
pub use fill::{BackgroundFill, FillOptions, FillReport, FinishFill, fill};
pub use job::{
    Basis, Content, ContentLane, ContentStore, Due, EpochInfo, ImageKeeper, Job, JobHealth,
    JobOptions, KeptSave, OnFailure, PaceMemory, Prepared, Restored, SaveHandle, WeakJob,
    parse_every, seconds_between,
};
pub use read::files::FilesImage;
pub use read::{
    MemoryImage, RangeReader, RankImages, RankRegions, RestorePlan, RestoreSink, RestoreStats,
    Select, Skipped,
};
pub use recreate::{LostCheckpoints, leave_seat, recreate_lost, vacate};
pub use redundancy::{CheckpointRedundancy, RedundancyLook, checkpoint_redundancy};
pub use restore::{LazyEnds, LazyFill, LazySink};
pub use save::{CommitEvent, CommitEvents, CommitWatch, SaveNotes, SavePlan, SaveStats};
pub use trim::{TrimOptions, TrimReport, Uses, repair, trim};
pub use verify::{Finding, Sample, VerifyReport, is_damage, named_packs, without_collected};
