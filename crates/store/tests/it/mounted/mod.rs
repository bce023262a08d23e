//! File systems of a test's own. Mounting needs root.
#![allow(dead_code)] // each test file uses its part

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0)
}

/// A small ext4 file system in a file, unmounted at the end.
pub struct Mount {
    dir: tempfile::TempDir,
}

impl Mount {
    pub fn new(mebibytes: u64) -> Option<Mount> {
        if !is_root() {
            eprintln!("not root: nothing is mounted, so this test checks nothing here");
            return None;
        }
        let mount = Mount { dir: tempfile::tempdir().unwrap() };
        let image = mount.dir.path().join("image");
        fs::File::create(&image).unwrap().set_len(mebibytes << 20).unwrap();
        run("mkfs.ext4", &["-q", "-F", image.to_str().unwrap()]);
        fs::create_dir(mount.path()).unwrap();
        run("mount", &["-o", "loop", image.to_str().unwrap(), mount.path().to_str().unwrap()]);
        Some(mount)
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("mounted here")
    }

    pub fn remount(&self, options: &str) {
        run("mount", &["-o", &format!("remount,{options}"), self.path().to_str().unwrap()]);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Failing here must not hide the test's own failure.
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status();
    assert!(status.is_ok_and(|status| status.success()), "{program} {arguments:?} failed");
}
