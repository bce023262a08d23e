//! VELOC's names, for programs that were written for VELOC: `libveloc-client.so`, on top of a
//! client. A binary runs unchanged with it (docs/veloc.md).
//!
//! `config` reads VELOC's configuration; `session` holds the state between an init and a finalize;
//! `files` handles the files that a program writes itself; `exports` has the C functions.

mod config;
mod exports;
mod files;
mod session;
mod versions;
