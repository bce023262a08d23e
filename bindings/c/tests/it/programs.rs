//! Programs in C, as a developer writes them: they save, restore, end, fail, and are killed.

use crate::common;

use common::{Language, compile, fortran_program, is_here, program, root, run, tags, text_of};
use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

fn pool(dir: &Path) -> PathBuf {
    dir.join("pool")
}

#[test]
fn all_that_a_program_does() {
    if !Language::C.is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(run(&program(dir.path(), "round_trip.c"), &[pool(dir.path())]), "done\n");
    assert_eq!(tags(&pool(dir.path()), "job", 6), ["late", "night"]);
    assert!(tags(&pool(dir.path()), "job", 8).is_empty(), "tags belong to one checkpoint");
}

#[test]
fn a_program_goes_on_after_failed_saves() {
    if !Language::C.is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = program(dir.path(), "on_failure.c");
    let done = Command::new(&program).arg(pool(dir.path())).output().unwrap();
    let told = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "done\n", "{told}");
    assert_eq!(told.matches("a save of job job failed").count(), 3, "{told}");
}

#[test]
fn the_interval_is_a_rule() {
    if !Language::C.is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = program(dir.path(), "every.c");
    let done = Command::new(&program).arg(pool(dir.path())).output().unwrap();
    let told = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "done\n", "{told}");
}

#[test]
fn the_fate_of_each_checkpoint() {
    if !Language::C.is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(run(&program(dir.path(), "events.c"), &[pool(dir.path())]), "done\n");
}

/// Kills a program with a gate again and again. Then it gives each of its lines once, in order, to
/// `dir/lines` with `line_end`, and to `dir/received`. Returns the last number.
fn gives_each_line_once(program: &Path, dir: &Path, more: &[PathBuf], line_end: &str) -> u64 {
    let (lines, received) = (dir.join("lines"), dir.join("received"));
    let mut arguments = vec![pool(dir), lines.clone(), received.clone()];
    arguments.extend_from_slice(more);
    for life in 0..30 {
        let length = || fs::metadata(&received).map_or(0, |it| it.len());
        let before = length();
        let mut child = Command::new(program).args(&arguments).spawn().unwrap();
        // Any moment may be the one of the kill. Some lives must get as far as a release.
        while life % 3 == 0 && length() == before {
            assert!(child.try_wait().unwrap().is_none(), "a life has ended by itself");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(life * 13 % 60));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    arguments.push(PathBuf::from("0"));
    let reached: u64 = run(program, &arguments).trim().parse().unwrap();
    assert!(reached > 1, "no life has saved");
    let want: String = (1..=reached).map(|number| format!("{number}{line_end}")).collect();
    assert_eq!(fs::read_to_string(lines).unwrap(), want);
    let (mut keys, mut got) = (HashSet::new(), Vec::<u64>::new());
    for line in fs::read_to_string(received).unwrap().lines() {
        let (key, number) = line.split_once(' ').unwrap();
        if keys.insert(key.to_owned()) {
            got.push(number.parse().unwrap());
        }
    }
    assert_eq!(got, (1..=reached).collect::<Vec<_>>());
    reached
}

#[test]
fn outputs_behind_a_gate() {
    if Language::C.is_here() {
        let dir = tempfile::tempdir().unwrap();
        gives_each_line_once(&program(dir.path(), "gate.c"), dir.path(), &[], "\n");
    }
}

#[test]
fn outputs_of_a_fortran_program_behind_a_gate() {
    if !Language::Fortran.is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = fortran_program(dir.path(), "gate.f90");
    let published = dir.path().join("published");
    let more = std::slice::from_ref(&published);
    let reached = gives_each_line_once(&program, dir.path(), more, " \n");
    let last = reached / 7 * 7;
    let there = fs::read_to_string(published).unwrap_or_else(|_| "0".to_owned());
    assert_eq!(there.trim(), last.to_string());
}

#[test]
fn a_job_keeps_the_checkpoints_that_its_rules_name() {
    if !Language::C.is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(run(&program(dir.path(), "keep.c"), &[pool(dir.path())]), "done\n");
}

/// Valgrind finds no error in a program that saves, restores and drops checkpoints.
#[test]
fn a_program_under_valgrind() {
    if !is_here("valgrind") || !Language::C.is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let suppressions = root().join("package/outlive-valgrind.supp");
    let done = Command::new("valgrind")
        .args([
            "--error-exitcode=9",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite,possible",
        ])
        .arg(format!("--suppressions={}", suppressions.display()))
        .arg(program(dir.path(), "keep.c"))
        .arg(pool(dir.path()))
        .output()
        .unwrap();
    assert_eq!(text_of(&done), "done\n");
}

#[test]
fn mistakes_of_a_program_are_refused() {
    if !Language::C.is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = program(dir.path(), "bad_input.c");
    assert_eq!(run(&program, &[pool(dir.path()), dir.path().join("not there")]), "done\n");
}

#[test]
fn forks() {
    if !Language::C.is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(run(&program(dir.path(), "forks.c"), &[pool(dir.path())]), "done\n");
}

#[test]
fn ranks_that_have_only_the_pool() {
    if !Language::C.is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (program, pool) = (program(dir.path(), "ranks.c"), pool(dir.path()));
    let pool = pool.to_str().unwrap();
    for (found, size) in [3, 3, 2].into_iter().enumerate() {
        let (run_name, size, found) =
            (format!("start {found}"), size.to_string(), found.to_string());
        assert_eq!(run(&program, &[pool, &run_name, &size, &found]), "done\n");
    }
}

#[test]
fn threads() {
    if !Language::C.is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(run(&program(dir.path(), "threads.c"), &[pool(dir.path())]), "done\n");
}

#[test]
fn ends() {
    if !Language::C.is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = program(dir.path(), "ends.c");
    for (how, found) in [
        ("return", "1 early\n"),
        ("exit", "1 early\n"),
        ("close", "1 early\n"),
        // An exit function of the program saves after that of outlive.
        ("late", "2 late\n"),
        // The log callback is not called once the program ends.
        ("log", "1 early\n"),
    ] {
        let pool = dir.path().join(how);
        let arg = |how: &str| [pool.clone(), PathBuf::from(how)];
        run(&program, &arg(how));
        assert_eq!(run(&program, &arg("check")), found, "{how}");
    }
    // Ends with `_exit`: the save under way may be lost, but nothing is damaged.
    let pool = dir.path().join("_exit");
    run(&program, &[pool.clone(), PathBuf::from("_exit")]);
    run(&program, &[pool.clone(), PathBuf::from("return")]);
    run(&program, &[pool, PathBuf::from("check")]);
}

/// Kills a program a few steps after each start, at any point. Its last line is that of an
/// undisturbed run.
#[test]
fn killed_again_and_again() {
    if !Language::C.is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = program(dir.path(), "evolve.c");
    let whole = run(&program, &[dir.path().join("whole"), PathBuf::from("60")]);
    let sum = whole.lines().last().unwrap();
    assert!(sum.starts_with("sum "), "{whole}");
    let (mut kills, mut starts) = (0, Vec::new());
    loop {
        let mut child = Command::new(&program)
            .args([dir.path().join("disturbed"), PathBuf::from("60")])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let first = lines.next().unwrap();
        let from: u64 = first.strip_prefix("from ").unwrap().parse().unwrap();
        starts.push(from);
        let until = from + 4 + kills % 5;
        let mut last = String::new();
        let is_there = lines.by_ref().any(|line| {
            let step = line.strip_prefix("at ").and_then(|step| step.parse::<u64>().ok());
            last = line;
            step.is_some_and(|step| step >= until && step < 60)
        });
        if !is_there {
            assert!(child.wait().unwrap().success());
            assert_eq!(last, sum);
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
    }
    assert!(starts.is_sorted(), "a committed checkpoint was lost: {starts:?}");
    // It may lack at most two saves: one under way, and one just begun.
    assert!(starts.windows(2).all(|pair| pair[1] >= pair[0] + 2), "{starts:?}");
}

#[test]
fn a_damaged_checkpoint_is_told_of_and_passed_over() {
    if !Language::C.is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = program(dir.path(), "notices.c");
    let pool = pool(dir.path());
    run(&program, &[pool.clone(), PathBuf::from("save")]);
    damage_newest_pack(&pool);
    assert_eq!(run(&program, &[pool.clone(), PathBuf::from("listen")]), "epoch 1 told 1\n");
    // Without a callback the warning is on standard error.
    let done =
        Command::new(&program).args([pool.as_path(), Path::new("default")]).output().unwrap();
    assert_eq!(text_of(&done), "epoch 1 told 0\n");
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(err.contains("outlive: warning: passed over a damaged checkpoint"), "{err}");
}

/// Flips bytes in the pack of the last save.
fn damage_newest_pack(pool: &Path) {
    let mut files = Vec::new();
    let mut left = vec![pool.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { left.push(path) } else { files.push(path) }
        }
    }
    let large = files.into_iter().filter(|path| path.metadata().unwrap().len() > 200_000);
    let newest = large.max_by_key(|path| path.metadata().unwrap().modified().unwrap()).unwrap();
    let mut bytes = fs::read(&newest).unwrap();
    bytes[20_000..200_000].iter_mut().for_each(|byte| *byte ^= 0xFF);
    fs::write(newest, bytes).unwrap();
}

/// A small file system, unmounted at the end.
struct Mount(tempfile::TempDir);

impl Mount {
    fn new(mebibytes: u64) -> Option<Mount> {
        let mount = Mount(tempfile::tempdir().unwrap());
        let options = format!("size={mebibytes}m");
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", &options, "none"]).arg(mount.0.path());
        let is_mounted = command.output().is_ok_and(|done| done.status.success());
        if !is_mounted {
            eprintln!("skipped: only root can mount a file system");
        }
        is_mounted.then_some(mount)
    }

    fn remount_read_only(&self) {
        let mut command = Command::new("mount");
        let done = command.args(["-o", "remount,ro"]).arg(self.0.path()).status().unwrap();
        assert!(done.success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[test]
fn a_full_disk_and_a_read_only_one() {
    if !Language::C.is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = program(dir.path(), "refused.c");
    let Some(mount) = Mount::new(60) else { return };
    let pool = mount.0.path().join("pool");
    let told = run(&program, std::slice::from_ref(&pool));
    assert!(told.starts_with("save OUTLIVE_FULL: "), "{told}");
    assert!(told.contains("\nrestored "), "{told}");
    // A pool on a read-only file system can be read.
    mount.remount_read_only();
    let told = run(&program, std::slice::from_ref(&pool));
    assert!(told.starts_with("save OUTLIVE_INVALID: ") && told.contains("ead-only"), "{told}");
    assert!(told.contains("\nrestored "), "{told}");
    let told = run(&program, &[mount.0.path().join("another")]);
    assert!(told.starts_with("open OUTLIVE_INVALID: ") && told.contains("ead-only"), "{told}");
}

/// Built with the address sanitizer, which tracks the memory of every part of the library. Valgrind
/// hides the kernel's vDSO, without which the library ends there.
#[test]
fn the_address_sanitizer_finds_nothing() {
    if !Language::C.is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let more = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    for name in ["bad_input.c", "events.c", "round_trip.c", "threads.c"] {
        let source = root().join("tests/it/programs").join(name);
        let program = compile(Language::C, dir.path(), &[source], &more);
        let pool = dir.path().join(format!("pool of {name}"));
        let mut command = Command::new(&program);
        command.arg(pool);
        if name == "bad_input.c" {
            command.arg(dir.path().join("not there"));
        }
        assert_eq!(text_of(&command.output().unwrap()), "done\n", "{name}");
    }
}
