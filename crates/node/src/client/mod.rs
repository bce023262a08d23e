//! The client of a node.

mod connection;
mod files;
mod held;
mod lanes;
mod medium;
mod reads;
mod settings;
mod target;
mod writer;

pub(crate) use connection::Node;
pub(crate) use files::NodeFiles;
pub use held::HeldLocks;
pub(crate) use medium::NodeMedium;
pub(crate) use settings::Settings;
pub(crate) use target::NodeTarget;
