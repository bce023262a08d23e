//! Space is freed: of running programs, of killed ones, and on a full disk.

use crate::common;
use crate::etcd;

use common::{command, json, outlive};
use etcd::{Cluster, until};
use outlive_types::{Rng, SeededRng};
use rustix::process::test_kill_process;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

pub fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    SeededRng::new(seed).fill(&mut noise);
    noise
}

const DUMP_BYTES: usize = 3_000_000;

fn begin(pool: &str, job: &str) -> (Child, ChildStdin) {
    let mut put = command(&["put", pool, job, "-"]);
    let mut child = put.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let stdin = child.stdin.take().unwrap();
    (child, stdin)
}

fn put(pool: &str, job: &str, seed: u64) {
    let (mut child, mut stdin) = begin(pool, job);
    stdin.write_all(&noise(seed, DUMP_BYTES)).unwrap();
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

/// Waits until a saving program has an unfinished pack in the pool.
fn wait_until_it_writes(child: &mut Child, pool: &Path) {
    let is_part = |entry: &fs::DirEntry| entry.path().extension().is_some_and(|end| end == "part");
    let any = |dir: fs::DirEntry| {
        fs::read_dir(dir.path()).is_ok_and(|entries| entries.flatten().any(|entry| is_part(&entry)))
    };
    while !fs::read_dir(pool.join("packs")).is_ok_and(|dirs| dirs.flatten().any(any)) {
        assert!(child.try_wait().unwrap().is_none(), "the child has ended before its save");
        std::thread::yield_now();
    }
}

/// A running program holds packs back, and `gc` names it. A killed one holds none back.
#[test]
fn a_program_that_was_killed_holds_nothing_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pool = text(&path);
    assert_eq!(outlive(&["pool", "init", pool]).code, 0);
    (1..=3).for_each(|seed| put(pool, "job", seed));
    let (mut child, mut stdin) = begin(pool, "job");
    // More than the pipe and the buffers hold, so the child is in its save.
    stdin.write_all(&noise(9, 12_000_000)).unwrap();
    wait_until_it_writes(&mut child, &path);
    let program = format!("process {} on ", child.id());
    let held = json(&["prune", pool, "job", "--keep-last", "1", "--json"]);
    assert!(held["held_by"]["job"].as_str().unwrap().starts_with(&program), "{held}");
    assert!(held["held_bytes"].as_u64() >= Some(2 * DUMP_BYTES as u64), "{held}");
    assert_eq!((&held["deleted_packs"], &held["freed_bytes"]), (&0.into(), &0.into()), "{held}");
    let du = json(&["du", pool, "--json"]);
    assert_eq!(
        (&du["held_bytes"], &du["held_by"]),
        (&held["held_bytes"], &held["held_by"]),
        "{du}"
    );
    assert_eq!(du["gc_frees_bytes"], 0, "{du}");
    let told = outlive(&["gc", pool]);
    assert!(told.out.contains(&program) && told.out.contains("--fence job`"), "{told:?}");
    assert!(outlive(&["du", pool]).out.contains(&program));

    child.kill().unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    let ended = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
    rustix::process::waitid(rustix::process::WaitId::Pid(pid), ended).unwrap();
    let du = json(&["du", pool, "--json"]);
    assert_eq!(du["held_bytes"], 0, "an unreaped child is dead, too: {du}");
    child.wait().unwrap();
    assert!(test_kill_process(pid).is_err());
    let freed = json(&["gc", pool, "--json"]);
    assert!(freed["freed_bytes"].as_u64() >= Some(2 * DUMP_BYTES as u64), "{freed}");
    assert_eq!((&freed["held_packs"], &freed["held_bytes"]), (&0.into(), &0.into()), "{freed}");
    let got = command(&["get", pool, "job", "--to", "-"]).output().unwrap();
    assert!(got.status.success() && got.stdout == noise(3, DUMP_BYTES));
    // The killed save's own packs are deleted, too.
    let du = json(&["du", pool, "--json"]);
    assert!(du["packs_bytes"].as_u64() < Some(2 * DUMP_BYTES as u64), "{du}");
    put(pool, "job", 4);
}

/// Begins a put in namespaces of its own, as in a container: processes outside cannot see whether
/// it runs. `boot` is a file with the boot id that it sees.
fn begin_in_a_container(pool: &str, job: &str, boot: Option<&Path>) -> Option<(Child, ChildStdin)> {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "root is needed to make a namespace");
        eprintln!("not root: there are no namespaces, so this test checks nothing here");
        return None;
    }
    let mut put = Command::new("unshare");
    put.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
    if let Some(boot) = boot {
        let bind = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
        put.args(["sh", "-c", bind]).arg(boot);
    }
    put.arg(env!("CARGO_BIN_EXE_outlive")).args(["put", pool, job, "-"]);
    put.env("OUTLIVE_LEASE_S", "2");
    let mut child = put.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let stdin = child.stdin.take().unwrap();
    Some((child, stdin))
}

/// Checks that a program in a container that is in its save holds packs back until it is killed.
fn a_killed_one_holds_nothing_back(path: &Path, container: (Child, ChildStdin), what: &str) {
    let (pool, (mut child, mut stdin)) = (text(path), container);
    stdin.write_all(&noise(9, 12_000_000)).unwrap();
    wait_until_it_writes(&mut child, path);
    let held = json(&["prune", pool, "job", "--keep-last", "1", "--json"]);
    let holder = held["held_by"]["job"].as_str().unwrap();
    assert!(holder.starts_with("process 1 on "), "{what}: {held}");
    assert_eq!((&held["deleted_packs"], &held["freed_bytes"]), (&0.into(), &0.into()), "{held}");

    child.kill().unwrap();
    child.wait().unwrap();
    until("it counts as ended", || json(&["du", pool, "--json"])["held_bytes"] == 0);
    let gc = outlive(&["gc", pool, "--json"]);
    assert!(gc.err.contains("the program of job job (process 1 on "), "{what}: {gc:?}");
    let freed: serde_json::Value = serde_json::from_str(&gc.out).unwrap();
    assert!(freed["freed_bytes"].as_u64() >= Some(2 * DUMP_BYTES as u64), "{what}: {freed}");
    assert_eq!((&freed["held_packs"], &freed["held_bytes"]), (&0.into(), &0.into()), "{freed}");
    let du = json(&["du", pool, "--json"]);
    assert!(du["packs_bytes"].as_u64() < Some(2 * DUMP_BYTES as u64), "{du}");
    let got = command(&["get", pool, "job", "--to", "-"]).output().unwrap();
    assert!(got.status.success() && got.stdout == noise(3, DUMP_BYTES));
    put(pool, "job", 4);
}

/// A process number means nothing in another container. There the log shows whether its writer
/// runs.
#[test]
fn a_program_that_was_killed_in_another_container_holds_nothing_back() {
    let cluster = Cluster::of(1);
    let in_etcd = format!("etcd://{}/pool", cluster.address());
    for logs in [vec![], vec!["../log 1", "../log 2", "../log 3"], vec![in_etcd.as_str()]] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        let pool = text(&path);
        let mut init = vec!["pool", "init", pool];
        init.extend(logs.iter().flat_map(|log| ["--log", log]));
        let made = outlive(&init);
        assert_eq!(made.code, 0, "{made:?}");
        (1..=3).for_each(|seed| put(pool, "job", seed));
        let Some(container) = begin_in_a_container(pool, "job", None) else { return };
        a_killed_one_holds_nothing_back(&path, container, &format!("{logs:?}"));
    }
}

/// Only one kernel at a time has a disk. So its locks also show the state of programs from before
/// the host restarted, and of programs in containers that see another boot id.
#[test]
fn a_program_of_another_boot_holds_nothing_back() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mount) = Mount::new(dir.path().join("disk"), "80m") else { return };
    let (path, boot) = (mount.0.join("pool"), dir.path().join("boot"));
    let pool = text(&path);
    fs::write(&boot, "01234567-89ab-cdef-0123-456789abcdef\n").unwrap();
    assert_eq!(outlive(&["pool", "init", pool]).code, 0);
    (1..=3).for_each(|seed| put(pool, "job", seed));
    let container = begin_in_a_container(pool, "job", Some(&boot)).unwrap();
    a_killed_one_holds_nothing_back(&path, container, "another boot");
}

/// A file system in memory.
pub struct Mount(pub PathBuf);

impl Mount {
    /// Mounts one; `None` if this user may not, and CI does not ask for it.
    pub fn new(path: PathBuf, size: &str) -> Option<Mount> {
        if !rustix::process::geteuid().is_root() {
            assert!(
                std::env::var_os("CI").is_none(),
                "root is needed to mount a small file system"
            );
            eprintln!("not root: nothing is mounted, so this test checks nothing here");
            return None;
        }
        fs::create_dir(&path).unwrap();
        let options = format!("size={size}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "none"]).arg(&path);
        assert!(mount.status().unwrap().success(), "{mount:?} failed");
        Some(Mount(path))
    }

    /// Fills the disk to the last byte.
    pub fn fill(&self) {
        let mut file =
            File::options().append(true).create(true).open(self.0.join("filler")).unwrap();
        for block in [1 << 20, 4096, 1] {
            while file.write(&vec![1; block]).is_ok_and(|written| written > 0) {}
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A failure here must not hide the test's own.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_prune_works_on_a_disk_that_is_full_to_the_last_byte() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mount) = Mount::new(dir.path().join("disk"), "40m") else { return };
    let path = mount.0.join("pool");
    let pool = text(&path);
    assert_eq!(outlive(&["pool", "init", pool]).code, 0);
    (1..=6).for_each(|seed| put(pool, "job", seed));
    let reserve = path.join("packs/.reserve");
    assert_eq!(fs::metadata(&reserve).unwrap().blocks() * 512, 640 << 10, "1/64 of the disk");
    mount.fill();
    let keep = ["prune", pool, "job", "--json", "--keep-last"];
    let kept = || outlive(&["ls", pool, "job", "--json"]).out.matches("\"epoch\"").count();
    for (last, freed) in [("4", 2), ("2", 2), ("1", 1)] {
        mount.fill();
        let pruned = json(&[&keep[..], &[last]].concat());
        let enough = (freed * DUMP_BYTES) as u64 * 9 / 10;
        assert!(pruned["freed_bytes"].as_u64() > Some(enough), "{pruned}");
        assert_eq!(kept().to_string(), last);
        let made = fs::metadata(&reserve).unwrap();
        assert_eq!(made.blocks() * 512, 640 << 10, "the prune makes the reserve again");
    }
    let got = command(&["get", pool, "job", "--to", "-"]).output().unwrap();
    assert!(got.status.success() && got.stdout == noise(6, DUMP_BYTES));
    // As a control: without the reserve the prune fails.
    fs::remove_file(mount.0.join("filler")).unwrap();
    (7..=8).for_each(|seed| put(pool, "job", seed));
    fs::remove_file(&reserve).unwrap();
    mount.fill();
    let full = outlive(&[&keep[..], &["1"]].concat());
    assert_eq!(full.code, 4, "{full:?}");
    assert_eq!(kept(), 3, "the failed prune drops no checkpoint");
}
