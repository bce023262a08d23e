//! The process to which the transcripts of an attempt belong, and how the one before it has ended.

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::fs;
use std::path::PathBuf;

/// Content of the file of an owner that has ended its work in order.
const ENDED: &str = "ended";

/// The file that names the process to which the transcripts belong.
pub(super) struct Owner(pub PathBuf);

/// The owner before this process.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Before {
    None,
    /// It runs.
    Runs,
    /// It has ended its work with the job in order.
    Ended,
    /// It was killed, or has failed: this process repeats its work.
    Failed,
}

impl Owner {
    pub fn before(&self) -> Before {
        let Ok(text) = fs::read_to_string(&self.0) else { return Before::None };
        let process = text.parse().ok().and_then(Pid::from_raw);
        match process {
            _ if text == ENDED => Before::Ended,
            Some(process) if test_kill_process(process) != Err(Errno::SRCH) => Before::Runs,
            _ => Before::Failed,
        }
    }

    pub fn take(&self) {
        let _ = fs::write(&self.0, std::process::id().to_string());
    }

    pub fn end(&self) {
        let _ = fs::write(&self.0, ENDED);
    }

    /// Notes that the program has failed after its end.
    pub fn fail(&self) {
        if self.before() == Before::Ended {
            self.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transcript_has_one_owner() {
        let dir = tempfile::tempdir().unwrap();
        let owner = Owner(dir.path().join("owner.0"));
        owner.fail();
        assert_eq!(owner.before(), Before::None);
        owner.take();
        assert_eq!(owner.before(), Before::Runs);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        fs::write(&owner.0, child.id().to_string()).unwrap();
        assert_eq!(owner.before(), Before::Failed);
        owner.fail();
        assert_eq!(fs::read_to_string(&owner.0).unwrap(), child.id().to_string());
        owner.end();
        assert_eq!(owner.before(), Before::Ended);
        owner.fail();
        assert_eq!(owner.before(), Before::Runs);
    }
}
