//! Storage nodes as processes, and pools on them.

use crate::common::{command, json, outlive};
use crate::space::{Mount, noise};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// A node that runs as a process of its own.
pub struct Node {
    dir: PathBuf,
    pub listen: String,
    process: Option<Child>,
}

impl Node {
    /// Starts a node on a directory, at a free port.
    pub fn start(dir: PathBuf) -> Node {
        let mut node = Node::new(dir);
        node.start_again();
        node
    }

    /// Returns a node that does not run yet.
    pub fn new(dir: PathBuf) -> Node {
        fs::create_dir_all(&dir).unwrap();
        Node { dir, listen: "127.0.0.1:0".to_owned(), process: None }
    }

    /// Starts it at its port.
    fn start_again(&mut self) {
        let (dir, listen) = (self.dir.clone(), self.listen.clone());
        self.run(&["node", "serve", "--data", text(&dir), "--listen", &listen]);
    }

    pub fn run(&mut self, words: &[&str]) {
        self.run_as(command(words));
    }

    fn run_as(&mut self, mut started: Command) {
        let mut process = started.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
        let url = first.split_whitespace().find_map(|word| word.split_once("://"));
        url.unwrap_or_else(|| panic!("{first:?}")).1.clone_into(&mut self.listen);
        self.process = Some(process);
    }

    fn url(&self, prefix: &str) -> String {
        format!("node://{}/{prefix}", self.listen)
    }

    fn proc(&self) -> PathBuf {
        format!("/proc/{}", self.process.as_ref().expect("it runs").id()).into()
    }

    /// Returns the number of its sockets.
    fn sockets(&self) -> usize {
        let files = fs::read_dir(self.proc().join("fd")).unwrap();
        let links = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
        links.filter(|link| text(link).starts_with("socket:")).count()
    }

    /// Returns the bytes that it has given to disks.
    pub fn written_bytes(&self) -> u64 {
        let io = fs::read_to_string(self.proc().join("io")).unwrap();
        let bytes = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
        bytes.unwrap().parse().unwrap()
    }

    /// Ends it as a power cut would.
    pub fn kill(&mut self) {
        let mut process = self.process.take().expect("it runs");
        process.kill().unwrap();
        process.wait().unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = (process.kill(), process.wait());
        }
    }
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a command that must succeed, and returns its output.
pub fn done(words: &[&str]) -> String {
    let run = outlive(words);
    assert_eq!(run.code, 0, "{words:?}: {run:?}");
    run.out
}

/// Writes files that differ with `seed`.
pub fn write_files(dir: &Path, seed: u8) {
    fs::create_dir_all(dir).unwrap();
    for number in 0..6_u8 {
        let bytes: Vec<u8> =
            (0..700_000_u32).map(|at| (at >> 3) as u8 ^ seed.wrapping_mul(number + 1)).collect();
        fs::write(dir.join(number.to_string()), bytes).unwrap();
    }
}

pub fn check_files(pool: &str, job: &str, files: &Path, into: &Path) {
    let _ = fs::remove_dir_all(into);
    done(&["get", pool, job, "--to", text(into)]);
    check(files, into);
}

/// Checks that the files of `write_files` are the same in both directories.
pub fn check(files: &Path, into: &Path) {
    for number in 0..6 {
        let name = number.to_string();
        assert!(fs::read(files.join(&name)).unwrap() == fs::read(into.join(&name)).unwrap());
    }
}

#[test]
fn a_whole_pool_lives_on_a_node_and_outlives_its_end() {
    let dir = TempDir::new().unwrap();
    let mut node = Node::start(dir.path().join("data"));
    let (pool, files) = (node.url("team/pool"), dir.path().join("files"));
    done(&["pool", "init", &pool]);
    let again = outlive(&["pool", "init", &pool]);
    assert_eq!(again.code, 2, "{again:?}");
    for seed in 1..4 {
        write_files(&files, seed);
        done(&["put", &pool, "tree", text(&files)]);
        node.kill();
        let away = outlive(&["ls", &pool]);
        assert_eq!(away.code, 6, "{away:?}");
        assert!(away.err.contains("does not answer"), "{}", away.err);
        node.start_again();
        check_files(&pool, "tree", &files, &dir.path().join("back"));
    }
    assert_eq!(json(&["ls", &pool, "tree", "--json"])["checkpoints"].as_array().unwrap().len(), 3);
    done(&["prune", &pool, "tree", "--keep-last", "1"]);
    done(&["gc", &pool]);
    done(&["verify", &pool]);
    check_files(&pool, "tree", &files, &dir.path().join("back"));
    // A second pool beside it, below another prefix.
    let other = node.url("team/other");
    done(&["pool", "init", &other]);
    done(&["copy", &pool, &other]);
    check_files(&other, "tree", &files, &dir.path().join("back"));
}

#[test]
fn a_pool_of_three_nodes_goes_on_without_one_of_them() {
    let dir = TempDir::new().unwrap();
    let mut nodes: Vec<Node> =
        (0..3).map(|number| Node::start(dir.path().join(format!("node{number}")))).collect();
    let pool = text(&dir.path().join("pool")).to_owned();
    let files = dir.path().join("files");
    let targets: Vec<String> = nodes.iter().map(|node| node.url("t")).collect();
    let mut words = vec!["pool", "init", &pool];
    targets.iter().for_each(|target| words.extend(["--target", target]));
    words.extend(["--erasure", "2+1"]);
    done(&words);
    for (seed, lost) in [(1, 0), (2, 1), (3, 2)] {
        write_files(&files, seed);
        done(&["put", &pool, "tree", text(&files)]);
        nodes[lost].kill();
        check_files(&pool, "tree", &files, &dir.path().join("back"));
        write_files(&files, seed + 100);
        done(&["put", &pool, "tree", text(&files)]);
        check_files(&pool, "tree", &files, &dir.path().join("back"));
        nodes[lost].start_again();
        done(&["pool", "repair", &pool]);
        done(&["verify", &pool]);
    }
    // A node that lost its disk: repair fills the new one.
    nodes[1].kill();
    fs::remove_dir_all(&nodes[1].dir).unwrap();
    fs::create_dir_all(&nodes[1].dir).unwrap();
    nodes[1].start_again();
    let lost = outlive(&["verify", &pool]);
    assert!(lost.err.contains("target 2"), "{lost:?}");
    check_files(&pool, "tree", &files, &dir.path().join("back"));
}

/// The directory of a node is put back to an older state, so the node lacks shards that it had.
#[test]
fn a_node_that_was_put_back_from_a_backup_lacks_what_a_repair_brings() {
    let dir = TempDir::new().unwrap();
    let mut nodes: Vec<Node> =
        (0..2).map(|number| Node::start(dir.path().join(format!("node{number}")))).collect();
    let (pool, files) = (text(&dir.path().join("pool")).to_owned(), dir.path().join("files"));
    let (first, second) = (nodes[0].url("t"), nodes[1].url("t"));
    done(&["pool", "init", &pool, "--target", &first, "--target", &second, "--mirror", "2"]);
    let copy = |from: &Path, to: &Path| {
        let copied = Command::new("cp").arg("-a").args([from, to]).status();
        assert!(copied.unwrap().success());
    };
    write_files(&files, 1);
    done(&["put", &pool, "tree", text(&files)]);
    nodes[0].kill();
    let backup = dir.path().join("backup");
    copy(&nodes[0].dir, &backup);
    nodes[0].start_again();
    write_files(&files, 2);
    done(&["put", &pool, "tree", text(&files)]);
    nodes[0].kill();
    fs::remove_dir_all(&nodes[0].dir).unwrap();
    copy(&backup, &nodes[0].dir);
    nodes[0].start_again();
    check_files(&pool, "tree", &files, &dir.path().join("back"));
    nodes[1].kill();
    let alone = outlive(&["get", &pool, "tree", "--to", text(&dir.path().join("none"))]);
    assert_ne!(alone.code, 0, "{alone:?}");
    nodes[1].start_again();
    done(&["pool", "repair", &pool]);
    done(&["verify", &pool]);
    nodes[1].kill();
    check_files(&pool, "tree", &files, &dir.path().join("back"));
}

/// Nodes see ciphertext only: neither the content nor the names of files.
#[test]
fn a_node_sees_nothing_of_an_encrypted_pool() {
    let dir = TempDir::new().unwrap();
    let (node, files) = (Node::start(dir.path().join("data")), dir.path().join("files"));
    let key = dir.path().join("key");
    done(&["key", "new", text(&key)]);
    fs::create_dir_all(&files).unwrap();
    let secrets = ["name-of-a-file", "words of its content"];
    fs::write(files.join(secrets[0]), secrets[1]).unwrap();
    let sees = |what: &str| {
        let found = Command::new("grep").args(["-raqF", what]).arg(&node.dir).status();
        found.unwrap().success()
    };
    for is_encrypted in [true, false] {
        let pool = node.url(if is_encrypted { "encrypted" } else { "plain" });
        let with_key = |words: &[&str]| {
            let mut command = command(words);
            if is_encrypted {
                command.env("OUTLIVE_KEY_FILE", &key);
            }
            let run = command.output().unwrap();
            assert!(run.status.success(), "{words:?}: {run:?}");
        };
        let mut init = vec!["pool", "init", &pool];
        init.extend(is_encrypted.then_some("--encrypt"));
        with_key(&init);
        with_key(&["put", &pool, "tree", text(&files)]);
        let back = dir.path().join(if is_encrypted { "back" } else { "plain" });
        with_key(&["get", &pool, "tree", "--to", text(&back)]);
        assert_eq!(fs::read(back.join(secrets[0])).unwrap(), secrets[1].as_bytes());
        for secret in secrets {
            assert_eq!(sees(secret), !is_encrypted, "{secret}");
        }
    }
}

#[test]
fn a_log_on_three_nodes_keeps_a_majority() {
    let dir = TempDir::new().unwrap();
    let mut nodes: Vec<Node> =
        (0..3).map(|number| Node::start(dir.path().join(format!("node{number}")))).collect();
    let pool = text(&dir.path().join("pool")).to_owned();
    let files = dir.path().join("files");
    let logs: Vec<String> = nodes.iter().map(|node| node.url("log")).collect();
    let mut words = vec!["pool", "init", &pool];
    logs.iter().for_each(|log| words.extend(["--log", log]));
    done(&words);
    for seed in 0..3 {
        write_files(&files, seed);
        nodes[usize::from(seed)].kill();
        done(&["put", &pool, "tree", text(&files)]);
        nodes[usize::from(seed)].start_again();
    }
    assert_eq!(json(&["ls", &pool, "tree", "--json"])["checkpoints"].as_array().unwrap().len(), 3);
    done(&["verify", &pool]);
    check_files(&pool, "tree", &files, &dir.path().join("back"));
}

#[test]
fn a_full_directory_does_not_stop_a_node_with_another_one() {
    let dir = TempDir::new().unwrap();
    let Some(small) = Mount::new(dir.path().join("small"), "12m") else { return };
    let large = dir.path().join("large");
    fs::create_dir(&large).unwrap();
    let words =
        ["node", "serve", "--data", text(&large), text(&small.0), "--listen", "127.0.0.1:0"];
    let mut node = Node { dir: large.clone(), listen: String::new(), process: None };
    node.run(&words);
    let (pool, files) = (node.url("p"), dir.path().join("files"));
    done(&["pool", "init", &pool, "--pack-bytes", "4MiB"]);
    // The first one has the records, and the small one its turn for every second shard.
    for seed in 1..6 {
        write_files(&files, seed);
        done(&["put", &pool, "tree", text(&files)]);
        small.fill();
    }
    done(&["verify", &pool]);
    check_files(&pool, "tree", &files, &dir.path().join("back"));
}

#[test]
fn a_node_starts_on_a_full_disk_and_a_prune_frees_it() {
    let dir = TempDir::new().unwrap();
    let Some(disk) = Mount::new(dir.path().join("disk"), "60m") else { return };
    let mut node = Node::start(disk.0.clone());
    let (pool, files) = (node.url("p"), dir.path().join("files"));
    done(&["pool", "init", &pool]);
    for seed in 1..4 {
        write_files(&files, seed);
        done(&["put", &pool, "tree", text(&files)]);
    }
    disk.fill();
    node.kill();
    node.start_again();
    let full = outlive(&["put", &pool, "tree", text(&dir.path().join("disk/filler"))]);
    assert_eq!(full.code, 4, "{full:?}");
    check_files(&pool, "tree", &files, &dir.path().join("back"));
    done(&["prune", &pool, "tree", "--keep-last", "1"]);
    fs::remove_file(dir.path().join("disk/filler")).unwrap();
    done(&["verify", &pool]);
    check_files(&pool, "tree", &files, &dir.path().join("back"));
}

/// Returns the number of unfinished shards in a directory.
fn unfinished(packs: &Path) -> usize {
    let folders = fs::read_dir(packs).unwrap().map(|folder| folder.unwrap().path());
    let files = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    files.filter(|file| file.as_ref().unwrap().path().extension().unwrap() == "part").count()
}

#[test]
fn a_disk_that_gets_full_in_the_middle_of_a_shard_gives_the_space_back() {
    let dir = TempDir::new().unwrap();
    let Some(disk) = Mount::new(dir.path().join("disk"), "60m") else { return };
    let node = Node::start(disk.0.clone());
    let (pool, files, large) = (node.url("p"), dir.path().join("files"), dir.path().join("large"));
    done(&["pool", "init", &pool]);
    write_files(&files, 1);
    done(&["put", &pool, "tree", text(&files)]);
    fs::write(&large, noise(7, 100 << 20)).unwrap();
    for _ in 0..3 {
        let full = outlive(&["put", &pool, "large", text(&large)]);
        assert_eq!(full.code, 4, "{full:?}");
        assert!(full.err.contains("node://") && full.err.contains("No space left"), "{full:?}");
        assert_eq!(unfinished(&disk.0.join("p/packs")), 0, "the command has given its shard back");
    }
    // A gc deletes the packs that were whole.
    done(&["gc", &pool]);
    fs::write(&large, noise(8, 40 << 20)).unwrap();
    done(&["put", &pool, "large", text(&large)]);
    done(&["verify", &pool]);
    check_files(&pool, "tree", &files, &dir.path().join("back"));
}

#[test]
fn a_node_tells_what_it_does_and_ends_at_a_signal() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    let words = ["node", "serve", "--data", text(&data), "--listen", "127.0.0.1:0"];
    let tokens = dir.path().join("tokens");
    fs::write(&tokens, "known-one\n").unwrap();
    let more = ["--metrics-port", "0", "--json", "--token-file", text(&tokens)];
    let mut started = command(&[&words[..], &more].concat());
    let mut process = started.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told =
        serde_json::Deserializer::from_reader(process.stdout.take().unwrap()).into_iter::<Value>();
    let told = told.next().unwrap().unwrap();
    let (url, metrics) = (told["url"].as_str().unwrap(), told["metrics"].as_str().unwrap());
    let pool = format!("{url}/p");
    let mut strange = command(&["pool", "init", &pool]);
    let refused = strange.env("OUTLIVE_NODE_TOKEN", "guessed").output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let mut known = command(&["pool", "init", &pool]);
    let made = known.env("OUTLIVE_NODE_TOKEN_FILE", &tokens).output().unwrap();
    assert_eq!(made.status.code(), Some(0), "{made:?}");
    let (host, path) = metrics["http://".len()..].split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let requests = page.lines().find_map(|line| line.strip_prefix("outlive_node_requests_total "));
    assert!(requests.unwrap().parse::<u64>().unwrap() > 3, "{page}");
    let pid = rustix::process::Pid::from_child(&process);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let ended = process.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0));
    let log = String::from_utf8(ended.stderr).unwrap();
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.first().unwrap()["event"], "started");
    let refused = events.iter().find(|event| event["event"] == "refused").unwrap();
    assert_eq!((&refused["kind"], &refused["call"]), (&"Token".into(), &"Hello".into()));
    assert_eq!(events.last().unwrap()["event"], "stopped");
}

/// Most of the silent connections wait until the node has closed the others.
#[test]
fn silent_connections_take_neither_the_node_nor_its_last_handle() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let mut node = Node::new(data.clone());
    let serve = command(&["node", "serve", "--data", text(&data)]);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 80 && exec \"$@\"", "sh"]).arg(serve.get_program());
    limited.args(serve.get_args()).args(["--listen", "127.0.0.1:0"]);
    node.run_as(limited);
    let idle = node.sockets();
    let silent: Vec<TcpStream> =
        (0..120).map(|_| TcpStream::connect(&node.listen).unwrap()).collect();
    while node.sockets() < idle + 40 {
        thread::sleep(Duration::from_millis(10));
    }
    let mut pools = (0..).map(|number| node.url(&format!("pool{number}")));
    let pool = pools.find(|pool| {
        let made = outlive(&["pool", "init", pool]);
        let sockets = node.sockets();
        assert!(sockets <= idle + 40, "{sockets} sockets");
        made.code == 0
    });
    let (pool, files) = (pool.unwrap(), dir.path().join("files"));
    write_files(&files, 1);
    done(&["put", &pool, "tree", text(&files)]);
    done(&["verify", &pool]);
    drop(silent);
}

#[test]
fn a_node_that_cannot_serve_says_why() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let data = text(&data);
    for (words, told) in [
        (&["--data", "/nowhere/at/all"][..], "/nowhere/at/all"),
        (&["--data", "s3://bucket/x"], "not on this machine"),
        (&["--data", data, "--listen", "0.0.0.0:0"], "--tls-cert"),
        (&["--data", data, "--staging", "1MiB"], "too few"),
        (&["--data", data, "--token-file", "/dev/null"], "has no tokens"),
        (&["--data", data, "--tls-cert", "/dev/null"], "--tls-key"),
    ] {
        let run = outlive(&[&["node", "serve"], words].concat());
        assert_eq!(run.code, 2, "{words:?}: {run:?}");
        assert!(run.err.contains(told), "{words:?}: {}", run.err);
    }
}
