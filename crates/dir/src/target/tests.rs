use super::*;
use crate::durable::tests::{WITHOUT_LINKS, opens};
use outlive_backend::ReadMode;
use outlive_io::AlignedBuf;
use outlive_log::{LogRecords, RecordLog};
use outlive_types::sync::plain::Mutex;
use outlive_types::sync::{Scheduler, scheduled};
use outlive_types::{ErrorKind, PAGE_BYTES, SessionId};
use std::fs::File;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

fn shard(number: u32) -> ShardName {
    ShardName { pack: PackId::new(SessionId([0xAB; 12]), 0, number), shard: 3 }
}

fn open(root: &Path) -> DirectoryTarget {
    DirectoryTarget::open(root, &DirectoryOptions::default()).unwrap()
}

fn put(target: &DirectoryTarget, shard: ShardName, byte: u8) {
    let mut buffer = AlignedBuf::zeroed(2 * PAGE_BYTES);
    buffer.fill(byte);
    let mut writer = target.create(shard, 1 << 20).unwrap();
    writer.write(0, buffer.share()).wait().unwrap();
    writer.finish(2 * PAGE_BYTES as u64).wait().unwrap();
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn files_lie_where_the_format_says() {
    let root = tempfile::tempdir().unwrap();
    let target = open(root.path());
    let dir = root.path().join("packs").join("07");
    let writer = target.create(shard(7), 1 << 20).unwrap();
    let stem = format!("{}0000000000000007.3", "ab".repeat(12));
    assert_eq!(names(&dir), [format!("{stem}.part")]);
    assert_eq!(fs::metadata(dir.join(format!("{stem}.part"))).unwrap().len(), 1 << 20);
    drop(writer);
    assert_eq!(names(&dir), [""; 0]);
    put(&target, shard(7), 1);
    assert_eq!(names(&dir), [format!("{stem}.shard")]);
    assert_eq!(fs::read(dir.join(format!("{stem}.shard"))).unwrap(), [1; 2 * PAGE_BYTES]);
}

#[test]
fn foreign_files_are_not_listed() {
    let root = tempfile::tempdir().unwrap();
    let target = open(root.path());
    put(&target, shard(0x101), 1);
    let packs = root.path().join("packs");
    let own = format!("{}.shard", shard(0x101));
    fs::create_dir(packs.join("02")).unwrap();
    for stray in ["02/README", "note", "02/00.0.shard", &format!("02/{own}")] {
        fs::write(packs.join(stray), "x").unwrap();
    }
    for stray in [".shard", "x.3.shard", &own.replace(".3.", ".03."), &own.replace(".3.", ".256.")]
    {
        fs::write(packs.join("01").join(stray), "x").unwrap();
    }
    assert_eq!(target.list().unwrap(), [shard(0x101)]);
}

#[test]
fn a_leftover_part_is_replaced_and_deleted() {
    let root = tempfile::tempdir().unwrap();
    let target = open(root.path());
    let dir = root.path().join("packs/01");
    fs::create_dir_all(&dir).unwrap();
    let part = dir.join(format!("{}.part", shard(1)));
    fs::write(&part, vec![9; 3 << 20]).unwrap();
    put(&target, shard(1), 4);
    assert_eq!(target.length(shard(1)).unwrap(), 2 * PAGE_BYTES as u64);
    fs::write(&part, "garbage").unwrap();
    target.delete(shard(1)).unwrap();
    assert_eq!(names(&dir), [""; 0]);
}

#[test]
fn two_writers_of_one_name_do_not_overwrite() {
    let root = tempfile::tempdir().unwrap();
    let target = open(root.path());
    let writer = target.create(shard(1), 1 << 20).unwrap();
    // Another process was faster, after all checks.
    let path = target.path(shard(1));
    fs::write(&path, "theirs").unwrap();
    let error = writer.finish(0).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"theirs");
    assert_eq!(names(path.parent().unwrap()).len(), 1, "the part is gone");
}

#[test]
fn a_part_that_a_gc_removed_says_so() {
    let root = tempfile::tempdir().unwrap();
    let target = open(root.path());
    let writer = target.create(shard(1), 1 << 20).unwrap();
    fs::remove_file(target.part_path(shard(1))).unwrap();
    let error = writer.finish(0).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert!(error.message().contains("fenced"), "{error}");
}

const BYTES: u64 = 2 * PAGE_BYTES as u64;

/// Returns a writer that has written two pages.
fn written(
    target: &DirectoryTarget,
    shard: ShardName,
    replaces: bool,
    byte: u8,
) -> DirectoryWriter {
    let mut buffer = AlignedBuf::zeroed(2 * PAGE_BYTES);
    buffer.fill(byte);
    target.make_dir(shard, false).unwrap();
    let mut writer = target.begin(shard, 1 << 20, replaces).unwrap();
    writer.write(0, buffer.share()).wait().unwrap();
    writer
}

fn ended(writer: DirectoryWriter) -> Result<()> {
    Box::new(writer).finish(BYTES).wait()
}

fn replace(target: &DirectoryTarget, shard: ShardName, byte: u8) {
    ended(written(target, shard, true, byte)).unwrap();
}

/// Returns the byte that fills a whole shard; `None` if there is no shard.
fn whole(target: &DirectoryTarget, shard: ShardName) -> Option<u8> {
    let bytes = fs::read(target.path(shard)).ok()?;
    assert_eq!(bytes, vec![bytes[0]; BYTES as usize], "the shard is not whole");
    Some(bytes[0])
}

fn first_byte(target: &DirectoryTarget, shard: ShardName) -> u8 {
    let range = ReadRange::new(0, AlignedBuf::zeroed(PAGE_BYTES));
    target.read_ranges(shard, vec![range]).remove(0).wait().unwrap()[0]
}

/// Returns the bytes that this process has read from devices.
fn read_from_devices() -> u64 {
    let io = fs::read_to_string("/proc/self/io").unwrap();
    io.lines().find_map(|line| line.strip_prefix("read_bytes: ")).unwrap().parse().unwrap()
}

/// Runs this test in its own process, as it counts all reads of the process. Returns true in that
/// process.
fn is_alone(test: &str) -> bool {
    const RUNS: &str = "OUTLIVE_TEST_RUNS";
    if let Some(runs) = std::env::var_os(RUNS) {
        fs::write(runs, []).unwrap();
        return true;
    }
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
    let status = alone.args(["--exact", test, "--nocapture"]).env(RUNS, &runs).status().unwrap();
    assert!(status.success() && runs.exists(), "{test} failed in a process of its own");
    false
}

#[test]
fn a_range_in_the_page_cache_is_read_there_if_the_caller_allows_it() {
    if !is_alone("target::tests::a_range_in_the_page_cache_is_read_there_if_the_caller_allows_it") {
        return;
    }
    // The device of the sources: a file in memory would have no device.
    let root = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let kind = rustix::fs::statfs(root.path()).unwrap().f_type;
    const KNOWN: [i64; 3] = [0xEF53, 0x5846_5342, 0x9123_683E]; // ext4, XFS, Btrfs
    if !KNOWN.contains(&kind) {
        eprintln!("a file system of type {kind:#x}: it is not known what it reads from a device");
        return;
    }
    let target = open(root.path());
    put(&target, shard(1), 7);
    let length = 2 * PAGE_BYTES;
    let read = |may_be_cached| {
        let mode = ReadMode { may_be_cached, ..ReadMode::default() };
        let range = ReadRange { mode, ..ReadRange::new(0, AlignedBuf::zeroed(length)) };
        let before = read_from_devices();
        let bytes = target.read_ranges(shard(1), vec![range]).remove(0).wait().unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
        (read_from_devices() - before) as usize
    };
    let path = target.path(shard(1));
    let hold_first_page_only = || {
        let file = File::open(&path).unwrap();
        for advice in [rustix::fs::Advice::DontNeed, rustix::fs::Advice::Random] {
            rustix::fs::fadvise(&file, 0, None, advice).unwrap();
        }
        read_at(&file, &mut [0; PAGE_BYTES], 0).unwrap();
    };
    assert_eq!((read(true), read(false)), (length, length), "nothing of it is in memory");
    assert_eq!(fs::read(&path).unwrap().len(), length);
    assert_eq!((read(true), read(false)), (0, length));
    hold_first_page_only();
    assert_eq!(read(true), length, "only a part is");
    // The old file does not serve reads of a replaced shard.
    fs::read(&path).unwrap();
    assert_eq!(read(true), 0);
    replace(&target, shard(1), 8);
    assert_eq!(first_byte(&target, shard(1)), 8);
    let mode = ReadMode { may_be_cached: true, ..ReadMode::default() };
    let range = ReadRange { mode, ..ReadRange::new(0, AlignedBuf::zeroed(length)) };
    assert_eq!(target.read_ranges(shard(1), vec![range]).remove(0).wait().unwrap()[0], 8);
}

/// The only thread of the directory does other work meanwhile.
#[test]
fn an_urgent_read_waits_for_no_other_work() {
    let root = tempfile::tempdir().unwrap();
    let options = DirectoryOptions { threads: Some(1), ..DirectoryOptions::default() };
    let target = DirectoryTarget::open(root.path(), &options).unwrap();
    put(&target, shard(1), 7);
    let read = |is_urgent| {
        let mode = ReadMode { is_urgent, ..ReadMode::default() };
        let range = ReadRange { mode, ..ReadRange::new(0, AlignedBuf::zeroed(PAGE_BYTES)) };
        target.read_ranges(shard(1), vec![range]).remove(0)
    };
    let (go_on, ends) = channel::<()>();
    let work = target.files.submit(move || ends.recv().is_err());
    let behind = read(false);
    assert_eq!(read(true).wait().unwrap()[0], 7);
    assert!(!work.ready() && !behind.ready());
    drop(go_on);
    assert!(work.wait());
    assert_eq!(behind.wait().unwrap()[0], 7);
}

/// `reads` acts as another process that has the old file open.
#[test]
fn reads_behind_a_call_of_length_see_the_new_shard() {
    let root = tempfile::tempdir().unwrap();
    let (repairs, reads) = (open(root.path()), open(root.path()));
    for number in [1, 2, 3] {
        put(&repairs, shard(number), 1);
        assert_eq!(
            (first_byte(&repairs, shard(number)), first_byte(&reads, shard(number))),
            (1, 1)
        );
    }
    replace(&repairs, shard(1), 2);
    replace(&repairs, shard(2), 2);
    assert_eq!(first_byte(&repairs, shard(1)), 2, "the process that replaced it");
    assert_eq!(first_byte(&reads, shard(1)), 1, "it has the old file open");
    assert_eq!(reads.length(shard(1)).unwrap(), 2 * PAGE_BYTES as u64);
    assert_eq!(first_byte(&reads, shard(1)), 2);
    assert_eq!(first_byte(&reads, shard(2)), 1, "only the one that was asked for");
    reads.length(shard(2)).unwrap();
    assert_eq!(first_byte(&reads, shard(2)), 2);
    // A deleted shard cannot be read, either.
    repairs.delete(shard(3)).unwrap();
    assert_eq!(first_byte(&reads, shard(3)), 1);
    assert_eq!(reads.length(shard(3)).unwrap_err().kind(), ErrorKind::Damaged);
    let range = ReadRange::new(0, AlignedBuf::zeroed(PAGE_BYTES));
    let fault = reads.read_ranges(shard(3), vec![range]).remove(0).wait().unwrap_err();
    assert_eq!(fault.error.kind(), ErrorKind::Damaged);
}

/// The same while another thread of the process holds the list of open files for a moment.
#[test]
fn a_change_that_is_noticed_at_a_bad_moment_is_not_forgotten() {
    let root = tempfile::tempdir().unwrap();
    let (repairs, reads) = (open(root.path()), open(root.path()));
    put(&repairs, shard(1), 1);
    assert_eq!(first_byte(&reads, shard(1)), 1);
    replace(&repairs, shard(1), 2);
    reads.files.while_busy(|| reads.length(shard(1)).unwrap());
    assert_eq!(first_byte(&reads, shard(1)), 2);
}

#[test]
fn a_replacement_is_durable_when_it_is_acknowledged() {
    let root = tempfile::tempdir().unwrap();
    let target = open(root.path());
    put(&target, shard(1), 1);
    let dir = target.dir_of(shard(1));
    assert!(opens(&dir, || replace(&target, shard(1), 2)), "the directory is synced");
    assert_eq!(names(&dir), [format!("{}.shard", shard(1))]);
    assert_eq!(fs::read(target.path(shard(1))).unwrap(), [2; 2 * PAGE_BYTES]);
}

type Deed = Box<dyn FnOnce() + Send>;

/// Runs a deed when a thread is about to do `what`.
struct Meanwhile {
    what: &'static str,
    deed: Mutex<Option<Deed>>,
}

impl Scheduler for Meanwhile {
    fn pause(&self, what: &str) {
        let deed = if what == self.what { self.deed.lock().take() } else { None };
        if let Some(deed) = deed {
            deed();
        }
    }
    fn sleep(&self, _: Duration) {}
    fn wait(&self, _: usize) {}
    fn wait_for(&self, _: usize, _: Duration) -> bool {
        true
    }
    fn wake(&self, _: usize) {}
    fn spawn(&self, _: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        thread::spawn(work);
        Ok(())
    }
}

/// Does `work`, and runs `deed` when the work is about to do `what`.
fn meanwhile<T>(
    what: &'static str,
    deed: impl FnOnce() + Send + 'static,
    work: impl FnOnce() -> T,
) -> T {
    let at = Arc::new(Meanwhile { what, deed: Mutex::new(Some(Box::new(deed))) });
    let done = scheduled(at.clone(), work);
    assert!(at.deed.lock().is_none(), "it never came to {what:?}");
    done
}

const NAMES: &str = "name the shard's file";
const REPLACES: &str = "replace the shard's file";
const MAKES: &str = "make the shard's file";

/// Two programs write one shard to one directory. The second begins after the first has checked
/// that it still has its part, and before it names the finished shard.
#[test]
fn a_shard_that_another_writer_has_begun_is_never_published() {
    for (replaces, two_replaces) in [(false, false), (false, true), (true, true)] {
        for ends_first in [false, true] {
            let root = tempfile::tempdir().unwrap();
            let (one, two) = (open(root.path()), Arc::new(open(root.path())));
            if replaces {
                put(&one, shard(1), 1);
            }
            let old = whole(&one, shard(1));
            let first = written(&one, shard(1), replaces, 2);
            let (begun, other) = (Arc::new(Mutex::new(None)), two.clone());
            let theirs = begun.clone();
            let deed = move || {
                let writer = written(&other, shard(1), two_replaces, 3);
                *theirs.lock() = Some(writer);
                if ends_first {
                    ended(theirs.lock().take().unwrap()).unwrap();
                }
            };
            let error = meanwhile(NAMES, deed, || first.part.publish(BYTES)).unwrap_err();
            let there = ends_first && !replaces;
            let kind = if there { ErrorKind::Invalid } else { ErrorKind::Retry };
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.message().contains(if there { "exists" } else { "fenced" }), "{error}");
            drop(first);
            let second = begun.lock().take();
            match second {
                Some(second) => {
                    assert_eq!(whole(&one, shard(1)), old, "it is not finished");
                    assert_eq!(one.unfinished().unwrap(), [shard(1)], "and still there");
                    ended(second).unwrap();
                }
                None => assert!(ends_first),
            }
            assert_eq!(whole(&one, shard(1)), Some(3));
            let dir = names(&one.dir_of(shard(1)));
            assert_eq!(dir, [format!("{}.shard", shard(1))]);
        }
    }
}

/// A gc removes the part, or the whole shard, at any moment of the finish.
#[test]
fn a_writer_that_loses_its_part_at_the_last_moment_fails() {
    type Removes = fn(&DirectoryTarget) -> Result<()>;
    let unfinished: Removes = |target| target.delete_unfinished(shard(1));
    let all: Removes = |target| target.delete(shard(1));
    for (replaces, moment) in [(false, NAMES), (true, NAMES), (true, REPLACES)] {
        for (removes, left) in [(unfinished, replaces.then_some(1)), (all, None)] {
            let root = tempfile::tempdir().unwrap();
            let (target, gc) = (open(root.path()), open(root.path()));
            if replaces {
                put(&target, shard(1), 1);
            }
            let writer = written(&target, shard(1), replaces, 2);
            let deed = move || removes(&gc).unwrap();
            let error = meanwhile(moment, deed, || writer.part.publish(BYTES)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
            drop(writer);
            assert_eq!(whole(&target, shard(1)), left, "at the moment to {moment}");
            assert_eq!(target.unfinished().unwrap(), []);
            assert_eq!(names(&target.dir_of(shard(1))).len(), usize::from(left.is_some()));
        }
    }
}

/// The second writer takes the name that the first is about to rename; then either one goes on.
#[test]
fn two_replace_a_shard_at_the_last_moment() {
    for second_ends_first in [false, true] {
        let root = tempfile::tempdir().unwrap();
        let (one, two) = (open(root.path()), open(root.path()));
        put(&one, shard(1), 1);
        let first = written(&one, shard(1), true, 2);
        let (tell, told) = channel();
        let (let_go, wait) = channel();
        let thread = Arc::new(Mutex::new(None));
        let threads = thread.clone();
        let deed = move || {
            let second = written(&two, shard(1), true, 3);
            let stop = move || {
                tell.send(()).unwrap();
                wait.recv().unwrap();
            };
            let work = move || meanwhile(REPLACES, stop, || second.part.publish(BYTES));
            *threads.lock() = Some(thread::spawn(work));
            told.recv().unwrap();
        };
        let go_on = move || {
            let second = thread.lock().take().unwrap();
            let_go.send(()).unwrap();
            second.join().unwrap().unwrap();
        };
        if second_ends_first {
            let deed = move || {
                deed();
                go_on();
            };
            let error = meanwhile(REPLACES, deed, || first.part.publish(BYTES)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
        } else {
            meanwhile(REPLACES, deed, || first.part.publish(BYTES)).unwrap();
            assert_eq!(whole(&one, shard(1)), Some(3), "the second one's file is as whole");
            go_on();
        }
        drop(first);
        assert_eq!(whole(&one, shard(1)), Some(3));
        assert_eq!(names(&one.dir_of(shard(1))).len(), 1, "nothing is left");
    }
}

/// Two writers that begin one shard at the same moment write to different files.
#[test]
fn writers_that_begin_at_the_same_moment_get_files_of_their_own() {
    for replaces in [false, true] {
        let root = tempfile::tempdir().unwrap();
        let (one, two) = (open(root.path()), open(root.path()));
        let begun = Arc::new(Mutex::new(None));
        let theirs = begun.clone();
        let deed = move || *theirs.lock() = Some(written(&two, shard(1), replaces, 3));
        let first = meanwhile(MAKES, deed, || written(&one, shard(1), replaces, 2));
        let second = begun.lock().take().unwrap();
        assert_eq!(ended(second).unwrap_err().kind(), ErrorKind::Retry);
        assert_eq!(whole(&one, shard(1)), None);
        ended(first).unwrap();
        assert_eq!(whole(&one, shard(1)), Some(2));
    }
}

/// A writer that was killed between two steps leaves a second name of a file.
#[test]
fn second_names_are_garbage_and_their_file_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let target = open(root.path());
    put(&target, shard(1), 1);
    let left = || {
        fs::hard_link(target.path(shard(1)), target.part_path(shard(1))).unwrap();
        fs::write(target.whole_path(shard(1)), "whole").unwrap();
        assert_eq!(target.unfinished().unwrap(), [shard(1)]);
    };
    left();
    target.delete_unfinished(shard(1)).unwrap();
    assert_eq!((target.unfinished().unwrap(), whole(&target, shard(1))), (vec![], Some(1)));
    left();
    let writer = written(&target, shard(1), true, 2);
    assert_eq!(whole(&target, shard(1)), Some(1), "it was not overwritten");
    drop(writer);
    assert_eq!((target.unfinished().unwrap(), whole(&target, shard(1))), (vec![], Some(1)));
    left();
    replace(&target, shard(1), 2);
    assert_eq!((target.unfinished().unwrap(), whole(&target, shard(1))), (vec![], Some(2)));
    left();
    target.delete(shard(1)).unwrap();
    assert_eq!(names(&target.dir_of(shard(1))), [""; 0]);
}

/// As without /proc, or on a file system without hard links.
#[test]
fn without_links_shards_are_published_all_the_same() {
    let root = tempfile::tempdir().unwrap();
    let target = open(root.path());
    WITHOUT_LINKS.set(true);
    written(&target, shard(1), false, 1).part.publish(BYTES).unwrap();
    assert_eq!(whole(&target, shard(1)), Some(1));
    let again = written(&target, shard(1), false, 2).part.publish(BYTES).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Invalid, "{again}");
    written(&target, shard(1), true, 2).part.publish(BYTES).unwrap();
    assert_eq!(whole(&target, shard(1)), Some(2));
    written(&target, shard(2), true, 3).part.publish(BYTES).unwrap();
    assert_eq!(whole(&target, shard(2)), Some(3));
    for replaces in [false, true] {
        let writer = written(&target, shard(3), replaces, 4);
        target.delete_unfinished(shard(3)).unwrap();
        assert_eq!(writer.part.publish(BYTES).unwrap_err().kind(), ErrorKind::Retry);
    }
    WITHOUT_LINKS.set(false);
    assert_eq!(target.list().unwrap(), [shard(1), shard(2)]);
    assert_eq!(target.unfinished().unwrap(), []);
}

/// The whole target vanishes at any moment, like memory that is emptied: stored data is not
/// damaged.
#[test]
fn a_target_that_goes_while_a_shard_is_written_is_no_damage() {
    let kind = |error: Error| {
        assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    };
    for (make_root, gone) in [(true, ""), (false, ""), (false, "packs"), (true, "packs")] {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("target");
        fs::create_dir_all(root.join("packs")).unwrap();
        let options = DirectoryOptions { make_root, ..DirectoryOptions::default() };
        let target = DirectoryTarget::open(&root, &options).unwrap();
        let mut begun = [1, 2].map(|number| target.create(shard(number), 1 << 20).unwrap());
        put(&target, shard(3), 3);
        let goes = || fs::remove_dir_all(root.join(gone)).unwrap();
        goes();
        let mut page = AlignedBuf::zeroed(PAGE_BYTES);
        page.fill(1);
        begun[0].write(0, page.share()).wait().unwrap();
        for writer in begun {
            kind(writer.finish(PAGE_BYTES as u64).wait().unwrap_err());
        }
        if !make_root {
            kind(target.create(shard(4), 1 << 20).err().unwrap());
            kind(target.length(shard(3)).unwrap_err());
            let range = ReadRange::new(0, AlignedBuf::zeroed(PAGE_BYTES));
            kind(outlive_backend::read_one(&target, shard(5), range).wait().unwrap_err().error);
            assert!(!root.join("packs").exists(), "nothing is made in its place");
        }
        target.delete(shard(3)).unwrap();
    }
    // The directory of a log.
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("log place");
    fs::create_dir_all(root.join("log")).unwrap();
    let medium = crate::DirectoryMedium::within(&root);
    let job = outlive_types::JobName::new("x").unwrap();
    fs::remove_dir_all(&root).unwrap();
    kind(medium.put_new(&job, 1, b"record").unwrap_err());
}

/// The umask of the process has no influence.
#[test]
fn new_files_and_directories_belong_to_the_pool_s_owner() {
    use outlive_log::ManifestLog;
    use outlive_types::JobName;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    for mode in [0o750, 0o777, 0o700] {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("pool");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        // Only the superuser may change the owner.
        let owner = if rustix::process::geteuid().is_root() { Some(65534) } else { None };
        chown(&path, owner, owner).unwrap();
        let target = open(&path);
        put(&target, shard(1), 1);
        let unfinished = target.create(shard(2), 4096).unwrap();
        let job = JobName::new("job").unwrap();
        RecordLog::over(crate::DirectoryMedium::open(&path))
            .append_if(&job, outlive_log::Previous::NONE, b"record")
            .unwrap();
        let mut looked_at = 0;
        let mut dirs = vec![path.clone()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).unwrap() {
                let (path, metadata) = entry.map(|e| (e.path(), e.metadata().unwrap())).unwrap();
                let wanted = if metadata.is_dir() { mode } else { mode & 0o666 };
                assert_eq!(metadata.mode() & 0o7777, wanted, "{}", path.display());
                let is = owner.map(|_| (metadata.uid(), metadata.gid()));
                assert_eq!(is, owner.map(|id| (id, id)), "{}", path.display());
                looked_at += 1;
                dirs.extend(metadata.is_dir().then_some(path));
            }
        }
        assert_eq!(looked_at, 10, "packs, 2 in it, 2 shards; log, 2 locks, a job, a record");
        drop(unfinished);
    }
}

#[test]
fn a_vanished_directory_is_made_again() {
    let root = tempfile::tempdir().unwrap();
    let target = open(root.path());
    put(&target, shard(1), 1);
    fs::remove_dir_all(root.path().join("packs")).unwrap();
    put(&target, shard(2), 2);
    put(&target, shard(0x101), 3);
    assert_eq!(target.list().unwrap(), [shard(2), shard(0x101)]);
}

fn is_durable(target: &DirectoryTarget, shard: ShardName) -> bool {
    target.made.shards[directory_number(shard)].load(Ordering::Acquire)
}

fn finish(writer: Box<dyn ShardWriter>) {
    writer.finish(0).wait().unwrap();
}

#[test]
fn a_new_directory_is_durable_once_its_first_shard_is() {
    let root = tempfile::tempdir().unwrap();
    let packs = root.path().join("packs");
    fs::create_dir(&packs).unwrap();
    let target = open(root.path());
    let dir = target.dir_of(shard(1));
    let mut writer = None;
    assert!(opens(root.path(), || writer = target.create(shard(1), 4096).ok()), "for `packs`");
    assert!(!is_durable(&target, shard(1)), "who makes it does not wait");
    drop(writer.take());
    assert!(!opens(&packs, || writer = target.create(shard(1), 4096).ok()));
    assert!(!is_durable(&target, shard(1)), "a shard that was given up changes nothing");
    assert!(opens(&packs, || finish(writer.take().unwrap())));
    assert!(is_durable(&target, shard(1)));
    assert!(!is_durable(&target, shard(2)));
    // From then on only names of shards must be made durable.
    let next = target.create(shard(0x101), 4096).unwrap();
    assert!(!opens(&packs, || assert!(opens(&dir, || finish(next)))));
    // A target that finds the directory does not know whether it was durable.
    let other = open(root.path());
    let writer = other.create(shard(0x201), 4096).unwrap();
    assert!(!is_durable(&other, shard(1)));
    assert!(opens(&packs, || finish(writer)));
    assert!(is_durable(&other, shard(1)));
}

#[test]
fn a_directory_that_could_not_be_made_durable_is_not_taken_for_it() {
    let root = tempfile::tempdir().unwrap();
    let target = open(root.path());
    let gone = root.path().join("gone/01");
    target.made.make_durable(shard(1), &gone).unwrap_err();
    assert!(!is_durable(&target, shard(1)));
}

#[test]
fn a_vanished_directory_is_durable_before_a_shard_is_made_in_it() {
    let root = tempfile::tempdir().unwrap();
    let packs = root.path().join("packs");
    let target = open(root.path());
    put(&target, shard(1), 1);
    // Only this directory vanished: the old knowledge says nothing about the new one.
    fs::remove_dir_all(target.dir_of(shard(1))).unwrap();
    assert!(opens(&packs, || drop(target.create(shard(1), 4096).unwrap())));
    // All directories vanished, and one of them never existed.
    fs::remove_dir_all(&packs).unwrap();
    assert!(opens(root.path(), || drop(target.create(shard(2), 4096).unwrap())));
    assert!(is_durable(&target, shard(2)), "at once");
}

#[test]
fn nothing_is_made_by_looking() {
    let root = tempfile::tempdir().unwrap();
    let target = open(&root.path().join("pool"));
    assert_eq!(target.list().unwrap(), []);
    assert!(target.capacity().unwrap().total_bytes > 0);
    assert_eq!(names(root.path()), [""; 0]);
}

#[test]
fn a_file_is_no_target() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("file");
    fs::write(&file, "x").unwrap();
    let error = DirectoryTarget::open(&file, &DirectoryOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("not a directory"), "{error}");
    let below = open(&file.join("pool"));
    assert!(below.create(shard(1), 4096).is_err());
}

#[test]
fn a_shard_cut_short_says_where_it_ends() {
    let root = tempfile::tempdir().unwrap();
    let target = open(root.path());
    put(&target, shard(1), 1);
    for length in [4096, 5000] {
        File::options().write(true).open(target.path(shard(1))).unwrap().set_len(length).unwrap();
        let buffer = AlignedBuf::zeroed(8192);
        let range = ReadRange::new(0, buffer);
        let error = target.read_ranges(shard(1), vec![range]).remove(0).wait().unwrap_err().error;
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(error.message().contains(&format!("ends at byte {length}")), "{error}");
    }
}

/// More bytes than any file may hold, not merely more than are free: for the latter the kernel
/// would fill the disk before it refuses. The error comes at once, and leaves nothing behind.
#[test]
fn room_that_cannot_be_reserved_is_full() {
    let root = tempfile::tempdir().unwrap();
    let error = open(root.path()).create(shard(1), 1 << 62).err().expect("no disk is that large");
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert_eq!(names(&root.path().join("packs/01")), [""; 0]);
}

#[test]
fn reading_many_packs_keeps_few_files_open() {
    let root = tempfile::tempdir().unwrap();
    let target = open(root.path());
    for number in 0..100 {
        put(&target, shard(number), number as u8);
    }
    for number in 0..100 {
        let range = ReadRange::new(4096, AlignedBuf::zeroed(4096));
        let buffer = target.read_ranges(shard(number), vec![range]).remove(0).wait().unwrap();
        assert_eq!(buffer[0], number as u8);
    }
    let below_root = |entry: io::Result<DirEntry>| {
        fs::read_link(entry.unwrap().path()).is_ok_and(|to| to.starts_with(root.path()))
    };
    let open = fs::read_dir("/proc/self/fd").unwrap().filter_map(|e| Some(below_root(Ok(e.ok()?))));
    assert!(open.filter(|ours| *ours).count() <= 32);
}
