//! Restoring: manifest -> locator -> page trees -> a plan in container order -> verified bytes.

mod checkpoint;
mod find;
mod lazy;
mod plan;
pub mod planner;
mod read;
mod walk;

pub use checkpoint::{Checkpoint, Stream};
pub(crate) use checkpoint::{check_packed, read_catalog, read_stream, stream_words};
pub(crate) use find::while_moving;
pub use find::{Kind, Select, Skipped, first_good, first_manifest, first_of_rank, is_of_files};
pub use lazy::{LazyEnds, LazyFill, LazySink};
pub(crate) use lazy::{Runner, View, refuse_suspect};
pub use plan::{RestorePlan, RestoreSink, RestoreStats};
pub use read::{ReadFault, ReadPlan, Wanted};
pub(crate) use walk::{
    Live, Lost, Needs, Once, Subtree, read_inner, read_leaf_nodes, read_leaves, walk_live,
};
