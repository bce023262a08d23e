//! The start of a helper: a process that no signal to its program reaches.
#![allow(unsafe_code)]

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::ffi::OsString;
use std::io;
use std::process::{Command, Stdio};

/// Environment variable with a word. Programs with another word have another helper.
const HELPER_VARIABLE: &str = "OUTLIVE_HELPER";

/// Environment variable that a helper is started with: a program that takes its own command line for
/// that of `outlive` then starts no further one.
pub const STARTED_VARIABLE: &str = "OUTLIVE_HELPER_STARTED";

/// Version of the messages between processes: those of another version have another helper.
const PROTOCOL: u32 = 3;

/// Returns the abstract name at which the helper of this user listens. Processes with other mounts
/// or process ids would not see the same pools and programs, so they have helpers of their own.
pub fn name() -> Vec<u8> {
    let namespace = |kind: &str| {
        std::fs::read_link(format!("/proc/self/ns/{kind}"))
            .map_or_else(|_| String::new(), |link| link.to_string_lossy().into_owned())
    };
    let user = rustix::process::geteuid().as_raw();
    let (version, word) = (env!("CARGO_PKG_VERSION"), word().unwrap_or_default());
    let text =
        format!("outlive-{version}-{PROTOCOL}-{user}-{}-{}-", namespace("mnt"), namespace("pid"));
    // A name has room for 107 bytes.
    let word = outlive_format::checksum(word.as_encoded_bytes());
    [text.as_bytes(), format!("{word:x}").as_bytes()].concat()
}

fn word() -> Option<OsString> {
    std::env::var_os(HELPER_VARIABLE).filter(|word| !word.is_empty())
}

/// Starts a helper by a command line of `outlive`. It leaves this process at once: no wait of the
/// program sees it.
///
/// # Errors
/// If the command cannot be started.
pub fn start(command: &[OsString]) -> io::Result<()> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::NotFound)?;
    let mut start = Command::new(program);
    start.args(arguments).args(["helper", "--detach"]).env(STARTED_VARIABLE, "1");
    let status = start.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(io::Error::other("the command `outlive helper` failed")),
        // The program ignores SIGCHLD, and the system has reaped the command.
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Starts the helper in a process of its own, and returns: its parent is then none of the program's.
///
/// # Errors
/// If it cannot be started.
pub fn detach(command: &[OsString]) -> io::Result<()> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::NotFound)?;
    let mut start = Command::new(program);
    start.args(arguments).arg("helper");
    start.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().map(drop)
}

/// Separates this process from the program that has started it: from its terminal, group and
/// directory, and from the descriptors that it has inherited.
pub fn separate() {
    // An error means that it leads a group already.
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
    // It needs some descriptors for each program.
    let files = getrlimit(Resource::Nofile);
    let most = Rlimit { current: files.maximum, ..files };
    let _ = setrlimit(Resource::Nofile, most);
    // SAFETY: no Rust value owns a descriptor above 2 yet: the process has only inherited them.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    // SAFETY: the default action has no handler. A program that ignores the signal passes that on,
    // and then no worker could be waited for.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    let name = c"outlive-helper";
    // SAFETY: the name is a string of less than 16 bytes, which the kernel copies.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}
