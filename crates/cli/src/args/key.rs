//! Options of `outlive key`.

use super::PoolName;
use clap::{Args as ClapArgs, Subcommand};
use std::path::PathBuf;

/// The subcommands of `key`.
#[derive(Subcommand, Debug)]
pub enum KeyCommand {
    /// Write a new random key to a file that only you may read
    New(KeyNewArgs),
    /// Give an encrypted pool another key; its data stays as it is
    Change(KeyChangeArgs),
}

/// `key new`.
#[derive(ClapArgs, Debug)]
pub struct KeyNewArgs {
    /// File to make; it must not exist
    pub file: PathBuf,
}

/// `key change`.
#[derive(ClapArgs, Debug)]
pub struct KeyChangeArgs {
    /// The pool's directory, or its pool.toml
    pub pool: PoolName,
    /// File with the new key, such as `key new` makes
    pub file: PathBuf,
}
