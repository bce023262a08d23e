use crate::{Environment, FormatConfig, Pool, PoolConfig, TargetConfig, Tuning, create, open};
use outlive_types::ErrorKind;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Opens the pool as a new process.
fn another(pool: &Path) -> Pool {
    open(pool, Environment::system()).unwrap()
}

/// The host restarts once more, before a process has recorded what its memory lost.
#[test]
fn memory_that_is_lost_again_is_not_settled() {
    let (dir, memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
    let (root, location) = (dir.path().join("pool"), memory.path().join("target"));
    let target = TargetConfig::at(location.to_str().unwrap()).in_memory().unwrap();
    let config = PoolConfig::new(FormatConfig::new([7; 16]), Tuning::default());
    let config = PoolConfig { target: vec![target], ..config };
    drop(create(&root, config, Environment::system()).unwrap());
    fs::remove_dir_all(&location).unwrap();
    let anew = another(&root).recreate_lost(Duration::ZERO).unwrap().unwrap();
    another(&root).check_markers().unwrap();
    fs::remove_dir_all(&location).unwrap();
    anew.settle().unwrap();
    let waits = another(&root).check_settled().unwrap_err();
    assert_eq!(waits.kind(), ErrorKind::Retry, "{waits}");
    // The next process begins again, and succeeds since the memory stays.
    let pool = another(&root);
    assert!(pool.wants_recreate().unwrap());
    let anew = pool.recreate_lost(Duration::ZERO).unwrap().unwrap();
    assert_eq!(anew.made().len(), 1, "{anew:?}");
    anew.settle().unwrap();
    pool.check_markers().unwrap();
    pool.check_settled().unwrap();
    assert!(!pool.wants_recreate().unwrap());
}
