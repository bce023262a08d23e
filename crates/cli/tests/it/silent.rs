//! A silent target: its marker is a pipe that no process writes to, so opening it hangs, as on a
//! mount whose server is gone.

use crate::common;

use common::{json, outlive};
use std::fs;
use std::path::Path;
use std::process::Command;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_directory_that_hangs_is_done_without() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, from) = (dir.path().join("pool"), dir.path().join("from"));
    fs::create_dir(&from).unwrap();
    fs::write(from.join("data"), "as it was").unwrap();
    let targets = ["--target", "../one", "--target", "../two", "--mirror", "2"];
    let made = outlive(&[&["pool", "init", text(&pool)], &targets[..]].concat());
    assert_eq!(made.code, 0, "{made:?}");
    let put = || outlive(&["put", text(&pool), "job", text(&from)]);
    assert_eq!(put().code, 0);

    let (marker, aside) = (dir.path().join("two/packs/.pool.toml"), dir.path().join("aside"));
    fs::rename(&marker, &aside).unwrap();
    assert!(Command::new("mkfifo").arg(&marker).status().unwrap().success());
    fs::write(from.join("data"), "changed").unwrap();
    let done = put();
    assert_eq!(done.code, 0, "{done:?}");
    let told = |what: &str| done.err.contains(what);
    assert!(
        told("target 2 (") && told("has not answered for ") && told("less redundancy"),
        "{done:?}"
    );
    let status = outlive(&["pool", "status", text(&pool)]);
    assert!(status.code == 0 && status.out.contains("AWAY"), "{status:?}");
    assert!(status.out.contains("has not answered for "), "{status:?}");
    // If full redundancy is required, the put is refused, and the pool is unchanged.
    let descriptor = fs::read_to_string(pool.join("pool.toml")).unwrap();
    let full = descriptor.replace("mirror = 2", "mirror = 2\nwrites = \"full\"");
    assert_ne!(full, descriptor);
    fs::write(pool.join("pool.toml"), full).unwrap();
    fs::write(from.join("data"), "not saved").unwrap();
    let refused = put();
    assert!(refused.code == 6 && refused.err.contains("target 2 ("), "{refused:?}");

    fs::remove_file(&marker).unwrap();
    fs::rename(&aside, &marker).unwrap();
    fs::write(pool.join("pool.toml"), descriptor).unwrap();
    assert_eq!(outlive(&["pool", "repair", text(&pool)]).code, 0);
    let status = json(&["pool", "status", text(&pool), "--json"]);
    assert_eq!(status["redundancy"][1]["survives"].as_u64(), Some(1), "{status}");
    assert_eq!(put().err, "");
}
