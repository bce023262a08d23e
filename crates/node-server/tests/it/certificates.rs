//! Certificates, as openssl makes them.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Runs openssl in a directory.
fn openssl(dir: &Path, arguments: &[&str]) {
    let made = Command::new("openssl").args(arguments).current_dir(dir).output().unwrap();
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "openssl {arguments:?}: {said}");
}

/// Makes an authority and certificates that it signs, valid for a number of days each.
pub fn certificates(dir: &Path, names: &[(&str, &str)]) {
    let new = ["req", "-newkey", "rsa:2048", "-nodes", "-subj"];
    let authority = ["/CN=authority", "-x509", "-days", "9", "-keyout", "ca.key", "-out", "ca.pem"];
    openssl(dir, &[&new[..], &authority[..]].concat());
    fs::write(dir.join("names"), "subjectAltName=DNS:localhost,IP:127.0.0.1").unwrap();
    for (name, days) in names {
        let (key, request, pem) =
            (format!("{name}.key"), format!("{name}.csr"), format!("{name}.pem"));
        openssl(dir, &[&new[..], &["/CN=localhost", "-keyout", &key, "-out", &request]].concat());
        let sign = ["x509", "-req", "-CA", "ca.pem", "-CAkey", "ca.key", "-extfile", "names"];
        openssl(dir, &[&sign[..], &["-days", days, "-in", &request, "-out", &pem]].concat());
    }
}
