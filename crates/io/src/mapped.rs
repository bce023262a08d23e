//! Flags of mappings as the kernel reports them; for tests.

use std::fs;

/// Returns the flags of the mapping that holds an address, as `/proc/self/smaps` names them, each
/// after a space.
///
/// # Panics
/// If nothing is mapped there.
pub fn flags_at(address: usize) -> String {
    let smaps = fs::read_to_string("/proc/self/smaps").expect("a process may read its own");
    let number = |text: &str| usize::from_str_radix(text, 16).ok();
    let mut is_inside = false;
    for line in smaps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        match range.and_then(|(start, end)| Some(number(start)?..number(end)?)) {
            Some(range) => is_inside = range.contains(&address),
            None => {
                if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| is_inside) {
                    return flags.to_owned();
                }
            }
        }
    }
    panic!("nothing is mapped at {address:x}")
}
