//! A real S3 server, and files to put into pools there.

#[path = "../../../../s3/tests/it/support/server.rs"]
#[allow(dead_code)] // only the tests of the S3 client use TLS and a file system
mod server;

#[allow(unused_imports)] // each test file uses its part
pub use server::{ACCESS, BUCKET, SECRET, Server};

use crate::common::{Run, big, command};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// Options for packs so small that a checkpoint has several.
pub const SMALL: [&str; 4] = ["--container-bytes", "64KiB", "--pack-bytes", "128KiB"];

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A server, and files to put into pools.
pub struct Fixture {
    pub server: Server,
    pub dir: tempfile::TempDir,
}

impl Fixture {
    pub fn new(server: Server) -> Fixture {
        Fixture { server, dir: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn command(&self, words: &[&str], access: &str) -> Command {
        let mut command = command(words);
        command
            .current_dir(self.dir.path())
            .env("AWS_ENDPOINT_URL", self.server.url())
            .env("AWS_ACCESS_KEY_ID", access)
            .env("AWS_SECRET_ACCESS_KEY", SECRET)
            .env("AWS_REGION", "us-east-1")
            // Name of the host whose memory has volatile targets, whatever this machine's name is.
            .env("OUTLIVE_HOST", "one");
        command
    }

    pub fn run_with(&self, words: &[&str], access: &str) -> Run {
        let output = self.command(words, access).output().unwrap();
        Run {
            code: output.status.code().expect("it was not killed"),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    pub fn run(&self, words: &[&str]) -> Run {
        self.run_with(words, ACCESS)
    }

    pub fn done(&self, words: &[&str]) -> Run {
        let run = self.run(words);
        assert_eq!(run.code, 0, "{words:?}: {run:?}");
        run
    }

    pub fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.done(words).out).unwrap()
    }

    pub fn init(&self, pool: &str, words: &[&str]) {
        let mut all = vec!["pool", "init", pool];
        all.extend(SMALL);
        all.extend(words);
        self.done(&all);
    }

    /// Writes files that differ for every job and every epoch.
    pub fn state(&self, job: &str, epoch: u64) -> PathBuf {
        let from = self.path(job);
        fs::create_dir_all(&from).unwrap();
        let seed = epoch * 31 + job.bytes().map(u64::from).sum::<u64>();
        fs::write(from.join("data"), &big(seed)[..200_000]).unwrap();
        from
    }

    pub fn put(&self, pool: &str, job: &str, epoch: u64) -> Run {
        self.run(&["put", pool, job, text(&self.state(job, epoch))])
    }

    pub fn check(&self, pool: &str, job: &str, epoch: u64) {
        let to = tempfile::tempdir_in(self.dir.path()).unwrap();
        let out = to.path().join("x");
        self.done(&["get", pool, job, "--epoch", &epoch.to_string(), "--to", text(&out)]);
        let got = fs::read(out.join("data")).unwrap();
        self.state(job, epoch);
        assert!(got == fs::read(self.path(job).join("data")).unwrap(), "{job}, epoch {epoch}");
    }
}

/// A process that is killed when the test ends.
pub struct Running(pub Child);

impl Running {
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}
