//! Commands of the system, for the tests of both C libraries.

use std::env;
use std::process::{Command, Output};

/// Whether a command is installed; CI has all of them.
pub fn is_here(command: &str) -> bool {
    let is_here = Command::new(command).arg("--version").output().is_ok();
    assert!(is_here || env::var_os("CI").is_none(), "CI needs {command}");
    if !is_here {
        eprintln!("skipped: this machine has no {command}");
    }
    is_here
}

/// Returns the output of a program, which must have ended well.
pub fn text_of(done: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{:?}\n{out}\n{err}", done.status);
    out.into_owned()
}
