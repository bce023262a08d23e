use super::*;
use crate::opening::marker_check::TARGET_MARKER;
use crate::{Container, PackWriter, TargetConfig};
use outlive_backend::Target;
use outlive_dir::{DirectoryOptions, DirectoryTarget};
use outlive_format::{EntryKind, fingerprint};
use outlive_io::AlignedBuf;
use outlive_log::MemoryLog;
use outlive_types::ErrorKind as Kind;
use outlive_types::PackId;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use std::mem::MaybeUninit;
use std::path::PathBuf;

#[test]
fn a_directory_becomes_a_pool_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a pool with spaces/deep");
    let first = open_or_create(&path, Environment::system()).unwrap();
    let again = open_or_create(&path, Environment::system()).unwrap();
    assert_eq!(first.config(), again.config());
    assert_eq!(
        open(&path.join("pool.toml"), Environment::system()).unwrap().config(),
        first.config()
    );
    let config = first.config().clone();
    assert_eq!(create(&path, config, Environment::system()).unwrap_err().kind(), Kind::Invalid);
}

#[test]
fn all_that_is_missing_above_a_pool_is_made_durably() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("made/by/the/pool");
    // A sync opens a directory; making or naming an entry in it does not.
    let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&watch, root.path(), WatchFlags::OPEN).unwrap();
    let pool = open_or_create(&path, Environment::system()).unwrap();
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(watch, &mut buffer);
    // An event without a name is about the directory itself.
    let mut itself = std::iter::from_fn(|| Some(events.next().ok()?.file_name().is_none()));
    assert!(itself.any(|itself| itself), "the topmost one that was made is named durably");
    assert!(path.join("packs").is_dir() && path.join("log").is_dir());
    assert_eq!(open(&path, Environment::system()).unwrap().config(), pool.config());
}

/// Entries that are there before the descriptor must be durable before it.
#[test]
fn the_entries_of_log_and_packs_are_durable_before_the_descriptor() {
    let root = tempfile::tempdir().unwrap();
    let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&watch, root.path(), WatchFlags::OPEN | WatchFlags::CREATE).unwrap();
    open_or_create(root.path(), Environment::system()).unwrap();
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(watch, &mut buffer);
    let mut told = Vec::new();
    while let Ok(event) = events.next() {
        let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
        told.push((event.events().contains(inotify::ReadFlags::CREATE), name));
    }
    let made = |name: &str| {
        let is_it = |(made, of): &(bool, Option<String>)| *made && of.as_deref() == Some(name);
        told.iter().position(is_it).unwrap_or_else(|| panic!("{name}: {told:?}"))
    };
    let between = &told[made("log").max(made("packs"))..made(DESCRIPTOR)];
    // A sync opens a directory; making an entry in it does not.
    assert!(between.contains(&(false, None)), "{told:?}");
}

#[test]
fn a_pool_s_own_directories_take_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p");
    open_or_create(&path, Environment::system()).unwrap();
    std::os::unix::fs::symlink(path.join("log"), dir.path().join("link")).unwrap();
    for location in
        ["p", "p/", "p/log", "p/log/new/deep", "p/packs/aa", "link/new", "p/packs/../log"]
    {
        let location = dir.path().join(location);
        let error = check_outside(&location).unwrap_err();
        assert!(error.kind() == Kind::Invalid && error.message().contains("outside"), "{error}");
    }
    for location in ["", "q", "p/restored", "p/restored/log", "log/new", "packs"] {
        check_outside(&dir.path().join(location)).unwrap();
    }
    for location in ["p/log/q", "p/packs/q", "link/q"] {
        let location = dir.path().join(location);
        let error = open_or_create(&location, Environment::system()).unwrap_err();
        assert!(error.message().contains("outside"), "{error}");
        let config = open(&path, Environment::system()).unwrap().config().clone();
        assert_eq!(create(&location, config, Environment::system()).unwrap_err(), error);
        assert!(!location.exists());
    }
}

#[test]
fn a_pool_that_has_gone_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let (path, away) = (dir.path().join("p"), dir.path().join("away"));
    let pool = open_or_create(&path, Environment::system()).unwrap();
    let tuned = pool.with_tuning(Tuning { threads: 1, ..Tuning::default() });
    pool.check_markers().unwrap();
    for (part, kind) in
        [("log", Kind::Retry), ("log/.pool.toml", Kind::Retry), (DESCRIPTOR, Kind::Invalid)]
    {
        fs::rename(path.join(part), &away).unwrap();
        let error = pool.check_markers().unwrap_err();
        assert_eq!((error.kind(), tuned.check_markers().unwrap_err()), (kind, error.clone()));
        assert!(error.message().contains("nothing is saved"), "{error}");
        fs::rename(&away, path.join(part)).unwrap();
        pool.check_markers().unwrap();
    }
    // A person edits the file: running programs go on, and no new one begins.
    let text = fs::read_to_string(path.join(DESCRIPTOR)).unwrap();
    let commented = [text.as_bytes(), b"# caf\xE9"].concat();
    let wrong = text.replace("threads = 0", "threads = ???").into_bytes();
    for mistaken in [wrong, commented, Vec::new()] {
        fs::write(path.join(DESCRIPTOR), mistaken).unwrap();
        pool.check_markers().unwrap();
        assert_eq!(refusal(&path).kind(), Kind::Invalid);
    }
    fs::write(path.join(DESCRIPTOR), text).unwrap();
    fs::rename(&path, &away).unwrap();
    assert_eq!(pool.check_markers().unwrap_err().kind(), Kind::Invalid);
    open_or_create(&path, Environment::system()).unwrap();
    let error = pool.check_markers().unwrap_err();
    assert!(error.message().contains("another pool"), "{error}");
}

#[test]
fn a_stranger_s_directory_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("thesis.tex"), "text").unwrap();
    let error = open_or_create(dir.path(), Environment::system()).unwrap_err();
    assert!(error.message().contains("thesis.tex"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing was made");
    let file = dir.path().join("thesis.tex");
    assert_eq!(open_or_create(&file, Environment::system()).unwrap_err().kind(), Kind::Invalid);
    assert_eq!(open(dir.path(), Environment::system()).unwrap_err().kind(), Kind::Invalid);
}

fn with_target(location: &Path) -> PoolConfig {
    let location = location.to_str().unwrap().to_owned();
    let target = vec![TargetConfig::at(location)];
    PoolConfig { target, ..PoolConfig::new(FormatConfig::new([7; 16]), Tuning::default()) }
}

fn put_pack(pool: &Pool, pack: PackId) {
    let mut writer = PackWriter::new(pool, pack, 4096).unwrap();
    writer.open(Container::new(AlignedBuf::zeroed(4 << 20))).unwrap();
    writer.append(b"bytes", fingerprint(b"bytes"), EntryKind::Chunk).unwrap();
    writer.finish().unwrap().wait().unwrap();
}

#[test]
fn packs_are_kept_where_the_target_is() {
    let dir = tempfile::tempdir().unwrap();
    let (path, away) = (dir.path().join("p"), dir.path().join("away"));
    // Paths relative to the pool, with and without a scheme, and the pool's own location.
    for (number, (location, root)) in
        [("file:../big/a", "big/a"), ("../big/b", "big/b"), ("file:.", "p"), ("../p", "p")]
            .into_iter()
            .enumerate()
    {
        let config = with_target(Path::new(location));
        let made = create(&path, config.clone(), Environment::system()).unwrap();
        assert_eq!(made.config(), &config);
        let pack = PackId([number as u8; 20]);
        put_pack(&made, pack);
        let root = dir.path().join(root);
        let name = format!("packs/{number:02x}/{pack}.0.shard");
        assert!(root.join(&name).exists(), "{location}");
        assert_eq!(path.join(&name).exists(), root == path);
        assert_eq!(open(&path, Environment::system()).unwrap().packs().unwrap(), [pack]);
        assert_eq!(made.packs_elsewhere().is_empty(), root == path);
        let is_taken = |location: &Path| check_outside(location).is_err();
        assert!(is_taken(&root.join("packs/x")) && is_taken(&path.join("packs")));
        assert!(!is_taken(&root.join("x")));

        // A target on its own medium may be missing, or belong to another pool.
        if root != path {
            fs::rename(&root, &away).unwrap();
            for _ in 0..2 {
                let error = refusal(&path);
                assert_eq!(error.kind(), Kind::Damaged);
                assert!(error.message().contains("mount that"), "{error}");
                let error = made.check_markers().unwrap_err();
                assert_eq!(error.kind(), Kind::Retry);
                assert!(error.message().contains("nothing is saved"), "{error}");
                fs::create_dir_all(root.join("packs")).unwrap();
            }
            let other = PoolConfig::new(FormatConfig::new([8; 16]), Tuning::default());
            let marker = root.join(TARGET_MARKER);
            fs::write(&marker, Marker::of(&other).to_text().unwrap()).unwrap();
            let error = refusal(&path);
            assert!(
                error.kind() == Kind::Invalid
                    && error.message().contains("the pool's target: its [format] says pool_id 07"),
                "{error}"
            );
            fs::remove_dir_all(&root).unwrap();
            fs::rename(&away, &root).unwrap();
            made.check_markers().unwrap();
        }
        // If the descriptor is lost, the marker knows where the packs are.
        fs::copy(path.join(MARKER), path.join(DESCRIPTOR)).unwrap();
        assert_eq!(open(&path, Environment::system()).unwrap().packs().unwrap(), [pack]);
        fs::remove_dir_all(&path).unwrap();
    }
}

#[test]
fn a_target_that_is_in_use_is_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("p"), dir.path().join("other"));
    put_pack(&open_or_create(&other, Environment::system()).unwrap(), PackId([1; 20]));
    fs::create_dir_all(dir.path().join("strange/packs/holiday")).unwrap();
    fs::write(dir.path().join("file"), "x").unwrap();
    open_or_create(&dir.path().join("empty"), Environment::system()).unwrap();
    for (location, told) in [
        ("other", "not empty"),
        ("strange", "not empty"),
        ("empty", "outside"),
        ("other/log", "outside"),
        ("p/log", "the pool itself"),
        ("p/packs/deep", "the pool itself"),
        ("file", "a file, not a directory"),
    ] {
        for config in [
            with_target(&dir.path().join(location)),
            with_target(&Path::new("..").join(location)),
            with_target(&Path::new("./../p/..").join(location)),
        ] {
            let error = create(&path, config, Environment::system()).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{error}");
            assert!(error.message().contains(told), "{location}: {error}");
            assert!(!path.exists(), "{location}");
        }
    }
}

#[test]
fn a_target_that_cannot_be_made_leaves_the_choice_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let (path, root) = (dir.path().join("p"), dir.path().join("big"));
    // No process can make directories there.
    let impossible = with_target(Path::new("/proc/nothing"));
    let error = create(&path, impossible, Environment::system()).unwrap_err();
    assert!(error.message().contains("/proc/nothing"), "{error}");
    assert!(!path.join(MARKER).exists());
    let made = create(&path, with_target(&root), Environment::system()).unwrap();
    assert_eq!(made.packs_elsewhere(), [root.join("packs")]);
}

/// A maker that finds a half-made pool goes on with its target.
#[test]
fn a_maker_that_died_has_chosen_the_target() {
    let dir = tempfile::tempdir().unwrap();
    let (path, root) = (dir.path().join("p"), dir.path().join("big"));
    create(&path, with_target(&root), Environment::system()).unwrap();
    fs::remove_file(path.join(DESCRIPTOR)).unwrap();
    fs::remove_file(root.join(TARGET_MARKER)).unwrap();
    let pool = open_or_create(&path, Environment::system()).unwrap();
    assert_eq!(pool.packs_elsewhere(), [root.join("packs")]);
    assert!(root.join(TARGET_MARKER).exists());
}

#[test]
fn several_targets_are_one_space() {
    let dir = tempfile::tempdir().unwrap();
    let roots = ["a", "b", "c"].map(|root| dir.path().join(root));
    let pool = || {
        let open = |root: &PathBuf| -> Arc<dyn Target> {
            Arc::new(DirectoryTarget::open(root, &DirectoryOptions::default()).unwrap())
        };
        let config = PoolConfig::new(FormatConfig::new([7; 16]), Tuning::default());
        let targets = roots.iter().map(open).collect();
        Pool::over(config, targets, Arc::new(MemoryLog::new()), Environment::system())
    };
    let packs: Vec<PackId> = (0..20).map(|number| PackId([number; 20])).collect();
    let writer = pool();
    packs.iter().for_each(|pack| put_pack(&writer, *pack));
    let usage = writer.usage().unwrap();
    assert_eq!((usage.packs, usage.targets.len()), (20, 3));
    assert!(usage.targets.iter().all(|target| target.shards > 2), "{usage:?}");
    assert_eq!(
        usage.stored_bytes,
        usage.targets.iter().map(|target| target.stored_bytes).sum::<u64>()
    );

    // Another program finds the packs, wherever each one is now.
    let from = |root: &Path| root.join(format!("packs/00/{}.0.shard", packs[0]));
    let there = roots.iter().position(|root| from(root).exists()).unwrap();
    let to = &roots[(there + 1) % 3];
    fs::create_dir_all(to.join("packs/00")).unwrap();
    fs::rename(from(&roots[there]), from(to)).unwrap();
    let reader = pool();
    assert_eq!(reader.packs().unwrap(), packs);
    for pack in &packs {
        let bytes = reader.check_pack(*pack, &mut |_, _, _| Ok(())).unwrap().stored_bytes;
        assert_eq!(bytes, reader.stored_bytes(*pack).unwrap());
        assert_eq!(reader.directory_of(*pack).unwrap().0.packs, [*pack]);
    }
    packs.iter().for_each(|pack| reader.delete_pack(*pack).unwrap());
    assert_eq!(pool().usage().unwrap().stored_bytes, 0);
}

#[test]
fn packs_are_moved_as_the_message_says() {
    let dir = tempfile::tempdir().unwrap();
    let (path, root) = (dir.path().join("p"), dir.path().join("big"));
    let pack = PackId([1; 20]);
    put_pack(&open_or_create(&path, Environment::system()).unwrap(), pack);
    fs::create_dir(&root).unwrap();
    fs::rename(path.join("packs"), root.join("packs")).unwrap();
    let descriptor = path.join(DESCRIPTOR);
    let text = fs::read_to_string(&descriptor).unwrap();
    fs::write(&descriptor, format!("{text}\n[[target]]\nlocation = \"../big\"\n")).unwrap();
    let error = refusal(&path);
    assert!(error.message().contains("move `packs` there"), "{error}");
    fs::copy(path.join(MARKER), root.join(TARGET_MARKER)).unwrap();
    let pool = open(&path, Environment::system()).unwrap();
    assert_eq!(pool.packs().unwrap(), [pack]);
    pool.check_markers().unwrap();
    assert_eq!(pool.with_tuning(Tuning::default()).config().target.len(), 1);
}

fn refusal(dir: &Path) -> Error {
    open(dir, Environment::system()).unwrap_err()
}

#[test]
fn a_log_that_is_missing_or_another_s_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, log) = (dir.path().join("p"), dir.path().join("p/log"));
    open_or_create(&path, Environment::system()).unwrap();
    fs::rename(&log, dir.path().join("away")).unwrap();
    for _ in 0..2 {
        let error = refusal(&path);
        assert_eq!(error.kind(), Kind::Damaged);
        assert!(error.message().contains("mount"), "{error}");
        assert_eq!(open_or_create(&path, Environment::system()).unwrap_err(), error);
        // As the empty directory of an unmounted file system.
        fs::create_dir_all(&log).unwrap();
    }
    let other = dir.path().join("other");
    open_or_create(&other, Environment::system()).unwrap();
    fs::remove_dir(&log).unwrap();
    fs::rename(other.join("log"), &log).unwrap();
    let error = refusal(&path);
    assert!(error.message().contains("pool_id"), "{error}");
}

#[test]
fn settings_that_are_fixed_at_creation_stay() {
    let dir = tempfile::tempdir().unwrap();
    open_or_create(dir.path(), Environment::system()).unwrap();
    let path = dir.path().join(DESCRIPTOR);
    let text = fs::read_to_string(&path).unwrap();
    for (from, to) in [
        ("container_bytes = 4194304", "container_bytes = 8388608"),
        ("chunk_bytes_max = 65536", "chunk_bytes_max = 32768"),
        ("pack_bytes = 67108864", "pack_bytes = 33554432"),
    ] {
        let changed = text.replace(from, to);
        assert_ne!(changed, text);
        fs::write(&path, changed).unwrap();
        let error = refusal(dir.path());
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.message().contains(from.split(' ').next().unwrap()), "{error}");
    }
    fs::write(&path, text.replace("threads = 0", "threads = 2")).unwrap();
    assert_eq!(open(dir.path(), Environment::system()).unwrap().config().tuning.threads, 2);
}

#[test]
fn the_remains_of_a_pool_become_no_other_pool() {
    for used in ["packs/aa", "log/job"] {
        let dir = tempfile::tempdir().unwrap();
        let made = open_or_create(dir.path(), Environment::system()).unwrap();
        fs::remove_file(dir.path().join(DESCRIPTOR)).unwrap();
        // The maker died before the last step: another one goes on. `lost+found` is the file
        // system's.
        fs::create_dir_all(dir.path().join("log/lost+found")).unwrap();
        let again = open_or_create(dir.path(), Environment::system()).unwrap();
        assert_eq!(again.config(), made.config());
        fs::create_dir(dir.path().join(used)).unwrap();
        fs::remove_file(dir.path().join(DESCRIPTOR)).unwrap();
        for _ in 0..2 {
            let error = open_or_create(dir.path(), Environment::system()).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(error.message().contains("put it back"), "{error}");
            let config = made.config().clone();
            assert_eq!(create(dir.path(), config, Environment::system()).unwrap_err(), error);
        }
        // As the message says.
        fs::copy(dir.path().join(MARKER), dir.path().join(DESCRIPTOR)).unwrap();
        assert_eq!(open(dir.path(), Environment::system()).unwrap().config(), made.config());
    }
}

/// Makes a pool that has only the descriptor in its own directory.
fn scattered(dir: &Path) -> (PathBuf, Pool) {
    let path = dir.join("p");
    let log = LogConfig::at(&["../a", "../b", "../c"].map(str::to_owned));
    let config = PoolConfig { log, ..with_target(Path::new("../target")) };
    let pool = create(&path, config, Environment::system()).unwrap();
    (path, pool)
}

/// If the log and the targets are elsewhere, a lost descriptor must not let a program make another
/// pool there without a warning.
#[test]
fn a_pool_of_which_all_is_elsewhere_is_not_forgotten_with_its_descriptor() {
    let dir = tempfile::tempdir().unwrap();
    let (path, made) = scattered(dir.path());
    check_outside(&path).unwrap_err();
    fs::remove_file(path.join(DESCRIPTOR)).unwrap();
    for _ in 0..2 {
        let error = refusal(&path);
        assert_eq!(error.kind(), Kind::Invalid);
        let copy = path.join(COPY);
        let told = format!("is missing: put it back (a copy is in {})", copy.display());
        assert!(error.message().contains(&told), "{error}");
        assert_eq!(open_or_create(&path, Environment::system()).unwrap_err(), error);
        let config = PoolConfig::new(FormatConfig::new([9; 16]), Tuning::default());
        assert_eq!(create(&path, config, Environment::system()).unwrap_err(), error);
        assert_eq!(made.check_markers().unwrap_err().kind(), Kind::Invalid);
    }
    // As the message says.
    fs::copy(path.join(COPY), path.join(DESCRIPTOR)).unwrap();
    let back = open(&path, Environment::system()).unwrap();
    assert_eq!((back.config(), back.config().log.is_some()), (made.config(), true));
    made.check_markers().unwrap();
}

/// A pool of an older build gets the copy from a program that saves, not from one that only reads.
#[test]
fn a_pool_without_a_copy_of_its_descriptor_gets_one_from_a_program_that_saves() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = scattered(dir.path());
    fs::remove_file(path.join(COPY)).unwrap();
    let pool = open(&path, Environment::system()).unwrap();
    pool.packs().unwrap();
    assert!(!path.join(COPY).exists());
    pool.check_markers().unwrap();
    assert!(path.join(COPY).exists());
    // A log in the pool's own directory has a marker there, which serves as well.
    let beside = dir.path().join("q");
    open_or_create(&beside, Environment::system()).unwrap().check_markers().unwrap();
    assert!(!beside.join(COPY).exists());
}

/// The former log replicas may be gone.
#[test]
fn the_copy_of_a_descriptor_says_where_the_log_was_moved_to() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p");
    let pool = open_or_create(&path, Environment::system()).unwrap();
    pool.move_log(&[dir.path().join("a").display().to_string()]).unwrap();
    pool.move_log(&[dir.path().join("b").display().to_string()]).unwrap();
    for gone in ["p/log", "a"] {
        fs::remove_dir_all(dir.path().join(gone)).unwrap();
    }
    let text = fs::read_to_string(path.join(DESCRIPTOR)).unwrap();
    fs::remove_file(path.join(DESCRIPTOR)).unwrap();
    assert!(refusal(&path).message().contains("put it back"));
    fs::rename(path.join(COPY), path.join(DESCRIPTOR)).unwrap();
    let copy = fs::read_to_string(path.join(DESCRIPTOR)).unwrap();
    assert!(copy.ends_with(&text) && copy.lines().count() == text.lines().count() + 1, "{copy}");
    let back = open(&path, Environment::system()).unwrap();
    // A descriptor that has the title gets no second one.
    back.check_markers().unwrap();
    assert_eq!(fs::read_to_string(path.join(COPY)).unwrap(), copy);
}

/// Threads stand for processes with equal process ids, as in containers that share a directory.
#[test]
fn makers_at_the_same_time_agree() {
    for is_scattered in (0..50).map(|number| number % 2 == 0) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        let start = std::sync::Barrier::new(4);
        let made: Vec<FormatConfig> = std::thread::scope(|scope| {
            let make = |number| {
                let format = FormatConfig::new([number; 16]);
                let log = LogConfig::at(&["../log".to_owned()]);
                let config = PoolConfig { log, ..PoolConfig::new(format, Tuning::default()) };
                start.wait();
                let pool = match is_scattered {
                    // A late maker gets an error that names the pool, or the owner of the log. It
                    // may open the pool once that is made.
                    true => create(&path, config, Environment::system()).or_else(|error| {
                        let is_told = |words| error.message().contains(words);
                        assert!(
                            is_told("already") || is_told("log belongs to the pool"),
                            "{error}"
                        );
                        while !path.join(DESCRIPTOR).exists() {
                            std::thread::yield_now();
                        }
                        open(&path, Environment::system())
                    }),
                    false => open_or_create(&path, Environment::system()),
                };
                pool.unwrap().config().format.clone()
            };
            let makers: Vec<_> = (0..4).map(|it| scope.spawn(move || make(it))).collect();
            makers.into_iter().map(|maker| maker.join().unwrap()).collect()
        });
        let there = open(&path, Environment::system()).unwrap();
        assert!(made.iter().all(|format| *format == there.config().format), "{made:?}");
    }
}
