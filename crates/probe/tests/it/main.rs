//! Probes of real targets, throttled ones and failing ones.

mod failures;
#[allow(dead_code)] // other crates use the rest
#[path = "../../../block/tests/it/loop_device.rs"]
mod loop_device;
mod targets;
