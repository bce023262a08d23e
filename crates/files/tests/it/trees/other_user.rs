//! Runs a test once more as a user without rights.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Id of the other user, and of its group.
pub const OTHER: u32 = 65534;
/// Variable with the test's directory, for the test program that runs as the other user.
const DIR: &str = "OUTLIVE_TEST_OTHER_USER";

/// Returns the test's directory in the test program that runs as the other user.
pub fn dir_as_other_user() -> Option<PathBuf> {
    std::env::var_os(DIR).map(PathBuf::from)
}

/// Sets the mode of `path`.
pub fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Creates `dir`, which belongs to the other user.
pub fn dir_of_other_user(dir: &Path) {
    fs::create_dir(dir).unwrap();
    chown(dir, Some(OTHER), Some(OTHER)).unwrap();
}

/// Runs `test` again as the other user, over `dir`: the pool in it is readable, and `theirs`
/// writable.
pub fn run_as_other_user(test: &str, dir: &Path) {
    set_mode(dir, 0o755);
    let chmod = Command::new("chmod").args(["-R", "a+rX"]).arg(dir.join("pool")).status().unwrap();
    assert!(chmod.success());
    // The test program may be in a directory that other users cannot enter.
    let program = dir.join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    set_mode(&program, 0o755);
    let status = Command::new(&program)
        .args(["--exact", test])
        .env(DIR, dir)
        .env("TMPDIR", dir.join("theirs"))
        .current_dir("/")
        .uid(OTHER)
        .gid(OTHER)
        .status()
        .unwrap();
    assert!(status.success());
}
