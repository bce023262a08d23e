//! Which host this is, and which directories are in its memory.

use outlive_types::{Error, Result};
use rustix::fs::statfs;
use std::path::Path;

/// Names this host, where its own name does not tell it from others.
const VARIABLE: &str = "OUTLIVE_HOST";

/// Types of file systems that are in memory: tmpfs and ramfs.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// The name of this host, which it has after a restart as well.
pub(crate) fn this_host() -> String {
    let given = std::env::var(VARIABLE).ok().filter(|name| !name.is_empty());
    given.unwrap_or_else(|| {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        name.trim().to_owned()
    })
}

/// The same for a target that is to belong to it.
///
/// # Errors
/// `Invalid` for names that many hosts have.
pub(crate) fn this_host_or_refuse() -> Result<String> {
    let host = this_host();
    match ["", "(none)", "localhost", "localhost.localdomain"].contains(&host.as_str()) {
        false => Ok(host),
        true => Err(Error::invalid(format!(
            "this host is called {host:?}, as others may be, and a target in memory belongs to one host: set \
             {VARIABLE} to a name of its own, here and for every program that uses the pool"
        ))),
    }
}

/// Whether what is put into a directory, which need not be there yet, is in memory.
pub(crate) fn is_in_memory(dir: &Path) -> bool {
    let there = dir.ancestors().find(|above| above.exists());
    let stat = there.and_then(|there| statfs(there).ok());
    stat.is_some_and(|stat| IN_MEMORY.contains(&(stat.f_type.cast_unsigned() & 0xFFFF_FFFF)))
}
