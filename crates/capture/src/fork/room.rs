//! Memory left for pages that a program rewrites while a child keeps the old ones.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes that this process can still take before the system, or a memory cgroup of the process,
/// runs out; `None` if that is unknown.
pub(crate) fn available_bytes() -> Option<u64> {
    let system = fs::read_to_string("/proc/meminfo").ok().and_then(|text| meminfo(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").ok();
    let group = groups.and_then(|text| of_groups(&text, Path::new("/sys/fs/cgroup")));
    match (system, group) {
        (Some(system), Some(group)) => Some(system.min(group)),
        (one, other) => one.or(other),
    }
}

fn meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Returns the least that any group leaves, from our own up to the root.
fn of_groups(text: &str, mount: &Path) -> Option<u64> {
    let mut least: Option<u64> = None;
    for line in text.lines() {
        // hierarchy:controllers:path; the unified hierarchy has number 0 and no controllers.
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let (root, names) = if controllers.is_empty() {
            (mount.to_owned(), ["memory.max", "memory.current", "inactive_file"])
        } else if controllers.split(',').any(|one| one == "memory") {
            let names = ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"];
            (mount.join("memory"), names)
        } else {
            continue;
        };
        let mut inside = PathBuf::from(path.trim_start_matches('/'));
        loop {
            if let Some(left) = of_group(&root.join(&inside), names) {
                least = Some(least.map_or(left, |least| least.min(left)));
            }
            if !inside.pop() {
                break;
            }
        }
    }
    least
}

/// Bytes that one group leaves: its limit minus its use, without inactive files, which are
/// reclaimed first.
fn of_group(group: &Path, [limit, usage, reclaimable]: [&str; 3]) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    // The word "max" is no number: no limit.
    let (limit, used) = (number(limit)?, number(usage)?);
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let reclaimable = stat.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == reclaimable).then(|| value.parse::<u64>().ok()).flatten()
    });
    Some(limit.saturating_sub(used.saturating_sub(reclaimable.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_known_here() {
        assert!(available_bytes() > Some(16 << 20));
        assert_eq!(meminfo("MemTotal: 9 kB\nMemAvailable:    2048 kB\n"), Some(2 << 20));
    }

    #[test]
    fn the_tightest_group_counts() {
        // Names as an administrator's; both kinds of hierarchy.
        let root = std::env::temp_dir().join(format!("outlive-room-{}", std::process::id()));
        let write = |name: &str, text: &str| {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("jobs/memory.max", "1000\n");
        write("jobs/memory.current", "900\n");
        write("jobs/memory.stat", "anon 5\ninactive_file 300\n");
        write("jobs/one/memory.max", "max\n");
        write("jobs/one/memory.current", "5\n");
        assert_eq!(of_groups("0::/jobs/one\n", &root), Some(400));
        assert_eq!(of_groups("0::/\n", &root), None);
        write("memory/a/memory.limit_in_bytes", "500\n");
        write("memory/a/memory.usage_in_bytes", "200\n");
        let text = "9:name=systemd:/\n4:cpu,memory:/a\n0::/jobs/one\n";
        assert_eq!(of_groups(text, &root), Some(300));
        fs::remove_dir_all(&root).unwrap();
    }
}
