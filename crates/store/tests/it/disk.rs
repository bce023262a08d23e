//! Real file systems that refuse: full, read-only, without O_DIRECT, or owned by another user.
//! Mounting needs root; without it, these tests print that, and use a plain directory as far as
//! possible.

use crate::common;
use crate::mounted;

use common::{Program, State, Warnings, noise, small_config};
use mounted::{Mount, is_root};
use outlive_pool::{Environment, Pool, create, open, open_or_create};
use outlive_store::retention::Rules;
use outlive_store::{Job, JobOptions, OnFailure, Select};
use outlive_types::ErrorKind;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

const NOBODY: u32 = 65534;
/// Role and directory for this test program when it is started again as another user.
const ROLE: &str = "OUTLIVE_TEST_ROLE";

fn pool_at(path: &Path) -> Pool {
    create(path, small_config(), Environment::system()).unwrap()
}

fn state(seed: u64, bytes: usize) -> State {
    State::from([("a".to_owned(), noise(seed, bytes)), ("n".to_owned(), vec![seed as u8])])
}

fn restores(path: &Path, epoch: u64, want: &State) {
    let pool = open(path, Environment::system()).unwrap();
    let (found, restored) = Program::start(&pool, "job").restore(Select::Newest).unwrap().unwrap();
    assert_eq!(found, epoch);
    assert!(restored == *want);
}

#[test]
fn a_full_disk_loses_nothing_and_recovers() {
    let Some(mount) = Mount::new(48) else { return };
    let path = mount.path().join("pool");
    let program = Program::start(&pool_at(&path), "job");
    let filler = mount.path().join("filler");
    fs::write(&filler, noise(0, 8 << 20)).unwrap();
    let mut last = None;
    let error = loop {
        let seed = last.map_or(1, |(_, seed)| seed + 1);
        assert!(seed < 100, "the disk never fills");
        match program.save(&state(seed, 3 << 20)) {
            Ok(stats) => last = Some((stats.epoch, seed)),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.message().contains("free space"), "{error}");
    let (epoch, seed) = last.unwrap();
    restores(&path, epoch, &state(seed, 3 << 20));
    // Nothing of the failed save is left.
    let parts = fs::read_dir(path.join("packs"))
        .unwrap()
        .flatten()
        .filter(|sub| sub.path().is_dir())
        .flat_map(|sub| fs::read_dir(sub.path()).unwrap().flatten().map(|file| file.file_name()));
    assert_eq!(parts.filter(|name| name.to_string_lossy().ends_with(".part")).count(), 0);

    fs::remove_file(&filler).unwrap();
    let after = program.save(&state(77, 3 << 20)).unwrap();
    assert_eq!(after.epoch, epoch + 1);
    // The reader takes the job over only when it saves, so the writer may go on.
    restores(&path, epoch + 1, &state(77, 3 << 20));
}

/// A program goes on after failed saves, on a disk that is full for a while, with rules and
/// without.
#[test]
fn a_program_goes_on_while_the_disk_is_full() {
    for rules in [None, Some(Rules { last: Some(2), ..Rules::default() })] {
        let Some(mount) = Mount::new(64) else { return };
        let path = mount.path().join("pool");
        let on_failure = Some(OnFailure::Warn { fail_after: Duration::from_secs(24 * 3600) });
        let options = JobOptions { on_failure, ..JobOptions::default() };
        let job = Job::open(&pool_at(&path), "job", options).unwrap();
        let program = Program { job, tracker: Arc::default(), attachment: Vec::new() };
        rules.map_or(Ok(()), |rules| program.job.keep(rules)).unwrap();
        program.save(&state(1, 3 << 20)).unwrap();
        // Another program's file takes the rest.
        let filler = mount.path().join("filler");
        let mut rest = fs::File::create(&filler).unwrap();
        while std::io::Write::write_all(&mut rest, &noise(0, 1 << 16)).is_ok() {}
        drop(rest);
        for seed in 2..5 {
            let handle = program.job.save(&mut program.source(&state(seed, 3 << 20))).unwrap();
            handle.wait_done(None);
        }
        let failed = program.job.health().failed;
        assert_eq!(program.job.health().failed_in_a_row, failed);
        assert!(failed >= 2, "the disk was never full");
        fs::remove_file(&filler).unwrap();
        let source = &mut program.source(&state(9, 3 << 20));
        let handle = program.job.save(source).unwrap();
        let epoch = handle.wait(None).unwrap().unwrap().epoch;
        assert_eq!(program.job.health().failed_in_a_row, 0);
        let newest = program.job.epochs().unwrap().pop().unwrap();
        assert_eq!(u64::from(newest.manifest.failed_before), failed);
        program.job.close().unwrap();
        restores(&path, epoch, &state(9, 3 << 20));
    }
}

/// A save that meets a full disk drops checkpoints that the rules do not keep, so the next one has
/// room.
#[test]
fn a_job_with_rules_makes_room_on_a_full_disk() {
    let Some(mount) = Mount::new(48) else { return };
    let path = mount.path().join("pool");
    let program = Program::start(&pool_at(&path), "job");
    let mut seed = 1;
    while program.save(&state(seed, 3 << 20)).is_ok() {
        seed += 1;
        assert!(seed < 100, "the disk never fills");
    }
    program.job.keep(Rules { last: Some(1), ..Rules::default() }).unwrap();
    let full = program.save(&state(seed, 3 << 20)).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::Full, "{full}");
    let epoch = program.save(&state(seed, 3 << 20)).unwrap().epoch;
    program.job.close().unwrap();
    let kept: Vec<_> = program.job.epochs().unwrap().iter().map(|info| info.epoch).collect();
    assert_eq!(kept, [epoch]);
    restores(&path, epoch, &state(seed, 3 << 20));
}

#[test]
fn a_read_only_file_system_can_be_read() {
    let Some(mount) = Mount::new(48) else { return };
    let path = mount.path().join("pool");
    Program::start(&pool_at(&path), "job").save(&state(1, 1 << 20)).unwrap();
    mount.remount("ro");
    restores(&path, 1, &state(1, 1 << 20));
    let pool = open(&path, Environment::system()).unwrap();
    let program = Program::start(&pool, "job");
    assert!(program.job.verify(None).unwrap().findings.is_empty());
    let error = program.save(&state(2, 1 << 20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.message().contains("Read-only file system"), "{error}");
    let made = open_or_create(&mount.path().join("new"), Environment::system());
    assert_eq!(made.unwrap_err().kind(), ErrorKind::Invalid);
    mount.remount("rw");
    assert_eq!(program.save(&state(2, 1 << 20)).unwrap().epoch, 2);
}

#[test]
fn a_file_system_without_direct_io_is_told_once() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("no /dev/shm: this test checks nothing here");
        return;
    };
    let warnings = Arc::new(Warnings::default());
    let env = Environment::observed(warnings.clone());
    let pool = create(&dir.path().join("pool"), small_config(), env).unwrap();
    let program = Program::start(&pool, "job");
    for seed in 1..4 {
        program.save(&state(seed, 1 << 20)).unwrap();
    }
    restores(&dir.path().join("pool"), 3, &state(3, 1 << 20));
    // Newer kernels grant O_DIRECT on tmpfs; then there is no warning.
    assert!(warnings.0.lock().unwrap().len() <= 1, "{:?}", warnings.0.lock().unwrap());
}

#[test]
fn an_unprivileged_user_saves_and_restores_in_their_own_directory() {
    match std::env::var(ROLE).ok().as_deref().and_then(|role| role.split_once(':')) {
        Some(("own", path)) => {
            let pool = pool_at(Path::new(path));
            let program = Program::start(&pool, "job");
            for seed in 1..4 {
                program.save(&state(seed, 1 << 20)).unwrap();
            }
            return restores(Path::new(path), 3, &state(3, 1 << 20));
        }
        Some(("foreign", path)) => {
            restores(Path::new(path), 1, &state(1, 1 << 20));
            let pool = open(Path::new(path), Environment::system()).unwrap();
            let error = Program::start(&pool, "job").save(&state(2, 1 << 20)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.message().contains("Permission denied"), "{error}");
            return;
        }
        _ => {}
    }
    if !is_root() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        Program::start(&pool_at(&path), "job").save(&state(1, 1 << 20)).unwrap();
        return restores(&path, 1, &state(1, 1 << 20));
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // The build's own directory may be closed to others.
    let program = dir.path().join("test-program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let theirs = dir.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(NOBODY), Some(NOBODY)).unwrap();
    let ours = dir.path().join("ours");
    Program::start(&pool_at(&ours), "job").save(&state(1, 1 << 20)).unwrap();
    for role in
        [format!("own:{}", theirs.join("pool").display()), format!("foreign:{}", ours.display())]
    {
        let status = Command::new(&program)
            .args([
                "--exact",
                "disk::an_unprivileged_user_saves_and_restores_in_their_own_directory",
            ])
            .env(ROLE, &role)
            .env("TMPDIR", &theirs)
            .current_dir("/")
            .uid(NOBODY)
            .gid(NOBODY)
            .status()
            .unwrap();
        assert!(status.success(), "without rights: {role}");
    }
}

/// Other work holds all buffers of the pool for the whole time, such as reads that wait for this
/// save.
#[test]
fn saves_and_restores_go_on_without_a_buffer_of_the_pool() {
    let dir = tempfile::tempdir().unwrap();
    let pool = create(dir.path(), small_config(), Environment::system()).unwrap();
    let staging = pool.staging().clone();
    let all: Vec<_> = std::iter::from_fn(|| staging.try_take()).collect();
    assert!(all.len() > 4);
    let program = Program::start(&pool, "job");
    let mut state = State::from([("a".to_owned(), noise(1, 3 << 20))]);
    for seed in 2..5 {
        state.insert("a".to_owned(), noise(seed, 3 << 20));
        program.save(&state).unwrap();
    }
    let (_, restored) = program.restore(Select::Newest).unwrap().unwrap();
    assert!(restored == state);
    drop(all);
    program.save(&state).unwrap();
}
