use super::*;
use outlive_pool::{Environment, FormatConfig, PoolConfig, Tuning};
use outlive_target::FaultWorld;

/// Something is missing, and the log cannot be read just now: nobody knows whether another has moved it.
#[test]
fn nothing_is_called_damaged_while_nobody_knows_who_is_at_work() {
    let world = FaultWorld::new();
    world.count_reads(true);
    let config = PoolConfig::new(FormatConfig::new([7; 16]), Tuning::default());
    let pool = Pool::new(config, world.target(), world.log(), Environment::system());
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
