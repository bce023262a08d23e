//! Owner and permissions of new files in a pool: those of the pool's directory, whichever user and
//! umask make the file. An administrator may prune a pool from cron, and the program that saves
//! there must still be able to read the files that the prune wrote.

use rustix::fs::{Gid, Mode, Uid, fchmod, fchown};
use rustix::process::geteuid;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Permissions, without set-id and sticky bits.
const PERMISSIONS: u32 = 0o777;

/// Gives a new file to the owner of `root`, as readable and writable as `root` is. Ignores what the
/// file system forbids.
pub fn adopt_file(root: &Path, file: &File) {
    adopt(root, file, 0o666);
}

/// Does the same for a directory.
pub fn adopt_dir(root: &Path, dir: &Path) {
    if let Ok(dir) = File::open(dir) {
        adopt(root, &dir, PERMISSIONS);
    }
}

fn adopt(root: &Path, made: &File, mask: u32) {
    let (Ok(of), Ok(is)) = (root.metadata(), made.metadata()) else { return };
    let owner = |of: &Metadata| (of.uid(), of.gid());
    // Only the superuser may change the owner.
    if geteuid().is_root() && owner(&of) != owner(&is) {
        let (uid, gid) = (Uid::from_raw(of.uid()), Gid::from_raw(of.gid()));
        let _ = fchown(made, Some(uid), Some(gid));
    }
    let mode = is.mode() & 0o7000 | of.mode() & mask;
    if mode != is.mode() & 0o7777 {
        let _ = fchmod(made, Mode::from_raw_mode(mode));
    }
}
