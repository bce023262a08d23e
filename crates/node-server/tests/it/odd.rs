//! Requests that no client of ours sends, from seeds.

use crate::requests::run;
use outlive_node_server::in_process::runtime;
use outlive_types::{Rng, SeededRng};

/// Number of sequences.
const SEQUENCES: u64 = 400;

#[test]
fn odd_requests_break_nothing() {
    let runtime = runtime().unwrap();
    for seed in 0..SEQUENCES {
        let rng = SeededRng::new(seed);
        let mut bytes = vec![0; 32 + rng.below(1500) as usize];
        rng.fill(&mut bytes);
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&runtime, &bytes)));
        assert!(ran.is_ok(), "seed {seed}");
    }
}
