//! Fuzzes a storage node: its decoder, and its state machine. The bytes choose requests, whose replies
//! are compared with a model (`crates/node-server/tests/it/requests.rs`).
#![no_main]

#[path = "../../crates/node-server/tests/it/requests.rs"]
mod requests;

use libfuzzer_sys::fuzz_target;
use outlive_node_server::in_process::runtime;
use std::sync::{Arc, LazyLock};
use tokio::runtime::Runtime;

static RUNTIME: LazyLock<Arc<Runtime>> =
    LazyLock::new(|| runtime().expect("the system gives threads"));

/// Writes a seed that reaches all methods, and ends.
fn write_seeds() {
    let Some(directory) = std::env::var_os("OUTLIVE_SEEDS") else { return };
    let every: Vec<u8> = (0..=255).cycle().take(4096).collect();
    let path = std::path::Path::new(&directory).join("seed-0");
    let code = i32::from(std::fs::write(path, every).is_err());
    std::process::exit(code);
}

fuzz_target!(init: write_seeds(), |data: &[u8]| {
    requests::run(&RUNTIME, data);
});
