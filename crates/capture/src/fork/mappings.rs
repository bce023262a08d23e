//! Memory that a fork freezes, that it does not freeze, and that the child does not need.

use super::apart::CloneGuard;
use crate::track::Refusal;
use outlive_types::BLOCK_BYTES;
use std::ops::Range;

/// Cost of a fork while the program stands, in seconds per GiB of 4 KiB pages, and of huge ones.
/// `outlive-bench freeze` measures both. The cost of arming memory that is then read in place is
/// too small to be measured (docs/design/011-tracking.md).
pub(crate) const FORK_SMALL_S_PER_GIB: f64 = 0.034;
pub(crate) const FORK_HUGE_S_PER_GIB: f64 = 0.0008;
/// Least saving for which memory is withheld from the child: the system calls for it took 8 µs when
/// measured.
const KEPT_FROM_S: f64 = 20e-6;
/// Most ranges that are withheld from the child: each may briefly split a mapping in three, of
/// which the system allows 65,530.
const KEPT_MAX: usize = 1024;

/// The mappings of this process, as `/proc/self/smaps` lists them.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    /// Sorted and disjoint.
    list: Vec<Mapping>,
    /// Anonymous memory that is present, in all mappings.
    pub filled: Filled,
}

#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    range: Range<usize>,
    frozen: bool,
    filled: Filled,
}

/// Anonymous memory that is present.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Filled {
    /// Bytes of all of it.
    pub bytes: u64,
    /// Bytes of the part that lies in huge pages.
    pub huge_bytes: u64,
}

impl Filled {
    /// Seconds that it costs to fork this memory.
    pub fn fork_s(self) -> f64 {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let small_bytes = self.bytes.saturating_sub(self.huge_bytes);
        gib(small_bytes) * FORK_SMALL_S_PER_GIB + gib(self.huge_bytes) * FORK_HUGE_S_PER_GIB
    }

    /// Returns the share of `part` bytes of `whole`, if the memory is spread evenly.
    fn share(self, part: usize, whole: usize) -> Filled {
        let of = |bytes: u64| (bytes as f64 * part as f64 / whole.max(1) as f64) as u64;
        Filled { bytes: of(self.bytes), huge_bytes: of(self.huge_bytes) }
    }

    /// Returns the rest without `other`.
    pub fn less(self, other: Filled) -> Filled {
        Filled {
            bytes: self.bytes.saturating_sub(other.bytes),
            huge_bytes: self.huge_bytes.saturating_sub(other.huge_bytes),
        }
    }

    fn add(&mut self, other: Filled) {
        self.bytes += other.bytes;
        self.huge_bytes += other.huge_bytes;
    }
}

/// Memory that a child does not need.
#[derive(Debug, Default)]
pub(crate) struct KeptFrom {
    /// Whole blocks (2 MiB), disjoint.
    pub ranges: Vec<Range<usize>>,
    /// Memory present in the ranges, as far as the mappings show.
    pub filled: Filled,
}

impl Mappings {
    /// Reads the mappings. That takes 5 ms for each GiB of 4 KiB pages (0.1 of huge ones), as the
    /// kernel counts pages meanwhile; only this file has the flags.
    ///
    /// # Errors
    /// If the mappings may not be read.
    pub fn read() -> Result<Mappings, Refusal> {
        // Otherwise memory that another freeze withholds from its child would seem to be withheld
        // from all.
        let _turn = CloneGuard::wait();
        match std::fs::read_to_string("/proc/self/smaps") {
            Ok(text) => Ok(Mappings::parse(&text)),
            Err(error) => Err(Refusal(format!(
                "what it would freeze is not known: /proc/self/smaps: {error}"
            ))),
        }
    }

    fn parse(text: &str) -> Mappings {
        let mut found = Mappings::default();
        let mut plain = false;
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let Some(first) = words.next() else { continue };
            match first.strip_suffix(':') {
                None => {
                    let Some(range) = range_of(first) else { continue };
                    // Permissions, offset, device, inode: private, and without a file.
                    let private = words.next().is_some_and(|word| word.ends_with('p'));
                    plain = private && words.nth(2) == Some("0");
                    found.list.push(Mapping { range, frozen: false, filled: Filled::default() });
                }
                Some("Anonymous") => {
                    let bytes = kib(words.next());
                    found.fill(Filled { bytes, huge_bytes: 0 });
                }
                Some("AnonHugePages") => {
                    let huge_bytes = kib(words.next());
                    found.fill(Filled { bytes: 0, huge_bytes });
                }
                Some("VmFlags") => {
                    // Flags of memory that is not copied, wiped, or a device's: it is not frozen.
                    let mut flags = words;
                    let frozen =
                        plain && !flags.any(|flag| ["dc", "wf", "io", "pf"].contains(&flag));
                    if let Some(last) = found.list.last_mut() {
                        last.frozen = frozen;
                    }
                }
                Some(_) => {}
            }
        }
        found
    }

    /// Adds memory to the last mapping.
    fn fill(&mut self, filled: Filled) {
        self.filled.add(filled);
        if let Some(last) = self.list.last_mut() {
            last.filled.add(filled);
        }
    }

    /// Returns the frozen memory that holds nothing of `needed` (sorted, disjoint), where
    /// withholding it from the child saves time. The ranges are whole blocks: a huge page that is
    /// cut in two is split.
    pub fn kept_from(&self, needed: &[Range<usize>]) -> KeptFrom {
        let mut found: Vec<(Range<usize>, Filled)> = Vec::new();
        for mapping in self.list.iter().filter(|mapping| mapping.frozen) {
            let Range { start: begin, end: stop } = mapping.range;
            let first = needed.partition_point(|range| range.end <= begin);
            let inside = needed[first..].iter().take_while(|it| it.start < stop);
            // Needed memory was written, so it is present; only the rest is spread evenly.
            let part = |range: &Range<usize>| range.end.min(stop) - range.start.max(begin);
            let needed_bytes = inside.clone().map(part).sum::<usize>();
            let all = mapping.filled;
            let rest_bytes = all.bytes.saturating_sub(needed_bytes as u64);
            let rest = all.share(rest_bytes as usize, all.bytes as usize);
            let rest_of = mapping.range.len() - needed_bytes;
            let mut at = begin;
            let ends = stop..stop;
            for next in inside.chain([&ends]) {
                let start = at.checked_next_multiple_of(BLOCK_BYTES);
                let end = next.start / BLOCK_BYTES * BLOCK_BYTES;
                at = at.max(next.end);
                if let Some(start) = start.filter(|start| *start < end) {
                    let filled = rest.share(end - start, rest_of);
                    found.push((start..end, filled));
                }
            }
        }
        found.retain(|(_, filled)| filled.fork_s() >= KEPT_FROM_S);
        found.sort_by(|(_, one), (_, other)| other.fork_s().total_cmp(&one.fork_s()));
        found.truncate(KEPT_MAX);
        let mut kept = KeptFrom::default();
        for (range, filled) in found {
            kept.ranges.push(range);
            kept.filled.add(filled);
        }
        kept
    }

    /// True if a fork freezes all of `range`: private memory without a file, which the program has
    /// not withheld from its children. (The fork itself copies pages that are pinned for a device.)
    pub fn is_frozen(&self, range: Range<usize>) -> bool {
        let mut at = range.start;
        let first = self.list.partition_point(|mapping| mapping.range.end <= at);
        for mapping in &self.list[first..] {
            if at >= range.end {
                break;
            }
            if mapping.range.start > at || !mapping.frozen {
                return false;
            }
            at = mapping.range.end;
        }
        at >= range.end
    }
}

fn range_of(word: &str) -> Option<Range<usize>> {
    let (start, end) = word.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

fn kib(word: Option<&str>) -> u64 {
    word.and_then(|word| word.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_tell_whether_a_fork_freezes_a_mapping() {
        let flags = |flags: &str| format!("Rss: 8 kB\nVmFlags: rd wr mr {flags} \n");
        let text = [
            "1000-3000 rw-p 00000000 00:00 0 \nAnonymous: 8 kB\nAnonHugePages: 4 kB\n",
            &flags("ac"),
            "3000-4000 rw-p 00000000 00:00 0    [heap]\n",
            &flags("ac"),
            "4000-5000 rw-s 00000000 00:01 7 /memfd:x (deleted)\n",
            &flags("sh"),
            "6000-7000 rw-p 00000000 00:00 0\n",
            &flags("dc"),
            "7000-8000 rw-p 00000000 00:00 0\n",
            &flags("wf"),
            "8000-9000 rw-p 00001000 fe:00 99 /a file: with 0 words\n",
            &flags("ac"),
            "9000-a000 rw-s 00000000 00:01 0\n",
            &flags("sh"),
            "a000-b000 rw-p 00000000 00:00 0 [anon: a name]\n",
            &flags(""),
        ]
        .concat();
        let found = Mappings::parse(&text);
        assert_eq!(found.filled, Filled { bytes: 8192, huge_bytes: 4096 });
        for (range, frozen) in [
            (0x1000..0x4000, true),
            (0x1fff..0x3001, true),
            (0x3fff..0x4001, false),
            (0x4000..0x4001, false),
            (0x5000..0x5001, false),
            (0xfff..0x1001, false),
            (0x6000..0x6001, false),
            (0x7000..0x7001, false),
            (0x8000..0x8001, false),
            (0x9000..0x9001, false),
            (0xa000..0xb000, true),
            (0xa000..0xb001, false),
            (0xb000..0xc000, false),
        ] {
            assert_eq!(found.is_frozen(range.clone()), frozen, "{range:x?}");
        }
        let empty = Mappings::parse("Rubbish\n\nVmFlags: rd\n1-\n");
        assert!(!empty.is_frozen(0..1));
    }

    #[test]
    fn a_child_does_without_whole_blocks_of_which_nothing_is_needed() {
        const MIB: usize = 1 << 20;
        let mapping = |mib: Range<usize>, bytes: usize, huge_bytes: usize, frozen| Mapping {
            range: mib.start * MIB + 4096..mib.end * MIB + 4096,
            frozen,
            filled: Filled { bytes: bytes as u64, huge_bytes: huge_bytes as u64 },
        };
        let list = vec![
            mapping(0..100, 100 * MIB, 0, true),
            mapping(100..200, 100 * MIB, 0, false),
            // Hardly anything is present.
            mapping(200..300, 4096, 0, true),
            mapping(300..400, 100 * MIB, 100 * MIB, true),
        ];
        let mappings = Mappings { list, ..Mappings::default() };
        let needed = [5 * MIB..5 * MIB + 1, 10 * MIB..11 * MIB, 80 * MIB..120 * MIB];
        let kept = mappings.kept_from(&needed);
        let ranges = [302..400, 12..80, 6..10, 2..4].map(|it| it.start * MIB..it.end * MIB);
        let mut found = kept.ranges.clone();
        found.sort_by_key(|range| std::cmp::Reverse(range.len()));
        assert_eq!(found, ranges);
        let mib = |bytes: u64| bytes >> 20;
        assert_eq!((mib(kept.filled.bytes), mib(kept.filled.huge_bytes)), (172, 98));
        // The range that saves most comes first.
        assert_eq!(kept.ranges[0], ranges[1]);
        let all = 0..usize::MAX;
        assert!(mappings.kept_from(std::slice::from_ref(&all)).ranges.is_empty());
        let many: Vec<_> =
            (0..2 * KEPT_MAX).map(|at| mapping(4 * at..4 * at + 4, 4 * MIB, 0, true)).collect();
        let mappings = Mappings { list: many, ..Mappings::default() };
        assert_eq!(mappings.kept_from(&[]).ranges.len(), KEPT_MAX);
    }
}
