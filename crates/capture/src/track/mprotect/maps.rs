//! The mappings of this process, from `/proc/self/maps`. Read without allocation, so that a signal
//! handler can do it as well.

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, Result, read, retry_on_intr};
use std::ops::ControlFlow;

/// One mapping of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mapping {
    pub start: usize,
    pub end: usize,
    pub read: bool,
    pub write: bool,
    pub execute: bool,
    /// Whether it is private memory without a file, and neither the stack nor the kernel's.
    pub plain: bool,
}

impl Mapping {
    /// True for private memory as a program uses it for data.
    pub fn is_data(&self) -> bool {
        self.plain && self.read && !self.execute
    }
}

/// Length of the part of a line that matters: addresses, rights, inode, the beginning of the name.
const LINE_BYTES: usize = 128;

/// Calls `each` with every mapping, by address, until it breaks. `buffer` receives the bytes read.
pub(super) fn walk(
    buffer: &mut [u8],
    mut each: impl FnMut(Mapping) -> ControlFlow<()>,
) -> Result<()> {
    let file = open(c"/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut line = [0; LINE_BYTES];
    let mut length = 0;
    loop {
        let count = retry_on_intr(|| read(&file, &mut *buffer))?;
        if count == 0 {
            return Ok(());
        }
        for byte in &buffer[..count] {
            if *byte != b'\n' {
                if let Some(place) = line.get_mut(length) {
                    *place = *byte;
                    length += 1;
                }
                continue;
            }
            let mapping = parse(&line[..length]).ok_or(Errno::INVAL)?;
            length = 0;
            if each(mapping).is_break() {
                return Ok(());
            }
        }
    }
}

/// Reads `start-end rwxp offset device inode   name`.
fn parse(line: &[u8]) -> Option<Mapping> {
    let (start, rest) = number(line, 16)?;
    let (end, rest) = number(rest.strip_prefix(b"-")?, 16)?;
    let rights: &[u8; 4] = rest.get(1..5)?.try_into().ok()?;
    let mut words = rest[5..].split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let (_offset, _device) = (words.next()?, words.next()?);
    let inode = words.next()?;
    let name = words.next().unwrap_or_default();
    let special = name.starts_with(b"[") && name != b"[heap]" && !name.starts_with(b"[anon:");
    Some(Mapping {
        start,
        end,
        read: rights[0] == b'r',
        write: rights[1] == b'w',
        execute: rights[2] == b'x',
        plain: rights[3] == b'p' && inode == b"0" && !special,
    })
}

fn number(text: &[u8], radix: u32) -> Option<(usize, &[u8])> {
    let digits = text.iter().take_while(|byte| (**byte as char).is_digit(radix)).count();
    let value = std::str::from_utf8(&text[..digits]).ok()?;
    Some((usize::from_str_radix(value, radix).ok()?, &text[digits..]))
}

/// Returns the number of mappings of this process, and the part of `start..end` that each covers.
pub(super) fn within(start: usize, end: usize) -> Result<(usize, Vec<Mapping>)> {
    let mut buffer = vec![0; 16 << 10];
    let (mut count, mut found) = (0, Vec::new());
    walk(&mut buffer, |mapping| {
        count += 1;
        if mapping.start < end && mapping.end > start {
            let (start, end) = (mapping.start.max(start), mapping.end.min(end));
            found.push(Mapping { start, end, ..mapping });
        }
        ControlFlow::Continue(())
    })?;
    Ok((count, found))
}

/// Most mappings that a process may have.
pub(super) fn most() -> usize {
    const KERNEL_DEFAULT: usize = 65_530;
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    text.trim().parse().unwrap_or(KERNEL_DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let heap = b"55d0c0a00000-55d0c0a21000 rw-p 00000000 00:00 0                  [heap]";
        let mapping = parse(heap).unwrap();
        assert_eq!((mapping.start, mapping.end), (0x55d0_c0a0_0000, 0x55d0_c0a2_1000));
        assert!(mapping.is_data() && mapping.write);
        for (line, plain, data) in [
            (&b"7f0000000000-7f0000001000 r--p 00000000 00:00 0 "[..], true, true),
            (b"7f0000000000-7f0000001000 rwxp 00000000 00:00 0 ", true, false),
            (b"7f0000000000-7f0000001000 ---p 00000000 00:00 0 ", true, false),
            (b"7f0000000000-7f0000001000 rw-s 00000000 00:00 0 ", false, false),
            (b"7f0000000000-7f0000001000 rw-p 00000000 fe:00 77 /tmp/a b", false, false),
            (b"7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0 [stack]", false, false),
            (b"7f0000000000-7f0000001000 rw-p 00000000 00:00 0 [anon:arena]", true, true),
        ] {
            let mapping = parse(line).unwrap();
            assert_eq!((mapping.plain, mapping.is_data()), (plain, data), "{mapping:?}");
        }
        for bad in [&b""[..], b"12", b"12-", b"12-13", b"12-13 rw", b"12-13 rw-p 0 0", b"x-y rw-p"]
        {
            assert_eq!(parse(bad), None);
        }
    }

    #[test]
    fn this_process_is_mapped() {
        let data = vec![1u8; 1 << 20];
        let start = data.as_ptr() as usize;
        let (count, found) = within(start, start + data.len()).unwrap();
        assert!(count > 3);
        assert_eq!(found.iter().map(|part| part.end - part.start).sum::<usize>(), data.len());
        assert!(found.iter().all(|part| part.is_data() && part.write));
        // A buffer shorter than a line gives the same result.
        let mut lines = 0usize;
        walk(&mut [0; 7], |_| {
            lines += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
        assert!(lines.abs_diff(count) < 10, "{lines} {count}");
        assert!(most() > 1000);
    }
}
