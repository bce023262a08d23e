//! The headers of safetensors files, and the index of a model in several files: encodes and decodes
//! them. Pure, fuzzed.
//!
//! ```text
//! length of the header u64, little-endian | header: JSON | bytes of the tensors
//! ```
//!
//! The format is that of https://huggingface.co/docs/safetensors.

mod dtype;
mod header;
mod index;

pub use dtype::Dtype;
pub use header::{Header, METADATA, TensorInfo};
pub use index::Index;

/// Bytes before a header.
pub const LENGTH_BYTES: u64 = 8;
/// Longest header and longest index, in bytes.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;
