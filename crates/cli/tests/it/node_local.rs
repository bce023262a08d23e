//! Pools on the disks of the hosts of a job. A host is a process with a name and a directory of its own.

use crate::common::{Run, command, outlive};
use crate::etcd::Cluster;
use crate::place::{ACCESS, SECRET, Server};
use outlive_pool::Environment;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longest wait for a condition.
const LIMIT: Duration = Duration::from_secs(120);

/// A host on which `outlive node local` runs.
struct Host {
    name: &'static str,
    data: PathBuf,
    process: Child,
    /// Lines on standard output and standard error so far.
    lines: Arc<Mutex<Vec<String>>>,
}

impl Host {
    fn start(world: &World, dir: &Path, name: &'static str, words: &[&str], token: &str) -> Host {
        let data = dir.join(format!("disk-{name}"));
        let mut all =
            vec!["node", "local", "--pool", &world.pool, "--data", data.to_str().unwrap()];
        all.extend(words);
        let mut process = world
            .command(&all)
            .env("OUTLIVE_HOST", name)
            .env("OUTLIVE_NODE_TOKEN", token)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        read_lines(process.stdout.take().unwrap(), &lines);
        read_lines(process.stderr.take().unwrap(), &lines);
        Host { name, data, process, lines }
    }

    /// Waits for a line that contains a text.
    fn says(&self, text: &str) -> String {
        let until = Instant::now() + LIMIT;
        loop {
            let lines = self.lines.lock().unwrap().clone();
            if let Some(line) = lines.iter().find(|line| line.contains(text)) {
                return line.clone();
            }
            assert!(Instant::now() < until, "{} never said {text:?}: {lines:#?}", self.name);
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it as a power cut would.
    fn kill(mut self) -> PathBuf {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.data.clone()
    }

    fn ask_to_end(&self) {
        let pid = rustix::process::Pid::from_raw(self.process.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    fn ended(&mut self) -> ExitStatus {
        let until = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "{} does not end: {:#?}", self.name, self.lines);
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = (self.process.kill(), self.process.wait());
    }
}

fn read_lines(from: impl Read + Send + 'static, to: &Arc<Mutex<Vec<String>>>) {
    let to = to.clone();
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            to.lock().unwrap().push(line);
        }
    });
}

/// A directory with a pool of seats.
struct World {
    dir: TempDir,
    pool: String,
    /// Time after which a host is given up.
    give_up: &'static str,
    /// Variables of all commands.
    variables: Vec<(&'static str, String)>,
}

impl World {
    fn new(words: &[&str]) -> World {
        World::at(None, words, Vec::new())
    }

    /// Makes the pool at a location, or in a directory.
    fn at(pool: Option<&str>, words: &[&str], variables: Vec<(&'static str, String)>) -> World {
        let dir = TempDir::new().unwrap();
        let here = dir.path().join("pool").to_str().unwrap().to_owned();
        let pool = pool.map_or(here, str::to_owned);
        let slow = dir.path().join("slow").to_str().unwrap().to_owned();
        let words: Vec<&str> =
            words.iter().map(|word| if *word == "SLOW" { &slow } else { *word }).collect();
        let world = World { dir, pool, give_up: "1s", variables };
        world.done(&[&["pool", "init", &world.pool], &words[..]].concat());
        world
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = command(words);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn done(&self, words: &[&str]) -> String {
        let run = Run::of(&mut self.command(words));
        assert_eq!(run.code, 0, "{words:?}: {run:?}");
        run.out
    }

    fn patient(self, give_up: &'static str) -> World {
        World { give_up, ..self }
    }

    fn host(&self, name: &'static str) -> Host {
        self.host_with(name, &[])
    }

    fn host_with(&self, name: &'static str, words: &[&str]) -> Host {
        self.host_as(name, words, "")
    }

    /// Starts a host that shows this token to other nodes.
    fn host_as(&self, name: &'static str, words: &[&str], token: &str) -> Host {
        let words = [&["--give-up", self.give_up], words].concat();
        Host::start(self, self.dir.path(), name, &words, token)
    }

    /// Starts hosts, and waits until each has said this.
    fn hosts<const N: usize>(&self, names: [&'static str; N], text: &str) -> [Host; N] {
        let hosts = names.map(|name| self.host(name));
        hosts.iter().for_each(|host| drop(host.says(text)));
        hosts
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Saves files as a checkpoint.
    fn put(&self, seed: u8) {
        let files = self.path("files");
        fs::create_dir_all(&files).unwrap();
        for number in 0..4_u8 {
            let of = |at: u32| (at >> 3) as u8 ^ (at as u8).wrapping_mul(seed) ^ number;
            let bytes: Vec<u8> = (0..400_000).map(of).collect();
            fs::write(files.join(number.to_string()), bytes).unwrap();
        }
        self.done(&["put", &self.pool, "tree", files.to_str().unwrap()]);
    }

    /// Makes sure that the newest checkpoint is that of this seed.
    fn holds(&self, seed: u8) {
        let back = self.path("back");
        let _ = fs::remove_dir_all(&back);
        self.done(&["get", &self.pool, "tree", "--to", back.to_str().unwrap()]);
        for number in 0..4_u8 {
            let of = |at: u32| (at >> 3) as u8 ^ (at as u8).wrapping_mul(seed) ^ number;
            let bytes: Vec<u8> = (0..400_000).map(of).collect();
            assert!(fs::read(back.join(number.to_string())).unwrap() == bytes, "seed {seed}");
        }
    }

    /// Has programs leave the slow tier alone.
    fn fill_no_more(&self) {
        let descriptor = Path::new(&self.pool).join("pool.toml");
        let text = fs::read_to_string(&descriptor).unwrap();
        fs::write(&descriptor, format!("{text}\n[tiers]\nfill = false\n")).unwrap();
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.done(&["pool", "status", &self.pool, "--json"])).unwrap()
    }

    /// Waits until all checkpoints survive as many losses as the rule promises.
    fn is_whole(&self) {
        let until = Instant::now() + LIMIT;
        loop {
            let status = self.status();
            let promised = status["survives"].as_u64();
            let each = status["redundancy"].as_array().unwrap().iter();
            let is_whole =
                |one: &Value| one["incomplete"] == true || one["survives"].as_u64() == promised;
            if each.clone().all(is_whole) {
                return;
            }
            assert!(Instant::now() < until, "{status:#}");
            thread::sleep(Duration::from_millis(100));
        }
    }
}

fn done(words: &[&str]) -> String {
    let run = outlive(words);
    assert_eq!(run.code, 0, "{words:?}: {run:?}");
    run.out
}

fn folders(data: &Path) -> usize {
    let is_folder = |entry: &fs::DirEntry| entry.file_type().unwrap().is_dir();
    fs::read_dir(data).unwrap().map(Result::unwrap).filter(is_folder).count()
}

const READY: &str = "The pool is ready";

#[test]
fn a_lost_host_is_rebuilt_a_spare_takes_its_seat_and_the_slow_tier_has_all_at_the_end() {
    let world = World::new(&["--seats", "3", "--mirror", "2", "--slow", "SLOW"]);
    let refused = outlive(&["put", &world.pool, "tree", world.dir.path().to_str().unwrap()]);
    assert_eq!(refused.code, 6, "{refused:?}");
    assert!(refused.err.contains("no node has taken 3 of the pool's seats"), "{}", refused.err);
    let hosts = world.hosts(["a", "b", "c"], "3 seats taken, 0 vacant");
    world.put(1);
    world.is_whole();
    let [a, b, c] = hosts;
    // A save in the time between the loss of the host and the moment at which it is given up.
    let disk = b.kill();
    world.put(2);
    world.holds(2);
    a.says("2 seats taken, 1 vacant");
    world.is_whole();
    world.put(3);
    let d = world.host("d");
    d.says(READY);
    // From now on only the ends of the nodes fill the slow tier.
    world.fill_no_more();
    world.put(4);
    world.is_whole();
    // The lost host is back: its old data is of no use, and no seat is left for it.
    assert_eq!(folders(&disk), 1);
    let b = world.host("b");
    c.kill();
    b.says(READY);
    assert_eq!(folders(&disk), 1, "the old folder is gone, and there is a new one");
    world.is_whole();
    world.holds(4);
    let mut hosts = [a, b, d];
    hosts.iter().for_each(Host::ask_to_end);
    for host in &mut hosts {
        assert!(host.ended().success(), "{:#?}", host.lines);
        host.says("The slow tier has everything");
        assert_eq!(folders(&host.data), 0);
    }
    world.holds(4);
    let targets = world.status()["targets"].as_array().unwrap().clone();
    let vacant =
        targets.iter().filter(|target| target["target"].as_str().unwrap().starts_with("vacant"));
    assert_eq!(vacant.count(), 3);
    done(&["verify", &world.pool]);
    // The next job has other hosts.
    let _next = world.hosts(["e", "f"], "2 seats taken, 1 vacant");
    world.holds(4);
    // Checkpoints that only the slow tier has stay there.
    let targets = world.status()["targets"].as_array().unwrap().clone();
    let fast = targets.iter().filter(|target| target["tier"] == "fast");
    assert_eq!(fast.map(|target| target["shards"].as_u64().unwrap()).sum::<u64>(), 0);
    world.put(5);
    world.holds(5);
}

/// A host is lost, another one comes, and all end.
fn hosts_come_and_go(world: &World, meanwhile: impl FnOnce()) {
    let [a, b, c] = world.hosts(["a", "b", "c"], "3 seats taken, 0 vacant");
    world.put(1);
    world.is_whole();
    b.kill();
    world.put(2);
    world.holds(2);
    a.says("2 seats taken, 1 vacant");
    world.is_whole();
    meanwhile();
    let d = world.host("d");
    d.says(READY);
    world.put(3);
    world.is_whole();
    let mut hosts = [a, c, d];
    hosts.iter().for_each(Host::ask_to_end);
    for host in &mut hosts {
        assert!(host.ended().success(), "{:#?}", host.lines);
        host.says("The slow tier has everything");
        assert_eq!(folders(&host.data), 0);
    }
    world.holds(3);
    world.done(&["verify", &world.pool]);
}

const SEATS: [&str; 6] = ["--seats", "3", "--mirror", "2", "--slow", "SLOW"];

#[test]
fn the_log_of_a_pool_of_seats_may_be_in_etcd() {
    let mut cluster = Cluster::of(3);
    let hosts: Vec<String> = cluster.addresses().iter().map(ToString::to_string).collect();
    let log = format!("etcd://{}/seats", hosts.join(","));
    let world = World::at(None, &[&SEATS[..], &["--log", &log]].concat(), Vec::new());
    hosts_come_and_go(&world, || cluster.stop(0));
}

#[test]
fn a_pool_of_seats_or_its_log_may_be_in_a_bucket() {
    let Some(server) = Server::versitygw() else { return };
    let variables = vec![
        ("AWS_ENDPOINT_URL", server.url()),
        ("AWS_ACCESS_KEY_ID", ACCESS.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
    ];
    let with_log = [&SEATS[..], &["--log", "s3://ckpt/log"]].concat();
    hosts_come_and_go(&World::at(None, &with_log, variables.clone()), || {});
    hosts_come_and_go(&World::at(Some("s3://ckpt/pool"), &SEATS, variables), || {});
}

#[test]
fn hosts_that_were_all_killed_come_back_to_their_seats_with_all_that_they_had() {
    let world = World::new(&["--seats", "3", "--erasure", "2+1"]).patient("1m");
    for seed in 1..4 {
        let hosts = world.hosts(["a", "b", "c"], "3 seats taken, 0 vacant");
        let descriptor = Path::new(&world.pool).join("pool.toml");
        if seed == 1 {
            fs::copy(&descriptor, world.path("old.toml")).unwrap();
        } else {
            // A copy with the old addresses, as another host may have.
            fs::copy(world.path("old.toml"), &descriptor).unwrap();
            world.holds(seed - 1);
        }
        world.put(seed);
        world.is_whole();
        let seats = |status: Value| -> Vec<u64> {
            let targets = status["targets"].as_array().unwrap().clone();
            targets.iter().map(|target| target["id"].as_u64().unwrap()).collect()
        };
        assert_eq!(seats(world.status()), [4, 5, 6], "no seat was given up");
        // Without a slow tier, a host keeps its data at the end.
        let [a, mut b, c] = hosts;
        a.kill();
        b.ask_to_end();
        assert_eq!(b.ended().code(), Some(6), "{:#?}", b.lines);
        b.says("stay: the pool has no slow tier");
        c.kill();
    }
}

#[test]
fn more_lost_hosts_than_the_rule_survives_cost_what_the_slow_tier_lacks_and_no_more() {
    let world = World::new(&["--seats", "3", "--mirror", "2", "--slow", "SLOW"]);
    let hosts = world.hosts(["a", "b", "c"], "3 seats taken, 0 vacant");
    world.put(1);
    done(&["pool", "fill", &world.pool]);
    world.fill_no_more();
    world.put(2);
    world.holds(2);
    for host in hosts {
        fs::remove_dir_all(host.kill()).unwrap();
    }
    let hosts = world.hosts(["a", "d", "e"], "3 seats taken, 0 vacant");
    let said: Vec<String> =
        hosts.iter().flat_map(|host| host.lines.lock().unwrap().clone()).collect();
    let lost = "job tree: lost with their targets: checkpoints 2; the newest that is left is 1";
    assert!(said.iter().any(|line| line.contains(lost)), "{said:#?}");
    world.holds(1);
    // The same data again must not be found in what is lost.
    world.put(2);
    world.holds(2);
}

#[test]
fn a_node_that_has_lost_its_disk_gets_an_empty_target_and_its_shards_again() {
    let world = World::new(&["--seats", "3", "--mirror", "2", "--slow", "SLOW"]);
    let hosts = world.hosts(["a", "b", "c"], "3 seats taken, 0 vacant");
    world.put(1);
    let [a, b, _c] = hosts;
    // Its folder is there, and empty: the marker is gone with the shards.
    let port = b.says(" has seat ").split(['/', ' ']).nth(2).unwrap().to_owned();
    let disk = b.kill();
    for entry in fs::read_dir(&disk).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            fs::remove_dir_all(entry.path().join("packs")).unwrap();
        }
    }
    let b = world.host_with("b", &["--listen", &port]);
    b.says(READY);
    a.says(READY);
    world.is_whole();
    world.holds(1);
    world.put(2);
    world.holds(2);
}

/// Another directory, or another pool's node, may answer where a seat was.
#[test]
fn a_node_that_answers_with_another_directory_proves_no_loss() {
    let world = World::new(&["--seats", "2", "--mirror", "2"]).patient("1m");
    let port = |host: &Host| host.says(" has seat ").split(['/', ' ']).nth(2).unwrap().to_owned();
    let hosts = world.hosts(["a", "b"], "2 seats taken, 0 vacant");
    world.put(1);
    let ports = hosts.each_ref().map(port);
    hosts.into_iter().for_each(|host| drop(host.kill()));
    let elsewhere = TempDir::new().unwrap();
    let wrong = |at: usize| {
        let words = ["--give-up", "1m", "--listen", &ports[at]];
        Host::start(&world, elsewhere.path(), ["a", "b"][at], &words, "")
    };
    let strangers = [wrong(0), wrong(1)];
    strangers.iter().for_each(|host| drop(host.says("2 hosts have all seats")));
    let refused = outlive(&["put", &world.pool, "tree", elsewhere.path().to_str().unwrap()]);
    assert_ne!(refused.code, 0, "{refused:?}");
    strangers.into_iter().for_each(|host| drop(host.kill()));
    let hosts = [0, 1].map(|at| world.host_with(["a", "b"][at], &["--listen", &ports[at]]));
    hosts.iter().for_each(|host| drop(host.says(READY)));
    world.holds(1);
}

/// A program that gives up a host may end before the losses are recorded, and that may need a host
/// that is away, too.
#[test]
fn a_host_comes_back_to_its_seat_while_losses_with_another_one_are_not_recorded() {
    let world = World::new(&["--seats", "3", "--mirror", "2", "--slow", "SLOW"]).patient("1m");
    world.fill_no_more();
    let hosts = world.hosts(["a", "b", "c"], "3 seats taken, 0 vacant");
    (1..4).for_each(|seed| world.put(seed));
    let seat = |host: &Host| {
        host.says(" has seat ").split(' ').nth(3).unwrap().trim_end_matches('.').to_owned()
    };
    let [_a, b, c] = hosts;
    let (of_b, of_c) = (seat(&b).parse().unwrap(), seat(&c));
    b.kill();
    c.kill();
    let away = outlive(&["ls", &world.pool, "tree"]);
    assert!(away.err.contains("or start `outlive node local` on more hosts"), "{away:?}");
    let pool = outlive_pool::open_degraded(world.pool.as_ref(), Environment::system()).unwrap();
    drop(pool.vacate(&BTreeSet::from([of_b])).unwrap().expect("b has a seat"));
    let c = world.host("c");
    c.says(&format!("has seat {of_c}."));
    c.says(READY);
    world.put(4);
    world.holds(4);
}

#[test]
fn a_command_runs_once_the_pool_is_ready_and_its_end_is_that_of_the_node() {
    let world = World::new(&["--seats", "2", "--mirror", "2", "--slow", "SLOW"]);
    let script = "echo started; trap 'echo asked; exit 7' TERM; while :; do sleep 0.05; done";
    let words = ["--", "sh", "-c", script];
    let mut a = world.host_with("a", &words);
    a.says("The pool waits for more hosts");
    let lines = a.lines.lock().unwrap().clone();
    assert!(!lines.iter().any(|line| line.contains("started")), "{lines:#?}");
    fs::write(world.path("text"), "text").unwrap();
    let put = format!(
        "until [ -e {} ]; do sleep 0.05; done; {} put {} job {}",
        world.path("flag").display(),
        env!("CARGO_BIN_EXE_outlive"),
        world.pool,
        world.path("text").display()
    );
    let words = ["--", "sh", "-c", &put];
    let mut b = world.host_with("b", &words);
    a.says("started");
    fs::write(world.path("flag"), "").unwrap();
    assert!(b.ended().success(), "{:#?}", b.lines);
    a.ask_to_end();
    assert_eq!(a.ended().code(), Some(7), "{:#?}", a.lines);
    a.says("asked");
    assert_eq!(folders(&a.data), 0);
    done(&["verify", &world.pool, "job"]);
    // Alone, it starts all the same after the wait.
    let words = ["--wait", "1s", "--", "sh", "-c", "exit 3"];
    let mut c = world.host_with("c", &words);
    c.says("the pool is still not ready");
    assert_eq!(c.ended().code(), Some(3), "{:#?}", c.lines);
}

#[test]
fn a_node_stays_while_the_slow_tier_is_away_and_leaves_when_it_is_back() {
    let world = World::new(&["--seats", "2", "--mirror", "2", "--slow", "SLOW"]);
    let hosts = world.hosts(["a", "b"], "2 seats taken, 0 vacant");
    let (slow, aside) = (world.path("slow"), world.path("aside"));
    fs::rename(&slow, &aside).unwrap();
    world.put(1);
    let [mut a, b] = hosts;
    a.ask_to_end();
    assert_eq!(a.ended().code(), Some(6), "{:#?}", a.lines);
    a.says("and its data in");
    assert_eq!(folders(&a.data), 1);
    drop(a);
    let a = world.host("a");
    a.says("2 seats taken, 0 vacant");
    world.holds(1);
    fs::rename(&aside, &slow).unwrap();
    let mut hosts = [a, b];
    hosts.iter().for_each(Host::ask_to_end);
    for host in &mut hosts {
        assert!(host.ended().success(), "{:#?}", host.lines);
    }
    world.holds(1);
}

/// Such as behind a firewall, or without the token.
#[test]
fn a_host_that_reaches_no_other_gives_none_up_that_lives() {
    let world = World::new(&["--seats", "4", "--mirror", "2", "--slow", "SLOW"]).patient("5s");
    let file = world.path("tokens");
    fs::write(&file, "secret\n").unwrap();
    let words = ["--token-file", file.to_str().unwrap()];
    let start = |name| world.host_as(name, &words, "secret");
    let [a, b] = ["a", "b"].map(start);
    a.says("2 seats taken, 2 vacant");
    // Without the token it gets no answer of the others, and has a seat all the same.
    let d = world.host("d");
    d.says("The pool waits for 2 hosts that do not answer");
    // Far longer than a host is waited for.
    let sign = |host: &Host| {
        let location = host.says(" has seat ");
        let folder = location.split(['/', ' ']).nth(3).unwrap().to_owned();
        let text = fs::read_to_string(Path::new(&world.pool).join("seats").join(folder));
        text.unwrap().parse::<u64>().unwrap()
    };
    let then = sign(&a);
    let until = Instant::now() + LIMIT;
    while sign(&a) < then + 8 {
        assert!(Instant::now() < until, "{:#?}", a.lines);
        thread::sleep(Duration::from_millis(100));
    }
    for host in [&a, &b, &d] {
        let lines = host.lines.lock().unwrap().clone();
        assert!(!lines.iter().any(|line| line.contains("is vacant")), "{lines:#?}");
    }
    // One that does not reach itself takes no seat.
    let e = world.host_with("e", &["--address", "no-such-host.invalid"]);
    e.says("this node does not reach itself, so it takes no seat");
    assert_eq!(folders(&e.data), 0);
}

#[test]
fn impossible_wishes_are_refused() {
    let world = World::new(&["--seats", "2", "--mirror", "2"]);
    let plain = world.path("plain").to_str().unwrap().to_owned();
    done(&["pool", "init", &plain]);
    let local = |pool: &str, words: &[&str]| {
        let data = world.path("x").to_str().unwrap().to_owned();
        outlive(&[&["node", "local", "--pool", pool, "--data", &data], words].concat())
    };
    for (run, said) in [
        (local(&plain, &[]), "has no seats"),
        (local(&world.pool, &["--listen", "0.0.0.0:0"]), "--insecure"),
        (local(&world.pool, &["--", "/no/such/program"]), "/no/such/program"),
        (outlive(&["pool", "init", "x", "--seats", "1", "--mirror", "2"]), "2 targets"),
        (outlive(&["pool", "init", "x", "--seats", "2", "--target", "y"]), "--seats"),
        (outlive(&["pool", "init", "x", "--target", "vacant:1", "--target", "y"]), "--seats"),
        (
            outlive(&["node", "local", "--pool", &world.pool, "--data", "s3://bucket/x"]),
            "not a directory",
        ),
    ] {
        assert_eq!(run.code, 2, "{said}: {run:?}");
        assert!(run.err.contains(said), "{said}: {run:?}");
    }
    // A host has one node for a directory.
    let a = world.host("a");
    a.says(" has seat ");
    let again =
        outlive(&["node", "local", "--pool", &world.pool, "--data", a.data.to_str().unwrap()]);
    assert_ne!(again.code, 0, "{again:?}");
    assert!(again.err.contains("serves"), "{again:?}");
}
