//! The probe refuses some servers as a log; they may still keep shards.

use crate::support;

use outlive_backend::conformance::check_target;
use outlive_types::ErrorKind;
use std::sync::Arc;
use support::{BUCKET, Server, content, get, name, put};

#[test]
fn a_sound_server_may_keep_a_log() {
    let Some(server) = Server::versitygw() else { return };
    let pool_url = server.pool_url();
    pool_url.medium().unwrap().check_conditional_put().unwrap();
    let left = std::fs::read_dir(server.bucket_dir()).unwrap().flatten();
    let left = left.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
    assert_eq!(left.count(), 0, "the probe removes what it has put");
}

#[test]
fn a_server_with_a_broken_conditional_put_keeps_shards_but_no_log() {
    let Some(server) = Server::s3s_fs() else { return };
    let error = server.pool_url().medium().unwrap().check_conditional_put().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    for part in ["probing s3://", BUCKET, "If-None-Match", "keep the log elsewhere", "Packs"] {
        assert!(error.message().contains(part), "{error}");
    }
    let target = server.pool_url().target().unwrap();
    let bytes = content(1, 20 << 20);
    put(&target, name(1), &bytes).unwrap();
    assert!(get(&target, name(1), 0, bytes.len()).unwrap() == bytes, "a shard of several parts");
    check_target(move || Arc::new(server.pool_url().target().unwrap()));
}
