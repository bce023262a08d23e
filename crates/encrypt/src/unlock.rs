//! The data keys that this process has unwrapped.

use crate::encryption::{Encryption, WrappedKey};
use crate::pool_key::PoolKey;
use outlive_io::PerProcess;
use outlive_types::Result;
use std::sync::{Arc, Weak};

/// By wrapped key and pool id.
type Unlocked = Vec<(WrappedKey, String, Weak<Encryption>)>;

/// The data keys in use, so that a command for the key runs once as long as a pool is open.
static UNLOCKED: PerProcess<Unlocked> =
    PerProcess::new(|parent| parent.cloned().unwrap_or_default());

/// Unwraps the data key of a pool, with the key that the environment names.
///
/// # Errors
/// `Invalid` without a key, or if it is another one.
pub fn unlock(wrapped: &WrappedKey, pool_id: &str) -> Result<Arc<Encryption>> {
    let known = |unlocked: &Unlocked| {
        let is_it = |it: &&(WrappedKey, String, _)| it.0 == *wrapped && it.1 == pool_id;
        unlocked.iter().find(is_it).and_then(|(_, _, known)| known.upgrade())
    };
    if let Some(known) = known(&UNLOCKED.lock()) {
        return Ok(known);
    }
    let key = PoolKey::from_environment().map_err(|error| {
        error.context("the pool is encrypted, and nothing can be read without its key")
    })?;
    let encryption = Arc::new(Encryption::unwrap(wrapped, pool_id, &key)?);
    let mut unlocked = UNLOCKED.lock();
    unlocked.retain(|(_, _, known)| known.strong_count() > 0);
    unlocked.push((wrapped.clone(), pool_id.to_owned(), Arc::downgrade(&encryption)));
    Ok(encryption)
}
