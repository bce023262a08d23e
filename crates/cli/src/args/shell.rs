//! Options of the commands for shells and manuals: `completions` and `man`.

use clap::Args as ClapArgs;
use clap_complete::Shell;
use std::path::PathBuf;

/// `completions`.
#[derive(ClapArgs, Debug)]
pub struct CompletionsArgs {
    /// Shell that reads the script
    pub shell: Shell,
}

/// `man`.
#[derive(ClapArgs, Debug)]
pub struct ManArgs {
    /// Directory to write the pages to, created if it is missing; files of their names are replaced
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
}
