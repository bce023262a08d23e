//! Checks that a marker belongs to this pool.

use crate::descriptor::config::FormatConfig;
use crate::descriptor::marker::Marker;
use crate::descriptor::paths::PoolPaths;
use outlive_types::{Error, Result};

/// Decodes the text of a marker or a descriptor.
pub(crate) fn text(bytes: Vec<u8>, name: &str) -> Result<String> {
    String::from_utf8(bytes).map_err(|_| Error::invalid(format!("{name} is not text")))
}

/// Compares a descriptor's `[format]` with that of the marker `name` of the pool's `what`.
pub(crate) fn compare(
    paths: &PoolPaths,
    format: &FormatConfig,
    name: &str,
    marker: &Marker,
    what: &str,
) -> Result<()> {
    let made = &marker.format;
    if made == format {
        return Ok(());
    }
    let named = |config: &FormatConfig| {
        let FormatConfig { pool_id, container_bytes, pack_bytes, chunk_bytes_max, .. } = config;
        format!(
            "pool_id {pool_id}, container_bytes {container_bytes}, pack_bytes {pack_bytes}, \
             chunk_bytes_max {chunk_bytes_max}"
        )
    };
    Err(Error::invalid(format!(
        "{} does not belong to the pool's {what}: its [format] says {}, that of {name} says {}; put it \
         right",
        paths.descriptor(),
        named(format),
        named(made)
    )))
}
