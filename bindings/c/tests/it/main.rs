//! All integration tests of this crate, in one program, since each program takes long to link.

mod common;
mod documents;
mod header;
mod languages;
mod mpi;
mod printed;
mod programs;
