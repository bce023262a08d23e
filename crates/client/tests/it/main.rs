//! All tests of this crate from outside, in one program, since each program takes long to link.

mod events;
mod group;
#[path = "../../examples/heat.rs"]
mod heat;
mod program;
