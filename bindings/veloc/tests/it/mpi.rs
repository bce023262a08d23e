//! Ranks that were written for VELOC, under each installed MPI: killed, continued, and damaged.

use crate::common;

use common::{compile, is_here, library, text_of};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const MPIS: [&str; 2] = ["openmpi", "mpich"];

struct Mpi {
    name: &'static str,
    dir: tempfile::TempDir,
}

impl Mpi {
    /// Builds the library of this MPI, and the program linked to it.
    fn build(name: &'static str) -> Mpi {
        let mpi = Mpi { name, dir: tempfile::tempdir().unwrap() };
        let dir = mpi.dir.path();
        let compiler = format!("mpicc.{name}");
        library(&compiler, "veloc_mpi.c", dir);
        compile(&compiler, &[], "ranks.c", dir);
        let at = dir.display();
        let text = format!("scratch = {at}/scratch\npersistent = {at}/persistent\nmode = async\n");
        fs::write(dir.join("veloc.cfg"), text).unwrap();
        mpi
    }

    fn command(&self, ranks: u32, steps: u32) -> Command {
        let mut command = Command::new(format!("mpirun.{}", self.name));
        let (program, config) = (self.dir.path().join("ranks"), self.dir.path().join("veloc.cfg"));
        command.args(["-n", &ranks.to_string()]).arg(program).arg(config).arg(steps.to_string());
        command.current_dir(self.dir.path()).env("LD_LIBRARY_PATH", self.dir.path());
        if self.name == "openmpi" {
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
            command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
            command.env("OMPI_MCA_mpi_yield_when_idle", "1");
        }
        command
    }

    fn run(&self, ranks: u32, steps: u32) -> (i32, String) {
        let told = text_of(&self.command(ranks, steps).output().unwrap());
        let version = told.lines().find_map(|line| line.strip_prefix("from version ")).unwrap();
        (version.parse().unwrap(), told.lines().last().unwrap().to_owned())
    }

    fn pool(&self) -> PathBuf {
        self.dir.path().join("persistent/outlive")
    }

    fn records(&self) -> usize {
        fs::read_dir(self.pool().join("log/ranks")).map_or(0, |entries| entries.count())
    }
}

/// Saves of one number of ranks drop no checkpoint of another number.
#[test]
fn each_number_of_ranks_keeps_its_versions() {
    for name in MPIS {
        if !is_here(&format!("mpicc.{name}")) || !is_here(&format!("mpirun.{name}")) {
            continue;
        }
        let mpi = Mpi::build(name);
        let config = mpi.dir.path().join("veloc.cfg");
        let text = fs::read_to_string(&config).unwrap();
        fs::write(config, text + "max_versions = 3\n").unwrap();
        assert_eq!(mpi.run(3, 9).0, -1);
        assert_eq!(mpi.run(2, 12).0, -1);
        assert_eq!(mpi.run(2, 12).0, 12);
        assert_eq!(mpi.run(3, 9).0, 9);
    }
}

/// Kills a process, or with a minus before its number a process group. It may have ended already.
fn kill(process: &str) {
    Command::new("kill").args(["-KILL", "--", process]).stderr(Stdio::null()).status().unwrap();
}

fn packs(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => packs(&path, found),
            false if path.extension().is_some_and(|it| it == "shard") => found.push(path),
            false => {}
        }
    }
}

#[test]
fn ranks_of_veloc_run_unchanged() {
    for name in MPIS {
        if !is_here(&format!("mpicc.{name}")) || !is_here(&format!("mpirun.{name}")) {
            continue;
        }
        let whole = Mpi::build(name);
        let (from, undisturbed) = whole.run(3, 40);
        assert_eq!(from, -1);

        let mpi = Mpi::build(name);
        let mut command = mpi.command(3, 1_000_000);
        command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut running = command.spawn().unwrap();
        while mpi.records() < 6 {
            assert!(running.try_wait().unwrap().is_none(), "the ranks have ended");
            std::thread::sleep(Duration::from_millis(5));
        }
        kill(&format!("-{}", running.id()));
        running.wait().unwrap();
        let (version, _) = mpi.run(3, 1);
        assert!(version >= 3, "{version}");

        let parts = Mpi::build(name);
        assert_eq!(parts.run(3, 20).0, -1);
        // Another number of ranks finds no version, and deletes nothing.
        let other = parts.command(2, 0).output().unwrap();
        assert!(text_of(&other).contains("from version -1"));
        let told = String::from_utf8_lossy(&other.stderr).into_owned();
        assert!(told.contains("3 ranks have saved checkpoint"), "{told}");
        assert!(told.contains("these are 2"), "{told}");
        assert_eq!(parts.run(3, 20).0, 20);
        // Data of one rank is damaged: all ranks restore an older version that is whole.
        let mut found = Vec::new();
        packs(&parts.pool().join("packs"), &mut found);
        found.sort_by_key(|path| fs::metadata(path).unwrap().modified().unwrap());
        let newest = found.last().unwrap();
        let mut bytes = fs::read(newest).unwrap();
        bytes[4096 + 100] ^= 1;
        fs::write(newest, bytes).unwrap();
        let (version, _) = parts.run(3, 1);
        assert!((0..20).contains(&version), "{version}");
        let (_, end) = parts.run(3, 40);
        assert_eq!(end, undisturbed, "{name}");
    }
}
