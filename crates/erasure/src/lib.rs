//! Erasure codes: m parity fragments are computed from k data fragments of the same length. Any k
//! of the k + m rebuild all others. Pure: no I/O, and no memory of its own except small tables.
//!
//! A systematic Reed-Solomon code over GF(2^8) (Reed & Solomon, 1960) with a Cauchy matrix (Blömer
//! et al., 1995). The matrix is normalised: the first parity fragment is the exclusive or of the
//! data, and all parity of a single data fragment is a copy of it. The bytes are defined in
//! docs/format.md, section 3; docs/design/017-erasure.md says why no library's code is used. This
//! crate may use `unsafe` (in `simd`).

mod code;
mod field;
mod kernel;
mod matrix;
mod simd;
mod tables;

pub use code::{Code, FRAGMENTS_MAX};
#[doc(hidden)]
pub use kernel::Kernel;
