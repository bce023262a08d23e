//! Compiles programs with the system's compilers against the library that cargo has just built, and
//! runs them.

#[path = "../commands/mod.rs"]
mod commands;

pub use commands::{is_here, text_of};
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// The version in the library's soname.
const ABI: u32 = 0;

/// `bindings/c`.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A folder with the library under the names for linking and loading. It lies in the target directory,
/// and all processes of this build make the same one.
static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let test = env::current_exe().unwrap();
    let built = test.parent().unwrap().join("liboutlive.so");
    assert!(built.exists(), "cargo has built no {}", built.display());
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("library");
    fs::create_dir_all(&folder).unwrap();
    for name in ["liboutlive.so".to_owned(), format!("liboutlive.so.{ABI}")] {
        let new = folder.join(format!("{name}.{}", std::process::id()));
        std::os::unix::fs::symlink(&built, &new).unwrap();
        fs::rename(&new, folder.join(name)).unwrap();
    }
    folder
});

/// Path of the static library of this build.
pub fn archive() -> PathBuf {
    env::current_exe().unwrap().parent().unwrap().join("liboutlive.a")
}

/// Path of the folder of the library.
pub fn library() -> &'static Path {
    &LIBRARY
}

/// Returns the tags of a checkpoint.
pub fn tags(pool: &Path, job: &str, epoch: u64) -> Vec<String> {
    let pool = outlive_pool::open(pool, outlive_pool::Environment::system()).unwrap();
    let job = outlive_store::Job::open(&pool, job, outlive_store::JobOptions::default()).unwrap();
    let epochs = job.epochs().unwrap();
    let found = epochs.into_iter().find(|info| info.manifest.epoch == epoch);
    found.unwrap_or_else(|| panic!("no checkpoint {epoch}")).manifest.remarks.tags
}

/// A language, with its compiler and the flags for it. A program must compile without a warning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Language {
    C,
    Cpp,
    Fortran,
}

impl Language {
    fn compiler(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Language::C => (
                "cc",
                &[
                    "-std=c99",
                    "-Wall",
                    "-Wextra",
                    "-Werror",
                    "-pedantic",
                    "-D_POSIX_C_SOURCE=200809L",
                ],
            ),
            Language::Cpp => ("g++", &["-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic"]),
            Language::Fortran => {
                ("gfortran", &["-std=f2018", "-Wall", "-Wextra", "-Werror", "-pedantic"])
            }
        }
    }

    /// Whether its compiler is installed. Tests without their compiler are skipped, but not in CI.
    pub fn is_here(self) -> bool {
        let (compiler, _) = self.compiler();
        is_here(compiler)
    }
}

/// Compiles sources into a program in `dir`.
pub fn compile(language: Language, dir: &Path, sources: &[PathBuf], more: &[&str]) -> PathBuf {
    let (compiler, flags) = language.compiler();
    let program = dir.join(sources.last().unwrap().file_stem().unwrap());
    let mut command = Command::new(compiler);
    command.args(flags).args(["-O1", "-g", "-pthread"]).args(more).arg("-o").arg(&program);
    if language == Language::Fortran {
        command.arg("-J").arg(dir);
    }
    command.arg("-I").arg(root().join("include")).args(sources).arg("-L").arg(library());
    let rpath = format!("-Wl,-rpath,{}", library().display());
    let built = command.args(["-loutlive", "-lm", &rpath]).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    program
}

/// Compiles a C program of `tests/it/programs`.
pub fn program(dir: &Path, name: &str) -> PathBuf {
    compile(Language::C, dir, &[root().join("tests/it/programs").join(name)], &[])
}

/// Path of the Fortran module.
pub fn fortran_module() -> PathBuf {
    root().join("fortran/outlive.F90")
}

/// Compiles a Fortran program of `tests/it/programs`.
pub fn fortran_program(dir: &Path, name: &str) -> PathBuf {
    let programs = root().join("tests/it/programs");
    let sources = [fortran_module(), programs.join("check.f90"), programs.join(name)];
    compile(Language::Fortran, dir, &sources, &[])
}

/// Runs a program, which must end well, and returns its output.
pub fn run<S: AsRef<OsStr>>(program: &Path, args: &[S]) -> String {
    let done = Command::new(program).args(args).output().unwrap();
    text_of(&done)
}

/// Text of a file of this repository.
pub fn text(path: &str) -> String {
    fs::read_to_string(root().join("../..").join(path)).unwrap()
}
