//! A program in C that was written for VELOC, linked to a library of that name and run with ours.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Whether the C compiler is here; CI has it.
fn has_compiler() -> bool {
    let is_here = Command::new("cc").arg("--version").output().is_ok();
    assert!(is_here || env::var_os("CI").is_none(), "CI needs cc");
    if !is_here {
        eprintln!("skipped: this machine has no cc");
    }
    is_here
}

/// Compiles a program, and links it to `libveloc-client.so`.
fn program(dir: &Path, name: &str) -> PathBuf {
    let built = env::current_exe().unwrap().parent().unwrap().join("libveloc_client.so");
    std::os::unix::fs::symlink(built, dir.join("libveloc-client.so")).unwrap();
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let program = dir.join("program");
    let done = Command::new("cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g", "-o"])
        .arg(&program)
        .arg("-I")
        .arg(root.join("include"))
        .arg(root.join("tests/programs").join(name))
        .arg("-L")
        .arg(dir)
        .arg("-lveloc-client")
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    program
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
    if !has_compiler() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    let config = |more: &str| {
        let text =
            format!("scratch = {at}/scratch\npersistent = {at}/persistent\nmode = {mode}\n{more}");
        fs::write(dir.path().join("veloc.cfg"), text).unwrap();
    };
    // What an older library has left there is no pool, and stays.
    fs::create_dir(dir.path().join("persistent")).unwrap();
    fs::write(dir.path().join("persistent/heat-0-1.dat"), "of VELOC").unwrap();
    config("chksum = true\nwatchdog = 1\n");
    let program = program(dir.path(), "all.c");
    let told = run(&program, dir.path(), "1");
    assert!(
        told.contains("note: chksum has no effect") && told.contains("watchdog is unknown"),
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

/// Killed a few steps after each start; at last it prints what an undisturbed run prints.
#[test]
fn killed_again_and_again() {
    if !has_compiler() {
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
    let start = |name: &str| {
        let mut command = Command::new(&program);
        command.arg(config(name)).env("LD_LIBRARY_PATH", dir.path()).stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    let whole = String::from_utf8(start("whole").wait_with_output().unwrap().stdout).unwrap();
    let sum = whole.lines().last().unwrap();
    assert!(sum.starts_with("sum "), "{whole}");
    let mut starts = Vec::new();
    loop {
        let mut child = start("disturbed");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let from: u64 = lines.next().unwrap().strip_prefix("from ").unwrap().parse().unwrap();
        starts.push(from);
        let mut last = String::new();
        let is_there = lines.by_ref().any(|line| {
            let step = line.strip_prefix("at ").and_then(|step| step.parse::<u64>().ok());
            last = line;
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
    // Each checkpoint waits for the one before it.
    assert!(starts.windows(2).all(|pair| pair[1] >= pair[0] + 3), "{starts:?}");
}

#[test]
fn every_name_of_veloc_is_there() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let exports = fs::read_to_string(root.join("src/exports.rs")).unwrap();
    let header = fs::read_to_string(root.join("include/veloc.h")).unwrap();
    let declared = header.lines().filter_map(|line| line.strip_prefix("int ")?.split('(').next());
    let declared: Vec<&str> = declared.collect();
    assert_eq!(declared.len(), 25, "{declared:?}");
    for name in declared {
        assert!(exports.contains(&format!("fn {name}(")), "{name}");
    }
    assert_eq!(exports.matches("#[unsafe(no_mangle)]").count(), 25);
}
