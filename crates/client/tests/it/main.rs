//! All tests of this crate that see it from outside: one program, as each takes long to link.

mod group;
#[path = "../../examples/heat.rs"]
mod heat;
mod program;
