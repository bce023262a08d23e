//! Cost of a commit for groups of many ranks.

use crate::many_ranks;

use many_ranks::{Measured, measure};

/// All ranks look for the message of rank 0. When each looked as often as it liked, 1,024 ranks
/// listed the log 280,000 times a save.
#[test]
fn many_ranks_together_look_no_more_often_than_few() {
    const RANKS: u32 = 128;
    for Measured { took, lists } in measure(RANKS, 3) {
        let most = 15_000.0 * took.as_secs_f64() + 2.0 * f64::from(RANKS);
        assert!((lists[0] as f64) < most, "{} in {took:?}", lists[0]);
    }
}
