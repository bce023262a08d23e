//! Signed and unsigned bodies: in both cases the server refuses a body that was changed on its way.

use crate::support;

use outlive_backend::Target;
use outlive_backend::conformance::check_target;
use outlive_s3::S3Url;
use outlive_testkit::{Fault, Proxy};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::{ACCESS, BUCKET, SECRET, Server, content, get, name, put};
use tempfile::TempDir;

const PART: usize = 8 << 20;

/// Returns a location on the server at `url`, for a profile with signed or unsigned bodies.
fn pool_url(url: &str, prefix: usize, signed: bool) -> (S3Url, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config");
    fs::write(&config, format!("[default]\ns3 =\n  payload_signing_enabled = {signed}\n")).unwrap();
    let pool_url = S3Url::parse(&format!("s3://{BUCKET}/p{prefix}")).unwrap().with_variables([
        ("AWS_ENDPOINT_URL", url),
        ("AWS_ACCESS_KEY_ID", ACCESS),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_CONFIG_FILE", config.to_str().unwrap()),
    ]);
    (pool_url, dir)
}

#[test]
fn a_bucket_is_a_target_without_signed_bodies() {
    let Some(server) = Server::versitygw() else { return };
    let next = AtomicUsize::new(0);
    check_target(move || {
        let (pool_url, _dir) = pool_url(&server.url(), next.fetch_add(1, Ordering::Relaxed), false);
        Arc::new(pool_url.target().unwrap())
    });
}

#[test]
fn a_body_that_was_changed_on_its_way_is_refused() {
    let Some(server) = Server::versitygw() else { return };
    let proxy = Proxy::before(server.address());
    for (prefix, signed, told) in [(1, true, "ContentSHA256Mismatch"), (2, false, "BadDigest")] {
        let (pool_url, _dir) = pool_url(&format!("http://{}", proxy.address()), prefix, signed);
        let target = pool_url.target().unwrap();
        for (pack, length, part) in [(1, PART / 2, false), (2, 3 * PART, true)] {
            let bytes = content(1, length);
            let spoiled = proxy.spoil_once(Fault::FlipBit, move |method, target| {
                method == "PUT"
                    && !target.contains(".part/")
                    && target.contains("partNumber") == part
            });
            let error = put(&target, name(pack), &bytes).unwrap_err();
            assert!(*spoiled.lock());
            assert!(error.message().contains(told), "signed: {signed}: {error}");
            assert_eq!(target.list().unwrap(), []);
            put(&target, name(pack), &bytes).unwrap();
            assert!(get(&target, name(pack), 0, length).unwrap() == bytes);
            target.delete(name(pack)).unwrap();
        }
    }
}
