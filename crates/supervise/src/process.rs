//! The processes of a command: started as a group, reaped as by an init, ended to the last one.
#![allow(unsafe_code)] // code between fork and exec

use outlive_types::{Error, Result};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process, kill_process_group, wait,
};
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, IsTerminal};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Time in which processes that a command left behind may end by themselves.
const LEFT_OVER_PATIENCE: Duration = Duration::from_secs(2);

/// The running command: a process group, and whatever its processes have started.
pub(crate) struct Processes {
    leader: Pid,
    /// Status of the command itself, once it has ended.
    status: Option<WaitStatus>,
}

/// Lets this process adopt all processes that the command leaves behind, as an init does.
pub(crate) fn adopt_orphans() {
    // Without that, processes that leave the group are not found. The kernel has it since 3.4.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

impl Processes {
    /// Starts a command. If this process is killed, the command gets SIGTERM. If standard input is a terminal, the command becomes its foreground, as
    /// under a shell.
    ///
    /// # Errors
    /// `Invalid` if there is no such command, or it cannot be started.
    pub fn start(
        command: &[OsString],
        variables: &[(&str, &Path)],
        job: &str,
    ) -> Result<Processes> {
        let (program, arguments) =
            command.split_first().ok_or_else(|| Error::invalid("give a command after --"))?;
        let mut start = Command::new(program);
        start.args(arguments).process_group(0);
        start.env(outlive_client::stop::JOB_VARIABLE, job);
        variables.iter().for_each(|(name, value)| _ = start.env(name, value));
        let die = || {
            rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
            Ok(())
        };
        // SAFETY: between fork and exec it makes one system call, and allocates nothing.
        unsafe { start.pre_exec(die) };
        let child = start.spawn().map_err(|error| {
            let shown = program.to_string_lossy();
            Error::invalid(match error.kind() {
                ErrorKind::NotFound => format!("there is no command {shown:?}"),
                ErrorKind::PermissionDenied => {
                    format!("{shown:?} is no program that may be started")
                }
                _ => format!("{shown:?} cannot be started: {error}"),
            })
        })?;
        let number = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let leader = number.ok_or_else(|| Error::bug("a child has no process id"))?;
        give_terminal(leader);
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

    /// Sends a signal to the command and its group.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.leader, signal);
    }

    /// Ends whatever is left of the command after its own end. Returns whether anything was left.
    pub fn end_all(&mut self) -> bool {
        give_terminal(rustix::process::getpgrp());
        self.reap();
        let mut any = false;
        let began = Instant::now();
        loop {
            let left = descendants();
            if left.is_empty() {
                return any;
            }
            // First politely: an MPI daemon removes its files then.
            let signal =
                if began.elapsed() < LEFT_OVER_PATIENCE { Signal::TERM } else { Signal::KILL };
            if !any || signal == Signal::KILL {
                left.iter().for_each(|process| _ = kill_process(*process, signal));
                // One that is stopped cannot end otherwise.
                left.iter().for_each(|process| _ = kill_process(*process, Signal::CONT));
            }
            any = true;
            std::thread::sleep(Duration::from_millis(10));
            self.reap();
        }
    }
}

/// Makes a process group the foreground of the terminal on standard input, if there is one.
fn give_terminal(group: Pid) {
    let input = std::io::stdin();
    let is_ours = || {
        let now = rustix::termios::tcgetpgrp(&input);
        now.is_ok_and(|now| now == rustix::process::getpgrp() || now == group)
            || group_is_gone(&input)
    };
    if input.is_terminal() && is_ours() {
        let _ = rustix::termios::tcsetpgrp(&input, group);
    }
}

/// Whether the foreground group of a terminal has no process any more.
fn group_is_gone(input: &std::io::Stdin) -> bool {
    rustix::termios::tcgetpgrp(input)
        .is_ok_and(|group| rustix::process::test_kill_process_group(group).is_err())
}

/// Returns all processes below this one.
fn descendants() -> HashSet<Pid> {
    let mut found = HashSet::new();
    let mut look = vec![rustix::process::getpid()];
    while let Some(process) = look.pop() {
        let threads = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
        for thread in threads.into_iter().flatten().flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            for child in children.split_ascii_whitespace() {
                let child = child.parse().ok().and_then(Pid::from_raw);
                look.extend(child.filter(|child| found.insert(*child)));
            }
        }
    }
    found
}
