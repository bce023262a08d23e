//! Which memory a fork freezes, and which it does not.

use crate::track::Refusal;
use std::ops::Range;

/// The mappings of this process, as `/proc/self/smaps` lists them.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    /// Sorted, apart.
    list: Vec<Mapping>,
    /// Anonymous memory that is there, in all mappings.
    pub anonymous_bytes: u64,
    /// Part of it that lies in huge pages.
    pub huge_bytes: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    range: Range<usize>,
    frozen: bool,
}

impl Mappings {
    /// Reads them. That takes 5 ms for each GiB of 4 KiB pages (0.1 of huge ones), as the kernel
    /// counts pages on the way; it tells flags nowhere else.
    ///
    /// # Errors
    /// If they may not be read.
    pub fn read() -> Result<Mappings, Refusal> {
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
                    // Permissions, offset, device, inode: private, and no file behind it.
                    let private = words.next().is_some_and(|word| word.ends_with('p'));
                    plain = private && words.nth(2) == Some("0");
                    found.list.push(Mapping { range, frozen: false });
                }
                Some("Anonymous") => found.anonymous_bytes += kib(words.next()),
                Some("AnonHugePages") => found.huge_bytes += kib(words.next()),
                Some("VmFlags") => {
                    // Not copied; wiped; of a device; in any case not frozen.
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

    /// True if a fork freezes all of `range`: private memory without a file, which the program has
    /// not kept from its children. (Pages pinned for a device are copied by the fork itself.)
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
    fn what_a_fork_freezes_is_told_by_flags() {
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
        assert_eq!((found.anonymous_bytes, found.huge_bytes), (8192, 4096));
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
}
