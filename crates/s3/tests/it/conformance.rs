//! The conformance suite of targets, media and logs on a real server: directly, and over a bad
//! network.

use crate::support;

use outlive_backend::conformance::{check_files, check_log, check_medium, check_target};
use outlive_backend::{RetryMedium, RetryPolicy, RetryTarget};
use outlive_log::RecordLog;
use outlive_s3::S3Medium;
use outlive_testkit::{Fault, Proxy};
use std::sync::Arc;
use support::{Server, url_at};

#[test]
fn a_bucket_is_a_target() {
    let Some(server) = Server::versitygw() else { return };
    check_target(move || Arc::new(server.pool_url().target().unwrap()));
}

#[test]
fn a_bucket_is_a_medium() {
    let Some(server) = Server::versitygw() else { return };
    check_medium(move || Arc::new(server.pool_url().medium().unwrap()));
}

#[test]
fn a_bucket_keeps_small_files() {
    let Some(server) = Server::versitygw() else { return };
    check_files(move || Arc::new(server.pool_url().files().unwrap()));
}

#[test]
fn a_bucket_keeps_a_log() {
    let Some(server) = Server::versitygw() else { return };
    check_log(false, move || Arc::new(RecordLog::over(server.pool_url().medium().unwrap())));
}

/// Spoils every seventh request, each time in a different way.
fn spoil_some(proxy: &Proxy) {
    let mut count = 0;
    proxy.spoil(move |_, _| {
        count += 1;
        let fault = [
            Fault::LoseReply,
            Fault::LoseRequest,
            Fault::Refuse(503),
            Fault::CutReply(300),
            Fault::Refuse(429),
        ];
        if count % 7 == 0 { fault[count / 7 % fault.len()] } else { Fault::None }
    });
}

#[test]
fn a_bucket_behind_a_bad_network_is_a_target() {
    let Some(server) = Server::versitygw() else { return };
    let proxy = Proxy::before(server.address());
    spoil_some(&proxy);
    check_target(move || {
        let _ = &server;
        let target = Arc::new(url_at(proxy.address()).target().unwrap());
        Arc::new(RetryTarget::new(target, RetryPolicy::default()))
    });
}

#[test]
fn a_bucket_behind_a_bad_network_keeps_a_log() {
    let Some(server) = Server::versitygw() else { return };
    let proxy = Proxy::before(server.address());
    spoil_some(&proxy);
    check_log(false, move || {
        let _ = &server;
        let medium: Arc<S3Medium> = Arc::new(url_at(proxy.address()).medium().unwrap());
        Arc::new(RecordLog::over(RetryMedium::new(medium, RetryPolicy::default())))
    });
}
