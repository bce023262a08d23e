//! Measures commits of groups of 64 to 4,096 ranks (docs/groups.md). The largest take some minutes.
//!
//!     cargo bench -p outlive-store --bench group_scale -- 64 256 1024

#[path = "../tests/it/common/mod.rs"]
mod common;
#[path = "../tests/it/many_ranks/mod.rs"]
mod many_ranks;

use many_ranks::{Measured, measure};

fn main() {
    // Cargo adds an argument of its own.
    let asked: Vec<u32> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let all = if asked.is_empty() { vec![64, 256, 1024, 4096] } else { asked };
    for ranks in all {
        for Measured { took, lists } in measure(ranks, 3) {
            println!(
                "{ranks} ranks: {:.3} s from the freeze to the commit, {} listings by rank 0, {} by the others",
                took.as_secs_f64(),
                lists[1],
                lists[0]
            );
        }
    }
}
