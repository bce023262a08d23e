//! Checks the kind of memory of a range, by `/proc/self/maps` (proc_pid_maps(5)).

use super::{Pages, Refusal};
use std::fs::File;
use std::io::{BufRead, BufReader};

/// Refuses pages that are not private, anonymous and writable. Other memory may change without an
/// entry in this process's page table: through a file, another mapping or another process.
pub(super) fn check_private(pages: Pages) -> Result<(), Refusal> {
    let unreadable =
        |error: std::io::Error| Refusal(format!("/proc/self/maps cannot be read ({error})"));
    let mut maps = BufReader::new(File::open("/proc/self/maps").map_err(unreadable)?);
    let mut covered = pages.start;
    let mut line = String::new();
    while covered < pages.end && maps.read_line(&mut line).map_err(unreadable)? > 0 {
        if let Some(mapping) = Mapping::parse(&line)
            && mapping.pages.start <= covered
            && covered < mapping.pages.end
        {
            mapping.check()?;
            covered = mapping.pages.end;
        }
        line.clear();
    }
    if covered < pages.end {
        return Err(Refusal(format!("nothing is mapped at {covered:#x}")));
    }
    Ok(())
}

struct Mapping<'a> {
    pages: Pages,
    permissions: &'a str,
    inode: &'a str,
}

impl Mapping<'_> {
    fn parse(line: &str) -> Option<Mapping<'_>> {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        let pages = Pages { start: address(start)?, end: address(end)? };
        let permissions = fields.next()?;
        Some(Mapping { pages, permissions, inode: fields.nth(2)? })
    }

    fn check(&self) -> Result<(), Refusal> {
        if self.permissions.ends_with('s') {
            return Err(Refusal("it is shared memory, which others may write unseen".into()));
        }
        if self.inode != "0" {
            return Err(Refusal("it is mapped from a file, which may change unseen".into()));
        }
        if !self.permissions.starts_with("rw") {
            return Err(Refusal("it cannot be written at present".into()));
        }
        Ok(())
    }
}
