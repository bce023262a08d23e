//! Pools whose log has several replicas, as an operator uses them.

use crate::common;
use crate::etcd;

use common::{Run, files, json, outlive};
use etcd::Cluster;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A pool, directories for its log, and files to put into it.
struct Fixture {
    dir: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("from")).unwrap();
        Fixture { dir }
    }

    /// The same with a pool whose log has these replicas.
    fn with_log(places: &[&str]) -> Fixture {
        let fixture = Fixture::new();
        let made = fixture.init(places);
        assert_eq!(made.code, 0, "{made:?}");
        fixture
    }

    fn init(&self, places: &[&str]) -> Run {
        let mut words = vec!["pool", "init", "POOL"];
        words.extend(places.iter().flat_map(|fixture| ["--log", fixture]));
        self.run(&words)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs a command; `POOL` and `FROM` stand for the paths.
    fn run(&self, words: &[&str]) -> Run {
        let (pool, from) = (self.path("a pool"), self.path("from"));
        let word = |word: &&str| match *word {
            "POOL" => text(&pool).to_owned(),
            "FROM" => text(&from).to_owned(),
            word => word.to_owned(),
        };
        let words: Vec<String> = words.iter().map(word).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        outlive(&words)
    }

    fn done(&self, words: &[&str]) -> Run {
        let run = self.run(words);
        assert_eq!(run.code, 0, "{words:?}: {run:?}");
        run
    }

    fn put(&self, job: &str, what: &str) -> Run {
        fs::write(self.path("from/data"), what).unwrap();
        self.run(&["put", "POOL", job, "FROM"])
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
}

const THREE: [&str; 3] = ["../log 1", "../log 2", "../log 3"];

/// One replica after the other is away, and returns with its old contents.
#[test]
fn any_one_of_three_replicas_may_be_away() {
    let fixture = Fixture::with_log(&THREE);
    assert_eq!(fixture.put("job", "1").code, 0);
    for (number, epoch) in [(1, 2), (2, 3), (3, 4), (1, 5)] {
        let name = format!("log {number}");
        fixture.away(&name);
        let put = fixture.put("job", &epoch.to_string());
        assert_eq!(put.code, 0, "{put:?}");
        assert!(put.err.contains("the log does without a replica"), "{}", put.err);
        assert!(!fixture.path(&name).exists(), "nothing is made in its place");
        (1..=epoch).for_each(|epoch| assert_eq!(fixture.got("job", epoch), epoch.to_string()));
        let status = fixture.done(&["pool", "status", "POOL"]);
        assert!(status.out.contains("log: 3 replicas, of which 1 may be lost"), "{}", status.out);
        assert!(
            status.out.contains(&format!("{name}  AWAY: replica {number} of 3")),
            "{}",
            status.out
        );
        let status = json(&["pool", "status", text(&fixture.path("a pool")), "--json"]);
        let away = |fixture: &usize| !status["log_replicas"][*fixture]["away"].is_null();
        assert_eq!((0..3).filter(away).collect::<Vec<_>>(), [number - 1]);
        for command in ["gc", "scrub", "verify", "ls"] {
            fixture.done(&[command, "POOL"]);
        }
        fixture.back(&name);
    }
    fixture.done(&["prune", "POOL", "job", "--keep-last", "2"]);
    fixture.done(&["gc", "POOL"]);
    for number in 1..=3 {
        fixture.away(&format!("log {number}"));
        assert_eq!(
            (fixture.got("job", 4), fixture.got("job", 5)),
            ("4".to_owned(), "5".to_owned())
        );
        let gone = fixture.run(&["get", "POOL", "job", "--epoch", "3", "--to", "/nowhere"]);
        assert_eq!(gone.code, 2, "{gone:?}");
        fixture.back(&format!("log {number}"));
    }
}

/// Without a majority, no command reports data as missing, and none writes.
#[test]
fn without_a_majority_the_pool_is_refused_and_nothing_is_lost() {
    let fixture = Fixture::with_log(&THREE);
    assert_eq!(fixture.put("job", "1").code, 0);
    fixture.away("log 1");
    fixture.away("log 3");
    for run in [fixture.put("job", "2"), fixture.run(&["ls", "POOL"]), fixture.run(&["gc", "POOL"])]
    {
        assert_eq!(run.code, 6, "{run:?}");
        assert!(run.err.contains("fewer than a majority") && run.err.contains("log 3"), "{run:?}");
    }
    assert!(!fixture.path("log 1").exists() && !fixture.path("log 3").exists());
    fixture.back("log 3");
    assert_eq!(fixture.put("job", "2").code, 0);
    fixture.back("log 1");
    assert_eq!((fixture.got("job", 1), fixture.got("job", 2)), ("1".to_owned(), "2".to_owned()));
}

/// The order of replicas must not change, and no replica of another pool takes part.
#[test]
fn replicas_in_another_order_or_of_another_pool_are_refused() {
    let fixture = Fixture::with_log(&THREE);
    assert_eq!(fixture.put("job", "1").code, 0);
    let toml = fs::read_to_string(fixture.path("a pool/pool.toml")).unwrap();
    for (from, to, told) in [
        ("log 1", "log 2", "put the locations of [log] right"),
        ("\"../log 1\", ", "", "[log] has 2 locations"),
        ("\"../log 3\"", "\"../log 3\", \"../x\", \"../y\"", "replica 1 of 3"),
        (
            "locations = [\"../log 1\", \"../log 2\", \"../log 3\"]",
            "location = \"../log 2\"",
            "the only replica",
        ),
    ] {
        assert!(toml.contains(from), "{toml}");
        fs::write(fixture.path("a pool/pool.toml"), toml.replace(from, to)).unwrap();
        let run = fixture.run(&["ls", "POOL"]);
        assert!(run.code == 2 && run.err.contains(told), "{from}: {run:?}");
    }
    fs::write(fixture.path("a pool/pool.toml"), &toml).unwrap();
    assert_eq!(fixture.got("job", 1), "1");

    let other = Fixture::with_log(&THREE);
    fs::rename(fixture.path("log 2"), fixture.path("mine")).unwrap();
    fs::rename(other.path("log 2"), fixture.path("log 2")).unwrap();
    let run = fixture.run(&["ls", "POOL"]);
    assert!(run.code == 2 && run.err.contains("pool_id"), "{run:?}");

    // Each replica has a copy of a lost descriptor.
    fs::rename(fixture.path("mine"), fixture.path("log 2")).unwrap_err();
    fs::remove_dir_all(fixture.path("log 2")).unwrap();
    fs::rename(fixture.path("mine"), fixture.path("log 2")).unwrap();
    fs::copy(fixture.path("log 3/log/.pool.toml"), fixture.path("a pool/pool.toml")).unwrap();
    assert_eq!(fixture.got("job", 1), "1");
}

#[test]
fn impossible_locations_are_refused_before_anything_is_made() {
    let fixture = Fixture::new();
    for (places, told) in [
        (&["../a", "../b"][..], "2 locations"),
        (&["../a", "../b", "../a"], "named twice"),
        (&["../a", "../b", "http://x"], "no scheme"),
        (&["../a", "../b", "etcd://"], "etcd"),
    ] {
        let made = fixture.init(places);
        assert!(made.code == 2 && made.err.contains(told), "{places:?}: {made:?}");
        assert!(!fixture.path("a pool").exists() && !fixture.path("a").exists(), "{places:?}");
    }
    let whole = outlive(&["pool", "init", "etcd://127.0.0.1/x"]);
    assert!(whole.code == 2 && whole.err.contains("no packs"), "{whole:?}");
    let target =
        outlive(&["pool", "init", text(&fixture.path("p")), "--target", "etcd://127.0.0.1/x"]);
    assert!(target.code == 2 && target.err.contains("no packs"), "{target:?}");
}

/// If two commands create a pool with different replicas, one succeeds. An unfinished creation can
/// be completed only with the same replicas.
#[test]
fn a_pool_has_one_set_of_replicas() {
    let fixture = Fixture::with_log(&["../a", "../b", "../c"]);
    // The state after a creation that was killed before the descriptor and its copy were written.
    fs::remove_file(fixture.path("a pool/pool.toml")).unwrap();
    fs::remove_file(fixture.path("a pool/.pool.toml")).unwrap();
    for other in
        [&["../a", "../d", "../e"][..], &["../a", "../b", "../c", "../d", "../e"], &["../a"]]
    {
        let made = fixture.init(other);
        assert_eq!(made.code, 2, "{made:?}");
        assert!(
            !fixture.path("a pool/pool.toml").exists()
                && !fixture.path("d/log/.pool.toml").exists()
        );
    }
    let made = fixture.init(&["../a", "../b", "../c"]);
    assert_eq!(made.code, 0, "{made:?}");
    assert_eq!(fixture.put("job", "1").code, 0);
    assert_eq!(fixture.got("job", 1), "1");

    let fixture = Fixture::with_log(&[".", "../b", "../c"]);
    fs::remove_file(fixture.path("a pool/pool.toml")).unwrap();
    let made = fixture.init(&[]);
    assert!(made.code == 2 && made.err.contains("--log . --log ../b --log ../c"), "{made:?}");
    assert!(!fixture.path("a pool/pool.toml").exists());
}

/// A replica counts as away if its marker is damaged or unreadable, or hangs.
#[test]
fn one_failing_replica_stops_no_program() {
    let fixture = Fixture::with_log(&THREE);
    assert_eq!(fixture.put("job", "1").code, 0);
    let marker = fixture.path("log 3/log/.pool.toml");
    let text_of_marker = fs::read(&marker).unwrap();
    let troubles: [&dyn Fn(); 4] = [
        &|| fs::write(&marker, "").unwrap(),
        &|| fs::write(&marker, [0xff; 100]).unwrap(),
        &|| std::os::unix::fs::symlink(&marker, &marker).unwrap(),
        &|| {
            let made = std::process::Command::new("mkfifo").arg(&marker).status().unwrap();
            assert!(made.success());
        },
    ];
    for (number, trouble) in troubles.iter().enumerate() {
        fs::remove_file(&marker).unwrap();
        trouble();
        let put = fixture.put("job", &number.to_string());
        assert_eq!(put.code, 0, "{number}: {put:?}");
        assert!(put.err.contains("the log does without a replica"), "{number}: {put:?}");
        let status = fixture.done(&["pool", "status", "POOL"]);
        assert!(status.out.contains("log 3  AWAY"), "{number}: {}", status.out);
        fixture.done(&["gc", "POOL"]);
        fixture.done(&["pool", "add", "POOL", &format!("../disk {number}")]);
    }
    fs::remove_file(&marker).unwrap();
    fs::write(&marker, text_of_marker).unwrap();
    fixture.away("log 1");
    assert_eq!(fixture.got("job", 5), "3");
}

/// Concurrent savers, prunes and collections, while replicas leave and return.
#[test]
fn programs_overlap_while_replicas_come_and_go() {
    const PUTS: u64 = 8;
    let fixture = Fixture::with_log(&THREE);
    thread::scope(|scope| {
        let savers: Vec<_> = ["a", "b"]
            .into_iter()
            .map(|job| {
                let fixture = &fixture;
                scope.spawn(move || {
                    let from = fixture.path(job);
                    fs::create_dir(&from).unwrap();
                    for epoch in 1..=PUTS {
                        fs::write(from.join("data"), epoch.to_string()).unwrap();
                        // One replica may leave while another returns: then the put must be
                        // repeated.
                        let put = || fixture.run(&["put", "POOL", job, text(&from)]);
                        let mut done = put();
                        while done.code == 6 {
                            done = put();
                        }
                        assert_eq!(done.code, 0, "{done:?}");
                    }
                })
            })
            .collect();
        for words in
            [&["prune", "POOL", "a", "--keep-last", "3"][..], &["gc", "POOL"], &["scrub", "POOL"]]
        {
            let fixture = &fixture;
            scope.spawn(move || {
                for _ in 0..PUTS {
                    let run = fixture.run(words);
                    let begins = run.code == 2 && run.err.contains("no job");
                    assert!(begins || matches!(run.code, 0 | 6), "{words:?}: {run:?}");
                }
            });
        }
        let mut number = 0;
        while savers.iter().any(|saver| !saver.is_finished()) {
            number = number % 3 + 1;
            fixture.away(&format!("log {number}"));
            fixture.run(&["ls", "POOL"]);
            fixture.back(&format!("log {number}"));
            fixture.run(&["ls", "POOL"]);
        }
    });
    for job in ["a", "b"] {
        (PUTS - 2..=PUTS).for_each(|epoch| assert_eq!(fixture.got(job, epoch), epoch.to_string()));
    }
    fixture.done(&["verify", "POOL"]);
}

/// A log in an etcd cluster, alone and as one of three replicas.
#[test]
fn a_log_in_etcd_serves_several_hosts() {
    let mut cluster = Cluster::of(3);
    let hosts: Vec<String> = cluster.addresses().iter().map(ToString::to_string).collect();
    let location = |prefix: &str| format!("etcd://{}/{prefix}", hosts.join(","));
    let alone = Fixture::with_log(&[&location("alone")]);
    let mixed = Fixture::with_log(&["../log 1", "../log 2", &location("mixed")]);
    for fixture in [&alone, &mixed] {
        assert_eq!(fixture.put("job", "1").code, 0);
        let other = fixture.init(&[&location("alone"), "../new 1", "../new 2"]);
        assert!(other.code == 2, "{other:?}");
    }
    // Another host needs the descriptor and the packs.
    let there = Fixture::new();
    fs::create_dir_all(there.path("a pool")).unwrap();
    fs::copy(alone.path("a pool/pool.toml"), there.path("a pool/pool.toml")).unwrap();
    std::os::unix::fs::symlink(alone.path("a pool/packs"), there.path("a pool/packs")).unwrap();
    assert_eq!(there.put("job", "2").code, 0);
    assert_eq!((alone.got("job", 1), alone.got("job", 2)), ("1".to_owned(), "2".to_owned()));
    // Only one command at a time changes targets, although there are no locks.
    alone.done(&["pool", "add", "POOL", "../disk 2"]);
    let free = alone.done(&["pool", "release", "POOL"]);
    assert!(free.out.contains("No command"), "{free:?}");
    alone.done(&["verify", "POOL"]);

    cluster.stop(0);
    assert_eq!(alone.put("job", "3").code, 0);
    cluster.stop(1);
    let refused = alone.put("job", "4");
    assert_eq!(refused.code, 6, "{refused:?}");
    mixed.away("log 2");
    assert_eq!(mixed.put("job", "2").code, 6);
    mixed.back("log 2");
    let put = mixed.put("job", "2");
    assert_eq!(put.code, 0, "two directories are a majority: {put:?}");
    cluster.start(&[0, 1]);
    mixed.away("log 1");
    assert_eq!((mixed.got("job", 1), mixed.got("job", 2)), ("1".to_owned(), "2".to_owned()));
    assert_eq!(alone.put("job", "4").code, 0);
    (1..=4).for_each(|epoch| assert_eq!(alone.got("job", epoch), epoch.to_string()));
}
