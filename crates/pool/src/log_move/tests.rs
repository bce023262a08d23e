//! Movers, and threads of one process that follow a move, at the same time.

use super::*;
use crate::log::replicas::ReplicaLookup;
use crate::opening::marker_check::read_descriptor;
use crate::{Environment, open, open_or_create};
use outlive_log::{Lock, Previous};
use outlive_types::sync::plain::Mutex;
use outlive_types::sync::{Scheduler, scheduled};
use outlive_types::{ErrorKind, JobName};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use std::io;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Calls a closure before each step of the scheduled thread.
struct Steps<F>(F);

impl<F: Fn(&str) + Send + Sync> Scheduler for Steps<F> {
    fn pause(&self, what: &str) {
        self.0(what);
    }

    fn sleep(&self, _time: Duration) {}

    fn wait(&self, _key: usize) {
        panic!("nothing is locked");
    }

    fn wait_for(&self, _key: usize, _time: Duration) -> bool {
        true
    }

    fn wake(&self, _key: usize) {}

    fn spawn(&self, _name: &str, _work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Runs `work`, and `meanwhile` before its first step that matches `the_one`.
fn with_another<T>(
    the_one: impl Fn(&str) -> bool + Send + Sync + 'static,
    meanwhile: impl FnOnce() + Send + 'static,
    work: impl FnOnce() -> T,
) -> T {
    let left = Arc::new(Mutex::new(Some(meanwhile)));
    let there = left.clone();
    let steps = Steps(move |what: &str| {
        let now = if the_one(what) { there.lock().take() } else { None };
        now.into_iter().for_each(|meanwhile| meanwhile());
    });
    let done = scheduled(Arc::new(steps), work);
    assert!(left.lock().is_none(), "or this tests nothing");
    done
}

/// Reports each open, creation and rename in some directories, and each open of these directories.
struct Watch {
    watch: rustix::fd::OwnedFd,
    directories: Vec<(i32, PathBuf)>,
}

impl Watch {
    fn of(directories: &[PathBuf]) -> Watch {
        let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        let flags = WatchFlags::OPEN | WatchFlags::CREATE | WatchFlags::MOVED_TO;
        let one = |dir: &PathBuf| (inotify::add_watch(&watch, dir, flags).unwrap(), dir.clone());
        let directories = directories.iter().map(one).collect();
        Watch { watch, directories }
    }

    /// Returns the events since the last call: whether a path was opened, and the path. A sync
    /// opens a directory; making, renaming or reading a file in it does not.
    fn seen(&self) -> Vec<(bool, PathBuf)> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.watch, &mut buffer);
        let mut seen = Vec::new();
        while let Ok(event) = events.next() {
            let dir = self.directories.iter().find(|(watch, _)| *watch == event.wd());
            let mut path = dir.unwrap().1.clone();
            if let Some(name) = event.file_name() {
                path.push(name.to_str().unwrap());
            }
            seen.push((event.events().contains(ReadFlags::OPEN), path));
        }
        seen
    }
}

fn names(dir: &Path, names: &[&str]) -> Vec<String> {
    names.iter().map(|name| dir.join(name).display().to_string()).collect()
}

/// A mover pauses once it has sealed the log. Another one ends the move, and moves the log again.
/// Then the first one must not write its own replicas into `pool.toml`.
#[test]
fn a_mover_that_is_overtaken_writes_no_older_replicas_down() {
    for what in ["gather what the log has", "copy what the log had"] {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("pool");
        let [late, other] = [(); 2].map(|()| open_or_create(&root, Environment::system()).unwrap());
        let third = names(dir.path(), &["d"]);
        let work = move || drop(other.move_log(&third).unwrap());
        let to = names(dir.path(), &["a", "b", "c"]);
        let told = with_another(move |step| step == what, work, || late.move_log(&to)).unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Retry, "{told}");
        let there = dir.path().join("d");
        assert!(told.message().contains(there.to_str().unwrap()), "{what}: {told}");
        let named = read_descriptor(&late.paths().unwrap().root).unwrap();
        assert_eq!(named.log.as_ref().map(|log| log.number), Some(3), "{what}");
        open(&root, Environment::system()).unwrap();
    }
}

/// A process died after it had sealed or opened a replica, before that was durable. Processes that
/// find this make it durable before they build on it.
#[test]
fn markers_that_a_dead_process_has_left_are_made_durable_first() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("pool");
    let pool = open_or_create(&root, Environment::system()).unwrap();
    let before = fs::read_to_string(root.join("pool.toml")).unwrap();
    pool.move_log(&names(dir.path(), &["a", "b", "c"])).unwrap();
    fs::write(root.join("pool.toml"), before).unwrap();
    let old = root.join("log");
    let new = ["a", "b", "c"].map(|name| dir.path().join(name).join("log-2/log"));
    let watch = Watch::of(&[&[old.clone()][..], &new].concat());

    // The log is open by then: the old replicas are only asked for their markers.
    open(&root, Environment::system()).unwrap();
    let seen = watch.seen();
    let synced = |dir: &Path| seen.iter().position(|(opened, path)| *opened && path == dir);
    assert!(synced(&old).is_some(), "{seen:?}");
    assert!(new.iter().all(|dir| synced(dir).is_some()), "{seen:?}");

    // A mover that finds a seal.
    let (paths, format) = (PoolPaths::directory(&root), &pool.config().format);
    let replica = open_replicas(&paths, format, paths.log()).unwrap().remove(0);
    replica.seal(b"another place").unwrap();
    let seen = watch.seen();
    assert!(seen.contains(&(true, old)), "{seen:?}");
}

/// A thread looks for the new replicas before they are open; then another one ends the move. The
/// first one must not take the new replicas for the old ones and seal them.
#[test]
fn a_thread_that_another_overtakes_seals_no_new_replica() {
    let dir = tempfile::tempdir().unwrap();
    let pool = open_or_create(&dir.path().join("pool"), Environment::system()).unwrap();
    let (paths, format) = (pool.paths().unwrap(), &pool.config().format);
    let old = paths.log().clone();
    let replicas = ["a", "b", "c"].map(|name| dir.path().join(name).display().to_string());
    pool.move_log(&replicas).unwrap();
    let new = paths.log().clone();
    assert_eq!((old.number, new.number), (1, 2));
    // As the first thread saw them.
    for replica in &new.at[..2] {
        fs::remove_file(replica.as_directory().unwrap().join(MARKER)).unwrap();
    }
    let finished = finish(paths, format, &old, &new, &old.moved_to(&new), false);
    assert_eq!(finished.unwrap_err().kind(), ErrorKind::Retry);
    match find_set(paths, format, &new, Lasting::Now).pop() {
        Some(ReplicaLookup::There(marker)) => assert_eq!(marker.moved, None),
        _ => panic!("the third place is gone"),
    }
}

/// A mover looks where the log is; then another one moves it to replicas that the first one wants,
/// too. They hold records by then, and that is no fault of theirs.
#[test]
fn a_mover_that_another_overtakes_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("pool");
    let [first, late] = [(); 2].map(|()| open_or_create(&root, Environment::system()).unwrap());
    let replicas = |names: [&str; 3]| names.map(|name| dir.path().join(name).display().to_string());
    let (paths, format) = (late.paths().unwrap(), &late.config().format);
    let old = paths.log().clone();
    let new = new_set(paths, &old, &replicas(["a", "b", "d"])).unwrap();
    let look = || {
        prepare(paths, format, &old, || {
            let mut replicas = new.named.iter().zip(&new.at);
            replicas.try_for_each(|(named, at)| prepare_replica(paths, format, named, at))
        })
    };
    // Records that belong to no move are another matter.
    let strange = new.at[2].as_directory().unwrap().join("log");
    fs::create_dir_all(strange.join("job")).unwrap();
    assert_eq!(look().unwrap_err().kind(), ErrorKind::Invalid);
    fs::remove_dir_all(strange.parent().unwrap()).unwrap();
    look().unwrap();

    first.move_log(&replicas(["a", "b", "c"])).unwrap();
    let told = look().unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Retry, "{told}");
    assert!(told.message().contains("another command has moved the log to"), "{told}");
    assert_eq!(late.paths().unwrap().log().number, 2);
}

/// Before each step of a mover, another one decides on other replicas, and is then killed: the
/// decision counts, not the number.
#[test]
fn a_mover_follows_the_decision_of_another_one() {
    let mut told_so = 0;
    for at in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("pool");
        let [late, other] = [(); 2].map(|()| open_or_create(&root, Environment::system()).unwrap());
        let replicas = names(dir.path(), &["d"]);
        let decided = Arc::new(Mutex::new(None));
        let (count, decision) = (Arc::new(AtomicUsize::new(0)), decided.clone());
        let steps = count.clone();
        let decide = move || {
            let (paths, format) = (other.paths().unwrap(), &other.config().format);
            let old = paths.log().clone();
            let new = new_set(paths, &old, &replicas).unwrap();
            prepare_replica(paths, format, &new.named[0], &new.at[0]).unwrap();
            let wanted = old.moved_to(&new).to_bytes().unwrap();
            let asked = open_replicas(paths, format, &old)
                .and_then(|from| Moved::parse(&succeed(&from, ASKING, &wanted)?));
            *decision.lock() = asked.ok();
        };
        let left = Mutex::new(Some(decide));
        let steps = Steps(move |_: &str| {
            if steps.fetch_add(1, Ordering::Relaxed) == at
                && let Some(decide) = left.lock().take()
            {
                decide();
            }
        });
        let to = names(dir.path(), &["a", "b", "c"]);
        let told = scheduled(Arc::new(steps), || late.move_log(&to));
        if count.load(Ordering::Relaxed) <= at {
            break;
        }
        let found = open(&root, Environment::system()).unwrap();
        if let Some(decided) = decided.lock().take() {
            let log = found.paths().unwrap().log();
            let there: Vec<String> = log.named.iter().map(Location::to_string).collect();
            let wanted: Vec<String> =
                decided.replica.iter().map(|it| it.location.clone()).collect();
            // A mover that begins after the decision moves the log again.
            let is_it = log.number == decided.number;
            assert!(there == wanted || !is_it, "step {at}: {there:?}, {wanted:?}, {told:?}");
            told_so += usize::from(is_it && told.is_err());
        }
    }
    assert!(told_so > 0, "some are overtaken");
}

/// A gc or reader that runs does not know the new replicas.
#[test]
fn a_log_stays_while_a_command_or_a_reader_is_at_work() {
    let dir = tempfile::tempdir().unwrap();
    let [pool, other] =
        [(); 2].map(|()| open_or_create(&dir.path().join("pool"), Environment::system()).unwrap());
    other.log().append_if(&JobName::targets(), Previous::NONE, b"one").unwrap();
    let to = names(dir.path(), &["a"]);
    let collector = other.log().lock_collecting().unwrap();
    assert!(matches!(collector, Lock::Taken(_)), "or this tests nothing");
    let refused = pool.move_log(&to).unwrap_err();
    assert!(
        refused.kind() == ErrorKind::Retry && refused.message().contains("gc, scrub"),
        "{refused}"
    );
    drop(collector);
    let reader = other.log().lock_reading().unwrap().unwrap();
    let refused = pool.move_log(&to).unwrap_err();
    assert!(
        refused.kind() == ErrorKind::Retry && refused.message().contains("lazily"),
        "{refused}"
    );
    drop(reader);
    assert_eq!(pool.paths().unwrap().log().number, 1);
}

/// A mover is overtaken before each step: the log is where one of the two moved it, and the
/// descriptor says so.
#[test]
fn a_mover_may_be_overtaken_at_every_step() {
    let to = |dir: &Path| names(dir, &["a", "b", "c"]);
    let dir = tempfile::tempdir().unwrap();
    let pool = open_or_create(&dir.path().join("pool"), Environment::system()).unwrap();
    let steps = Arc::new(Mutex::new(Vec::new()));
    let seen = steps.clone();
    let recorder = Steps(move |what: &str| seen.lock().push(what.to_owned()));
    scheduled(Arc::new(recorder), || pool.move_log(&to(dir.path()))).unwrap();
    let steps = std::mem::take(&mut *steps.lock());
    assert!(steps.len() > 5, "{steps:?}");
    let mut overtaken = 0;
    for (at, step) in steps.iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("pool");
        let [late, other] = [(); 2].map(|()| open_or_create(&root, Environment::system()).unwrap());
        let third = names(dir.path(), &["d"]);
        let there = third[0].clone();
        let count = AtomicUsize::new(0);
        let told = with_another(
            move |_| count.fetch_add(1, Ordering::Relaxed) == at,
            move || drop(other.move_log(&third)),
            || late.move_log(&to(dir.path())),
        );
        let named = read_descriptor(&late.paths().unwrap().root).unwrap().log.unwrap();
        let is_third = named.location.as_deref() == Some(&there);
        overtaken += usize::from(is_third);
        // Also while the first one tidies up: it writes down last where the log is.
        assert_eq!(told.is_err(), is_third, "step {at}, {step}: {told:?}, {named:?}");
        let found = open(&root, Environment::system()).unwrap();
        assert_eq!(found.paths().unwrap().log().number, named.number, "step {at}, {step}");
    }
    assert!(overtaken > 3, "{overtaken} of {steps:?}");
}

/// A disk is unmounted during a write: the write fails, though the directory below the mount point
/// took it.
#[test]
fn an_answer_of_a_replica_that_went_meanwhile_does_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let pool = open_or_create(&dir.path().join("pool"), Environment::system()).unwrap();
    pool.move_log(&names(dir.path(), &["a", "b", "c"])).unwrap();
    let paths = pool.paths().unwrap();
    let replica = open_replicas(paths, &pool.config().format, paths.log()).unwrap().remove(0);
    let job = JobName::new("job").unwrap();
    let put = |number: u64| replica.put_new(&job, number << 16, b"a record");
    put(1).unwrap();
    let marker = paths.log().at[0].as_directory().unwrap().join(MARKER);
    let aside = dir.path().join("aside");
    let went = (marker.clone(), aside.clone());
    let work = move || fs::rename(&went.0, &went.1).unwrap();
    let told = with_another(|step| step == "give the record its number", work, || put(2));
    let told = told.unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Retry, "{told}");
    fs::rename(aside, marker).unwrap();
    put(3).unwrap();
}
