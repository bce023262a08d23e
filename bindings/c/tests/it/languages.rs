//! Tests of C++, Fortran, the examples, and the files that `make install` installs.

use crate::common;

use common::{
    Language, archive, compile, fortran_module, fortran_program, is_here, root, run, tags, text,
    text_of,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

fn example(name: &str) -> PathBuf {
    root().join("../../examples").join(name)
}

#[test]
fn all_that_a_cpp_program_does() {
    if !Language::Cpp.is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = root().join("tests/it/programs/round_trip.cpp");
    let program = compile(Language::Cpp, dir.path(), &[source], &[]);
    assert_eq!(run(&program, &[dir.path().join("pool")]), "done\n");
    assert_eq!(tags(&dir.path().join("pool"), "cpp", 1), ["later"]);
}

#[test]
fn all_that_a_fortran_program_does() {
    if !Language::Fortran.is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = fortran_program(dir.path(), "round_trip.f90");
    assert_eq!(run(&program, &[dir.path().join("pool")]), "done\n");
    assert_eq!(tags(&dir.path().join("pool"), "fortran", 1), ["fortran", "later"]);
}

/// Kills an example again and again: it ends with the result of an undisturbed run.
fn goes_on(program: &Path, dir: &Path) {
    let last = |pool: &str, steps: &str| {
        let told = run(program, &[dir.join(pool), PathBuf::from(steps)]);
        told.lines().last().unwrap().to_owned()
    };
    let whole = last("whole", "120");
    assert!(whole.starts_with("heat: step 120, "), "{whole}");
    assert!(last("parts", "40").starts_with("heat: step 40, "));
    for kill in 0..2 {
        let mut child = Command::new(program)
            .args([dir.join("parts"), PathBuf::from("120")])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // Any step may be the last one before the kill.
        std::thread::sleep(Duration::from_millis(150 + 300 * kill));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let told = run(program, &[dir.join("parts"), PathBuf::from("120")]);
    let mut lines = told.lines();
    let begun = lines.next().unwrap().strip_prefix("heat: from step ").unwrap();
    assert!(begun.parse::<u64>().unwrap() >= 40, "{told}");
    assert_eq!(lines.next().unwrap(), whole);
}

#[test]
fn the_example_in_c() {
    if Language::C.is_here() {
        let dir = tempfile::tempdir().unwrap();
        goes_on(&compile(Language::C, dir.path(), &[example("heat.c")], &["-O2"]), dir.path());
    }
}

#[test]
fn the_example_in_fortran() {
    if Language::Fortran.is_here() {
        let dir = tempfile::tempdir().unwrap();
        let sources = [fortran_module(), example("heat.f90")];
        goes_on(&compile(Language::Fortran, dir.path(), &sources, &["-O2"]), dir.path());
    }
}

/// Installs the libraries that cargo has built for the tests into `dir/prefix`.
fn install(dir: &Path, prefix: &str) -> PathBuf {
    let built = dir.join("built");
    fs::create_dir(&built).unwrap();
    std::os::unix::fs::symlink(archive(), built.join("liboutlive.a")).unwrap();
    let prefix = dir.join(prefix);
    let done = Command::new(root().join("../../scripts/install"))
        .arg(&prefix)
        .env("OUTLIVE_INSTALL_FROM", built)
        .env("DESTDIR", "")
        .output()
        .unwrap();
    text_of(&done);
    prefix
}

/// An exported function of a dependency could clash with one of the program.
#[test]
fn the_installed_library_exports_only_functions_of_the_header() {
    if !Language::C.is_here() || !is_here("nm") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let prefix = install(dir.path(), "prefix");
    let mut nm = Command::new("nm");
    nm.args(["-D", "--defined-only"]).arg(prefix.join("lib/liboutlive.so"));
    let told = text_of(&nm.output().unwrap());
    let header = text("bindings/c/include/outlive.h");
    let exported: Vec<&str> = told.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    assert!(exported.len() > 40, "{exported:?}");
    for name in exported {
        assert!(header.contains(&format!("{name}(")), "{name} leaves the library");
    }
}

const SMALL: &str = "#include <outlive.h>\n#include <stdio.h>\n\
     int main(void) { return puts(outlive_version()) < 0; }\n";

#[test]
fn pkg_config_finds_the_installed_library() {
    if !Language::C.is_here() || !is_here("pkg-config") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let prefix = install(dir.path(), "prefix with a blank");
    let source = dir.path().join("small.c");
    fs::write(&source, SMALL).unwrap();
    let script = format!(
        "eval cc -std=c99 -Wall -Werror small.c -o small \"$(pkg-config --cflags --libs outlive)\" \
         && LD_LIBRARY_PATH='{}' ./small",
        prefix.join("lib").display()
    );
    let done = Command::new("sh")
        .args(["-c", &script])
        .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert_eq!(text_of(&done).trim(), env!("CARGO_PKG_VERSION"));
}

#[test]
fn cmake_finds_the_installed_package() {
    if !Language::C.is_here() || !Language::Cpp.is_here() || !is_here("cmake") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let prefix = install(dir.path(), "prefix");
    // The package still works in a moved folder.
    let moved = dir.path().join("moved");
    fs::rename(&prefix, &moved).unwrap();
    fs::write(dir.path().join("small.c"), SMALL).unwrap();
    let with_cpp = SMALL.replace("outlive.h", "outlive.hpp");
    fs::write(dir.path().join("small.cpp"), with_cpp).unwrap();
    fs::write(
        dir.path().join("CMakeLists.txt"),
        "cmake_minimum_required(VERSION 3.16)\nproject(small C CXX)\nset(CMAKE_CXX_STANDARD 17)\n\
         find_package(outlive 0.1 REQUIRED)\nadd_executable(small small.c)\n\
         target_link_libraries(small outlive::outlive)\nadd_executable(smallpp small.cpp)\n\
         target_link_libraries(smallpp outlive::outlive)\n",
    )
    .unwrap();
    let cmake = |args: &[&str]| {
        let mut command = Command::new("cmake");
        command.args(args).env("CMAKE_PREFIX_PATH", &moved).current_dir(dir.path());
        text_of(&command.output().unwrap());
    };
    cmake(&["-S", ".", "-B", "build"]);
    cmake(&["--build", "build"]);
    for name in ["small", "smallpp"] {
        let done = Command::new(dir.path().join("build").join(name)).output().unwrap();
        assert_eq!(text_of(&done).trim(), env!("CARGO_PKG_VERSION"));
    }
}
