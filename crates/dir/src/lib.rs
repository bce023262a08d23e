//! Directories: one as a [`Target`](outlive_backend::Target) for shards, as a
//! [`LogMedium`](outlive_log::LogMedium) for records, and for small files.

pub mod durable;
mod files;
mod location;
mod medium;
pub mod owner;
mod target;

pub use files::DirectoryFiles;
pub use location::{DirectoryLocation, FILE};
pub use medium::{DirectoryLog, DirectoryMedium};
pub use target::{DirectoryOptions, DirectoryTarget};
