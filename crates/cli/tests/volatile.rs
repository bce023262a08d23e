//! Pools with a fast tier in memory, as a program meets them behind a restart of its host: directories on a
//! tmpfs that are emptied.

mod common;

use common::{Run, command, files, json};
use std::fs;
use std::path::{Path, PathBuf};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn noise(seed: u64) -> Vec<u8> {
    let word = |n: u64| (n ^ seed << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = |word: u64| word.rotate_left(17).wrapping_mul(seed | 1).to_le_bytes();
    (0..40_000).map(word).flat_map(mixed).collect()
}

/// A pool on disk, whose targets are in memory, and a slow one on disk, if there is one.
struct Place {
    dir: tempfile::TempDir,
    memory: tempfile::TempDir,
    pool: PathBuf,
}

impl Place {
    fn new(more: &[&str]) -> (Place, Run) {
        let dir = tempfile::tempdir().unwrap();
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        let place = Place { pool: dir.path().join("pool"), dir, memory };
        let ram = place.ram(1);
        let mut words = vec!["pool", "init", text(&place.pool), "--volatile", text(&ram)];
        words.extend(["--container-bytes", "64KiB", "--pack-bytes", "128KiB"]);
        words.extend(more);
        let made = place.on("one", &words);
        (place, made)
    }

    fn with_slow() -> Place {
        let (place, made) = Place::new(&["--slow", "../slow"]);
        assert_eq!(made.code, 0, "{made:?}");
        place
    }

    fn ram(&self, number: usize) -> PathBuf {
        self.memory.path().join(format!("ram {number}"))
    }

    /// What a restart of the host leaves.
    fn restart(&self) {
        for entry in fs::read_dir(self.memory.path()).unwrap() {
            fs::remove_dir_all(entry.unwrap().path()).unwrap();
        }
    }

    /// A command on a host.
    fn on(&self, host: &str, words: &[&str]) -> Run {
        let output = command(words).env("OUTLIVE_HOST", host).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let code = output.status.code().expect("it was not killed");
        Run { code, out: text(output.stdout), err: text(output.stderr) }
    }

    fn run(&self, command: &[&str]) -> Run {
        let (verb, more) = command.split_at(if command[0] == "pool" { 2 } else { 1 });
        self.on("one", &[verb, &[text(&self.pool)], more].concat())
    }

    fn good(&self, command: &[&str]) -> Run {
        let run = self.run(command);
        assert_eq!(run.code, 0, "{command:?}: {run:?}");
        run
    }

    fn put_from(&self, host: &str, seed: u64) -> Run {
        let from = self.dir.path().join("from");
        fs::create_dir_all(&from).unwrap();
        fs::write(from.join("data"), noise(seed)).unwrap();
        self.on(host, &["put", text(&self.pool), "job", text(&from)])
    }

    fn put(&self, seed: u64) -> Run {
        let put = self.put_from("one", seed);
        assert_eq!(put.code, 0, "{put:?}");
        put
    }

    fn get(&self, host: &str, more: &[&str]) -> (Run, Option<Vec<u8>>) {
        let to = tempfile::tempdir().unwrap();
        let into = to.path().join("x");
        let mut words = vec!["get", text(&self.pool), "job", "--to", text(&into)];
        words.extend(more);
        let got = self.on(host, &words);
        let data = files(to.path()).into_iter().find(|(path, _)| path.ends_with("data"));
        (got, data.map(|(_, bytes)| bytes))
    }

    fn check(&self, epoch: u64, seed: u64) {
        let (got, data) = self.get("one", &["--epoch", &epoch.to_string()]);
        assert_eq!(got.code, 0, "{got:?}");
        assert!(data.unwrap() == noise(seed), "epoch {epoch}");
    }

    fn epochs(&self) -> Vec<(u64, Vec<String>)> {
        let status = json(&["pool", "status", text(&self.pool), "--json"]);
        let one = |one: &serde_json::Value| {
            let tiers = one["tiers"].as_array().unwrap().iter();
            let tiers = tiers.map(|tier| tier.as_str().unwrap().to_owned());
            (one["epoch"].as_u64().unwrap(), tiers.collect())
        };
        status["redundancy"].as_array().unwrap().iter().map(one).collect()
    }
}

#[test]
fn a_program_goes_on_from_the_slow_tier_when_memory_is_lost() {
    let place = Place::with_slow();
    place.put(1);
    place.put(2);
    let config = place.pool.join("pool.toml");
    let filled = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{filled}\n[tiers]\nfill = false\n")).unwrap();
    // Shares everything with the one before, and is not on the slow tier, nor is what comes behind it.
    place.put(3);
    place.put(1);
    place.restart();

    // Nothing is written by whoever only looks.
    let (got, data) = place.get("one", &[]);
    assert_eq!(got.code, 0, "{got:?}");
    assert!(data.unwrap() == noise(2), "{got:?}");
    assert!(got.err.contains("in memory"), "{got:?}");
    assert!(!place.ram(1).exists());

    // The same bytes again: what was stored of them is gone.
    let put = place.put(3);
    assert!(put.err.contains("made anew as target 3"), "{put:?}");
    assert!(put.err.contains("lost with the memory that they were in: checkpoints 3"), "{put:?}");
    place.check(1, 1);
    place.check(2, 2);
    place.check(5, 3);
    let scrub = place.run(&["scrub"]);
    assert_eq!(scrub.code, 3, "{scrub:?}");
    let told = place.get("one", &["--epoch", "3"]).0;
    assert_eq!(told.code, 3, "{told:?}");
    let put = place.put(1);
    assert!(!put.err.contains("anew"), "{put:?}");
    place.check(6, 1);
    // What is lost can be pruned, and the rest filled.
    place.good(&["prune", "job", "--keep-last", "2"]);
    place.good(&["pool", "fill"]);
    let safe = |tiers: &[String]| tiers.contains(&"slow".to_owned());
    assert!(place.epochs().iter().all(|(_, tiers)| safe(tiers)), "{:?}", place.epochs());
    place.restart();
    place.put(4);
    place.check(6, 1);
    place.check(5, 3);
    place.check(7, 4);
    place.good(&["scrub"]);
}
