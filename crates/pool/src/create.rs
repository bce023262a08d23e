//! Makes a pool in a directory, and opens one.

use crate::{Environment, FormatConfig, Pool, PoolConfig, Tuning};
use outlive_target::{
    DirectoryLog, DirectoryOptions, DirectoryTarget, make_dir_durable, publish, sync_dir,
};
use outlive_types::{Error, Result, Rng, SystemRng};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;

const DESCRIPTOR: &str = "pool.toml";

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
    write_descriptor(dir, &config)?;
    open(dir, env)
}

/// Opens the pool in `dir`, a pool's directory or its `pool.toml`.
///
/// # Errors
/// `Invalid` if there is no pool or one of another format.
pub fn open(dir: &Path, env: Environment) -> Result<Pool> {
    let dir = if dir.file_name().is_some_and(|name| name == DESCRIPTOR) {
        match dir.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        }
    } else {
        dir
    };
    let path = dir.join(DESCRIPTOR);
    let text = match fs::read(&path) {
        Ok(bytes) => String::from_utf8(bytes)
            .map_err(|_| Error::invalid(format!("{} is not text", path.display())))?,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Err(Error::invalid(format!(
                "{} is not a pool (it has no {DESCRIPTOR}): make one with `outlive pool init`",
                dir.display()
            )));
        }
        Err(e) => return Err(Error::io("reading", &path, &e)),
    };
    let config = PoolConfig::parse(&text, &path.display().to_string())?;
    let options = DirectoryOptions { observer: env.observer.clone(), ..Default::default() };
    let target = Arc::new(DirectoryTarget::open(dir, &options)?);
    let log = Arc::new(DirectoryLog::open(dir));
    Ok(Pool::new(config, target, log, env))
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
        write_descriptor(dir, &config)?;
    }
    open(dir, env)
}

/// A directory with other people's files must not become a pool by a typing error.
fn refuse_strangers(dir: &Path) -> Result<()> {
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
            Ok(())
        }
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) if e.kind() == ErrorKind::NotADirectory => {
            Err(Error::invalid(format!("{} is a file, not a directory", dir.display())))
        }
        Err(e) => Err(Error::io("listing", dir, &e)),
    }
}

/// The descriptor appears whole or not at all, and the first of two makers wins.
fn write_descriptor(dir: &Path, config: &PoolConfig) -> Result<()> {
    let io = |doing: &'static str, path: &Path| {
        let path = path.to_owned();
        move |e: std::io::Error| Error::io(doing, &path, &e)
    };
    make_dir_durable(dir).map_err(io("making", dir))?;
    for sub in ["packs", "log"] {
        let sub = dir.join(sub);
        fs::create_dir_all(&sub).map_err(io("making", &sub))?;
    }
    let path = dir.join(DESCRIPTOR);
    // Random: in containers that share the directory, processes have equal numbers.
    let mut random = [0; 8];
    SystemRng.fill(&mut random);
    let temporary = dir.join(format!(".{DESCRIPTOR}.{:016x}", u64::from_le_bytes(random)));
    let text = config.to_text()?;
    let write = || -> std::io::Result<()> {
        let mut file = File::create_new(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    let written = write().map_err(io("writing", &temporary));
    let linked = written.and_then(|()| match publish(&temporary, &path) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(Error::io("making", &path, &e)),
    });
    // Whether or not it worked, the temporary file has served; a leftover would do no harm.
    let _ = fs::remove_file(&temporary);
    linked?;
    sync_dir(dir).map_err(io("syncing", dir))?;
    // Of `.` and of a link the path does not name the parent. If that cannot be synced, the pool relies
    // on whoever made `dir`.
    let parent = dir.canonicalize().ok().and_then(|dir| dir.parent().map(Path::to_owned));
    let _ = parent.map(|parent| sync_dir(&parent));
    Ok(())
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
