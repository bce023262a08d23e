//! Encryption at rest. [`EncryptedTarget`] and [`EncryptedMedium`] stand between the pool and its
//! backends: whatever passes them is encrypted and authenticated (AES-256-GCM), so that backends
//! see ciphertext only. `docs/encryption.md` says what that hides and what it does not.
//!
//! A pool has one random **data key** for all of its bytes. The descriptor holds it *wrapped*:
//! encrypted with the **pool key**, which the user has ([`PoolKey`]). So a new pool key costs one
//! write of the descriptor, and no data.

mod encryption;
mod medium;
mod pool_key;
mod secret;
mod tags;
mod target;
mod unlock;
mod writer;

#[cfg(test)]
mod tests;

pub use encryption::{CIPHER, Encryption, WrappedKey};
pub use medium::EncryptedMedium;
pub use pool_key::{KEY_COMMAND, KEY_FILE, KEY_VARIABLE, PoolKey};
pub use target::EncryptedTarget;
pub use unlock::unlock;
