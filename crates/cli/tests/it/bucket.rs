//! Pools in buckets of real S3 servers, as an operator uses them.

use crate::place;

use place::{ACCESS, BUCKET, Fixture, Running, Server};
use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

const POOL: &str = "s3://ckpt/runs/a";

#[test]
fn a_whole_pool_is_in_a_bucket() {
    let Some(server) = Server::versitygw() else { return };
    let mut fixture = Fixture::new(server);
    fixture.init(POOL, &[]);
    let descriptor = fs::read_to_string(fixture.server.bucket_dir().join("runs/a/pool.toml"));
    assert!(
        descriptor.unwrap().contains("staging_bytes = 134217728"),
        "twice as much as on a disk"
    );
    for epoch in 1..=3 {
        assert_eq!(fixture.put(POOL, "job", epoch).code, 0);
    }
    (1..=3).for_each(|epoch| fixture.check(POOL, "job", epoch));
    assert_eq!(fixture.json(&["--json", "pool", "status", POOL])["jobs"], 1);
    fixture.done(&["prune", POOL, "job", "--keep", "last 2"]);
    for words in [["verify", POOL], ["scrub", POOL], ["gc", POOL]] {
        fixture.done(&words);
    }
    (2..=3).for_each(|epoch| fixture.check(POOL, "job", epoch));

    // A prefix in use cannot become another pool, target or log.
    for taken in [POOL, "s3://ckpt/runs/a/packs", "s3://ckpt/runs/a/log/x"] {
        for words in [vec![taken], vec!["other", "--target", taken], vec!["other", "--log", taken]]
        {
            let refused = fixture.run(&[&["pool", "init"], &words[..]].concat());
            assert_eq!(refused.code, 2, "{words:?}: {refused:?}");
            assert!(refused.err.contains("pool"), "{refused:?}");
        }
    }
    assert!(!fixture.path("other").join("pool.toml").exists());
    // A directory relative to a bucket does not exist.
    let refused = fixture.run(&["pool", "init", "s3://ckpt/b", "--target", "../relative"]);
    assert!(refused.code == 2 && refused.err.contains("absolute"), "{refused:?}");

    // A user with the wrong keys gets an error, not an empty pool.
    for access in ["stranger", ""] {
        let refused = fixture.run_with(&["ls", POOL], access);
        assert_eq!(refused.code, 2, "{refused:?}");
        assert!(refused.err.contains("AWS_ACCESS_KEY_ID"), "{refused:?}");
    }
    // The server stops, and starts again.
    fixture.server.stop();
    let failed = fixture.put(POOL, "job", 4);
    assert!(failed.code == 6 && failed.err.contains("try again"), "{failed:?}");
    fixture.server.start();
    assert_eq!(fixture.put(POOL, "job", 4).code, 0);
    fixture.check(POOL, "job", 4);

    // The bucket vanishes, and returns.
    let (bucket, away) = (fixture.server.bucket_dir(), fixture.path("away"));
    fs::rename(&bucket, &away).unwrap();
    let failed = fixture.put(POOL, "job", 5);
    assert!(failed.code == 2 && failed.err.contains(BUCKET), "{failed:?}");
    fs::rename(&away, &bucket).unwrap();
    assert_eq!(fixture.put(POOL, "job", 5).code, 0);
    (2..=5).for_each(|epoch| fixture.check(POOL, "job", epoch));

    // The descriptor vanishes: no command creates another one.
    let (descriptor, away) = (bucket.join("runs/a/pool.toml"), fixture.path("pool.toml"));
    fs::rename(&descriptor, &away).unwrap();
    for words in [&["pool", "init", POOL][..], &["ls", POOL]] {
        let refused = fixture.run(words);
        assert!(refused.code == 2 && refused.err.contains("put it back"), "{refused:?}");
    }
    fs::rename(&away, &descriptor).unwrap();
    fixture.check(POOL, "job", 5);
}

#[test]
fn a_directory_and_a_bucket_keep_the_same() {
    let Some(server) = Server::versitygw() else { return };
    let mut fixture = Fixture::new(server);
    let targets = ["--target", "../disk", "--target", "s3://ckpt/b", "--mirror", "2"];
    fixture.init("pool", &targets);
    assert_eq!(fixture.put("pool", "job", 1).code, 0);

    // Without the bucket, saves continue with a warning.
    fixture.server.stop();
    let degraded = fixture.put("pool", "job", 2);
    assert_eq!(degraded.code, 0, "{degraded:?}");
    assert!(degraded.err.contains("less redundancy"), "{degraded:?}");
    (1..=2).for_each(|epoch| fixture.check("pool", "job", epoch));
    fixture.server.start();
    let status = fixture.json(&["--json", "pool", "status", "pool"]);
    // The newest checkpoint comes first.
    assert_eq!(status["redundancy"][0]["survives"], 0, "{status}");
    assert_eq!(status["redundancy"][1]["survives"], 1, "{status}");
    fixture.done(&["pool", "repair", "pool"]);
    fixture.done(&["pool", "status", "pool"]);

    // Without the directory, the bucket has all data; another bucket replaces the directory.
    fs::rename(fixture.path("disk"), fixture.path("gone")).unwrap();
    (1..=2).for_each(|epoch| fixture.check("pool", "job", epoch));
    fixture.done(&["pool", "replace", "pool", "1", "s3://ckpt/c"]);
    fixture.done(&["pool", "repair", "pool"]);
    fixture.done(&["verify", "pool"]);
    fs::remove_dir_all(fixture.server.bucket_dir().join("b/packs")).unwrap();
    (1..=2).for_each(|epoch| fixture.check("pool", "job", epoch));
}

#[test]
fn a_log_in_a_bucket_serves_several_hosts() {
    let Some(server) = Server::versitygw() else { return };
    let fixture = Fixture::new(server);
    let bucket = ["--log", "s3://ckpt/log", "--target", "s3://ckpt/packs"];
    fixture.init("here", &bucket);
    // Another host needs only the descriptor.
    fs::create_dir(fixture.path("there")).unwrap();
    fs::copy(fixture.path("here/pool.toml"), fixture.path("there/pool.toml")).unwrap();
    assert_eq!(fixture.put("here", "a", 1).code, 0);
    assert_eq!(fixture.put("there", "a", 2).code, 0);
    for pool in ["here", "there"] {
        (1..=2).for_each(|epoch| fixture.check(pool, "a", epoch));
    }
    // Both hosts use a target that one of them adds.
    fixture.done(&["pool", "add", "here", "s3://ckpt/more"]);
    assert_eq!(fixture.put("there", "a", 3).code, 0);
    fixture.done(&["verify", "there"]);
    fixture.check("here", "a", 3);

    // Two commands do not move shards at the same time. A later one takes over the claim of a
    // killed one.
    let table = fixture.server.bucket_dir().join("log/log/%2Etargets");
    let is_claimed = || {
        let records = fs::read_dir(&table).into_iter().flatten().flatten();
        records
            .map(|record| fs::read_to_string(record.path()).unwrap_or_default())
            .any(|text| text.contains("changed_by"))
    };
    assert!(!is_claimed());
    let mut slow = fixture.command(&["pool", "remove", "here", "1", "--rate", "1KiB"], ACCESS);
    let mut slow = Running(slow.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    while !is_claimed() {
        assert!(slow.0.try_wait().unwrap().is_none(), "it is slow");
        thread::sleep(Duration::from_millis(2));
    }
    let refused = fixture.run(&["pool", "remove", "there", "1"]);
    assert_eq!(refused.code, 6, "{refused:?}");
    for told in [&format!("process {}", slow.0.id()), "outlive pool release"] {
        assert!(refused.err.contains(told), "{refused:?}");
    }
    // On the same machine, a command sees that the process is dead.
    slow.kill();
    fixture.done(&["pool", "remove", "there", "1"]);
    assert!(!is_claimed());
    // Its descriptor lists only a target that has left; the table has the right ones.
    (1..=3).for_each(|epoch| fixture.check("there", "a", epoch));
    fixture.done(&["verify", "there"]);
}

#[test]
fn puts_and_collections_overlap_in_a_bucket() {
    const PUTS: u64 = 8;
    let Some(server) = Server::versitygw() else { return };
    let fixture = Fixture::new(server);
    fixture.init(POOL, &[]);
    thread::scope(|scope| {
        for job in ["a", "b"] {
            let fixture = &fixture;
            scope.spawn(move || {
                for epoch in 1..=PUTS {
                    assert_eq!(fixture.put(POOL, job, epoch).code, 0);
                }
            });
        }
        for words in
            [&["prune", POOL, "a", "--keep", "last 3"][..], &["gc", POOL], &["scrub", POOL]]
        {
            let fixture = &fixture;
            scope.spawn(move || {
                for _ in 0..PUTS {
                    let run = fixture.run(words);
                    // Before the first checkpoint there is no job. Two concurrent collectors may
                    // disturb each other.
                    let begins = run.code == 2 && run.err.contains("no job");
                    assert!(begins || matches!(run.code, 0 | 5 | 6), "{words:?}: {run:?}");
                }
            });
        }
    });
    fixture.done(&["verify", POOL]);
    for job in ["a", "b"] {
        (PUTS - 2..=PUTS).for_each(|epoch| fixture.check(POOL, job, epoch));
    }
}

#[test]
fn a_store_with_a_broken_conditional_put_keeps_packs_and_no_log() {
    let Some(server) = Server::s3s_fs() else { return };
    let fixture = Fixture::new(server);
    for words in [&["pool", "init", POOL][..], &["pool", "init", "x", "--log", POOL]] {
        let refused = fixture.run(words);
        assert_eq!(refused.code, 2, "{refused:?}");
        for told in ["cannot keep a pool's log", "only its packs"] {
            assert!(refused.err.contains(told), "{refused:?}");
        }
    }
    fixture.init("pool", &["--target", "s3://ckpt/packs"]);
    for epoch in 1..=2 {
        assert_eq!(fixture.put("pool", "job", epoch).code, 0);
    }
    fixture.done(&["verify", "pool"]);
    (1..=2).for_each(|epoch| fixture.check("pool", "job", epoch));
}
