//! A C program that was written for VELOC, linked to a library of that name and run with ours.

use crate::common;

use common::{archive, compile, is_here, library, root, text_of};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Compiles a program, and links it to `libveloc-client.so`.
fn program(dir: &Path, name: &str) -> PathBuf {
    library("cc", "no_mpi.c", dir);
    compile("cc", &["-std=c99", "-pedantic"], name, dir)
}

fn run(program: &Path, dir: &Path, part: &str) -> String {
    let done = Command::new(program)
        .args([part.as_ref(), dir.join("veloc.cfg").as_os_str()])
        .env("LD_LIBRARY_PATH", dir)
        .current_dir(dir)
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&done.stderr).into_owned();
    let out = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && out == "done\n", "{:?}\n{out}\n{err}", done.status);
    err
}

fn all_parts(mode: &str) {
    if !is_here("cc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    let config = |more: &str| {
        let text =
            format!("scratch = {at}/scratch\npersistent = {at}/persistent\nmode = {mode}\n{more}");
        fs::write(dir.path().join("veloc.cfg"), text).unwrap();
    };
    // Files of an older library are there: they are no pool, and stay.
    fs::create_dir(dir.path().join("persistent")).unwrap();
    fs::write(dir.path().join("persistent/heat-0-1.dat"), "of VELOC").unwrap();
    config("meta = true\nwatchdog = 1\n");
    let program = program(dir.path(), "all.c");
    let told = run(&program, dir.path(), "1");
    assert!(
        told.contains("note: meta has no effect") && told.contains("watchdog is unknown"),
        "{told}"
    );
    assert!(told.contains("VELOC was not initialised in this process"), "{told}");
    assert!(told.contains("there is no version 3 of checkpoint heat"), "{told}");
    assert!(told.contains("checkpoint heat 6 was given up by the program"), "{told}");
    assert_eq!(fs::read_dir(dir.path().join("scratch")).unwrap().count(), 0);
    let told = run(&program, dir.path(), "2");
    assert!(told.contains("no memory is protected for it"), "{told}");
    assert!(told.contains("160000 bytes in the checkpoint, and 159992 are protected"), "{told}");
    config("max_versions = 3\n");
    run(&program, dir.path(), "3");
    assert!(dir.path().join("persistent/heat-0-1.dat").exists());
}

#[test]
fn every_function_with_waiting() {
    all_parts("sync");
}

#[test]
fn every_function_in_the_background() {
    all_parts("async");
}

/// Kills a program a few steps after each start: its last line is that of an undisturbed run.
#[test]
fn killed_again_and_again() {
    if !is_here("cc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = program(dir.path(), "loop.c");
    let config = |name: &str| {
        let (path, at) = (dir.path().join(format!("{name}.cfg")), dir.path().display());
        let text = format!(
            "scratch = {at}/scratch\npersistent = {at}/{name}\nmode = async\nmax_versions = 3\n"
        );
        fs::write(&path, text).unwrap();
        path
    };
    let built = archive().with_file_name("outlive");
    let built = if built.exists() { built } else { archive().with_file_name("../outlive") };
    let has_helper = built.exists();
    assert!(has_helper || std::env::var_os("CI").is_none(), "{} is not built", built.display());
    let path = std::env::join_paths(
        [built.parent().unwrap().to_owned()]
            .into_iter()
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    )
    .unwrap();
    let start = |name: &str| {
        let mut command = Command::new(&program);
        command.arg(config(name)).env("LD_LIBRARY_PATH", dir.path()).stdout(Stdio::piped());
        // The helper is the command of this build.
        command.env("PATH", &path).env("OUTLIVE_HELPER", dir.path());
        command.spawn().unwrap()
    };
    let whole = String::from_utf8(start("whole").wait_with_output().unwrap().stdout).unwrap();
    let sum = whole.lines().last().unwrap();
    assert!(sum.starts_with("sum "), "{whole}");
    let mut starts = Vec::new();
    let mut seen = 0;
    loop {
        let mut child = start("disturbed");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let from: u64 = lines.next().unwrap().strip_prefix("from ").unwrap().parse().unwrap();
        starts.push(from);
        // Each checkpoint waits for the one before it, and the helper completes the last one.
        assert!(from + u64::from(!has_helper) >= seen, "{from} after {seen}");
        let mut last = String::new();
        let is_there = lines.by_ref().any(|line| {
            let step = line.strip_prefix("at ").and_then(|step| step.parse::<u64>().ok());
            last = line;
            seen = step.unwrap_or(seen);
            step.is_some_and(|step| step >= from + 4 && step < 40)
        });
        if !is_there {
            assert!(child.wait().unwrap().success());
            assert_eq!(last, sum);
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(starts.windows(2).all(|pair| pair[1] >= pair[0] + 3), "{starts:?}");
}

/// An exported function of a dependency could clash with one of the program.
#[test]
fn the_names_of_veloc_are_exported() {
    if !is_here("cc") || !is_here("nm") {
        return;
    }
    let header = fs::read_to_string(root().join("include/veloc.h")).unwrap();
    let declared = header.lines().filter_map(|line| line.strip_prefix("int ")?.split('(').next());
    let mut declared: Vec<&str> = declared.collect();
    declared.sort_unstable();
    assert_eq!(declared.len(), 25, "{declared:?}");
    let dir = tempfile::tempdir().unwrap();
    library("cc", "no_mpi.c", dir.path());
    let mut nm = Command::new("nm");
    nm.args(["-D", "--defined-only"]).arg(dir.path().join("libveloc-client.so"));
    let told = text_of(&nm.output().unwrap());
    let mut exported: Vec<&str> = told.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    exported.sort_unstable();
    assert_eq!(exported, declared);
}

/// Programs find the files that `make install` installs for VELOC as they find VELOC.
#[test]
fn cmake_finds_the_installed_package() {
    if !is_here("cc") || !is_here("cmake") || !is_here("c++") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let built = dir.path().join("built");
    fs::create_dir(&built).unwrap();
    std::os::unix::fs::symlink(archive(), built.join("libveloc_client.a")).unwrap();
    let prefix = dir.path().join("prefix");
    let mut install = Command::new(root().join("../../scripts/install"));
    install.arg(&prefix).env("OUTLIVE_INSTALL_FROM", &built).env("DESTDIR", "");
    text_of(&install.output().unwrap());
    // The package still works in a moved folder.
    let moved = dir.path().join("moved");
    fs::rename(&prefix, &moved).unwrap();
    let programs = root().join("tests/it/programs");
    let project = |languages: &str, source: &Path, folder: &str, compiler: Option<&str>| {
        let at = dir.path().join(format!("{languages} {folder}"));
        fs::create_dir(&at).unwrap();
        let text = format!(
            "cmake_minimum_required(VERSION 3.16)\nproject(small {languages})\n\
             find_package(veloc REQUIRED)\nadd_executable(small {})\n\
             target_link_libraries(small veloc::client)\n",
            source.display()
        );
        fs::write(at.join("CMakeLists.txt"), text).unwrap();
        let cmake = |args: &[&str]| {
            let mut command = Command::new("cmake");
            command.args(args).env("CMAKE_PREFIX_PATH", moved.join("lib").join(folder));
            text_of(&command.current_dir(&at).output().unwrap());
        };
        let mut args = vec!["-S", ".", "-B", "build"];
        args.extend(compiler);
        cmake(&args);
        cmake(&["--build", "build"]);
        at.join("build/small")
    };
    let small = project("C CXX", &programs.join("all.c"), "outlive-veloc", None);
    let at = dir.path().display();
    let config = format!("scratch = {at}/scratch\npersistent = {at}/persistent\n");
    fs::write(dir.path().join("veloc.cfg"), config).unwrap();
    let done = Command::new(small).arg("1").arg(dir.path().join("veloc.cfg")).output().unwrap();
    assert_eq!(text_of(&done), "done\n");
    for mpi in ["openmpi", "mpich"] {
        if is_here(&format!("mpicc.{mpi}")) {
            let folder = &format!("outlive-veloc-{mpi}");
            let compiler = format!("-DMPI_C_COMPILER=mpicc.{mpi}");
            project("C", &programs.join("ranks.c"), folder, Some(&compiler));
            let small = dir.path().join("small.cpp");
            let text = "#include <mpi.h>\n#include <veloc.h>\n\
                        int main() { return VELOC_Init(MPI_COMM_WORLD, nullptr); }\n";
            fs::write(&small, text).unwrap();
            project("CXX", &small, folder, Some(&format!("-DMPI_CXX_COMPILER=mpicxx.{mpi}")));
        }
    }
}
