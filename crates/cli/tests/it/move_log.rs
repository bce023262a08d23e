//! Logs that are moved to other replicas, as an operator uses the command.

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

/// A pool, directories for its log, and files to put into it.
struct Fixture {
    dir: tempfile::TempDir,
}

impl Fixture {
    /// Creates a pool whose log has these replicas; without any, it is next to `pool.toml`.
    fn with_log(places: &[&str]) -> Fixture {
        let fixture = Fixture { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(fixture.path("from")).unwrap();
        let pool = fixture.path("a pool");
        let mut words = vec!["pool", "init", text(&pool)];
        words.extend(places.iter().flat_map(|fixture| ["--log", fixture]));
        let made = outlive(&words);
        assert_eq!(made.code, 0, "{made:?}");
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the words of a command; `POOL` stands for the pool, `FROM` for the files.
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

    /// Checks that every epoch from `first` to `last` is restored as it was put.
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

    fn away(&self, fixture: &str) {
        fs::rename(self.path(fixture), self.path(&format!("{fixture} away"))).unwrap();
    }

    fn back(&self, fixture: &str) {
        fs::rename(self.path(&format!("{fixture} away")), self.path(fixture)).unwrap();
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
    words.extend(places.iter().flat_map(|fixture| ["--log", *fixture]));
    words
}

const ABC: [&str; 3] = ["../a", "../b", "../c"];
const ABD: [&str; 3] = ["../a", "../b", "../d"];

/// The log moves from one replica to three, with one lost and replaced, to five, and back next to
/// `pool.toml`. Old copies of `pool.toml` follow each time.
#[test]
fn a_log_moves_through_several_configurations() {
    let fixture = Fixture::with_log(&[]);
    assert_eq!(fixture.put(1).code, 0);
    let first = fixture.descriptor();
    let moved = fixture.moved(&ABC);
    assert!(moved.out.contains("The log was moved to"), "{moved:?}");
    assert!(fixture.descriptor().contains("locations = [\"../a\", \"../b\", \"../c\"]"));
    assert!(
        fixture.descriptor().starts_with(first.lines().next().unwrap()),
        "what was there stays"
    );
    assert_eq!(fixture.put(2).code, 0);
    fixture.holds(1, 2);

    fs::remove_dir_all(fixture.path("c")).unwrap();
    assert!(fixture.put(3).err.contains("the log does without a replica"));
    fixture.moved(&ABD);
    assert_eq!(fixture.put(4).err, "", "nothing is away any more");
    fixture.away("a");
    fixture.holds(1, 4);
    fixture.back("a");

    let five = ["../e", "../b", "../f", "../a", "../g"];
    fixture.moved(&five);
    for away in ["a", "b"] {
        fixture.away(away);
    }
    assert_eq!(fixture.put(5).code, 0);
    fixture.holds(1, 5);
    for away in ["a", "b"] {
        fixture.back(away);
    }
    fixture.done(&["prune", "POOL", "job", "--keep-last", "3"]);
    fixture.moved(&["."]);
    let status = json(&["pool", "status", text(&fixture.path("a pool")), "--json"]);
    assert_eq!(status["log_replicas"].as_array().unwrap().len(), 1, "{status}");
    assert_eq!(fixture.put(6).code, 0);

    fixture.set_descriptor(&first);
    fixture.holds(3, 6);
    let put = fixture.put(7);
    assert!(put.code == 0 && put.err.contains("the log was moved to"), "{put:?}");
    assert!(put.err.contains("number = 5"), "{put:?}");
    fixture.done(&["gc", "POOL"]);
    fixture.done(&["scrub", "POOL"]);
    fixture.done(&["pool", "add", "POOL", "../disk"]);
    fixture.done(&["verify", "POOL"]);
    let again = fixture.moved(&["."]);
    assert!(again.out.contains("The log is in"), "{again:?}");
    assert!(fixture.descriptor().contains("number = 5"));
    assert_eq!(fixture.put(8).err, "", "pool.toml is right again");
    fixture.holds(5, 8);
}

/// A replica of an old configuration that was away during the move changes nothing, nor do programs
/// with an old `pool.toml`.
#[test]
fn an_old_replica_that_returns_does_not_count() {
    let fixture = Fixture::with_log(&ABC);
    assert_eq!(fixture.put(1).code, 0);
    let old = fixture.descriptor();
    fixture.away("c");
    fixture.moved(&ABD);
    assert_eq!(fixture.put(2).code, 0);
    fixture.back("c");
    fixture.set_descriptor(&old);
    // The replica that was away and a sealed one: the sealed one names the log's location.
    let mut last = 2;
    for (away, left) in [("a", "b"), ("b", "a")] {
        fixture.away(away);
        let put = fixture.put(last + 1);
        assert!(put.code == 0 && put.err.contains("the log was moved to"), "{left}: {put:?}");
        fixture.back(away);
        last += 1;
    }
    // The replica that was away is no majority alone.
    fixture.away("a");
    fixture.away("b");
    let put = fixture.put(last + 1);
    assert!(put.code == 6 && put.err.contains("fewer than a majority"), "{put:?}");
    fixture.back("a");
    fixture.back("b");
    fixture.holds(1, last);
    // Only a replica of the newest configuration has all records.
    fs::remove_dir_all(fixture.path("c")).unwrap();
    fixture.moved(&ABD);
    fixture.holds(1, last);
}

/// The same paths again: one of the disks is a new one.
#[test]
fn a_replica_is_replaced_by_a_new_disk_in_its_place() {
    let fixture = Fixture::with_log(&ABC);
    assert_eq!(fixture.put(1).code, 0);
    fs::remove_dir_all(fixture.path("b")).unwrap();
    fs::create_dir(fixture.path("b")).unwrap();
    assert!(fixture.put(2).err.contains("the log does without a replica"));
    fixture.moved(&ABC);
    assert_eq!(fixture.put(3).err, "");
    fixture.away("a");
    fixture.holds(1, 3);
    let again = fixture
        .run(&["pool", "move-log", "POOL", "--log", "../a", "--log", "../b", "--log", "../c"]);
    assert_eq!(again.code, 0, "a directory that is away is recreated: {again:?}");
    fixture.holds(1, 3);
}

#[test]
fn impossible_locations_are_refused_and_nothing_is_changed() {
    let fixture = Fixture::with_log(&ABC);
    assert_eq!(fixture.put(1).code, 0);
    let other = Fixture::with_log(&["."]);
    other.moved(&["../x", "../y", "../z"]);
    let (root, moved) = (other.path("a pool"), other.path("x"));
    let target = other.path("target");
    other.done(&["pool", "add", "POOL", text(&target)]);
    fs::write(fixture.path("file"), "x").unwrap();
    let before = fixture.descriptor();
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
        let run = fixture.move_log(places);
        assert!(run.code == 2 && run.err.contains(told), "{places:?}: {run:?}");
        assert_eq!(fixture.descriptor(), before);
        assert_eq!(fixture.put(0).err, "", "{places:?}");
    }
    let none = fixture.run(&["pool", "move-log", "POOL"]);
    assert_eq!(none.code, 2, "{none:?}");
    fixture.away("a");
    fixture.away("b");
    let run = fixture.move_log(&ABD);
    assert!(run.code == 6 && !fixture.path("d").exists(), "{run:?}");
    fixture.back("a");
    fixture.back("b");
    assert_eq!(fixture.got("job", 1), "1");
    other.done(&["verify", "POOL"]);
}

/// The mover is killed at any moment; then the command runs again, or a program saves.
#[test]
fn a_mover_that_is_killed_is_given_again() {
    for (number, again) in (0..12).map(|number| (number, number % 2 == 0)) {
        let fixture = Fixture::with_log(&[]);
        assert_eq!(fixture.put(1).code, 0);
        let words = fixture.words(&move_words(&ABC));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        // The mover stops forever before one of its calls that change something.
        let mut mover = command(&words).stderr(std::process::Stdio::null()).spawn().unwrap();
        let wanted = ["a", "b", "c", "a/log-2", "c/log-2/log", "a/log-2/log/.pool.toml"];
        let until = fixture.path(wanted[number / 2]);
        while !until.exists() && mover.try_wait().unwrap().is_none() {
            thread::yield_now();
        }
        let _ = mover.kill();
        mover.wait().unwrap();
        if again {
            fixture.moved(&ABC);
            assert!(fixture.descriptor().contains("../c"));
        }
        assert_eq!(fixture.put(2).code, 0);
        fixture.holds(1, 2);
        fixture.moved(&ABC);
        let old = files(&fixture.path("a pool/log"));
        let records: Vec<_> = old
            .iter()
            .filter(|(path, _)| path.extension().is_some_and(|it| it == "record"))
            .collect();
        let is_move = |path: &Path| text(path).contains("moved");
        assert!(records.iter().all(|(path, _)| is_move(path)), "{number}: {:?}", records.first());
        assert_eq!(fixture.put(3).err, "");
        fixture.away("b");
        fixture.holds(1, 3);
    }
}

/// Concurrent movers to different replicas, and savers: the log ends complete, where one of them
/// has moved it.
#[test]
fn movers_and_savers_at_once() {
    const PUTS: u64 = 6;
    let fixture = Fixture::with_log(&[]);
    let sets: [&[&str]; 3] = [&ABC, &ABD, &["../e"]];
    thread::scope(|scope| {
        for job in ["x", "y"] {
            let fixture = &fixture;
            scope.spawn(move || {
                let from = fixture.path(job);
                fs::create_dir(&from).unwrap();
                for epoch in 1..=PUTS {
                    fs::write(from.join("data"), epoch.to_string()).unwrap();
                    let mut done = fixture.run(&["put", "POOL", job, text(&from)]);
                    while done.code == 6 {
                        done = fixture.run(&["put", "POOL", job, text(&from)]);
                    }
                    assert_eq!(done.code, 0, "{done:?}");
                }
            });
        }
        for set in sets {
            let fixture = &fixture;
            scope.spawn(move || {
                for _ in 0..3 {
                    let run = fixture.move_log(set);
                    assert!(matches!(run.code, 0 | 6), "{set:?}: {run:?}");
                }
            });
        }
        let fixture = &fixture;
        scope.spawn(move || {
            for _ in 0..3 {
                let run = fixture.run(&["gc", "POOL"]);
                assert!(matches!(run.code, 0 | 6), "{run:?}");
            }
        });
    });
    fixture.moved(&ABC);
    for job in ["x", "y"] {
        (1..=PUTS).for_each(|epoch| assert_eq!(fixture.got(job, epoch), epoch.to_string()));
    }
    fixture.done(&["verify", "POOL"]);
}

/// Another host has other paths for the replicas. It follows as far as it knows them, and reports
/// the next step.
#[test]
fn another_host_is_told_where_the_log_is() {
    let fixture = Fixture::with_log(&[]);
    assert_eq!(fixture.put(1).code, 0);
    let there = fixture.path("there");
    fs::create_dir(&there).unwrap();
    for part in ["packs", "log"] {
        std::os::unix::fs::symlink(fixture.path("a pool").join(part), there.join(part)).unwrap();
    }
    fs::copy(fixture.path("a pool/pool.toml"), there.join("pool.toml")).unwrap();
    for name in ["one", "two", "three"] {
        fs::create_dir(fixture.path(name)).unwrap();
    }
    let at = |name: &str| text(&fixture.path(name)).to_owned();
    let places = ["one", "two", "three"].map(at);
    fixture.moved(&places.each_ref().map(String::as_str));
    assert_eq!(fixture.put(2).code, 0);
    // The same names: the host follows.
    let ls = outlive(&["ls", text(&there), "job"]);
    assert!(ls.code == 0 && ls.err.contains("the log was moved to"), "{ls:?}");
    // Other names: one unknown replica is tolerated, two are not.
    fixture.away("one");
    assert_eq!(outlive(&["ls", text(&there), "job"]).code, 0);
    fixture.away("two");
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
    fixture.back("one");
    fixture.back("two");
    fixture.holds(1, 2);
}

/// The log moves into an etcd cluster and out of it, with one replica there.
#[test]
fn a_log_is_moved_into_etcd_and_out_of_it() {
    let cluster = Cluster::of(1);
    let hosts: Vec<String> = cluster.addresses().iter().map(ToString::to_string).collect();
    let location = |prefix: &str| format!("etcd://{}/{prefix}", hosts.join(","));
    let fixture = Fixture::with_log(&[]);
    assert_eq!(fixture.put(1).code, 0);
    let old = fixture.descriptor();
    fixture.moved(&[&location("x")]);
    assert_eq!(fixture.put(2).code, 0);
    fixture.moved(&["../a", &location("x"), "../b"]);
    assert_eq!(fixture.put(3).code, 0);
    fixture.away("a");
    fixture.holds(1, 3);
    fixture.back("a");
    fixture.moved(&["../c"]);
    fixture.set_descriptor(&old);
    assert_eq!(fixture.put(4).code, 0);
    fixture.holds(1, 4);
    fixture.done(&["verify", "POOL"]);
}

/// Memory that runs a function before it is frozen.
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

/// Ranks are in the middle of a save: one has written to the log that its image is stored, and rank
/// 0 has not read that yet. Ranks that the log connects have their calls there, too.
#[test]
fn a_save_of_ranks_goes_on_while_the_log_is_moved() {
    for (from, to) in [(vec![], vec!["a", "b", "c"]), (vec!["a", "b", "c"], vec!["d"])] {
        let from: Vec<&str> = from;
        let fixture = Fixture::with_log(&[]);
        if !from.is_empty() {
            fixture.moved(&from);
        }
        let work = |rank: Rank| {
            let pool = open(&fixture.path("a pool"), Environment::system()).unwrap();
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
                        fixture.moved(&to);
                    }
                };
                let saved = job.save(&mut Source { inner, before }).unwrap();
                assert_eq!(saved.wait(None).unwrap().unwrap().epoch, save);
            }
            job.close().unwrap();
        };
        let work = &work;
        thread::scope(|scope| (0..3).for_each(|rank| drop(scope.spawn(move || work(rank)))));
        fixture.done(&["verify", "POOL"]);
    }
}
