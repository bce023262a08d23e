//! Storage for the records of jobs. [`RecordLog`] is the one protocol of appending, above any
//! medium ([`LogMedium`]) that can put a record under a number only if the number is free.
//! [`replicas`] makes one medium of several, and moves a log to others.

mod locks;
mod manifest_log;
mod medium;
mod memory;
mod protocol;
mod record_names;
pub mod replicas;

pub use locks::{Lease, Lock, LockGuard, LogLocks};
pub use manifest_log::{Append, ManifestLog, Previous};
pub use medium::{LogMedium, LogRecords, LogSeal, NUMBER_MAX, Put};
pub use memory::{MemoryLog, MemoryMedium};
pub use protocol::RecordLog;
pub use record_names::{job_folder, record_name, record_number};
pub use replicas::{Asking, Movable, ReplicatedLog};
