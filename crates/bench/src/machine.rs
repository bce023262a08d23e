//! Description of the machine, with its memory and processor time.

use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Describes the machine, and the file system of `path`.
pub fn describe(path: &Path) -> Value {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let (file_system, device) = file_system(path).unwrap_or_default();
    json!({
        "cores": cores,
        "processor": line_value("/proc/cpuinfo", "model name"),
        "memory_bytes": line_value("/proc/meminfo", "MemTotal").and_then(|text| kib(&text)),
        "kernel": fs::read_to_string("/proc/sys/kernel/osrelease").ok().map(|s| s.trim().to_owned()),
        "file_system": file_system,
        "device": device,
        "outlive": env!("CARGO_PKG_VERSION"),
        "debug_build": cfg!(debug_assertions),
    })
}

/// Returns one line for people.
pub fn line(machine: &Value) -> String {
    let text = |key: &str| machine[key].as_str().unwrap_or("?").to_owned();
    format!(
        "{} cores ({}), {:.0} GiB, Linux {}, {} on {}{}",
        machine["cores"],
        text("processor"),
        machine["memory_bytes"].as_f64().unwrap_or(0.0) / (1u64 << 30) as f64,
        text("kernel"),
        text("file_system"),
        text("device"),
        if machine["debug_build"] == true { "; NOT a release build" } else { "" }
    )
}

/// This process's resident memory now and at its peak, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resident {
    /// VmRSS.
    pub now_bytes: u64,
    /// VmHWM.
    pub peak_bytes: u64,
}

/// Reads both; zero where the system lacks them.
pub fn resident() -> Resident {
    let value = |key| line_value("/proc/self/status", key).and_then(|text| kib(&text)).unwrap_or(0);
    Resident { now_bytes: value("VmRSS"), peak_bytes: value("VmHWM") }
}

/// Resets the peak. Returns false where the system cannot.
pub fn reset_peak() -> bool {
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// Processor time so far, in seconds over all cores.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu {
    /// Time of this process.
    pub own_s: f64,
    /// Time of all processes.
    pub all_s: f64,
}

impl Cpu {
    /// Reads both; zero where the system lacks them.
    pub fn now() -> Cpu {
        let tick_s = 1.0 / rustix::param::clock_ticks_per_second() as f64;
        // user, nice, system, then idle and iowait, then irq, softirq, steal.
        let all = fs::read_to_string("/proc/stat").ok().and_then(|text| {
            let fields: Vec<u64> =
                text.lines().next()?.split_whitespace().skip(1).flat_map(str::parse).collect();
            Some([0, 1, 2, 5, 6, 7].iter().filter_map(|at| fields.get(*at)).sum::<u64>())
        });
        // The program's name, in parentheses, may contain anything; utime and stime are the 12th
        // and 13th field after it.
        let own = fs::read_to_string("/proc/self/stat").ok().and_then(|text| {
            let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
            Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
        });
        let seconds = |ticks: Option<u64>| ticks.unwrap_or(0) as f64 * tick_s;
        Cpu { own_s: seconds(own), all_s: seconds(all) }
    }

    /// Returns the time since `before`.
    pub fn since(self, before: Cpu) -> Cpu {
        Cpu { own_s: self.own_s - before.own_s, all_s: self.all_s - before.all_s }
    }
}

fn line_value(file: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim().to_owned())
    })
}

fn kib(text: &str) -> Option<u64> {
    text.strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Returns type and source of the mount that contains the absolute path `path`.
fn file_system(path: &Path) -> Option<(String, String)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let inner = mounts.lines().filter_map(|line| {
        let (place, what) = line.split_once(" - ")?;
        let mount = place.split(' ').nth(4)?;
        let mut what = what.split(' ');
        path.starts_with(mount).then(|| (mount.len(), (what.next(), what.next())))
    });
    // The last of equal mounts covers the others.
    let (_, (kind, source)) = inner.max_by_key(|(length, _)| *length)?;
    Some((kind?.to_owned(), source?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_known() {
        let machine = describe(Path::new("/proc"));
        assert_eq!(machine["file_system"], "proc");
        assert!(machine["memory_bytes"].as_u64() > Some(1 << 20), "{machine}");
        assert!(line(&machine).contains("Linux"), "{}", line(&machine));
        assert!(resident().now_bytes > 0);
    }

    #[test]
    fn processor_time_is_counted() {
        let (before, started) = (Cpu::now(), std::time::Instant::now());
        let mut sum = 0u64;
        while started.elapsed().as_millis() < 100 {
            sum = std::hint::black_box(sum + 1);
        }
        let used = Cpu::now().since(before);
        assert!(used.own_s > 0.0 && used.own_s <= used.all_s + 0.1, "{used:?}");
    }
}
