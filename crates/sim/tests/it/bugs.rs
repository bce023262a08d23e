//! Checks that the bugs that `scripts/explore-bugs` puts back still fit the sources.

use std::path::Path;
use std::process::Command;

#[test]
fn every_bug_can_still_be_put_back() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let bugs = root.join("crates/sim/bugs");
    let mut count = 0;
    for bug in std::fs::read_dir(&bugs).unwrap() {
        let path = bug.unwrap().path().canonicalize().unwrap();
        let mut git = Command::new("git");
        // A copy of the sources need not be a repository, and must not count as part of one around
        // it.
        let checked = git.args(["apply", "--check", "-p1"]).arg(&path).current_dir(&root);
        let checked = checked.env("GIT_CEILING_DIRECTORIES", root.parent().unwrap()).output();
        let checked = checked.expect("git is there");
        let said = String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success(), "{}: write it again: {said}", path.display());
        let text = std::fs::read_to_string(&path).unwrap();
        for field in ["Bug: ", "Seen as: "] {
            let says =
                text.lines().any(|line| line.strip_prefix(field).is_some_and(|it| !it.is_empty()));
            assert!(says, "{}: add a line '{field}...'", path.display());
        }
        count += 1;
    }
    assert!(count >= 17, "{count} bugs in {}", bugs.display());
}
