//! Makes a pool in a directory, and opens one.

use crate::{Environment, FormatConfig, Pool, PoolConfig, Tuning};
use outlive_target::{
    DirectoryLog, DirectoryOptions, DirectoryTarget, make_dir_durable, publish, sync_dir,
};
use outlive_types::{Error, Result, Rng};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{self, Path, PathBuf};
use std::sync::Arc;

const DESCRIPTOR: &str = "pool.toml";
/// A copy of the descriptor's `[format]` within the log: what says that this is the pool's log, and
/// its `[format]` as it was made. No job has this name (jobs begin with another character).
const MARKER: &str = "log/.pool.toml";

/// Makes a pool in `dir`, which must be empty or not exist yet.
///
/// # Errors
/// `Invalid` if a pool or anything else is there, or for impossible values; `Full`.
pub fn create(dir: &Path, config: PoolConfig, env: Environment) -> Result<Pool> {
    config.check()?;
    if dir.join(DESCRIPTOR).exists() {
        return Err(Error::invalid(format!("{} is a pool already", dir.display())));
    }
    refuse_strangers(dir)?;
    write_descriptor(dir, config, &*env.rng)?;
    open(dir, env)
}

/// Opens the pool in `dir`, a pool's directory or its `pool.toml`.
///
/// # Errors
/// `Invalid` if there is no pool or one of another format.
pub fn open(dir: &Path, env: Environment) -> Result<Pool> {
    let named = if dir.file_name().is_some_and(|name| name == DESCRIPTOR) {
        match dir.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        }
    } else {
        dir
    };
    let config = read_descriptor(named)?;
    check_marker(named, &config.format)?;
    // A program may change its directory between now and its saves.
    let dir = path::absolute(named).unwrap_or_else(|_| named.to_owned());
    let options = DirectoryOptions { observer: env.observer.clone(), ..Default::default() };
    let target = Arc::new(DirectoryTarget::open(&dir, &options)?);
    target.probe(&dir.join(DESCRIPTOR));
    let log = Arc::new(DirectoryLog::open(&dir));
    Ok(Pool::new(config, target, log, env).at(named).in_directory(&dir))
}

/// Makes sure that `dir` still holds the pool of this format, log and descriptor: it may have been
/// moved away, deleted or unmounted since it was opened, and whatever is written there now would be
/// refused by the next one who opens it. A mistake in the descriptor is another matter: somebody is
/// editing it, and can put it right.
///
/// # Errors
/// `Damaged` if the log is missing, `Invalid` if the descriptor or the pool is, or is another's.
pub(crate) fn check(dir: &Path, format: &FormatConfig) -> Result<()> {
    let check = || {
        let there = PoolConfig::pool_id_of(&String::from_utf8_lossy(&read_bytes(dir)?));
        if there.is_some_and(|pool_id| pool_id != format.pool_id) {
            return Err(Error::invalid("another pool is in its place: open that one"));
        }
        check_marker(dir, format)
    };
    check().map_err(|error| {
        error.context(format!(
            "the pool {} is not as it was opened, so nothing is saved",
            dir.display()
        ))
    })
}

/// The configuration that the pool in `dir` has.
fn read_descriptor(dir: &Path) -> Result<PoolConfig> {
    let path = dir.join(DESCRIPTOR).display().to_string();
    let text = String::from_utf8(read_bytes(dir)?)
        .map_err(|_| Error::invalid(format!("{path} is not text")))?;
    PoolConfig::parse(&text, &path)
}

/// Its descriptor.
fn read_bytes(dir: &Path) -> Result<Vec<u8>> {
    let path = dir.join(DESCRIPTOR);
    match fs::read(&path) {
        Ok(bytes) => Ok(bytes),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Err(match dir.join(MARKER).exists() {
                true => descriptor_is_missing(dir),
                false => Error::invalid(format!(
                    "{} is not a pool (it has no {DESCRIPTOR}): make one with `outlive pool init`",
                    dir.display()
                )),
            })
        }
        Err(e) => Err(Error::io("reading", &path, &e)),
    }
}

fn descriptor_is_missing(dir: &Path) -> Error {
    Error::invalid(format!(
        "{} holds a pool whose {DESCRIPTOR} is missing: put it back (a copy of its [format] \
         section is in {}; that section alone will do), or name an empty or new directory",
        dir.display(),
        dir.join(MARKER).display()
    ))
}

/// Opens the pool in `dir`, or makes one there if the directory is empty or missing.
///
/// # Errors
/// Those of [`create`] and [`open`].
pub fn open_or_create(dir: &Path, env: Environment) -> Result<Pool> {
    let is_descriptor = dir.file_name().is_some_and(|name| name == DESCRIPTOR);
    if !is_descriptor && !dir.join(DESCRIPTOR).exists() {
        refuse_strangers(dir)?;
        let mut id = [0; 16];
        env.rng.fill(&mut id);
        let config = PoolConfig { format: FormatConfig::new(id), tuning: Tuning::default() };
        write_descriptor(dir, config, &*env.rng)?;
    }
    open(dir, env)
}

/// Refuses a place that is a pool's own: its directory itself, or something in its `log` or `packs`.
/// What is written there could replace parts of the pool.
///
/// # Errors
/// `Invalid`, naming the pool.
pub fn check_outside(path: &Path) -> Result<()> {
    match pool_around(path) {
        None => Ok(()),
        Some(pool) => Err(Error::invalid(format!(
            "{} belongs to the pool {}: choose a place outside of it",
            path.display(),
            pool.display()
        ))),
    }
}

/// The pool whose own place a path is, which need not be there.
fn pool_around(path: &Path) -> Option<PathBuf> {
    let path = path::absolute(path).ok()?;
    let there = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let (above, real) = there?;
    let rest = path.strip_prefix(above).ok()?.components();
    let path: PathBuf = real.components().chain(rest).collect();
    let owns = |pool: &&Path| {
        let within = path.strip_prefix(pool).ok().and_then(|within| within.components().next());
        let is_own =
            within.is_none_or(|first| ["log", "packs"].iter().any(|own| first.as_os_str() == *own));
        is_own && pool.join(MARKER).exists()
    };
    path.ancestors().find(owns).map(Path::to_owned)
}

/// Refuses a log that is not this pool's (another file system is mounted there, or none), and a
/// descriptor whose `[format]` was changed: checkpoints would seem to be gone, and a gc would delete what
/// they need.
fn check_marker(dir: &Path, format: &FormatConfig) -> Result<()> {
    let path = dir.join(MARKER);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Err(Error::damaged(format!(
                "the log of {} is missing ({} is not there): if it lies on a file system of its \
                 own, mount that; nothing is read or written without it",
                dir.display(),
                path.display()
            )));
        }
        Err(e) => return Err(Error::io("reading", &path, &e)),
    };
    let made = PoolConfig::parse(&text, &path.display().to_string())?.format;
    if made == *format {
        return Ok(());
    }
    let named = |config: &FormatConfig| {
        let FormatConfig { pool_id, container_bytes, pack_bytes, chunk_bytes_max, .. } = config;
        format!(
            "pool_id {pool_id}, container_bytes {container_bytes}, pack_bytes {pack_bytes}, \
             chunk_bytes_max {chunk_bytes_max}"
        )
    };
    Err(Error::invalid(format!(
        "{} does not belong to the pool's log: its [format] says {}, that of {} says {}; put it right",
        dir.join(DESCRIPTOR).display(),
        named(format),
        path.display(),
        named(&made)
    )))
}

/// Whether there are jobs or packs in a directory; one that is missing is empty.
fn holds_something(dir: &Path) -> Result<bool> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(Error::io("listing", dir, &e)),
    };
    for entry in entries {
        let name = entry.map_err(|e| Error::io("listing", dir, &e))?.file_name();
        // No job and no pack begins with a dot.
        if !name.to_str().is_some_and(|name| name.starts_with('.') || name == "lost+found") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A directory with other people's files must not become a pool by a typing error, nor what is left of
/// a pool another one, nor a part of a pool.
fn refuse_strangers(dir: &Path) -> Result<()> {
    let is_made = || dir.join(MARKER).exists();
    // Looked at again: another may have made this very pool meanwhile.
    if !is_made()
        && let Err(error) = check_outside(dir)
        && !is_made()
    {
        return Err(error);
    }
    match fs::read_dir(dir) {
        Ok(entries) => {
            for entry in entries {
                let entry = entry.map_err(|e| Error::io("listing", dir, &e))?;
                let name = entry.file_name();
                // Another process may be making the same pool right now.
                let ours = name.to_str().is_some_and(|n| n.starts_with(".pool.toml."))
                    || name == DESCRIPTOR
                    || name == "packs"
                    || name == "log"
                    || name == "lost+found";
                if !ours {
                    return Err(Error::invalid(format!(
                        "{} is not a pool and not empty (it holds {}): name an empty or new directory",
                        dir.display(),
                        Path::new(&name).display()
                    )));
                }
            }
            for sub in ["packs", "log"].map(|sub| dir.join(sub)) {
                // Looked at last: who makes the same pool right now may have gone on to save.
                if holds_something(&sub)? && !dir.join(DESCRIPTOR).exists() {
                    return Err(descriptor_is_missing(dir));
                }
            }
            Ok(())
        }
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) if e.kind() == ErrorKind::NotADirectory => {
            Err(Error::invalid(format!("{} is a file, not a directory", dir.display())))
        }
        Err(e) => Err(Error::io("listing", dir, &e)),
    }
}

/// Marker and descriptor appear whole or not at all, in this order, and the first of two makers wins: who
/// finds a marker makes that pool.
fn write_descriptor(dir: &Path, config: PoolConfig, rng: &dyn Rng) -> Result<()> {
    let io = |doing: &'static str, path: &Path| {
        let path = path.to_owned();
        move |e: std::io::Error| Error::io_named(doing, &path, &e)
    };
    make_dir_durable(dir).map_err(io("making", dir))?;
    for sub in ["packs", "log"] {
        let sub = dir.join(sub);
        fs::create_dir_all(&sub).map_err(io("making", &sub))?;
    }
    let marker = dir.join(MARKER);
    let format_only = PoolConfig { format: config.format.clone(), tuning: Tuning::default() };
    publish_text(&marker, &format_only.format_text()?, rng)?;
    let text = fs::read_to_string(&marker).map_err(io("reading", &marker))?;
    let made = PoolConfig::parse(&text, &marker.display().to_string())?.format;
    let log = dir.join("log");
    sync_dir(&log).map_err(io("syncing", &log))?;
    // A descriptor without `packs` and `log` beside it would be a pool that is refused.
    sync_dir(dir).map_err(io("syncing", dir))?;
    let path = dir.join(DESCRIPTOR);
    publish_text(&path, &PoolConfig { format: made, ..config }.to_text()?, rng)?;
    sync_dir(dir).map_err(io("syncing", dir))?;
    // Of `.` and of a link the path does not name the parent. If that cannot be synced, the pool relies
    // on whoever made `dir`.
    let parent = dir.canonicalize().ok().and_then(|dir| dir.parent().map(Path::to_owned));
    let _ = parent.map(|parent| sync_dir(&parent));
    Ok(())
}

/// Makes a file of a pool, unless it is there.
fn publish_text(path: &Path, text: &str, rng: &dyn Rng) -> Result<()> {
    // Beside it: the log may be a file system of its own.
    let dir = path.parent().unwrap_or(Path::new("."));
    // Random: in containers that share the directory, processes have equal numbers.
    let mut random = [0; 8];
    rng.fill(&mut random);
    let temporary = dir.join(format!(".{DESCRIPTOR}.{:016x}", u64::from_le_bytes(random)));
    let write = || -> std::io::Result<()> {
        let mut file = File::create_new(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    let written = write().map_err(|e| Error::io("writing", &temporary, &e));
    let linked = written.and_then(|()| match publish(&temporary, path) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(Error::io("making", path, &e)),
    });
    // Whether or not it worked, the temporary file has served; a leftover would do no harm.
    let _ = fs::remove_file(&temporary);
    linked
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_types::ErrorKind as Kind;
    use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
    use std::mem::MaybeUninit;

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
        // To make or name what is in a directory does not open it; to sync it does.
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

    /// What is there by the time at which the descriptor is must be durable by then.
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
        // To sync a directory opens it; to make something in it does not.
        assert!(between.contains(&(false, None)), "{told:?}");
    }

    #[test]
    fn a_pool_s_own_places_take_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        open_or_create(&path, Environment::system()).unwrap();
        std::os::unix::fs::symlink(path.join("log"), dir.path().join("link")).unwrap();
        for place in
            ["p", "p/", "p/log", "p/log/new/deep", "p/packs/aa", "link/new", "p/packs/../log"]
        {
            let place = dir.path().join(place);
            let error = check_outside(&place).unwrap_err();
            assert!(
                error.kind() == Kind::Invalid && error.message().contains("outside"),
                "{error}"
            );
        }
        for place in ["", "q", "p/restored", "p/restored/log", "log/new", "packs"] {
            check_outside(&dir.path().join(place)).unwrap();
        }
        for place in ["p/log/q", "p/packs/q", "link/q"] {
            let place = dir.path().join(place);
            let error = open_or_create(&place, Environment::system()).unwrap_err();
            assert!(error.message().contains("outside"), "{error}");
            let config = open(&path, Environment::system()).unwrap().config().clone();
            assert_eq!(create(&place, config, Environment::system()).unwrap_err(), error);
            assert!(!place.exists());
        }
    }

    #[test]
    fn a_pool_that_has_gone_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, away) = (dir.path().join("p"), dir.path().join("away"));
        let pool = open_or_create(&path, Environment::system()).unwrap();
        let tuned = pool.with_tuning(Tuning { threads: 1, ..Tuning::default() });
        pool.check_place().unwrap();
        for (part, kind) in
            [("log", Kind::Damaged), ("log/.pool.toml", Kind::Damaged), (DESCRIPTOR, Kind::Invalid)]
        {
            fs::rename(path.join(part), &away).unwrap();
            let error = pool.check_place().unwrap_err();
            assert_eq!((error.kind(), tuned.check_place().unwrap_err()), (kind, error.clone()));
            assert!(error.message().contains("nothing is saved"), "{error}");
            fs::rename(&away, path.join(part)).unwrap();
            pool.check_place().unwrap();
        }
        // Somebody edits it: those that run go on, nobody new begins.
        let text = fs::read_to_string(path.join(DESCRIPTOR)).unwrap();
        let commented = [text.as_bytes(), b"# caf\xE9"].concat();
        let wrong = text.replace("threads = 0", "threads = ???").into_bytes();
        for mistaken in [wrong, commented, Vec::new()] {
            fs::write(path.join(DESCRIPTOR), mistaken).unwrap();
            pool.check_place().unwrap();
            assert_eq!(refusal(&path).kind(), Kind::Invalid);
        }
        fs::write(path.join(DESCRIPTOR), text).unwrap();
        fs::rename(&path, &away).unwrap();
        assert_eq!(pool.check_place().unwrap_err().kind(), Kind::Invalid);
        open_or_create(&path, Environment::system()).unwrap();
        let error = pool.check_place().unwrap_err();
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
            // As the directory on which something is to be mounted.
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
    fn what_is_fixed_when_a_pool_is_made_stays() {
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
    fn what_is_left_of_a_pool_becomes_no_other_one() {
        for used in ["packs/aa", "log/job"] {
            let dir = tempfile::tempdir().unwrap();
            let made = open_or_create(dir.path(), Environment::system()).unwrap();
            fs::remove_file(dir.path().join(DESCRIPTOR)).unwrap();
            // Whoever made it died before the last step: another goes on. A file system has its own.
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

    /// Threads stand for processes with equal numbers, as in containers that share a directory.
    #[test]
    fn makers_at_the_same_time_agree() {
        for _ in 0..50 {
            let dir = tempfile::tempdir().unwrap();
            let start = std::sync::Barrier::new(4);
            let made: Vec<FormatConfig> = std::thread::scope(|scope| {
                let make = || {
                    start.wait();
                    open_or_create(dir.path(), Environment::system())
                        .unwrap()
                        .config()
                        .format
                        .clone()
                };
                let makers: Vec<_> = (0..4).map(|_| scope.spawn(make)).collect();
                makers.into_iter().map(|maker| maker.join().unwrap()).collect()
            });
            let there = open(dir.path(), Environment::system()).unwrap();
            assert!(made.iter().all(|format| *format == there.config().format), "{made:?}");
        }
    }
}
