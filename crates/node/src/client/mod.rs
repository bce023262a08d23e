//! The client of a node.

mod connection;
mod files;
mod medium;
mod reads;
mod settings;
mod target;
mod writer;

pub(crate) use connection::Node;
pub(crate) use files::NodeFiles;
pub(crate) use medium::NodeMedium;
pub(crate) use settings::Settings;
pub(crate) use target::NodeTarget;
