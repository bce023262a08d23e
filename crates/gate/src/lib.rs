//! The output gate: holds what a program sends to the outside until the checkpoint that covers it is
//! committed. A program that is rolled back repeats its outputs; without a gate, the world sees
//! them twice. This is the output commit problem (Strom and Yemini, "Optimistic Recovery in
//! Distributed Systems", 1985; for disks: Lewis and Su, "The Impact of Disk I/O on Multiprocessor
//! Checkpoint/Recovery", 2002).
//!
//! The protocol has one rule. **Each checkpoint lists every output that is not released for certain.
//! Once it is committed, or restored, everything that it lists is released, in the order of each
//! sink.** So an output that was released in the last moment before a crash may be released again.
//! Sinks make that harmless: a file is written at the same offset, and a receiver ignores a key that
//! it knows.

mod confirmed;
mod file;
mod gate;
mod ledger;
mod publish;
mod release;
mod sink;
mod state;
mod thread;

pub use confirmed::Confirmations;
pub use file::FileMode;
pub use gate::{Gate, GateOptions, GateReport, SinkReport, WeakGate, position_in};
pub use ledger::Ledger;
pub use sink::{Answer, OutputKey, Sink};
