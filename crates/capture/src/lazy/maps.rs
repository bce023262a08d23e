//! Lists private anonymous memory: only there can a missing page stand for one that is to come.

use std::fs;
use std::io;
use std::ops::Range;

/// The private, anonymous, writable mappings of this process, joined where they touch; ascending.
#[derive(Debug)]
pub(super) struct PrivateMemory(Vec<Range<usize>>);

impl PrivateMemory {
    /// Reads `/proc/self/maps`.
    pub fn read() -> io::Result<PrivateMemory> {
        fs::read_to_string("/proc/self/maps").map(|text| PrivateMemory::of(&text))
    }

    fn of(maps: &str) -> PrivateMemory {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for range in maps.lines().filter_map(private) {
            match ranges.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => ranges.push(range),
            }
        }
        PrivateMemory(ranges)
    }

    /// True if all of `range` is private memory.
    pub fn holds(&self, range: &Range<usize>) -> bool {
        let at = self.0.partition_point(|known| known.end <= range.start);
        self.0.get(at).is_some_and(|known| known.start <= range.start && range.end <= known.end)
    }
}

/// Returns the range of a line such as `7f31c0000000-7f31c4000000 rw-p 00000000 00:00 0 [heap]`, if
/// it is private, anonymous, writable, and no stack.
fn private(line: &str) -> Option<Range<usize>> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let rights = words.next()?;
    let (_offset, _device, inode) = (words.next()?, words.next()?, words.next()?);
    let name = words.next().unwrap_or_default();
    let anonymous = name.is_empty() || name == "[heap]" || name.starts_with("[anon");
    if !(rights.starts_with("rw") && rights.ends_with('p') && inode == "0" && anonymous) {
        return None;
    }
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some(number(start)?..number(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_anonymous_memory_counts() {
        let known = PrivateMemory::of(
            "1000-3000 rw-p 00000000 00:00 0 [heap]\n\
             3000-4000 rw-p 00000000 00:00 0 \n\
             5000-6000 r--p 00000000 00:00 0 \n\
             6000-7000 rw-s 00000000 00:01 77 /dev/zero (deleted)\n\
             7000-8000 rw-p 00001000 08:01 9 /usr/lib/libm.so\n\
             8000-9000 rw-p 00000000 00:00 0 [stack]\n\
             9000-a000 rw-p 00000000 00:00 0 [anon:numpy]\n",
        );
        assert_eq!(known.0, [0x1000..0x4000, 0x9000..0xa000]);
        assert!(known.holds(&(0x2000..0x4000)) && known.holds(&(0x9000..0xa000)));
        for outside in [0x0..0x1000, 0x3000..0x5000, 0x6000..0x7000, 0x8000..0xa000] {
            assert!(!known.holds(&outside), "{outside:?}");
        }
        assert!(PrivateMemory::read().is_ok_and(|mine| !mine.0.is_empty()));
    }
}
