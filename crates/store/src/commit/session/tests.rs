use super::*;
use outlive_backend::FaultWorld;
use outlive_pool::{Environment, FormatConfig, PoolConfig, Tuning};

fn pool(world: &FaultWorld) -> Pool {
    let config = PoolConfig::new(FormatConfig::new([7; 16]), Tuning::default());
    Pool::new(config, world.target(), world.log(), Environment::system())
}

/// A pack is missing, and the log cannot be read now: it is unknown whether another process has
/// moved the pack.
#[test]
fn nothing_is_called_damaged_while_the_log_cannot_be_read() {
    let world = FaultWorld::new();
    world.count_reads(true);
    let pool = pool(&world);
    let job = JobName::new("job").unwrap();
    let mut head = LogHead::new(job.clone());
    head.open(&pool).unwrap();
    let damaged = || Error::damaged("a pack is missing");
    assert_eq!(head.blame(&pool, damaged()).kind(), ErrorKind::Damaged);
    world.fail_when(|_, op| (!op.starts_with("append")).then_some(ErrorKind::Retry));
    assert_eq!(head.blame(&pool, damaged()).kind(), ErrorKind::Retry);
    assert_eq!(head.blame(&pool, Error::bug("another")).kind(), ErrorKind::Bug);
    world.fail_when(|_, _| None);
    LogHead::new(job).open(&pool).unwrap();
    assert_eq!(head.blame(&pool, damaged()).kind(), ErrorKind::Fenced);
}

/// A collector that finds the close record treats the session as ended, even if its writer does not
/// know of that record.
#[test]
fn a_session_is_not_used_again_once_its_end_has_begun() {
    for is_uncertain in [false, true] {
        let world = FaultWorld::new();
        let pool = pool(&world);
        let mut head = LogHead::new(JobName::new("job").unwrap());
        let (session, _) = head.open(&pool).unwrap();
        if is_uncertain {
            // The record is visible, and its writer gets an error.
            world.fail_when(|_, op| op.starts_with("sync").then_some(ErrorKind::Retry));
        }
        assert_eq!(head.end(&pool).is_err(), is_uncertain);
        world.fail_when(|_, _| None);
        let (next, is_new) = head.open(&pool).unwrap();
        assert!(is_new && next != session, "uncertain: {is_uncertain}");
    }
}
