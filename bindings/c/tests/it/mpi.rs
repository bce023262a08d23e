//! Programs of several ranks, in C and Fortran, under the `mpirun` of each installed MPI: killed,
//! and continued on the same and on other numbers of ranks.

use crate::common;

use common::{is_here, library, root, text_of};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// Debian's names of two implementations; both may be installed at once.
const MPIS: [&str; 2] = ["openmpi", "mpich"];

fn example(name: &str) -> PathBuf {
    root().join("../../examples").join(name)
}

struct Mpi {
    name: &'static str,
    dir: tempfile::TempDir,
}

impl Mpi {
    /// The installed implementations; CI has both.
    fn all() -> impl Iterator<Item = Mpi> {
        let is_there = |name: &&'static str| {
            is_here(&format!("mpicc.{name}")) && is_here(&format!("mpirun.{name}"))
        };
        MPIS.into_iter()
            .filter(is_there)
            .map(|name| Mpi { name, dir: tempfile::tempdir().unwrap() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn build(&self, compiler: &str, args: &[&str], sources: &[PathBuf], to: &str) -> PathBuf {
        let program = self.path(to);
        let rpath = format!("-Wl,-rpath,{}", library().display());
        let built = Command::new(format!("{compiler}.{}", self.name))
            .args(args)
            .arg("-I")
            .arg(root().join("include"))
            .args(sources)
            .arg("-o")
            .arg(&program)
            .args(["-L", library().to_str().unwrap(), "-loutlive", &rpath])
            .current_dir(self.dir.path())
            .output()
            .unwrap();
        text_of(&built);
        program
    }

    /// Compiles a program in C.
    fn c(&self, source: PathBuf) -> PathBuf {
        let name = source.file_stem().unwrap().to_str().unwrap().to_owned();
        let flags = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic"];
        self.build("mpicc", &flags, &[source], &name)
    }

    /// Compiles a program in C++.
    fn cpp(&self, source: PathBuf) -> PathBuf {
        // Without MPI's own classes, which no longer compile without a warning.
        let skip = ["-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX"];
        let flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror"];
        self.build("mpicxx", &[&skip[..], &flags[..]].concat(), &[source], "cpp")
    }

    /// Compiles a program in Fortran.
    fn fortran(&self, source: PathBuf) -> PathBuf {
        let glue = root().join("fortran/outlive_mpi.c");
        let object = self.build("mpicc", &["-c", "-Wall", "-Wextra", "-Werror"], &[glue], "glue.o");
        let modules = ["outlive.F90", "outlive_mpi.f90"].map(|it| root().join("fortran").join(it));
        let sources: Vec<PathBuf> = modules.into_iter().chain([source, object]).collect();
        self.build("mpifort", &["-O2"], &sources, "fortran")
    }

    fn command(&self, ranks: u32, program: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(format!("mpirun.{}", self.name));
        command.args(["-n", &ranks.to_string()]).arg(program).args(args);
        command.current_dir(self.dir.path());
        if self.name == "openmpi" {
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
            // There are more ranks than cores, so ranks must not spin.
            command
                .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
                .env("OMPI_MCA_mpi_yield_when_idle", "1");
        }
        command
    }

    fn run(&self, ranks: u32, program: &Path, args: &[&str]) -> String {
        let done: Output = self.command(ranks, program, args).output().unwrap();
        text_of(&done)
    }
}

/// Returns the step that a run began with, and its last line.
fn told(text: &str) -> (u64, String) {
    let begun = text.lines().find_map(|line| line.split_once("ranks from step ")).unwrap();
    (begun.1.trim().parse().unwrap(), text.lines().last().unwrap().to_owned())
}

/// A running program in a process group of its own, so that none of its processes stays.
struct Running(Child);

impl Running {
    fn start(mut command: Command) -> Running {
        let command = command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Running(command.spawn().unwrap())
    }

    /// Returns the processes of its ranks.
    fn ranks(program: &Path) -> Vec<String> {
        let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let path = entry.ok()?.path();
            let is_it = fs::read_link(path.join("exe")).ok()? == fs::canonicalize(program).ok()?;
            is_it.then(|| Some(path.file_name()?.to_str()?.to_owned()))?
        });
        processes.collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        kill(&format!("-{}", self.0.id()));
        self.0.wait().unwrap();
    }
}

/// Kills a process, or with a minus before its number a process group. It may have ended already.
fn kill(process: &str) {
    Command::new("kill").args(["-KILL", "--", process]).stderr(Stdio::null()).status().unwrap();
}

/// Waits for a condition, however busy the machine is.
fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..60_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{what}: it never comes");
}

fn records(pool: &Path) -> usize {
    fs::read_dir(pool.join("log/heat")).map_or(0, |entries| entries.count())
}

/// Kills a program again and again, on changing numbers of ranks: it ends with the result of an
/// undisturbed run.
fn goes_on(mpi: &Mpi, program: &Path) {
    let pool = mpi.path("a pool");
    let place = pool.to_str().unwrap();
    let mut begun = 0;
    for (kills, ranks) in [(1, 3), (3, 3), (1, 2)] {
        let before = records(&pool);
        let running = Running::start(mpi.command(ranks, program, &[place, "1000000", "0.05"]));
        until("two checkpoints", || records(&pool) > before + 3);
        let of_ranks = Running::ranks(program);
        assert_eq!(of_ranks.len(), ranks as usize, "{}", mpi.name);
        of_ranks.iter().rev().take(kills).for_each(|process| kill(process));
        drop(running);
        until("the ranks end", || {
            of_ranks.iter().all(|it| fs::read_link(format!("/proc/{it}/exe")).is_err())
        });
        // One step is enough to learn where the program was, and it is saved.
        let (step, _) = told(&mpi.run(ranks, program, &[place, "1", "0"]));
        assert!(step > begun, "{step} after {begun}");
        begun = step;
    }
    let last = (begun + 40).to_string();
    let (step, end) = told(&mpi.run(4, program, &[place, &last, "1"]));
    assert_eq!(step, begun);
    let whole = mpi.path("whole");
    let (_, undisturbed) = told(&mpi.run(1, program, &[whole.to_str().unwrap(), &last, "100"]));
    assert_eq!(end, undisturbed, "{}", mpi.name);
}

#[test]
fn the_example_in_c_goes_on_with_any_number_of_ranks() {
    for mpi in Mpi::all() {
        goes_on(&mpi, &mpi.c(example("heat_mpi.c")));
    }
}

#[test]
fn the_example_in_fortran_goes_on_with_any_number_of_ranks() {
    if is_here("gfortran") {
        for mpi in Mpi::all() {
            goes_on(&mpi, &mpi.fortran(example("heat_mpi.f90")));
        }
    }
}

#[test]
fn a_matrix_in_blocks_is_restored_by_any_grid_of_ranks() {
    for mpi in Mpi::all() {
        let program = mpi.c(root().join("tests/it/programs/mpi_cyclic.c"));
        let pool = mpi.path("pool");
        for (step, ranks) in (1..).zip([4, 6, 1, 3, 4, 2]) {
            let step = u32::to_string(&step);
            let done = mpi.run(ranks, &program, &[pool.to_str().unwrap(), &step]);
            assert!(done.lines().any(|line| line == "done"), "{done}");
        }
    }
}

#[test]
fn ranks_in_cpp() {
    for mpi in Mpi::all() {
        let program = mpi.cpp(root().join("tests/it/programs/mpi.cpp"));
        let pool = mpi.path("pool");
        for (found, ranks) in (0..).zip([3, 3, 2, 1]) {
            let found = i32::to_string(&found);
            let done = mpi.run(ranks, &program, &[pool.to_str().unwrap(), &found]);
            assert!(done.lines().any(|line| line == "done"), "{done}");
        }
    }
}

/// If a rank closes the job, or comes to `MPI_Finalize`, while the others save, all get an error at
/// once.
#[test]
fn a_rank_that_leaves_while_others_save_is_named() {
    for mpi in Mpi::all() {
        let program = mpi.c(root().join("tests/it/programs/mpi_leave.c"));
        let pool = mpi.path("pool");
        for how in ["close", "finalize"] {
            for leaver in ["0", "1"] {
                let done = mpi.run(3, &program, &[pool.to_str().unwrap(), leaver, how]);
                assert!(done.lines().any(|line| line == "done"), "{done}");
            }
        }
    }
}

#[test]
fn every_rank_gets_an_error_for_a_mistake_of_one() {
    for mpi in Mpi::all() {
        let program = mpi.c(root().join("tests/it/programs/mpi_wrong.c"));
        let pool = mpi.path("pool");
        let done = mpi.run(3, &program, &[pool.to_str().unwrap()]);
        assert!(done.lines().any(|line| line == "done"), "{done}");
    }
}
