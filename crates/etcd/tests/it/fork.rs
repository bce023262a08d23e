//! A forked child has its own thread and connections, and does not touch its parent's.

use crate::support;

use outlive_log::{LogRecords, Put};
use outlive_testkit::succeeds_in_a_child;
use support::{Cluster, job};

#[test]
fn parent_and_child_use_one_medium() {
    let cluster = Cluster::of(1);
    let medium = cluster.pool_url().medium().unwrap();
    assert_eq!(medium.put_new(&job(), 1, b"one").unwrap(), Put::Made);
    for number in 2..6 {
        let done = succeeds_in_a_child(|| {
            assert_eq!(medium.list(&job())?.len() as u64, number - 1);
            assert_eq!(medium.put_new(&job(), number - 1, b"other")?, Put::Taken);
            assert_eq!(medium.put_new(&job(), number, b"child")?, Put::Made);
            Ok(())
        });
        assert!(done);
        assert_eq!(medium.get(&job(), number).unwrap().unwrap(), b"child");
        assert_eq!(medium.get(&job(), 1).unwrap().unwrap(), b"one");
    }
}
