//! Logs that are moved to other places, as an operator meets them.

use crate::common;
use crate::etcd;

use common::{Run, command, files, json, outlive};
use etcd::Cluster;
use outlive_capture::{ChangeTracker, MemorySource, Region};
use outlive_pool::{Environment, open};
use outlive_store::group::{GroupOptions, PoolRanks};
use outlive_store::{Job, JobOptions};
use outlive_types::{FreezeRequest, Frozen, PageSource, Rank, RegionDesc};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A pool, directories for its log, and files that are put into it.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    /// One whose log is in these places; none: beside `pool.toml`.
    fn with_log(places: &[&str]) -> Place {
        let place = Place { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(place.path("from")).unwrap();
        let pool = place.path("a pool");
        let mut words = vec!["pool", "init", text(&pool)];
        words.extend(places.iter().flat_map(|place| ["--log", place]));
        let made = outlive(&words);
        assert_eq!(made.code, 0, "{made:?}");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The words of a command; `POOL` stands for the pool, `FROM` for the files.
    fn words(&self, words: &[&str]) -> Vec<String> {
        let word = |word: &&str| match *word {
            "POOL" => text(&self.path("a pool")).to_owned(),
            "FROM" => text(&self.path("from")).to_owned(),
            word => word.to_owned(),
        };
        words.iter().map(word).collect()
    }

    fn run(&self, words: &[&str]) -> Run {
        let words = self.words(words);
        outlive(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn done(&self, words: &[&str]) -> Run {
        let run = self.run(words);
        assert_eq!(run.code, 0, "{words:?}: {run:?}");
        run
    }

    fn move_log(&self, places: &[&str]) -> Run {
        self.run(&move_words(places))
    }

    fn moved(&self, places: &[&str]) -> Run {
        self.done(&move_words(places))
    }

    fn put(&self, epoch: u64) -> Run {
        fs::write(self.path("from/data"), epoch.to_string()).unwrap();
        self.run(&["put", "POOL", "job", "FROM"])
    }

    /// Every epoch from `first` to `last` is there, as it was put.
    fn holds(&self, first: u64, last: u64) {
        for epoch in first..=last {
            assert_eq!(self.got("job", epoch), epoch.to_string());
        }
        let to = tempfile::tempdir().unwrap();
        let next = (last + 1).to_string();
        let gone = self.run(&["get", "POOL", "job", "--epoch", &next, "--to", text(to.path())]);
        assert_eq!(gone.code, 2, "{gone:?}");
    }

    fn got(&self, job: &str, epoch: u64) -> String {
        let to = tempfile::tempdir().unwrap();
        let there = to.path().join("x");
        self.done(&["get", "POOL", job, "--epoch", &epoch.to_string(), "--to", text(&there)]);
        let found = files(to.path()).into_iter().find(|(path, _)| path.ends_with("data"));
        String::from_utf8(found.unwrap().1).unwrap()
    }

    fn away(&self, place: &str) {
        fs::rename(self.path(place), self.path(&format!("{place} away"))).unwrap();
    }

    fn back(&self, place: &str) {
        fs::rename(self.path(&format!("{place} away")), self.path(place)).unwrap();
    }

    fn descriptor(&self) -> String {
        fs::read_to_string(self.path("a pool/pool.toml")).unwrap()
    }

    fn set_descriptor(&self, text: &str) {
        fs::write(self.path("a pool/pool.toml"), text).unwrap();
    }
}

fn move_words<'a>(places: &[&'a str]) -> Vec<&'a str> {
    let mut words = vec!["pool", "move-log", "POOL"];
    words.extend(places.iter().flat_map(|place| ["--log", *place]));
    words
}

const ABC: [&str; 3] = ["../a", "../b", "../c"];
const ABD: [&str; 3] = ["../a", "../b", "../d"];

/// From one place to three, with one replaced that is lost, to five, and back beside `pool.toml`. Old copies of
/// `pool.toml` follow each time.
#[test]
fn a_log_is_moved_from_place_to_place() {
    let place = Place::with_log(&[]);
    assert_eq!(place.put(1).code, 0);
    let first = place.descriptor();
    let moved = place.moved(&ABC);
    assert!(moved.out.contains("The log was moved to"), "{moved:?}");
    assert!(place.descriptor().contains("locations = [\"../a\", \"../b\", \"../c\"]"));
    assert!(place.descriptor().starts_with(first.lines().next().unwrap()), "what was there stays");
    assert_eq!(place.put(2).code, 0);
    place.holds(1, 2);

    fs::remove_dir_all(place.path("c")).unwrap();
    assert!(place.put(3).err.contains("the log does without a place"));
    place.moved(&ABD);
    assert_eq!(place.put(4).err, "", "nothing is away any more");
    place.away("a");
    place.holds(1, 4);
    place.back("a");

    let five = ["../e", "../b", "../f", "../a", "../g"];
    place.moved(&five);
    for away in ["a", "b"] {
        place.away(away);
    }
    assert_eq!(place.put(5).code, 0);
    place.holds(1, 5);
    for away in ["a", "b"] {
        place.back(away);
    }
    place.done(&["prune", "POOL", "job", "--keep-last", "3"]);
    place.moved(&["."]);
    let status = json(&["pool", "status", text(&place.path("a pool")), "--json"]);
    assert_eq!(status["log_places"].as_array().unwrap().len(), 1, "{status}");
    assert_eq!(place.put(6).code, 0);

    place.set_descriptor(&first);
    place.holds(3, 6);
    let put = place.put(7);
    assert!(put.code == 0 && put.err.contains("the log was moved to"), "{put:?}");
    assert!(put.err.contains("number = 5"), "{put:?}");
    place.done(&["gc", "POOL"]);
    place.done(&["scrub", "POOL"]);
    place.done(&["pool", "add", "POOL", "../disk"]);
    place.done(&["verify", "POOL"]);
    let again = place.moved(&["."]);
    assert!(again.out.contains("The log is in"), "{again:?}");
    assert!(place.descriptor().contains("number = 5"));
    assert_eq!(place.put(8).err, "", "pool.toml is right again");
    place.holds(5, 8);
}

/// A place of an old set that was away while the log was moved, and all who have an old `pool.toml`, change
/// nothing any more.
#[test]
fn an_old_place_that_returns_does_not_count() {
    let place = Place::with_log(&ABC);
    assert_eq!(place.put(1).code, 0);
    let old = place.descriptor();
    place.away("c");
    place.moved(&ABD);
    assert_eq!(place.put(2).code, 0);
    place.back("c");
    place.set_descriptor(&old);
    // The one that was away, and one that is sealed: they say where the log is.
    let mut last = 2;
    for (away, left) in [("a", "b"), ("b", "a")] {
        place.away(away);
        let put = place.put(last + 1);
        assert!(put.code == 0 && put.err.contains("the log was moved to"), "{left}: {put:?}");
        place.back(away);
        last += 1;
    }
    // The one that was away alone: no majority.
    place.away("a");
    place.away("b");
    let put = place.put(last + 1);
    assert!(put.code == 6 && put.err.contains("less than a majority"), "{put:?}");
    place.back("a");
    place.back("b");
    place.holds(1, last);
    // Only what is of the newest set has it all.
    fs::remove_dir_all(place.path("c")).unwrap();
    place.moved(&ABD);
    place.holds(1, last);
}

/// The same paths again: one of the disks is a new one.
#[test]
fn a_place_is_replaced_by_a_new_disk_in_its_place() {
    let place = Place::with_log(&ABC);
    assert_eq!(place.put(1).code, 0);
    fs::remove_dir_all(place.path("b")).unwrap();
    fs::create_dir(place.path("b")).unwrap();
    assert!(place.put(2).err.contains("the log does without a place"));
    place.moved(&ABC);
    assert_eq!(place.put(3).err, "");
    place.away("a");
    place.holds(1, 3);
    let again =
        place.run(&["pool", "move-log", "POOL", "--log", "../a", "--log", "../b", "--log", "../c"]);
    assert_eq!(again.code, 0, "a directory that is away is made anew: {again:?}");
    place.holds(1, 3);
}

#[test]
fn impossible_places_are_refused_and_nothing_is_changed() {
    let place = Place::with_log(&ABC);
    assert_eq!(place.put(1).code, 0);
    let other = Place::with_log(&["."]);
    other.moved(&["../x", "../y", "../z"]);
    let (root, moved) = (other.path("a pool"), other.path("x"));
    let target = other.path("target");
    other.done(&["pool", "add", "POOL", text(&target)]);
    fs::write(place.path("file"), "x").unwrap();
    let before = place.descriptor();
    for (places, told) in [
        (&["../a", "../b"][..], "2 locations"),
        (&["../a", "../b", "../a"], "named twice"),
        (&["../a", "../b", "../b/../a"], "named twice"),
        (&["../a", "../b", "http://x"], "no scheme"),
        (&["../a", "../b", "../file"], "is a file"),
        (&["../a", "../b", "../file/x"], "file"),
        (&["../a", "../b", text(&root)], "another pool"),
        (&["../a", "../b", text(&moved)], "another pool"),
        (&["../a", "../b", text(&target)], "another pool"),
        (&["../a", "../b", "packs/log"], "outside"),
        (&["../a", "../b", "../c/log/x"], "outside"),
    ] {
        let run = place.move_log(places);
        assert!(run.code == 2 && run.err.contains(told), "{places:?}: {run:?}");
        assert_eq!(place.descriptor(), before);
        assert_eq!(place.put(0).err, "", "{places:?}");
    }
    let none = place.run(&["pool", "move-log", "POOL"]);
    assert_eq!(none.code, 2, "{none:?}");
    place.away("a");
    place.away("b");
    let run = place.move_log(&ABD);
    assert!(run.code == 6 && !place.path("d").exists(), "{run:?}");
    place.back("a");
    place.back("b");
    assert_eq!(place.got("job", 1), "1");
    other.done(&["verify", "POOL"]);
}

/// The mover is killed at any moment, and the command given again, or a program that saves comes next.
#[test]
fn a_mover_that_is_killed_is_given_again() {
    for (number, again) in (0..12).map(|number| (number, number % 2 == 0)) {
        let place = Place::with_log(&[]);
        assert_eq!(place.put(1).code, 0);
        let words = place.words(&move_words(&ABC));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        // It stands still before one of its calls that change something, for ever.
        let mut mover = command(&words).stderr(std::process::Stdio::null()).spawn().unwrap();
        let wanted = ["a", "b", "c", "a/log-2", "c/log-2/log", "a/log-2/log/.pool.toml"];
        let until = place.path(wanted[number / 2]);
        while !until.exists() && mover.try_wait().unwrap().is_none() {
            thread::yield_now();
        }
        let _ = mover.kill();
        mover.wait().unwrap();
        if again {
            place.moved(&ABC);
            assert!(place.descriptor().contains("../c"));
        }
        assert_eq!(place.put(2).code, 0);
        place.holds(1, 2);
        place.moved(&ABC);
        assert_eq!(place.put(3).err, "");
        place.away("b");
        place.holds(1, 3);
    }
}

/// Movers with other places each, and savers, at once: the log ends where one of them has put it, whole.
#[test]
fn movers_and_savers_at_once() {
    const PUTS: u64 = 6;
    let place = Place::with_log(&[]);
    let sets: [&[&str]; 3] = [&ABC, &ABD, &["../e"]];
    thread::scope(|scope| {
        for job in ["x", "y"] {
            let place = &place;
            scope.spawn(move || {
                let from = place.path(job);
                fs::create_dir(&from).unwrap();
                for epoch in 1..=PUTS {
                    fs::write(from.join("data"), epoch.to_string()).unwrap();
                    let mut done = place.run(&["put", "POOL", job, text(&from)]);
                    while done.code == 6 {
                        done = place.run(&["put", "POOL", job, text(&from)]);
                    }
                    assert_eq!(done.code, 0, "{done:?}");
                }
            });
        }
        for set in sets {
            let place = &place;
            scope.spawn(move || {
                for _ in 0..3 {
                    let run = place.move_log(set);
                    assert!(matches!(run.code, 0 | 6), "{set:?}: {run:?}");
                }
            });
        }
        let place = &place;
        scope.spawn(move || {
            for _ in 0..3 {
                let run = place.run(&["gc", "POOL"]);
                assert!(matches!(run.code, 0 | 6), "{run:?}");
            }
        });
    });
    place.moved(&ABC);
    for job in ["x", "y"] {
        (1..=PUTS).for_each(|epoch| assert_eq!(place.got(job, epoch), epoch.to_string()));
    }
    place.done(&["verify", "POOL"]);
}

/// Another host has other paths for the places: it follows as far as it knows them, and is told what to do.
#[test]
fn another_host_is_told_where_the_log_is() {
    let place = Place::with_log(&[]);
    assert_eq!(place.put(1).code, 0);
    let there = place.path("there");
    fs::create_dir(&there).unwrap();
    for part in ["packs", "log"] {
        std::os::unix::fs::symlink(place.path("a pool").join(part), there.join(part)).unwrap();
    }
    fs::copy(place.path("a pool/pool.toml"), there.join("pool.toml")).unwrap();
    for name in ["one", "two", "three"] {
        fs::create_dir(place.path(name)).unwrap();
    }
    let at = |name: &str| text(&place.path(name)).to_owned();
    let places = ["one", "two", "three"].map(at);
    place.moved(&places.each_ref().map(String::as_str));
    assert_eq!(place.put(2).code, 0);
    // The same names: it just follows.
    let ls = outlive(&["ls", text(&there), "job"]);
    assert!(ls.code == 0 && ls.err.contains("the log was moved to"), "{ls:?}");
    // Other names: one place can be done without, two cannot.
    place.away("one");
    assert_eq!(outlive(&["ls", text(&there), "job"]).code, 0);
    place.away("two");
    let ls = outlive(&["ls", text(&there), "job"]);
    assert!(ls.code == 6 && ls.err.contains("set number = 2"), "{ls:?}");
    assert!(ls.err.contains(&at("two")), "{ls:?}");
    let toml = fs::read_to_string(there.join("pool.toml")).unwrap();
    let log = format!(
        "\n[log]\nnumber = 2\nlocations = [{:?}, {:?}, {:?}]\n",
        at("one away"),
        at("two away"),
        at("three")
    );
    fs::write(there.join("pool.toml"), format!("{toml}{log}")).unwrap();
    let ls = outlive(&["ls", text(&there), "job"]);
    assert!(ls.code == 0 && ls.err.is_empty(), "{ls:?}");
    place.back("one");
    place.back("two");
    place.holds(1, 2);
}

/// Into an etcd cluster and out of it, with a place in it.
#[test]
fn a_log_is_moved_into_etcd_and_out_of_it() {
    let cluster = Cluster::of(1);
    let hosts: Vec<String> = cluster.addresses().iter().map(ToString::to_string).collect();
    let location = |prefix: &str| format!("etcd://{}/{prefix}", hosts.join(","));
    let place = Place::with_log(&[]);
    assert_eq!(place.put(1).code, 0);
    let old = place.descriptor();
    place.moved(&[&location("x")]);
    assert_eq!(place.put(2).code, 0);
    place.moved(&["../a", &location("x"), "../b"]);
    assert_eq!(place.put(3).code, 0);
    place.away("a");
    place.holds(1, 3);
    place.back("a");
    place.moved(&["../c"]);
    place.set_descriptor(&old);
    assert_eq!(place.put(4).code, 0);
    place.holds(1, 4);
    place.done(&["verify", "POOL"]);
}

/// Memory; something happens before it is frozen.
struct Source<F> {
    inner: MemorySource,
    before: F,
}

impl<F: FnMut()> PageSource for Source<F> {
    fn freeze(&mut self, request: &FreezeRequest) -> outlive_types::Result<Box<dyn Frozen>> {
        (self.before)();
        self.inner.freeze(request)
    }

    fn regions(&mut self) -> outlive_types::Result<Vec<RegionDesc>> {
        self.inner.regions()
    }
}

/// Ranks are in the middle of a save: one has said in the log that its image is stored, and rank 0 has not read
/// that yet. Ranks that are connected through the log have their calls there, too.
#[test]
fn a_save_of_ranks_goes_on_while_the_log_is_moved() {
    for (from, to) in [(vec![], vec!["a", "b", "c"]), (vec!["a", "b", "c"], vec!["d"])] {
        let from: Vec<&str> = from;
        let place = Place::with_log(&[]);
        if !from.is_empty() {
            place.moved(&from);
        }
        let work = |rank: Rank| {
            let pool = open(&place.path("a pool"), Environment::system()).unwrap();
            let patience = Duration::from_secs(300);
            let coordinator = PoolRanks::new(&pool, "job", rank, 3, "run", patience).unwrap();
            let group = GroupOptions::new(Arc::new(coordinator));
            let options = JobOptions { group: Some(group), ..JobOptions::default() };
            let job = Job::open(&pool, "job", options).unwrap();
            let tracker = Arc::new(ChangeTracker::new());
            let said = |rank| pool.log().latest(&job.name().mail_of(rank)).unwrap();
            for save in 1..=3u64 {
                let before = [1, 2].map(said);
                let bytes = vec![save as u8 ^ rank as u8; 50_000];
                let region = Region::from_bytes("a", "|u1", vec![50_000], bytes.as_slice());
                let inner = MemorySource::new(tracker.clone(), vec![region], Vec::new(), 1);
                let before = || {
                    if rank == 0 && save == 2 {
                        while [1, 2].map(said).iter().zip(before).any(|(now, then)| *now <= then) {
                            thread::yield_now();
                        }
                        place.moved(&to);
                    }
                };
                let saved = job.save(&mut Source { inner, before }).unwrap();
                assert_eq!(saved.wait(None).unwrap().unwrap().epoch, save);
            }
            job.close().unwrap();
        };
        let work = &work;
        thread::scope(|scope| (0..3).for_each(|rank| drop(scope.spawn(move || work(rank)))));
        place.done(&["verify", "POOL"]);
    }
}
