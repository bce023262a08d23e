//! Commands that reach a storage node by TLS, with certificates of both sides.

use crate::certificates::certificates;
use crate::common::{Run, command};
use crate::node::{Node, check, text, write_files};
use std::path::Path;
use tempfile::TempDir;

/// Runs a command with the certificate of this name, if any.
fn run(keys: &Path, name: Option<&str>, words: &[&str]) -> Run {
    let mut command = command(words);
    command.env("OUTLIVE_NODE_CA", keys.join("ca.pem"));
    if let Some(name) = name {
        command.env("OUTLIVE_NODE_CERT", keys.join(format!("{name}.pem")));
        command.env("OUTLIVE_NODE_KEY", keys.join(format!("{name}.key")));
    }
    Run::of(&mut command)
}

#[test]
fn commands_reach_a_node_by_their_certificates() {
    let dir = TempDir::new().unwrap();
    let keys = dir.path().join("keys");
    std::fs::create_dir(&keys).unwrap();
    certificates(&keys, &[("node", "2"), ("client", "2"), ("expired", "-1")]);
    let key = |name: &str| keys.join(name).to_str().unwrap().to_owned();
    let mut node = Node::new(dir.path().join("data"));
    let data = dir.path().join("data");
    let (certificate, private, ca) = (key("node.pem"), key("node.key"), key("ca.pem"));
    let tls = ["--tls-cert", &certificate, "--tls-key", &private, "--client-ca", &ca];
    let serve = ["node", "serve", "--data", text(&data), "--listen", "127.0.0.1:0"];
    node.run(&[&serve[..], &tls].concat());
    let pool = format!("nodes://{}/pool", node.listen);
    let files = dir.path().join("files");
    let put = ["put", &pool, "tree", text(&files)];
    let done = |words: &[&str]| {
        let run = run(&keys, Some("client"), words);
        assert_eq!(run.code, 0, "{words:?}: {run:?}");
    };
    done(&["pool", "init", &pool]);
    for seed in 1..3 {
        write_files(&files, seed);
        done(&put);
    }
    done(&["pool", "repair", &pool]);
    done(&["verify", &pool]);
    let back = dir.path().join("back");
    done(&["get", &pool, "tree", "--to", text(&back)]);
    check(&files, &back);
    for name in [None, Some("expired")] {
        let refused = run(&keys, name, &put);
        assert!(matches!(refused.code, 2 | 6), "{refused:?}");
        assert!(refused.err.contains("certificate"), "{}", refused.err);
    }
    let plain = pool.replace("nodes://", "node://");
    let refused = run(&keys, Some("client"), &["ls", &plain]);
    assert!(matches!(refused.code, 2 | 6), "{refused:?}");
    done(&["verify", &pool]);
}
