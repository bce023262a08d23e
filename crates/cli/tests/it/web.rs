//! `outlive web`, `outlive report` and `outlive metrics` as people and programs use them.

use crate::common;

use common::{command, files, json, outlive, pool_with_job};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A running `outlive web`, killed with the test.
struct Web {
    child: Child,
    address: String,
}

impl Web {
    fn of(pool: &Path) -> Web {
        let words = ["web", text(pool), "--json"];
        let mut child =
            command(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut printed = BufReader::new(child.stdout.take().unwrap());
        let mut whole = String::new();
        let value: Value = loop {
            assert_ne!(printed.read_line(&mut whole).unwrap(), 0, "it ended: {whole}");
            if let Ok(value) = serde_json::from_str(&whole) {
                break value;
            }
        };
        let url = value["url"].as_str().unwrap();
        let address = url.strip_prefix("http://").unwrap().strip_suffix('/').unwrap().to_owned();
        assert!(address.starts_with("127.0.0.1:"), "{url}");
        Web { child, address }
    }

    /// Returns the status and the body.
    fn get(&self, path: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().to_owned(), body.to_owned())
    }

    fn json(&self, path: &str) -> Value {
        let (status, body) = self.get(path);
        assert_eq!(status, "200", "{body}");
        serde_json::from_str(&body).unwrap()
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_data_is_that_of_the_other_commands() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let note = ["note", text(&pool), "gray scott@1", "--label", "a </script> b", "--pin"];
    assert_eq!(outlive(&note).code, 0);
    let before = files(&pool);
    let web = Web::of(&pool);
    let data = web.json("/data.json");
    let job = &data["jobs"][0];
    let listed = json(&["ls", text(&pool), "gray scott", "--json"]);
    assert_eq!(job["list"], listed["checkpoints"]);
    assert_eq!(job["list"][0]["label"], "a </script> b");
    assert_eq!((&job["left_out"], &job["dropped"]), (&0.into(), &serde_json::json!([])));
    assert_eq!(job["history"], Value::Null);
    let status = json(&["pool", "status", text(&pool), "--json"]);
    for key in ["stored_bytes", "packs", "redundancy", "survives", "log_replicas"] {
        assert_eq!(data["status"][key], status[key], "{key}");
    }
    assert_eq!(data["status"]["config"], Value::Null);
    let space = web.json("/space.json");
    let du = json(&["du", text(&pool), "--json"]);
    assert_eq!(space["jobs"]["rows"], du["rows"]);
    let du = json(&["du", text(&pool), "gray scott", "--json"]);
    assert_eq!(space["checkpoints"][0]["rows"], du["rows"]);
    // The pinned one stays, besides the newest.
    let prune = &space["prunes"][0];
    assert_eq!((&prune["rules"], &prune["dropped"]), (&"last 1".into(), &1.into()), "{prune}");
    assert!(prune["frees_bytes"].as_u64().unwrap() >= 200_000, "{prune}");
    assert_eq!(files(&pool), before, "looking at a pool changes nothing in it");
}

#[test]
fn each_request_reads_the_pool_again_and_says_why_it_cannot() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let web = Web::of(&pool);
    assert_eq!(web.json("/data.json")["jobs"][0]["checkpoints"], 3);
    let prune = ["prune", text(&pool), "gray scott", "--keep-last", "1", "--no-gc"];
    assert_eq!(outlive(&prune).code, 0);
    let data = web.json("/data.json");
    let job = &data["jobs"][0];
    assert_eq!(job["checkpoints"], 1);
    let dropped: Vec<&Value> =
        job["dropped"].as_array().unwrap().iter().map(|one| &one[0]).collect();
    assert_eq!(dropped, [&Value::from(1), &Value::from(2)], "the log still has what was dropped");

    let away = dir.path().join("away");
    fs::rename(&pool, &away).unwrap();
    for path in ["/data.json", "/space.json"] {
        let (status, body) = web.get(path);
        assert_eq!(status, "503", "{body}");
        let error: Value = serde_json::from_str(&body).unwrap();
        assert!(error["error"]["message"].as_str().unwrap().contains(text(&pool)), "{error}");
    }
    assert_eq!(web.get("/").0, "200", "the page says it");
    fs::rename(&away, &pool).unwrap();
    assert_eq!(web.json("/data.json")["jobs"][0]["checkpoints"], 1);
}

#[test]
fn a_damaged_log_is_a_remark_of_its_job() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let records: Vec<_> =
        files(&pool.join("log")).into_iter().filter(|(_, bytes)| bytes.len() > 300).collect();
    let (path, mut bytes) = records[1].clone();
    bytes[200] ^= 1;
    fs::write(path, bytes).unwrap();
    let web = Web::of(&pool);
    let data = web.json("/data.json");
    assert_eq!(data["jobs"][0]["unreadable_records"].as_array().unwrap().len(), 1, "{data}");
    let space = web.json("/space.json");
    assert_eq!(space["jobs"]["unknown"][0]["job"], "gray scott");
    let text = outlive(&["metrics", text(&pool)]).out;
    assert!(text.contains("\noutlive_pool_unreadable_log_records{pool="), "{text}");
    let line =
        text.lines().find(|l| l.starts_with("outlive_pool_unreadable_log_records{")).unwrap();
    assert!(line.ends_with("job=\"gray scott\"} 1"), "{line}");
}

#[test]
fn ctrl_c_ends_the_server_well() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    for signal in ["INT", "TERM"] {
        let mut web = Web::of(&pool);
        // A connection that says nothing holds up nothing.
        let _idle = TcpStream::connect(&web.address).unwrap();
        assert_eq!(web.get("/").0, "200");
        let mut kill = std::process::Command::new("kill");
        assert!(kill.args(["-s", signal, &web.child.id().to_string()]).status().unwrap().success());
        assert_eq!(web.child.wait().unwrap().code(), Some(0), "{signal}");
        let mut said = String::new();
        web.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(said, "");
    }
}

#[test]
fn no_pool_and_a_taken_port_are_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    for name in ["web", "metrics"] {
        let run = outlive(&[name, text(&dir.path().join("none"))]);
        assert!(run.code == 2 && run.err.contains("none"), "{run:?}");
    }
    let web = Web::of(&pool);
    let port = web.address.rsplit_once(':').unwrap().1;
    let run = outlive(&["web", text(&pool), "--port", port]);
    assert!(run.code == 2 && run.err.contains("choose another one with --port"), "{run:?}");
}

#[test]
fn a_report_replaces_only_a_report() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    let page = dir.path().join("page.html");
    let before = files(&pool);
    let made = json(&["report", text(&pool), "--to", text(&page), "--json"]);
    let html = fs::read_to_string(&page).unwrap();
    assert_eq!(made["bytes"], html.len());
    assert!(html.contains("gray scott") && html.contains("connect-src 'none'"));
    // Again, after a change, and then as text.
    let note = ["note", text(&pool), "gray scott@2", "--label", "</script><b>"];
    assert_eq!(outlive(&note).code, 0);
    let run = outlive(&["report", text(&pool), "--to", text(&page)]);
    assert!(run.code == 0 && run.out.contains("page.html"), "{run:?}");
    let again = fs::read_to_string(&page).unwrap();
    assert!(again.contains("\\u003c/script\\u003e\\u003cb\\u003e") && !again.contains("<b>"));
    assert_eq!(again.matches("</script>").count(), html.matches("</script>").count());
    assert!(files(&pool).len() == before.len() + 1, "only the note is new");

    let mine = dir.path().join("mine.html");
    fs::write(&mine, "<!doctype html>\nmine").unwrap();
    let link = dir.path().join("link.html");
    std::os::unix::fs::symlink(&page, &link).unwrap();
    let inside = pool.join("packs").join("page.html");
    let nowhere = dir.path().join("no").join("page.html");
    for (to, says) in [
        (&*mine, "no report of outlive"),
        (&*link, "no report of outlive"),
        (dir.path(), "no report of outlive"),
        (&*inside, "packs"),
        (&*nowhere, "is no directory"),
    ] {
        let run = outlive(&["report", text(&pool), "--to", text(to)]);
        assert!(run.code == 2 && run.err.contains(says), "{}: {run:?}", to.display());
    }
    assert_eq!(fs::read_to_string(&mine).unwrap(), "<!doctype html>\nmine");
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 4, "no temporary file stays: {left:?}");
}

#[test]
fn metrics_are_text_that_prometheus_reads() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_with_job(dir.path());
    assert_eq!(outlive(&["mark", text(&pool), "gray scott@2", "bad"]).code, 0);
    let run = outlive(&["metrics", text(&pool)]);
    assert_eq!(run.code, 0, "{run:?}");
    let (mut heads, mut values) = (Vec::new(), Vec::new());
    for line in run.out.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(kind == "gauge" && !heads.contains(&name), "{line}");
            heads.push(name);
        } else if !line.starts_with("# HELP ") {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().unwrap().is_finite(), "{line}");
            assert!(sample.starts_with(heads.last().unwrap()), "samples follow their head: {line}");
            values.push((sample, value));
        }
    }
    let of_job = |name: &str| {
        let sample = format!("{name}{{pool=\"{}\",job=\"gray scott\"}}", text(&pool));
        values.iter().find(|(found, _)| *found == sample).expect(&sample).1
    };
    assert_eq!(of_job("outlive_pool_checkpoints"), "3");
    assert_eq!(of_job("outlive_pool_bad_checkpoints"), "1");
    assert_eq!(of_job("outlive_pool_suspect_checkpoints"), "0");
    assert_eq!(of_job("outlive_pool_newest_checkpoint_epoch"), "3");
    assert_eq!(of_job("outlive_pool_job_readable"), "1");
    let age: f64 = of_job("outlive_pool_newest_checkpoint_age_seconds").parse().unwrap();
    assert!((0.0..3600.0).contains(&age), "{age}");
    let up = values.iter().find(|(sample, _)| sample.starts_with("outlive_pool_target_up{"));
    assert_eq!(up.unwrap().1, "1");
    let same = json(&["metrics", text(&pool), "--json"]);
    assert_eq!(same["metrics"].as_array().unwrap().len(), heads.len());
}
