//! Users with passwords and roles, and certificates.

use crate::support;
use outlive_backend::BackendLocation;

use outlive_log::{LogRecords, Put};
use outlive_types::ErrorKind;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use support::{Cluster, Tls, encode, job, named_url, post, url_with};

/// Makes the cluster require users: "root", and "me", who may use keys below "ckpt/".
fn introduce_users(cluster: &Cluster) {
    let to = |path: &str, body: &str| post(cluster.address(), path, body);
    for name in ["root", "me"] {
        to("auth/user/add", &format!(r#"{{"name":"{name}","password":"{name}:secret"}}"#));
        to("auth/role/add", &format!(r#"{{"name":"{name}"}}"#));
        to("auth/user/grant", &format!(r#"{{"user":"{name}","role":"{name}"}}"#));
    }
    let (key, end) = (encode("ckpt/"), encode("ckpt0"));
    let range = format!(r#"{{"permType":"READWRITE","key":"{key}","range_end":"{end}"}}"#);
    to("auth/role/grant", &format!(r#"{{"name":"me","perm":{range}}}"#));
    to("auth/enable", "{}");
}

#[test]
fn users_are_known_by_their_passwords() {
    let mut cluster = Cluster::of(1);
    let addresses = cluster.addresses();
    let me = url_with(&addresses, "ckpt", &[("ETCDCTL_USER", "me:me:secret")]);
    // A user that is given but not required does no harm.
    let medium = me.medium().unwrap();
    assert_eq!(medium.put_new(&job(), 1, b"one").unwrap(), Put::Made);
    introduce_users(&cluster);
    assert_eq!(medium.put_new(&job(), 2, b"two").unwrap(), Put::Made, "a token is asked for now");
    me.check().unwrap();
    let apart = [("ETCDCTL_USER", "me"), ("ETCDCTL_PASSWORD", "me:secret")];
    url_with(&addresses, "ckpt/x", &apart).check().unwrap();
    for (prefix, user, told) in [
        ("ckpt", "me:wrong", "correct the user and the password (ETCDCTL_USER"),
        ("ckpt", "nobody:secret", "correct the user and the password (ETCDCTL_USER"),
        ("ckpt", "", "set ETCDCTL_USER"),
        ("other", "me:me:secret", "needs a role"),
    ] {
        let pool_url = url_with(&addresses, prefix, &[("ETCDCTL_USER", user)]);
        let medium = pool_url.medium().unwrap();
        for outcome in [
            pool_url.check(),
            medium.jobs().map(drop),
            medium.list(&job()).map(drop),
            medium.get(&job(), 1).map(drop),
            medium.put_new(&job(), 3, b"three").map(drop),
            medium.delete(&job(), 1),
        ] {
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.message().contains(told), "{error}");
            assert!(!error.message().contains("secret"), "{error}");
        }
    }
    // A restarted server knows none of the tokens that it has given.
    cluster.stop(0);
    cluster.start(&[0]);
    assert_eq!(medium.put_new(&job(), 3, b"three").unwrap(), Put::Made);
    assert_eq!(medium.list(&job()).unwrap(), [1, 2, 3]);
}

fn openssl(dir: &Path, arguments: &[&str]) {
    let mut command = Command::new("openssl");
    let done = command.args(arguments).current_dir(dir).stderr(Stdio::null());
    assert!(
        done.status().is_ok_and(|status| status.success()),
        "openssl {arguments:?}: run `make setup` if it is missing"
    );
}

/// Makes an authority in `dir`, and a certificate that it has signed for this machine.
fn make_certificates(dir: &Path) -> Tls {
    let new = ["req", "-newkey", "rsa:2048", "-nodes", "-subj"];
    openssl(
        dir,
        &[
            &new[..],
            &["/CN=authority", "-x509", "-days", "2", "-keyout", "ca.key", "-out", "ca.pem"],
        ]
        .concat(),
    );
    openssl(dir, &[&new[..], &["/CN=me", "-keyout", "key.pem", "-out", "me.csr"]].concat());
    fs::write(dir.join("names"), "subjectAltName=DNS:localhost,IP:127.0.0.1\n").unwrap();
    openssl(
        dir,
        &[
            "x509",
            "-req",
            "-in",
            "me.csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            "names",
            "-out",
            "cert.pem",
        ],
    );
    Tls { roots: dir.join("ca.pem"), cert: dir.join("cert.pem"), key: dir.join("key.pem") }
}

#[test]
fn certificates_are_checked_on_both_sides() {
    let dir = tempfile::tempdir().unwrap();
    let tls = make_certificates(dir.path());
    let cluster = Cluster::with(1, &[], Some(tls.clone()));
    let pool_url = tls.pool_url(cluster.address());
    assert!(pool_url.to_string().starts_with("etcds://"));
    let medium = pool_url.medium().unwrap();
    assert_eq!(medium.put_new(&job(), 1, b"one").unwrap(), Put::Made);
    assert_eq!(medium.get(&job(), 1).unwrap().unwrap(), b"one");
    let (roots, key) = (tls.roots.to_str().unwrap(), tls.key.to_str().unwrap());
    for (scheme, variables, told) in [
        // The system does not know the authority.
        ("etcds", &[][..], "ETCDCTL_CACERT"),
        // The server requires a client certificate.
        ("etcds", &[("ETCDCTL_CACERT", roots)], "ETCDCTL_CERT"),
        ("etcds", &[("ETCDCTL_CACERT", key)], "ETCDCTL_CACERT"),
        ("etcd", &[], "etcds://"),
    ] {
        let pool_url = named_url(scheme, &cluster.addresses(), "ckpt", variables);
        let error = pool_url.check().unwrap_err();
        // A cut connection may also be the network's fault.
        let kind = if scheme == "etcd" { ErrorKind::Retry } else { ErrorKind::Invalid };
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(told), "{error}");
    }
}
