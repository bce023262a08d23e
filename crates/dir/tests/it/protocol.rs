//! The protocol of appending, when the power is cut.

use outlive_backend::{CutMode, FaultWorld};
use outlive_log::{Append, ManifestLog, Previous};
use outlive_types::{JobName, Result};

fn job() -> JobName {
    JobName::new("x").unwrap()
}

/// Returns record `number` as it is in the log now.
fn there(log: &dyn ManifestLog, number: u64) -> Previous {
    log.read(&job(), number)
        .map_or(Previous { number, ..Previous::NONE }, |record| Previous::of(number, &record))
}

/// Appends behind record `previous` as it is in the log now.
fn append(log: &dyn ManifestLog, previous: u64, record: &[u8]) -> Result<Append> {
    log.append_if(&job(), there(log, previous), record)
}

/// Power is cut at every step of a removal. The newest records stay, old ones may come back in any
/// order, and appends go on only behind the newest.
#[test]
fn a_removal_that_is_cut_off_gives_no_number_away() {
    let world = |cut: Option<(u64, CutMode)>| {
        let world = FaultWorld::new();
        let log = world.log();
        for previous in 0..8 {
            append(&*log, previous, b"r").unwrap();
        }
        if let Some((number, mode)) = cut {
            world.cut_at(number, mode);
        }
        let _ = log.remove_before(&job(), 7);
        world
    };
    let calm = world(None);
    let first = 2 * 8;
    assert_eq!(calm.log().numbers(&job()).unwrap(), [7, 8]);
    let mut gaps = 0;
    for number in first..calm.ops() {
        for mode in CutMode::ALL {
            let world = world(Some((number, mode)));
            let context = format!("{mode:?} at {:?}", world.op_name(number));
            let (_, log) = world.reboot();
            let numbers = log.numbers(&job()).unwrap();
            assert!(numbers.ends_with(&[7, 8]), "{context}: {numbers:?}");
            gaps += u32::from(numbers.windows(2).any(|two| two[0] + 1 < two[1]));
            for previous in 0..8 {
                let meant = Previous::of(previous, b"r");
                let meant = if previous == 0 { Previous::NONE } else { meant };
                let appended = log.append_if(&job(), meant, b"late").unwrap();
                assert_eq!(appended, Append::Lost, "{context}: behind {previous}");
            }
            assert_eq!(append(&*log, 8, b"next").unwrap(), Append::Done, "{context}");
            log.remove_before(&job(), 8).unwrap();
            assert_eq!(log.numbers(&job()).unwrap(), [8, 9], "{context}");
        }
    }
    assert!(gaps > 0, "names vanish in any order");
}
