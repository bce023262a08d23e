//! The benches at small size: they end, report every figure, and clean up.

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Result of a run.
#[derive(Debug)]
struct Run {
    code: i32,
    out: String,
    err: String,
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outlive-bench"));
    command.args(words);
    command
}

fn bench(words: &[&str]) -> Run {
    let Output { status, stdout, stderr } = command(words).output().unwrap();
    Run {
        code: status.code().expect("it was not killed"),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

/// Returns the JSON of a run that must succeed.
fn json(words: &[&str]) -> Value {
    let run = bench(words);
    assert_eq!(run.code, 0, "{words:?}: {run:?}");
    serde_json::from_str(&run.out).unwrap_or_else(|error| panic!("{error}: {}", run.out))
}

fn measured(name: &str, more: &[&str]) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let words = [name, dir.path().to_str().unwrap(), "--json"];
    let report = json(&[&words[..], more].concat());
    assert_eq!(report["bench"], name);
    assert!(report["command"].as_str().unwrap().contains(&format!("outlive-bench {name}")));
    assert!(report["machine"]["kernel"].is_string(), "{report}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "the bench left something");
    report
}

/// Returns the value of the only figure with this name.
fn value(report: &Value, what: &str) -> f64 {
    let measures = report["measures"].as_array().unwrap();
    let found: Vec<&Value> = measures.iter().filter(|m| m["what"] == what).collect();
    assert_eq!(found.len(), 1, "{what}: {report:#}");
    found[0]["value"].as_f64().unwrap()
}

#[test]
fn saves_are_measured() {
    let report = measured("save", &["--gib", "0.03125", "--runs", "1"]);
    assert_eq!(report["details"]["raw_sweep"].as_array().unwrap().len(), 8);
    assert!(value(&report, "first save, share of raw") > 0.0);
    assert!(value(&report, "nothing changed: bytes written") < 16384.0);
    assert!((1.0..1.1).contains(&value(&report, "first save, bytes written / state")));
    let one = value(&report, "one page changed: bytes written");
    assert!(one > 4096.0 && one <= 49152.0, "{one}");
}

#[test]
fn restores_are_measured() {
    let report = measured("restore", &["--gib=0.03125", "--runs=1"]);
    assert!(value(&report, "restore into used memory, share of raw") > 0.0);
    assert!(value(&report, "restore into fresh memory, share of raw") > 0.0);
    for kind in ["huge", "4 KiB"] {
        assert!(value(&report, &format!("fresh memory, {kind} pages: first touches")) > 0.0);
    }
    let preferred = "Restores into fresh memory have come to prefer ";
    let notes = report["notes"].as_array().unwrap();
    let told = |note: &Value| note.as_str().unwrap().starts_with(preferred);
    assert!(notes.iter().any(told), "{report:#}");
}

#[test]
fn lazy_restarts_are_measured() {
    for more in [&["--gib=0.03125", "--runs=1"][..], &["--gib=0.03125", "--runs=1", "--user-only"]]
    {
        let report = measured("lazy", more);
        let mode = report["details"]["mode"].as_str().unwrap();
        assert!(mode == "user-only" || (mode == "full" && more.len() == 2), "{mode}");
        assert!(value(&report, "background fill, share of raw") > 0.0);
        let all = &report["details"]["traffic_all"][0];
        let placed = all["moved_bytes"].as_u64().unwrap() + all["copied_bytes"].as_u64().unwrap();
        assert_eq!(placed, 1 << 25, "{all}");
    }
}

#[test]
fn churn_is_measured() {
    let report = measured("churn", &["--gib=0.03125", "--saves=5", "--percent=1", "--runs=1"]);
    assert!(value(&report, "bytes written / changed, mean over saves") > 1.0);
    let counted = value(&report, "bytes in the pool's files / bytes counted");
    assert!((0.99..1.01).contains(&counted), "{counted}");
    assert!(value(&report, "bytes read, last") >= f64::from(1 << 25));
}

#[test]
fn a_steady_rate_is_measured() {
    let more = ["--minutes=0.02", "--per-second=20", "--mib=8", "--pages=3"];
    let report = measured("steady", &more);
    let saves = value(&report, "saves committed");
    let skipped = value(&report, "saves skipped: one was still draining");
    assert_eq!(saves + skipped, 24.0);
    assert!(value(&report, "log records at the end") >= saves);
}

#[test]
fn memory_is_measured() {
    let report = measured("memory", &["--gib=0.03125"]);
    assert!(value(&report, "peak beyond the state: first save") > 0.0);
    assert!(value(&report, "kept between saves") > 0.0);
}

#[test]
fn tracking_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let plot = dir.path().join("track.svg");
    let words = ["track", "--gib=0.02", "--intervals=2", "--json", "--plot"];
    let report = json(&[&words[..], &[plot.to_str().unwrap()]].concat());
    assert_eq!(report["bench"], "track");
    let rows = report["details"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 36);
    for row in rows {
        let number = |key: &str| row[key].as_f64().unwrap();
        assert!(number("changed_pages") >= 1.0, "{row}");
        assert!(number("copied_pages") >= number("changed_pages"), "{row}");
        assert!(number("program_alone_s") > 0.0 && number("stall_s") > 0.0, "{row}");
    }
    let copies_all = |row: &&Value| row["policy"] == "copy all";
    assert!(rows.iter().filter(copies_all).all(|row| row["copied_pages"] == 5243.0), "{rows:?}");
    assert_eq!(report["measures"].as_array().unwrap().len(), 20);
    assert!(fs::read_to_string(plot).unwrap().contains("growing"));
}

#[test]
fn freezes_are_measured() {
    let report = measured("freeze", &["--gib=0.125", "--runs=1"]);
    for way in ["copy, 4 KiB pages", "copy, huge pages", "fork, 4 KiB pages", "fork, huge pages"] {
        assert!(value(&report, &format!("{way}: program stands")) > 0.0);
        assert!(value(&report, &format!("{way}: stall / memcpy")) > 0.0);
    }
    // A page that the child keeps is copied at its first write, which takes time.
    assert!(value(&report, "fork, 4 KiB pages: each page then written") > 50.0);
    let said = report["details"]["saves_auto_freeze"].as_str().unwrap();
    assert!(said.starts_with("fork: 128.0 MiB exceed freeze_bytes_max = 64.0 MiB"), "{said}");
}

#[test]
fn structures_of_metadata_are_compared() {
    let report = measured("metadata", &["--quick"]);
    let spaces = report["details"]["spaces"].as_array().unwrap();
    assert_eq!(spaces.len(), 5, "{report:#}");
    for space in spaces {
        let pages = space["pages"].as_f64().unwrap();
        let structures = space["structures"].as_array().unwrap();
        let of = |name: &str| structures.iter().find(|row| row["structure"] == name).unwrap();
        let [tree, array, table] = ["page tree", "in-place array", "hash table"].map(of);
        let a_page = |row: &Value, what: &str| row[what].as_f64().unwrap() / pages;
        // A single page costs at least its fingerprint, and no page less than a sixteenth of one.
        assert!(a_page(tree, "stored_bytes") > 2.0, "{tree:#}");
        assert_eq!(a_page(table, "stored_bytes"), 24.0);
        assert!((24.0..32.0).contains(&a_page(table, "ram_bytes")), "{table:#}");
        // No machine has a TiB for the array of a space of 48 bits.
        let is_sparse = space["space"].as_str().unwrap().starts_with("48 bits");
        assert_eq!(array["measured"], !is_sparse);
        assert_eq!(structures.len(), if is_sparse { 4 } else { 3 });
        assert_eq!(a_page(array, "stored_bytes") == 16.0, !is_sparse, "{array:#}");
        for row in [tree, table] {
            assert_eq!(row["measured"], true);
            assert_eq!(row["one_page"]["changed_pages"], 1);
            assert!(row["one_page"]["compare_s"].as_f64().unwrap() > 0.0, "{row:#}");
        }
    }
    let dense = value(&report, "dense, 64.0 MiB: page tree with locations");
    assert!((2.0..16.0).contains(&dense), "{dense}");
    // Without memory, sizes are computed, and say so.
    let dir = tempfile::tempdir().unwrap();
    let words = ["metadata", dir.path().to_str().unwrap(), "--quick", "--memory=1KiB"];
    let run = bench(&words);
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(run.out.matches("COMPUTED").count(), 15, "{}", run.out);
    let run = bench(&["metadata", dir.path().to_str().unwrap(), "--memory", "much"]);
    assert!(run.code == 2 && run.err.contains("--memory"), "{run:?}");
}

#[test]
fn people_get_a_table() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let run = bench(&["memory", path, "--gib", "0.01"]);
    assert_eq!(run.code, 0, "{run:?}");
    for part in ["bench memory", "cores", "MEASURED", "<= "] {
        assert!(run.out.contains(part), "{part}: {}", run.out);
    }
    assert!(run.err.starts_with("bench memory: making the state\n"), "{}", run.err);
}

fn has_files(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().any(|entry| fs::read_dir(entry.unwrap().path()).unwrap().count() > 0)
}

#[test]
fn impossible_requests_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    for (words, part) in [
        (&["save", path, "--gib", "0"][..], "--gib"),
        (&["plan", "--trace", "/nowhere/x"], "/nowhere"),
    ] {
        let run = bench(words);
        assert_eq!(run.code, 2, "{words:?}: {run:?}");
        assert!(run.err.contains(part), "{words:?}: {run:?}");
    }
}

#[test]
fn an_interrupted_bench_cleans_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let mut bench = command(&["steady", path, "--minutes=5", "--mib=8"]).spawn().unwrap();
    let started = Instant::now();
    while !has_files(dir.path()) {
        assert!(started.elapsed() < Duration::from_secs(300), "the bench does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    let killed = Command::new("kill").args(["-INT", &bench.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(bench.wait().unwrap().code(), Some(130));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "the bench left something");
}

#[test]
fn planners_are_compared_on_a_trace() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace.txt");
    // One chunk of each of ten containers, repeatedly.
    let mut lines = "outlive-trace 1\ncontainer_bytes 1000\nversion a\n".to_owned();
    for at in 0..100 {
        lines.push_str(&format!("{} 0 100\n", at % 10));
    }
    fs::write(&trace, &lines).unwrap();
    let picture = dir.path().join("plan.svg");
    let (trace, svg) = (trace.to_str().unwrap(), picture.to_str().unwrap());
    let words = ["plan", "--trace", trace, "--memory", "2c,8c", "--plot", svg];
    let run = bench(&words);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.out.contains("fewer reads than ASM"), "{}", run.out);
    assert!(run.err.starts_with("bench plan: a, 2.0 KiB of memory\n"), "{}", run.err);
    let rows = json(&[&words[..], &["--json"]].concat());
    assert_eq!(rows["rows"][0]["reads"]["LRU"], 100);
    assert_eq!(rows["rows"][0]["reads"]["outlive"], 10);
    assert_eq!(rows["rows"][1]["distinct"], 10);
    assert!(fs::read_to_string(picture).unwrap().starts_with("<svg"));
    for (memory, part) in [("1", "at least one container"), ("0c", "at least one container")] {
        let run = bench(&["plan", "--trace", trace, "--memory", memory]);
        assert!(run.code == 2 && run.err.contains(part), "{run:?}");
    }
    fs::write(dir.path().join("bad"), "outlive-trace 1\n1 2 3\n").unwrap();
    let bad = dir.path().join("bad");
    let run = bench(&["plan", "--trace", bad.to_str().unwrap()]);
    assert!(run.code == 2 && run.err.contains("line 2"), "{run:?}");
}

/// The traces of this repository, and the pictures of `docs/benchmarks/gate`.
#[test]
fn gates_are_simulated() {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/gate/traces");
    let mut files: Vec<String> = fs::read_dir(traces)
        .unwrap()
        .map(|entry| entry.unwrap().path().to_str().unwrap().to_owned())
        .collect();
    files.sort();
    assert!(files.len() >= 6, "{files:?}");
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("new").to_str().unwrap().to_owned();
    let mut words = vec!["--json", "gate", "--plot", &plot, "--trace"];
    words.extend(files.iter().map(String::as_str));
    let report = json(&words);
    let studies = report["traces"].as_array().unwrap();
    assert_eq!(studies.len(), files.len() + 4);
    for study in studies {
        let slowdowns: Vec<f64> = study["delayed"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["slowdown"].as_f64().unwrap())
            .collect();
        assert!(slowdowns[0] >= 0.999, "{study:#}");
        assert!(slowdowns.windows(2).all(|pair| pair[1] >= pair[0] * 0.999), "{slowdowns:?}");
        // A gate that acknowledges writes costs a program nothing.
        let held = study["held"].as_array().unwrap();
        let acknowledged: Vec<&Value> =
            held.iter().filter(|row| row["way"] == "hold, disk").collect();
        assert_eq!(acknowledged.len(), 5);
        assert!(
            acknowledged.iter().all(|row| row["slowdown"].as_f64().unwrap() < 1.001),
            "{study:#}"
        );
    }
    for name in ["slowdown", "rate", "intervals", "fill", "ways"] {
        let picture = fs::read_to_string(Path::new(&plot).join(format!("{name}.svg"))).unwrap();
        assert!(picture.starts_with("<svg") && !picture.contains("NaN"), "{name}");
    }
    let text = bench(&["gate", "--buffer", "16KiB", "--intervals-ms", "10"]).out;
    assert!(text.contains("outputs waited for room in the buffer"), "{text}");
}

#[test]
fn a_wrong_trace_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("wrong.trace");
    fs::write(&file, "outlive-io-trace 1\n0 0 write 0 0 5 1\n1 0 write 0 0 5\n").unwrap();
    let run = bench(&["gate", "--trace", file.to_str().unwrap()]);
    assert_eq!(run.code, 2, "{run:?}");
    assert!(run.err.contains("wrong.trace") && run.err.contains("line 3"), "{run:?}");
    let run = bench(&["gate", "--no-synthetic"]);
    assert!(run.code == 2 && run.err.contains("--trace FILE"), "{run:?}");
    let run = bench(&["gate", "--buffer", "64 pages"]);
    assert!(run.code == 2 && run.err.contains("--buffer"), "{run:?}");
}
