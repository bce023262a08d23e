//! Encrypted pools, as an operator uses them.

use crate::common::{Run, command, files, outlive};
use crate::place::{ACCESS, BUCKET, Fixture, Server};
use crate::space::Mount;
use std::fs;
use std::path::{Path, PathBuf};

const VARIABLES: [&str; 3] = ["OUTLIVE_KEY_FILE", "OUTLIVE_KEY_COMMAND", "OUTLIVE_KEY"];
/// In the content of each file.
const TELLTALE: &str = "a sentence that is for its owner alone";

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a command with these variables.
fn with(variables: &[(&str, &str)], words: &[&str]) -> Run {
    let mut command = command(words);
    for name in VARIABLES {
        command.env_remove(name);
    }
    Run::of(command.envs(variables.iter().copied()))
}

/// A pool with three targets, two of which are enough, and its key.
struct Case {
    dir: tempfile::TempDir,
}

impl Case {
    fn new(more: &[&str]) -> Case {
        let case = Case { dir: tempfile::tempdir().unwrap() };
        case.make_key("key");
        fs::create_dir_all(case.path("tree/secret plans")).unwrap();
        for number in 0..30 {
            let line = format!("{TELLTALE}, line {number}\n");
            let file = case.path(&format!("tree/secret plans/{number}"));
            fs::write(file, line.repeat(300 * number + 1)).unwrap();
        }
        let targets = [1, 2, 3].map(|it| case.path(&format!("t{it}")));
        let pool = case.path("pool");
        let mut words = vec!["pool", "init", text(&pool), "--encrypt"];
        targets.iter().for_each(|target| words.extend(["--target", text(target)]));
        words.extend(more);
        case.done(&words);
        case
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn make_key(&self, name: &str) {
        assert_eq!(outlive(&["key", "new", text(&self.path(name))]).code, 0);
    }

    fn run(&self, words: &[&str]) -> Run {
        with(&[("OUTLIVE_KEY_FILE", text(&self.path("key")))], words)
    }

    fn done(&self, words: &[&str]) -> Run {
        let run = self.run(words);
        assert_eq!(run.code, 0, "{words:?}: {run:?}");
        run
    }

    fn put(&self) {
        self.done(&["put", text(&self.path("pool")), "job", text(&self.path("tree"))]);
    }

    fn is_restored(&self) {
        let to = tempfile::tempdir().unwrap();
        self.done(&["get", text(&self.path("pool")), "job", "--to", text(to.path())]);
        let bytes = |at: &Path| files(at).into_iter().map(|(_, bytes)| bytes).collect::<Vec<_>>();
        assert!(bytes(to.path()) == bytes(&self.path("tree")));
    }
}

/// Returns all files of the pool and its targets.
fn stored(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting: Vec<PathBuf> =
        ["pool", "t1", "t2", "t3"].iter().map(|name| dir.join(name)).collect();
    while let Some(path) = waiting.pop() {
        match fs::read_dir(&path) {
            Ok(entries) => waiting.extend(entries.map(|entry| entry.unwrap().path())),
            Err(_) => found.push(path),
        }
    }
    found
}

fn holds(path: &Path, what: &[u8]) -> bool {
    fs::read(path).unwrap().windows(what.len()).any(|at| at == what)
}

#[test]
fn an_encrypted_pool_shows_nothing_and_works_as_any_other() {
    let case = Case::new(&["--erasure", "2+1"]);
    case.put();
    case.is_restored();
    let pool = case.path("pool");
    let key = fs::read_to_string(case.path("key")).unwrap();
    for path in stored(case.dir.path()) {
        for what in [TELLTALE.as_bytes(), b"secret plans", key.trim().as_bytes()] {
            assert!(
                !holds(&path, what),
                "{} holds {:?}",
                path.display(),
                String::from_utf8_lossy(what)
            );
        }
    }
    // One target is lost, and another one comes in its place.
    fs::remove_dir_all(case.path("t2")).unwrap();
    case.is_restored();
    case.done(&["pool", "replace", text(&pool), "2", text(&case.path("t2 again"))]);
    fs::remove_dir_all(case.path("t1")).unwrap();
    case.is_restored();
    case.done(&["pool", "replace", text(&pool), "1", text(&case.path("t1 again"))]);
    // Each target has a copy of the wrapped key, a new one too.
    let copy = |target| fs::read_to_string(case.path(target).join("packs/.key.toml")).unwrap();
    assert_eq!(copy("t1 again"), copy("t3"));
    // The history of a run is encrypted as well.
    case.done(&["run", "--pool", text(&pool), "--job", "run", "--", "true"]);
    assert!(fs::read(pool.join("run/run.history")).unwrap().starts_with(b"OUTLVENC"));
    assert!(case.done(&["history", text(&pool), "run"]).out.contains("finished"));
    fs::write(case.path("tree/secret plans/0"), "changed").unwrap();
    case.put();
    case.done(&["prune", text(&pool), "job", "--keep-last", "1"]);
    case.done(&["gc", text(&pool), "--max-unused", "0"]);
    case.done(&["scrub", text(&pool)]);
    case.done(&["verify", text(&pool)]);
    case.is_restored();
    // Beside a pool that is not encrypted.
    let plain = case.path("plain");
    case.done(&["pool", "init", text(&plain)]);
    case.done(&["copy", text(&pool), text(&plain), "job"]);
    case.done(&["verify", text(&plain)]);
    let other = case.path("other");
    case.done(&["pool", "init", text(&other), "--encrypt"]);
    case.done(&["copy", text(&plain), text(&other), "job"]);
    case.done(&["copy", text(&pool), text(&other), "job"]);
    case.done(&["verify", text(&other)]);
}

#[test]
fn a_log_of_several_replicas_is_encrypted_and_moves() {
    let logs = tempfile::tempdir().unwrap();
    let at = |name: &str| text(&logs.path().join(name)).to_owned();
    let first = ["a", "b", "c"].map(at);
    let words: Vec<&str> = first.iter().flat_map(|log| ["--log", log]).collect();
    let case = Case::new(&words);
    let pool = case.path("pool");
    case.put();
    case.put();
    fs::remove_dir_all(logs.path().join("b")).unwrap();
    case.is_restored();
    let second = ["a", "c", "d"].map(at);
    let words: Vec<&str> = second.iter().flat_map(|log| ["--log", log]).collect();
    case.done(&[&["pool", "move-log", text(&pool)][..], &words].concat());
    case.put();
    case.is_restored();
    let record = stored_record(logs.path());
    assert!(fs::read(&record).unwrap().starts_with(b"OUTLVENC"), "{}", record.display());
}

/// Returns a record of a job below a directory.
fn stored_record(dir: &Path) -> PathBuf {
    let mut waiting = vec![dir.to_owned()];
    while let Some(path) = waiting.pop() {
        if let Ok(entries) = fs::read_dir(&path) {
            waiting.extend(entries.map(|entry| entry.unwrap().path()));
        } else if path.parent().is_some_and(|job| job.ends_with("job")) {
            return path;
        }
    }
    panic!("no record of the job in {}", dir.display());
}

#[test]
fn a_pool_cannot_be_used_without_its_key() {
    let case = Case::new(&[]);
    case.put();
    case.make_key("other");
    let (pool, key, other) = (case.path("pool"), case.path("key"), case.path("other"));
    let digits = fs::read_to_string(&key).unwrap();
    let command = format!("cat '{}'", text(&key));
    fs::write(case.path("short"), &digits[..40]).unwrap();
    for (variables, told) in [
        (&[][..], "is encrypted, and nothing can be read without its key: no key is given: set"),
        (&[("OUTLIVE_KEY_FILE", text(&other))], "is not the key of this pool"),
        (&[("OUTLIVE_KEY", &digits[..40])], "the variable OUTLIVE_KEY holds no key: a key is 64"),
        (&[("OUTLIVE_KEY_FILE", text(&case.path("short")))], "holds no key"),
        (&[("OUTLIVE_KEY_FILE", "/nowhere/key")], "has no key that can be read: No such file"),
        (&[("OUTLIVE_KEY_COMMAND", "exit 3")], "gave no key: it ended with exit status: 3"),
        (&[("OUTLIVE_KEY_COMMAND", "echo hello")], "holds no key"),
        (&[("OUTLIVE_KEY", &digits), ("OUTLIVE_KEY_COMMAND", &command)], "are set: leave one"),
    ] {
        let run = with(variables, &["ls", text(&pool)]);
        assert!(run.code == 2 && run.err.contains(told), "{variables:?}: {run:?}");
        assert!(!run.err.contains(&digits[..40]), "{run:?}");
    }
    for variables in [[("OUTLIVE_KEY", &digits[..])], [("OUTLIVE_KEY_COMMAND", &command)]] {
        assert_eq!(with(&variables, &["verify", text(&pool)]).code, 0);
    }
    // The key of another pool wraps another data key.
    let refused = with(&[], &["pool", "init", text(&case.path("new")), "--encrypt"]);
    assert!(refused.code == 2 && refused.err.contains("no key is given"), "{refused:?}");
    assert!(!case.path("new").exists());
    let there = outlive(&["key", "new", text(&key)]);
    assert!(there.code == 2 && there.err.contains("give the new key another name"), "{there:?}");
    assert_eq!(fs::read_to_string(&key).unwrap(), digits);
    // A descriptor whose table was deleted is not taken for one of a pool that is not encrypted.
    let descriptor = pool.join("pool.toml");
    let whole = fs::read_to_string(&descriptor).unwrap();
    let from = whole.find("[encryption]").unwrap();
    let to = from + whole[from..].find("\n[").unwrap();
    fs::write(&descriptor, [&whole[..from], &whole[to..]].concat()).unwrap();
    let refused = case.run(&["ls", text(&pool)]);
    assert!(
        refused.code == 2 && refused.err.contains("the pool was made otherwise"),
        "{refused:?}"
    );
    fs::write(&descriptor, &whole).unwrap();
    case.is_restored();
}

/// A maker that died after the marker leaves its pool id to the next one, and no key.
#[test]
fn a_pool_that_was_begun_gets_a_key_that_opens_it() {
    let case = Case::new(&[]);
    let pool = case.path("begun");
    case.done(&["pool", "init", text(&pool), "--encrypt"]);
    for name in ["pool.toml", ".pool.toml", "packs/.key.toml"] {
        let _ = fs::remove_file(pool.join(name));
    }
    assert!(pool.join("log/.pool.toml").exists() && !pool.join("pool.toml").exists());
    case.done(&["pool", "init", text(&pool), "--encrypt"]);
    case.done(&["put", text(&pool), "job", text(&case.path("tree"))]);
    case.done(&["verify", text(&pool)]);
    // A program that makes a pool makes it encrypted if there is a key.
    let other = case.path("other");
    case.done(&["run", "--pool", text(&other), "--job", "run", "--", "true"]);
    assert!(case.done(&["pool", "status", text(&other)]).out.contains("is encrypted"));
}

#[test]
fn a_key_changes_and_a_lost_descriptor_comes_back() {
    let case = Case::new(&["--mirror", "2"]);
    case.put();
    case.make_key("new");
    let (pool, old, new) = (case.path("pool"), case.path("key"), case.path("new"));
    let before = fs::read(stored_record(&pool.join("log"))).unwrap();
    // A target is away meanwhile.
    fs::rename(case.path("t3"), case.path("away")).unwrap();
    fs::write(case.path("t3"), "").unwrap();
    let changed = case.run(&["key", "change", text(&pool), text(&new)]);
    assert!(changed.code != 0 && changed.out.contains("still has a copy"), "{changed:?}");
    fs::remove_file(case.path("t3")).unwrap();
    fs::rename(case.path("away"), case.path("t3")).unwrap();
    let refused = case.run(&["ls", text(&pool)]);
    assert!(refused.code == 2 && refused.err.contains("not the key of this pool"), "{refused:?}");
    // The same command again, with the former key in the variable.
    let again = case.run(&["key", "change", text(&pool), text(&new)]);
    let told = format!("the key is that of {} by now", text(&new));
    assert!(again.code == 2 && again.err.contains(&told), "{again:?}");
    fs::copy(&new, &old).unwrap();
    case.done(&["key", "change", text(&pool), text(&new)]);
    case.put();
    case.is_restored();
    let now = fs::read(stored_record(&pool.join("log"))).unwrap();
    assert_eq!(before[..8], now[..8], "records stay as they are");
    // Each target has a copy of the table, which the marker lacks.
    let copy = fs::read_to_string(case.path("t3/packs/.key.toml")).unwrap();
    assert!(copy.contains("number = 3"), "{copy}");
    let descriptor = pool.join("pool.toml");
    let whole = fs::read_to_string(&descriptor).unwrap();
    fs::remove_file(&descriptor).unwrap();
    let _ = fs::remove_file(pool.join(".pool.toml"));
    fs::copy(pool.join("log/.pool.toml"), &descriptor).unwrap();
    let lost = case.run(&["ls", text(&pool)]);
    assert!(lost.code == 2 && lost.err.contains("copy the table from packs/.key.toml"), "{lost:?}");
    let marker = fs::read_to_string(&descriptor).unwrap();
    let table = &copy[copy.find("[encryption]").unwrap()..];
    let cipher = "[encryption]\ncipher = \"AES-256-GCM\"\n";
    assert!(marker.contains(cipher), "{marker}");
    fs::write(&descriptor, marker.replace(cipher, table)).unwrap();
    case.is_restored();
    case.done(&["verify", text(&pool)]);
    // A command that had read the file before the change does not bring the former key back.
    fs::write(&descriptor, whole.replace("number = 3", "number = 2")).unwrap();
    case.done(&["pool", "add", text(&pool), text(&case.path("t4"))]);
    assert!(fs::read_to_string(&descriptor).unwrap().contains("number = 3"));
    assert!(case.path("t4/packs/.key.toml").exists());
    case.is_restored();
    // Not encrypted: there is nothing to change.
    let plain = case.path("plain");
    case.done(&["pool", "init", text(&plain)]);
    let none = case.run(&["key", "change", text(&plain), text(&new)]);
    assert!(none.code == 2 && none.err.contains("the pool is not encrypted"), "{none:?}");
}

#[test]
fn changed_bytes_are_found_and_repaired() {
    let case = Case::new(&["--mirror", "2"]);
    case.put();
    let pool = case.path("pool");
    for path in stored(case.dir.path()).iter().filter(|path| path.starts_with(case.path("t1"))) {
        if path.extension().is_some_and(|it| it == "shard") {
            let mut bytes = fs::read(path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(path, bytes).unwrap();
        }
    }
    case.is_restored();
    let scrubbed = case.run(&["scrub", text(&pool)]);
    assert!(scrubbed.out.contains("rewr") || scrubbed.code == 0, "{scrubbed:?}");
    case.done(&["scrub", text(&pool)]);
    case.done(&["verify", text(&pool)]);
    // A record is of one job and one number.
    let record = stored_record(&pool.join("log"));
    let mut bytes = fs::read(&record).unwrap();
    bytes[30] ^= 1;
    fs::write(&record, bytes).unwrap();
    let damaged = case.run(&["verify", text(&pool)]);
    assert!(damaged.code != 0, "{damaged:?}");
    assert!(
        [&damaged.out[..], &damaged.err].concat().contains("authentication tag"),
        "{damaged:?}"
    );
}

#[test]
fn a_bucket_sees_ciphertext_only() {
    let Some(server) = Server::versitygw() else { return };
    let fixture = Fixture::new(server);
    let key = fixture.path("key");
    assert_eq!(outlive(&["key", "new", text(&key)]).code, 0);
    let tree = fixture.path("tree");
    fs::create_dir_all(&tree).unwrap();
    fs::write(tree.join("secret plans"), TELLTALE.repeat(20_000)).unwrap();
    let done = |words: &[&str]| {
        let mut command = fixture.command(words, ACCESS);
        let run = Run::of(command.env("OUTLIVE_KEY_FILE", text(&key)));
        assert_eq!(run.code, 0, "{words:?}: {run:?}");
    };
    let pool = format!("s3://{BUCKET}/encrypted");
    done(&["pool", "init", &pool, "--encrypt"]);
    done(&["put", &pool, "job", text(&tree)]);
    done(&["put", &pool, "job", text(&tree)]);
    let to = fixture.path("back");
    done(&["get", &pool, "job", "--to", text(&to)]);
    assert!(fs::read(to.join("secret plans")).unwrap() == TELLTALE.repeat(20_000).as_bytes());
    done(&["gc", &pool]);
    done(&["verify", &pool]);
    let objects = files(&fixture.server.bucket_dir());
    assert!(objects.iter().any(|(path, _)| text(path).contains(".shard")));
    for (path, bytes) in objects {
        for what in [TELLTALE.as_bytes(), b"secret plans"] {
            assert!(!bytes.windows(what.len()).any(|at| at == what), "{}", path.display());
        }
    }
}

#[test]
fn a_key_on_a_full_disk_is_no_key() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mount) = Mount::new(dir.path().join("disk"), "1m") else { return };
    mount.fill();
    let key = mount.0.join("key");
    let full = outlive(&["key", "new", text(&key)]);
    assert!(full.code != 0 && full.err.contains("No space left"), "{full:?}");
    assert!(!key.exists());
    fs::remove_file(mount.0.join("filler")).unwrap();
    assert_eq!(outlive(&["key", "new", text(&key)]).code, 0);
    let pool = dir.path().join("pool");
    let made =
        with(&[("OUTLIVE_KEY_FILE", text(&key))], &["pool", "init", text(&pool), "--encrypt"]);
    assert_eq!(made.code, 0, "{made:?}");
}
