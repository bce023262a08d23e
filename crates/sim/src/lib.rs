//! Explores interleavings of programs that share a pool. The store's own code runs over a simulated
//! target and log. Each program has threads of its own; one thread runs at a time. A seed decides
//! which thread goes on at each step and what fails; afterwards everything is checked. A failed
//! schedule is named by its family and seed, and the same name is the same schedule. See
//! docs/design/013-explorer.md.

mod actor;
mod authors;
mod blows;
pub mod case;
mod chance;
mod check;
mod disks;
mod emissions;
mod emitter;
pub mod explore;
mod faulty_view;
mod group;
mod harm;
mod hold;
mod jobs;
mod killed;
mod lazy;
mod leases;
mod one_step;
mod operator;
mod oracle;
mod policy;
mod pools;
mod programs;
mod replicas;
mod roles;
mod scheduler;
mod settle;
mod space;
mod state;
mod table;
mod tiers;
mod whole;
mod wire;
mod world;

pub use case::{Case, Family, Name};
pub use chance::{Chances, Lie};
pub use explore::{ScheduleOutcome, run, run_case};
pub use world::LogKind;
