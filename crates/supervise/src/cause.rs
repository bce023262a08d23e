//! Finds the cause for which an attempt ended.

use outlive_client::past::Cause;
use rustix::process::WaitStatus;

/// Returns the cause that a status shows by itself.
pub(crate) fn cause_of(status: WaitStatus) -> Cause {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(0), _) => Cause::Finished,
        (Some(code), _) => Cause::Failed(code),
        (None, Some(signal)) => Cause::Killed(signal),
        (None, None) => Cause::Failed(-1),
    }
}

/// Returns the number of processes that the kernel has ended in this process's memory cgroup, since
/// that was full; 0 where the system does not say.
pub(crate) fn out_of_memory_kills() -> u64 {
    let cgroups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let count = |path: &str| {
        let text = std::fs::read_to_string(path).ok()?;
        let value = text.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
        value.trim().parse().ok()
    };
    let of = cgroups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        match controllers {
            "" => count(&format!("/sys/fs/cgroup{path}/memory.events")),
            _ if controllers.split(',').any(|name| name == "memory") => {
                count(&format!("/sys/fs/cgroup/memory{path}/memory.oom_control"))
            }
            _ => None,
        }
    });
    of.unwrap_or(0)
}
