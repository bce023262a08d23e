//! Wraps the data key of an encrypted pool with another key.

use crate::Pool;
use crate::descriptor::encryption::{EncryptionConfig, copy_key, newest_key};
use crate::descriptor::paths::COPY;
use crate::host::this_host;
use crate::opening::marker_check::read_descriptor;
use crate::opening::rewrite::{keep_copy, rewrite};
use outlive_backend::SmallFiles;
use outlive_encrypt::PoolKey;
use outlive_types::{Error, Result};

impl Pool {
    /// Gives the pool another key: from now on it is opened with `key` only. No data is written
    /// again. Returns the locations whose copy of the wrapped key could not be replaced, with the
    /// reason; the same call replaces them later.
    ///
    /// The copy beside the descriptor comes first, and from then on the new key counts: each command
    /// that rewrites `pool.toml` takes the newest key that it finds there. So no such command
    /// brings an older one back.
    ///
    /// # Errors
    /// `Invalid` if the pool is not encrypted; `Retry` while another command changes the targets;
    /// errors of the location of `pool.toml`. After an error the old key or the new one opens the
    /// pool.
    pub fn change_key(&self, key: &PoolKey) -> Result<Vec<(String, Error)>> {
        let paths = self.paths().filter(|paths| paths.encryption().is_some());
        let Some((paths, encryption)) = paths.and_then(|it| Some((it, it.encryption()?))) else {
            return Err(Error::invalid(
                "the pool is not encrypted, so it has no key: encryption begins with `outlive pool init \
                 --encrypt`, and `outlive copy` copies checkpoints to another pool",
            ));
        };
        let (table, _alone) = self.changing()?;
        let (root, format) = (&paths.root, &self.config().format);
        let newest = newest_key(root, &format.pool_id, read_descriptor(root)?.encryption)
            .map_or(0, |newest| newest.number);
        let wrapped = encryption.wrap(&format.pool_id, key)?;
        let new = EncryptionConfig::wrapped(newest + 1, &wrapped);
        copy_key(root, &format.pool_id, &new)?;
        rewrite(paths, format, &Ok)?;
        let mut old = Vec::new();
        for row in table.rows()? {
            let location = row.seen_from(root)?;
            let copied = match &row.host {
                Some(host) if row.volatile && *host != this_host() => {
                    Err(Error::retry(format!("it is in the memory of the host {host}")))
                }
                _ => copy_key(&location, &format.pool_id, &new),
            };
            if let Err(error) = copied {
                old.push((location.to_string(), error));
            }
        }
        if root.has(COPY)?
            && let Err(error) = keep_copy(root)
        {
            old.push((root.name(COPY), error));
        }
        Ok(old)
    }
}
