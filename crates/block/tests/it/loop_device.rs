//! A loop device over a sparse file. Tests of several crates include this file.

use std::os::unix::fs::MetadataExt;
use std::process::Command;
use tempfile::NamedTempFile;

/// A block device of its own, which ends with this value.
pub struct LoopDevice {
    /// Name of the device, such as "/dev/loop7".
    pub path: String,
    file: NamedTempFile,
}

/// Runs a program, and returns what it prints.
///
/// # Panics
/// If it fails.
pub fn run(words: &[&str]) -> String {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let done = Command::new(words[0]).args(&words[1..]).env("PATH", path).output();
    let done = done.unwrap_or_else(|error| panic!("{words:?}: {error}"));
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{words:?} (loop devices need root): {text}");
    String::from_utf8(done.stdout).expect("text")
}

impl LoopDevice {
    /// Makes a device of this size, which holds zeros.
    pub fn new(bytes: u64) -> LoopDevice {
        let file = NamedTempFile::new().unwrap();
        file.as_file().set_len(bytes).unwrap();
        let backing = file.path().to_str().expect("text").to_owned();
        let path = run(&["losetup", "-f", "--show", &backing]).trim().to_owned();
        LoopDevice { path, file }
    }

    /// Makes the device larger.
    pub fn grow(&self, bytes: u64) {
        self.file.as_file().set_len(bytes).unwrap();
        run(&["losetup", "-c", &self.path]);
    }

    /// Returns the bytes that it takes of the file system below.
    pub fn used_bytes(&self) -> u64 {
        self.file.as_file().sync_all().unwrap();
        self.file.as_file().metadata().unwrap().blocks() * 512
    }

    /// Returns its location, as a user writes it.
    pub fn url(&self) -> String {
        format!("block://{}", self.path)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        run(&["losetup", "-d", &self.path]);
    }
}
