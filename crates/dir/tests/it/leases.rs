//! Leases of a log whose replicas are directories.

use outlive_dir::DirectoryMedium;
use outlive_log::{Asking, LogLocks, LogMedium, MemoryMedium, ReplicatedLog};
use std::sync::Arc;
use tempfile::{TempDir, tempdir};

/// A lease that one replica lost, or never had, holds: the replicas that have it outvote the
/// others.
#[test]
fn a_lease_ends_by_a_majority_that_no_replica_contradicts() {
    for asking in [Asking::InTurn, Asking::AtOnce] {
        let dirs: Vec<_> = (0..3).map(|_| tempdir().unwrap()).collect();
        let replica =
            |dir: &TempDir| -> Arc<dyn LogMedium> { Arc::new(DirectoryMedium::open(dir.path())) };
        let media: Vec<_> = dirs.iter().map(replica).collect();
        let log = ReplicatedLog::new(media.clone(), asking).unwrap();
        let has_ended = |token: &str| log.has_lease_ended(token).unwrap();
        let first = log.lease().unwrap().unwrap();
        let second = log.lease().unwrap().unwrap();
        assert_eq!(has_ended(&first.token), Some(false));
        let (old, held) = (first.token.clone(), second.token.clone());
        drop(first);
        assert_eq!((has_ended(&old), has_ended(&held)), (Some(true), Some(false)));
        let (old, held): (Vec<_>, Vec<_>) = (old.split(';').collect(), held.split(';').collect());
        for (parts, wanted) in [
            ([old[0], old[1], held[2]], Some(false)),
            ([old[0], old[1], ""], Some(true)),
            ([old[0], "", ""], None),
            ([held[0], "", ""], Some(false)),
            ([old[1], old[0], old[2]], None),
            (["", "", ""], None),
        ] {
            assert_eq!(has_ended(&parts.join(";")), wanted, "{parts:?}");
        }
        assert_eq!(has_ended(&old[..2].join(";")), None);

        let memory = || -> Arc<dyn LogMedium> { Arc::new(MemoryMedium::default()) };
        let most = vec![media[0].clone(), memory(), media[2].clone()];
        let lease = ReplicatedLog::new(most, asking).unwrap().lease().unwrap().unwrap();
        assert!(lease.token.contains(";;"), "{lease:?}");
        let few = vec![media[0].clone(), memory(), memory()];
        assert!(ReplicatedLog::new(few, asking).unwrap().lease().unwrap().is_none());
    }
}
