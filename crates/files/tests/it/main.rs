//! All integration tests of this crate in one program, since each program takes long to link.

#[path = "../../../store/tests/it/common/mod.rs"]
mod common;
mod edits;
mod edits_crash;
mod files;
mod files_again;
mod files_choice;
mod files_crash;
mod files_epochs;
mod files_faults;
mod files_gc;
mod files_model;
mod files_ranges;
#[path = "../../../store/tests/it/stepped/mod.rs"]
mod stepped;
mod trees;
