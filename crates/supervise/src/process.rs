//! The processes of a command: reaped as by an init, signalled together, ended to the last one.
//!
//! They stay in the supervisor's process group, so that a terminal and a shell treat both as one job:
//! Ctrl-C reaches both, Ctrl-Z stops both.
#![allow(unsafe_code)] // code between fork and exec

use crate::transcripts::Printing;
use outlive_types::{Error, Result};
use rustix::fs::{Access, access};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Time in which processes that a command left behind may end by themselves.
const LEFT_OVER_PATIENCE: Duration = Duration::from_secs(2);
/// Time after which a process that does not even end by SIGKILL is left alone: the kernel holds it.
const KERNEL_PATIENCE: Duration = Duration::from_secs(30);

/// The running command, and whatever its processes have started.
pub(crate) struct Processes {
    leader: Pid,
    /// Status of the command itself, once it has ended.
    status: Option<WaitStatus>,
}

/// Lets this process adopt all processes that the command leaves behind, as an init does.
pub(crate) fn adopt_orphans() {
    // Without that, such processes are not found. The kernel has it since 3.4.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

/// Returns the error for a command that does not start.
fn cannot_start(program: &OsStr, error: &std::io::Error) -> Error {
    let shown = program.to_string_lossy();
    Error::invalid(match error.kind() {
        ErrorKind::NotFound => format!("there is no command {shown:?}"),
        ErrorKind::PermissionDenied => format!("{shown:?} is no program that may be started"),
        _ => format!("{shown:?} cannot be started: {error}"),
    })
}

/// Checks that the program of a command is there, before anything is made for it.
///
/// # Errors
/// `Invalid` if there is no such program, or it cannot be started.
pub fn check_command(command: &[OsString]) -> Result<()> {
    let program = command.first().ok_or_else(|| Error::invalid("give a command after --"))?;
    let places: Vec<PathBuf> = match program.as_encoded_bytes().contains(&b'/') {
        true => vec![program.into()],
        false => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).map(|folder| folder.join(program)).collect()
        }
    };
    let mut refused = ErrorKind::NotFound;
    for place in places {
        match place.metadata() {
            Ok(there) if there.is_file() && access(&place, Access::EXEC_OK).is_ok() => {
                return Ok(());
            }
            // As the search of a shell: a later folder may have one that can be started.
            Ok(_) => refused = ErrorKind::PermissionDenied,
            Err(_) => {}
        }
    }
    Err(cannot_start(program, &refused.into()))
}

impl Processes {
    /// Starts a command with these variables in its environment, which prints to these files, or as
    /// this process. If this process is killed, the command gets SIGTERM.
    ///
    /// # Errors
    /// `Invalid` if there is no such command, or it cannot be started.
    pub fn start(
        command: &[OsString],
        variables: &[(&str, OsString)],
        printing: Option<Printing>,
    ) -> Result<Processes> {
        let (program, arguments) =
            command.split_first().ok_or_else(|| Error::invalid("give a command after --"))?;
        let mut start = Command::new(program);
        start.args(arguments);
        variables.iter().for_each(|(name, value)| _ = start.env(name, value));
        if let Some(Printing { stdout, stderr, .. }) = printing {
            start.stdout(stdout).stderr(stderr);
        }
        let supervisor = rustix::process::getpid();
        let die = move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
            match rustix::process::getppid() {
                Some(parent) if parent == supervisor => Ok(()),
                // It was killed before the call above.
                _ => Err(ErrorKind::BrokenPipe.into()),
            }
        };
        // SAFETY: between fork and exec it makes two system calls, and allocates nothing.
        unsafe { start.pre_exec(die) };
        let child = start.spawn().map_err(|error| cannot_start(program, &error))?;
        let number = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let leader = number.ok_or_else(|| Error::bug("a child has no process id"))?;
        Ok(Processes { leader, status: None })
    }

    /// Reaps all processes that have ended. Returns the status of the command once it has ended.
    pub fn reap(&mut self) -> Option<WaitStatus> {
        while let Ok(Some((process, status))) = wait(WaitOptions::NOHANG) {
            if process == self.leader {
                self.status = Some(status);
            }
        }
        self.status
    }

    /// Sends a signal to the command and all processes below it.
    pub fn signal(&self, signal: Signal) {
        let mut all = descendants();
        // A kernel without lists of children shows none.
        all.extend(self.status.is_none().then_some(self.leader));
        for process in all {
            let _ = kill_process(process, signal);
        }
    }

    /// Ends whatever is left of the command after its own end.
    pub fn end_all(&mut self) {
        self.reap();
        let began = Instant::now();
        let mut asked = false;
        while began.elapsed() < KERNEL_PATIENCE {
            let left = descendants();
            if left.is_empty() {
                return;
            }
            // First politely: an MPI daemon removes its files then.
            let is_over = began.elapsed() >= LEFT_OVER_PATIENCE;
            if is_over || !asked {
                asked = true;
                let signal = if is_over { Signal::KILL } else { Signal::TERM };
                left.iter().for_each(|process| _ = kill_process(*process, signal));
                // A stopped one cannot end otherwise.
                left.iter().for_each(|process| _ = kill_process(*process, Signal::CONT));
            }
            std::thread::sleep(Duration::from_millis(10));
            self.reap();
        }
    }
}

/// Whether this process is in the foreground of its terminal: then Ctrl-C has reached the command,
/// too.
pub(crate) fn is_in_foreground() -> bool {
    let terminal = fs::File::open("/dev/tty");
    let group = terminal.ok().and_then(|terminal| rustix::termios::tcgetpgrp(terminal).ok());
    group == Some(rustix::process::getpgrp())
}

/// Names of processes that live on for a program that is gone, until its save is committed.
const KEEPERS: [&str; 2] = ["outlive-frozen", "outlive-helper"];

/// Whether a process holds the image of a save, or completes one.
fn is_keeper(process: Pid) -> bool {
    let name = fs::read_to_string(format!("/proc/{}/comm", process.as_raw_nonzero()));
    name.is_ok_and(|name| KEEPERS.contains(&name.trim_end()))
}

/// Returns all processes below this one, except those that hold images of saves.
fn descendants() -> HashSet<Pid> {
    let mut found = HashSet::new();
    let mut look = vec![rustix::process::getpid()];
    while let Some(process) = look.pop() {
        let threads = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
        for thread in threads.into_iter().flatten().flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            for child in children.split_ascii_whitespace() {
                let child = child.parse().ok().and_then(Pid::from_raw);
                let child = child.filter(|child| !is_keeper(*child));
                look.extend(child.filter(|child| found.insert(*child)));
            }
        }
    }
    found
}
