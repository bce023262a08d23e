//! Erasure codes: from k data fragments of one length, m parity fragments of that length are made, and any
//! k of the k + m give back all others. Pure: no I/O, no memory of its own but small tables.
//!
//! A systematic Reed-Solomon code over GF(2^8) (Reed & Solomon, 1960) with a Cauchy matrix (Blömer et al.,
//! 1995), normalised so that the first parity fragment is the exclusive or of the data, and all parity of
//! one data fragment is a copy of it. The bytes are defined in docs/format.md, section 3; why this code and
//! no library's, in docs/design/017-erasure.md. One of the rooms where `unsafe` is allowed (`simd`).

mod code;
mod field;
mod kernel;
mod matrix;
mod simd;
mod tables;

pub use code::{Code, FRAGMENTS_MAX};
#[doc(hidden)]
pub use kernel::Kernel;
