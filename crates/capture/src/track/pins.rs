//! Memory that a device may write past the page table. Memory that was pinned before it was armed
//! (io_uring's fixed buffers, RDMA, VFIO) receives writes that no tracker of page faults sees.

use super::Pages;
use outlive_types::PAGE_BYTES;
use std::fs;

/// The process's pinned memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Pins {
    /// These ranges, and no more.
    Known(Vec<Pages>),
    /// This number of bytes, at unknown addresses.
    Somewhere(u64),
}

impl Pins {
    /// Asks the kernel. io_uring reports the addresses of its buffers; other users of pinned memory
    /// only add to the process's sum.
    pub fn of_this_process() -> Pins {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let pinned_bytes = pinned_bytes(&status);
        if pinned_bytes == 0 {
            return Pins::Known(Vec::new());
        }
        let buffers = io_uring_buffers();
        let known: usize = buffers.iter().map(|pages| pages.end - pages.start).sum();
        if (known as u64) < pinned_bytes {
            return Pins::Somewhere(pinned_bytes);
        }
        Pins::Known(buffers)
    }

    /// Returns the reason why these pages cannot be trusted to a tracker, if there is one.
    pub fn incomplete(&self, pages: Pages) -> Option<String> {
        match self {
            Pins::Known(pinned) => {
                let overlaps = |pin: &Pages| pin.start < pages.end && pages.start < pin.end;
                pinned.iter().any(overlaps).then(|| "io_uring has buffers in it".to_owned())
            }
            Pins::Somewhere(bytes) => Some(format!(
                "{bytes} bytes of the process are pinned for devices, and the kernel does not say which"
            )),
        }
    }
}

/// Returns `VmPin` of `/proc/self/status`; 0 if the kernel does not report it.
fn pinned_bytes(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Returns the fixed buffers of all io_uring instances of this process, rounded to pages.
fn io_uring_buffers() -> Vec<Pages> {
    let Ok(descriptors) = fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let mut buffers = Vec::new();
    for descriptor in descriptors.flatten() {
        let is_ring = fs::read_link(descriptor.path())
            .is_ok_and(|target| target.as_os_str() == "anon_inode:[io_uring]");
        if is_ring {
            let info = std::path::Path::new("/proc/self/fdinfo").join(descriptor.file_name());
            buffers.extend(parse_buffers(&fs::read_to_string(info).unwrap_or_default()));
        }
    }
    buffers
}

/// Parses the lines after `UserBufs:`, each `number: 0xaddress/length`.
fn parse_buffers(info: &str) -> Vec<Pages> {
    let mut lines = info.lines().skip_while(|line| !line.starts_with("UserBufs:"));
    lines.next();
    lines
        .map_while(|line| {
            let (_, place) = line.trim().split_once(": 0x")?;
            let (start, length) = place.split_once('/')?;
            let start = usize::from_str_radix(start, 16).ok()?;
            let end = start.checked_add(length.parse().ok()?)?;
            let first = start / PAGE_BYTES * PAGE_BYTES;
            Some(Pages { start: first, end: end.next_multiple_of(PAGE_BYTES) })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_parsed_from_the_kernels_text() {
        assert_eq!(pinned_bytes("VmLck:\t 0 kB\nVmPin:\t      24 kB\nVmHWM:\t 9 kB\n"), 24 << 10);
        assert_eq!(pinned_bytes("VmLck:\t 0 kB\n"), 0);
        let info = "SqMask:\t0x7\nUserFiles:\t0\nUserBufs:\t2\n    0: 0x7f0000001010/4096\n    \
                    1: 0x7f0000010000/65536\nPollList:\n";
        let buffers = parse_buffers(info);
        assert_eq!(buffers.len(), 2);
        assert_eq!(buffers[0], Pages { start: 0x7f00_0000_1000, end: 0x7f00_0000_3000 });
        assert_eq!(buffers[1].count(), 16);
    }

    #[test]
    fn pins_hurt_the_pages_that_they_overlap() {
        let pin = Pages { start: 0x2000, end: 0x4000 };
        let pins = Pins::Known(vec![pin]);
        assert_eq!(pins.incomplete(Pages { start: 0x1000, end: 0x2000 }), None);
        assert!(pins.incomplete(Pages { start: 0x3000, end: 0x9000 }).is_some());
        assert!(Pins::Somewhere(7).incomplete(Pages { start: 0x1000, end: 0x2000 }).is_some());
    }
}
