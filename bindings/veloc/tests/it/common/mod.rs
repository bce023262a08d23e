//! Makes the libraries from the static one that cargo has just built, as `make install` does.

#[path = "../../../../c/tests/it/commands/mod.rs"]
mod commands;

pub use commands::{is_here, text_of};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `bindings/veloc`.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Path of the static library of this build.
pub fn archive() -> PathBuf {
    env::current_exe().unwrap().parent().unwrap().join("libveloc_client.a")
}

/// Makes `libveloc-client.so` in `dir`, with the `VELOC_Init` from a file in `mpi`.
pub fn library(compiler: &str, init: &str, dir: &Path) {
    let mut command = Command::new(root().join("../../scripts/link-shared"));
    command.arg(compiler).arg(dir.join("libveloc-client.so"));
    command.args(["libveloc-client.so", "VELOC_*"]).arg(archive());
    command.arg("-I").arg(root().join("../c/include")).arg(root().join("mpi").join(init));
    text_of(&command.output().unwrap());
}

/// Compiles a program of `tests/it/programs`, linked with `-lveloc-client` alone.
pub fn compile(compiler: &str, flags: &[&str], name: &str, dir: &Path) -> PathBuf {
    let program = dir.join(name.split('.').next().unwrap());
    let mut command = Command::new(compiler);
    command.args(flags).args(["-Wall", "-Wextra", "-Werror", "-g", "-o"]).arg(&program);
    command.arg("-I").arg(root().join("include")).arg(root().join("tests/it/programs").join(name));
    command.arg("-L").arg(dir).arg("-lveloc-client");
    text_of(&command.output().unwrap());
    program
}
