use super::*;
use crate::durable::tests::opens;
use outlive_io::AlignedBuf;
use outlive_types::{ErrorKind, PAGE_BYTES, SessionId};
use std::fs::File;

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
    // Another process got there first, past all checks.
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

/// Whatever the umask of the process is.
#[test]
fn what_is_made_belongs_to_the_pool_s_owner() {
    use crate::{DirectoryLog, ManifestLog};
    use outlive_types::JobName;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    for mode in [0o750, 0o777, 0o700] {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("pool");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        // Only root may give something away.
        let owner = if rustix::process::geteuid().is_root() { Some(65534) } else { None };
        chown(&path, owner, owner).unwrap();
        let target = open(&path);
        put(&target, shard(1), 1);
        let unfinished = target.create(shard(2), 4096).unwrap();
        let job = JobName::new("job").unwrap();
        DirectoryLog::open(&path).append_if(&job, crate::Previous::NONE, b"record").unwrap();
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
    // From then on there are only names of shards to be made durable.
    let next = target.create(shard(0x101), 4096).unwrap();
    assert!(!opens(&packs, || assert!(opens(&dir, || finish(next)))));
    // Who finds the directory does not know whether it was durable.
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
    // It alone has vanished: what was known of it says nothing of the new one.
    fs::remove_dir_all(target.dir_of(shard(1))).unwrap();
    assert!(opens(&packs, || drop(target.create(shard(1), 4096).unwrap())));
    // All of them have, one that was never made among them.
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
        let range = ReadRange { offset: 0, buffer };
        let error = target.read_ranges(shard(1), vec![range]).remove(0).wait().unwrap_err().error;
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(error.message().contains(&format!("ends at byte {length}")), "{error}");
    }
}

/// More than any file may hold (and not merely more than is free: the kernel would fill the disk
/// before it says no). The error comes at once, and nothing is left.
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
        let range = ReadRange { offset: 4096, buffer: AlignedBuf::zeroed(4096) };
        let buffer = target.read_ranges(shard(number), vec![range]).remove(0).wait().unwrap();
        assert_eq!(buffer[0], number as u8);
    }
    let below_root = |entry: io::Result<DirEntry>| {
        fs::read_link(entry.unwrap().path()).is_ok_and(|to| to.starts_with(root.path()))
    };
    let open = fs::read_dir("/proc/self/fd").unwrap().filter_map(|e| Some(below_root(Ok(e.ok()?))));
    assert!(open.filter(|ours| *ours).count() <= 32);
}
