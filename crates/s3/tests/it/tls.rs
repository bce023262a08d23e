//! A server over https, with a certificate that is trusted or not.

use crate::support;
use outlive_backend::BackendLocation;

use outlive_types::ErrorKind;
use std::env;
use std::path::Path;
use std::process::{Command, Stdio};
use support::{PAGE, Server, content, get, location_at_url, name, put};

/// Makes a certificate for this machine with the openssl command.
fn make_certificate(dir: &Path) -> bool {
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
        ])
        .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(dir.join("key.pem"))
        .arg("-out")
        .arg(dir.join("cert.pem"))
        .stderr(Stdio::null())
        .status();
    made.is_ok_and(|status| status.success())
}

/// For a second process, since the trusted certificates are read from the environment.
const URL: &str = "OUTLIVE_TEST_URL";

#[test]
fn a_server_is_trusted_if_its_certificate_is() {
    if let Ok(url) = env::var(URL) {
        return puts_and_gets(&url);
    }
    let dir = tempfile::tempdir().unwrap();
    if !make_certificate(dir.path()) {
        eprintln!("SKIPPED, as the openssl command cannot make a certificate");
        return;
    }
    let Some(server) = Server::with_tls(dir.path()) else { return };
    let url = format!("https://localhost:{}", server.address().port());
    let error = location_at_url(&url).check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.message().contains("SSL_CERT_FILE"), "{error}");
    let program = env::current_exe().unwrap();
    let tried = Command::new(program)
        .args(["--exact", "tls::a_server_is_trusted_if_its_certificate_is", "--nocapture"])
        .env("SSL_CERT_FILE", dir.path().join("cert.pem"))
        .env(URL, &url)
        .output()
        .unwrap();
    let told = [tried.stdout, tried.stderr].concat();
    assert!(tried.status.success(), "{}", String::from_utf8_lossy(&told));
    let told = String::from_utf8_lossy(&told);
    assert!(told.contains("1 passed") && told.contains(TRUSTED), "{told}");
}

/// Output of the second process, as a proof that it came this far.
const TRUSTED: &str = "the server was trusted";

fn puts_and_gets(url: &str) {
    let pool_url = location_at_url(url);
    pool_url.check().unwrap();
    let target = pool_url.target().unwrap();
    let bytes = content(1, (8 << 20) + PAGE);
    put(&target, name(1), &bytes).unwrap();
    assert!(get(&target, name(1), 0, bytes.len()).unwrap() == bytes);
    println!("{TRUSTED}");
}
