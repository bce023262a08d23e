//! The storage node: serves locations of its machine as a backend over gRPC. The crate `node` has
//! the protocol and the client.

mod accept;
mod admission;
mod answer;
mod buffers;
mod data;
mod fair;
mod figures;
mod guard;
mod identity;
#[doc(hidden)]
pub mod in_process;
mod log;
mod options;
mod refusals;
mod serve;
mod service;
mod sessions;
mod spread;
mod stage;
mod writers;

pub use log::TakeLine;
pub use options::{NodeOptions, NodeTls, check_exposure};
pub use serve::{NodeServer, Stop};
