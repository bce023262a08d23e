//! Programs under `outlive run --gate`: what the language keeps in its buffers is written before a
//! save covers it. The test takes the place of the supervisor.

use crate::common::{Language, fortran_program, program};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

/// Runs a program that kills itself, with the environment of attempt `attempt`. Returns what it has
/// printed and reported. It restores all, or only the region `some`.
fn attempt(program: &Path, dir: &Path, attempt: u32, some: &[&str]) -> [String; 2] {
    let pool = dir.join("pool");
    let place = dir.join(attempt.to_string());
    fs::create_dir(&place).unwrap();
    let descriptor = fs::read_to_string(pool.join("pool.toml")).unwrap();
    let id = descriptor.lines().find_map(|line| line.trim().strip_prefix("pool_id = "));
    fs::write(dir.join("reports"), "").unwrap();
    let status = Command::new(program)
        .arg(&pool)
        .args(some)
        .env("OUTLIVE_RUN", dir)
        .env("OUTLIVE_RUN_POOL", id.unwrap().trim_matches('"'))
        .env("OUTLIVE_RUN_JOB", "job")
        .env("OUTLIVE_RUN_TRANSCRIPT", &place)
        .stdout(File::create(place.join("stdout")).unwrap())
        .stderr(File::create(place.join("stderr")).unwrap())
        .status()
        .unwrap();
    assert!(!status.success());
    let reports = fs::read_to_string(dir.join("reports")).unwrap();
    let reports: Vec<&str> = reports
        .lines()
        .filter(|line| ["covered", "recovered", "dropped"].iter().any(|it| line.starts_with(it)))
        .collect();
    [fs::read_to_string(place.join("stdout")).unwrap(), reports.join("\n")]
}

fn is_covered(program: &Path, dir: &Path, some: &[&str]) {
    // It makes the pool, and prints as without a supervisor.
    let alone = Command::new(program).arg(dir.join("pool")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&alone.stdout), "begin\nstep 1\nuncovered\n");
    // Epoch 1 knows of no transcript. Lines before a restore are dropped.
    let [printed, reports] = attempt(program, dir, 1, some);
    assert_eq!(printed, "begin\nstep 2\nuncovered\n");
    let covered = "1/stdout 6 13 1/stderr 6 6";
    assert_eq!(
        reports,
        format!("recovered \ndropped 1/stdout 6 6 1/stderr 6 6\ncovered {covered}")
    );
    let [printed, reports] = attempt(program, dir, 2, some);
    assert_eq!(printed, "begin\nstep 3\nuncovered\n");
    let own = "2/stdout 6 6 2/stderr 6 6";
    assert_eq!(
        reports,
        format!(
            "recovered {covered}\ndropped {own}\ncovered 1/stdout 6 13 2/stdout 6 13 2/stderr 6 6"
        )
    );
}

#[test]
fn a_save_covers_what_a_program_in_c_has_printed() {
    if Language::C.is_here() {
        let dir = tempfile::tempdir().unwrap();
        is_covered(&program(dir.path(), "printed.c"), dir.path(), &[]);
    }
}

#[test]
fn a_save_covers_what_a_program_in_fortran_has_printed() {
    if Language::Fortran.is_here() {
        let dir = tempfile::tempdir().unwrap();
        let program = fortran_program(dir.path(), "printed.f90");
        for some in [&[][..], &["step"]] {
            let dir = tempfile::tempdir().unwrap();
            is_covered(&program, dir.path(), some);
        }
    }
}
