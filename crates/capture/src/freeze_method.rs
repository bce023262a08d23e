//! Choice between copy and fork for a freeze, and its reason: by dirty bytes, budget, and the cost
//! of a fork.

use crate::fork::{Filled, ForkImage, KeptFrom, Mappings, available_bytes};
use crate::track::Refusal;
use outlive_types::{FreezeMode, shown_bytes};
use std::ops::Range;

/// Fixed cost of a fork while the program stands, in seconds: a thread and a process.
const FORK_S: f64 = 0.001;
/// Approximate cost of writing a GiB while the program stands, in seconds; it depends on the disk.
const DRAIN_S_PER_GIB: f64 = 0.35;

/// Known facts about the memory to freeze.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Dirty {
    /// Bytes that were written and lie in the program's memory.
    pub bytes: u64,
    /// Bytes of the part that a fork does not freeze.
    pub unfrozen_bytes: u64,
    /// Budget for copies.
    pub bytes_max: u64,
}

/// Known facts about the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process {
    /// Anonymous memory that a child would get.
    pub forked: Filled,
    /// Memory left to the process, if that is known.
    pub available_bytes: Option<u64>,
}

/// Whether to fork, and the reason, as the continuation of a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum FreezeMethod {
    Copy(String),
    Fork(String),
}

/// Returns the choice where it does not depend on the process; `None` where it does.
pub(crate) fn at_once(mode: FreezeMode, dirty: Dirty) -> Option<FreezeMethod> {
    let budget = shown_bytes(dirty.bytes_max);
    let bytes = shown_bytes(dirty.bytes);
    if dirty.bytes == 0 {
        return Some(FreezeMethod::Copy(
            "nothing of the program's own memory is to be held".to_owned(),
        ));
    }
    match mode {
        FreezeMode::Copy => Some(FreezeMethod::Copy("as freeze = \"copy\" asks".to_owned())),
        FreezeMode::Fork => None,
        FreezeMode::Auto | FreezeMode::Precopy | FreezeMode::Helper => (dirty.bytes
            <= dirty.bytes_max)
            .then(|| FreezeMethod::Copy(format!("{bytes} fit into freeze_bytes_max = {budget}"))),
    }
}

/// Makes the choices that [`at_once`] leaves open. An explicit request for a fork is refused only
/// where the fork would not freeze the memory. Without a request it must also pay, and have room:
/// the program may rewrite all dirty memory while the child keeps the old pages.
pub(crate) fn choose(mode: FreezeMode, dirty: Dirty, process: Process) -> FreezeMethod {
    let budget = shown_bytes(dirty.bytes_max);
    let bytes = shown_bytes(dirty.bytes);
    if dirty.unfrozen_bytes > dirty.bytes_max {
        return FreezeMethod::Copy(format!(
            "of {bytes}, {} are shared, of files or kept from children, which a fork does not freeze, \
             and exceed freeze_bytes_max = {budget}",
            shown_bytes(dirty.unfrozen_bytes)
        ));
    }
    if mode == FreezeMode::Fork {
        return FreezeMethod::Fork("as freeze = \"fork\" asks".to_owned());
    }
    let held_bytes = dirty.bytes - dirty.unfrozen_bytes;
    if let Some(available_bytes) = process.available_bytes
        && available_bytes < held_bytes + held_bytes / 8
    {
        return FreezeMethod::Copy(format!(
            "a fork could come to keep {} twice, and only {} of memory are left",
            shown_bytes(held_bytes),
            shown_bytes(available_bytes)
        ));
    }
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let fork_s = FORK_S + process.forked.fork_s();
    let drain_s = gib(dirty.bytes - dirty.bytes_max.min(dirty.bytes)) * DRAIN_S_PER_GIB;
    let memory = format!(
        "{} in 4 KiB pages and {} in huge ones",
        shown_bytes(process.forked.bytes.saturating_sub(process.forked.huge_bytes)),
        shown_bytes(process.forked.huge_bytes)
    );
    if fork_s > drain_s {
        return FreezeMethod::Copy(format!(
            "to fork {memory} would take longer than to write what of {bytes} exceeds \
             freeze_bytes_max = {budget}"
        ));
    }
    FreezeMethod::Fork(format!(
        "{bytes} exceed freeze_bytes_max = {budget}; the child gets {memory}"
    ))
}

/// A fork, if it was chosen and succeeded, with the memory that it freezes.
pub(crate) struct ForkOutcome {
    /// The image, and the mappings from which it was taken.
    pub fork: Option<(ForkImage, Mappings)>,
    /// The method and its reason, for the report.
    pub why: String,
}

/// Memory that a child must hold.
#[derive(Debug, Default)]
pub(crate) struct ToHold {
    /// Addresses, sorted and disjoint.
    pub ranges: Vec<Range<usize>>,
    /// Other dirty bytes, which a fork would not freeze.
    pub unfrozen_bytes: u64,
}

/// Chooses the method, and forks if that was chosen. `to_hold` plans the fork from the mappings;
/// `before_fork` is called just before it, with the ranges that the child must hold. If other
/// processes are to read the image, the child does not end with this process.
pub(crate) fn take(
    mode: FreezeMode,
    is_shared: bool,
    mut dirty: Dirty,
    to_hold: impl FnOnce(&Mappings) -> ToHold,
    before_fork: impl FnOnce(&[Range<usize>]),
) -> ForkOutcome {
    let copy = |why: String| ForkOutcome { fork: None, why: format!("copy: {why}") };
    if let Some(FreezeMethod::Copy(why)) = at_once(mode, dirty) {
        return copy(why);
    }
    let refused = |Refusal(why)| copy(format!("no fork: {why}"));
    let mappings = match Mappings::read() {
        Ok(mappings) => mappings,
        Err(refusal) => return refused(refusal),
    };
    let ToHold { ranges, unfrozen_bytes } = to_hold(&mappings);
    dirty.unfrozen_bytes = unfrozen_bytes;
    let KeptFrom { ranges: kept_from, filled } = mappings.kept_from(&ranges);
    let forked = mappings.filled.less(filled);
    let process = Process { forked, available_bytes: available_bytes() };
    match choose(mode, dirty, process) {
        FreezeMethod::Copy(why) => copy(why),
        FreezeMethod::Fork(why) => {
            before_fork(&ranges);
            match ForkImage::take(kept_from, is_shared) {
                Ok(image) => {
                    ForkOutcome { fork: Some((image, mappings)), why: format!("fork: {why}") }
                }
                Err(refusal) => refused(refusal),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn dirty(bytes: u64) -> Dirty {
        Dirty { bytes, unfrozen_bytes: 0, bytes_max: 64 * MIB }
    }

    fn process(small_bytes: u64, huge_bytes: u64) -> Process {
        let forked = Filled { bytes: small_bytes + huge_bytes, huge_bytes };
        Process { forked, available_bytes: Some(8 * GIB) }
    }

    #[test]
    fn a_small_change_is_copied_and_a_copy_that_is_asked_for() {
        let fits = at_once(FreezeMode::Auto, dirty(64 * MIB));
        let Some(FreezeMethod::Copy(why)) = fits else { panic!("{fits:?}") };
        assert_eq!(why, "64.0 MiB fit into freeze_bytes_max = 64.0 MiB");
        assert_eq!(at_once(FreezeMode::Auto, dirty(64 * MIB + 1)), None);
        assert_eq!(at_once(FreezeMode::Fork, dirty(1)), None);
        let none = |mode| matches!(at_once(mode, dirty(0)), Some(FreezeMethod::Copy(_)));
        assert!(FreezeMode::ALL.into_iter().all(none));
        assert!(matches!(at_once(FreezeMode::Copy, dirty(GIB)), Some(FreezeMethod::Copy(_))));
    }

    #[test]
    fn a_large_change_is_forked_where_that_pays_and_has_room() {
        let forked = |dirty, process| match choose(FreezeMode::Auto, dirty, process) {
            FreezeMethod::Fork(_) => true,
            FreezeMethod::Copy(why) => {
                println!("{why}");
                false
            }
        };
        assert!(forked(dirty(GIB), process(0, 4 * GIB)));
        assert!(forked(dirty(GIB), process(4 * GIB, 0)));
        // 32 GiB of small pages take 0.8 s; half a GiB is written sooner.
        assert!(!forked(dirty(GIB / 2), process(32 * GIB, 0)));
        assert!(forked(dirty(GIB / 2), process(0, 32 * GIB)));
        let tight = |available| Process { available_bytes: available, ..process(0, 4 * GIB) };
        assert!(!forked(dirty(GIB), tight(Some(GIB))));
        assert!(forked(dirty(GIB), tight(Some(GIB + GIB / 8))));
        assert!(forked(dirty(GIB), tight(None)), "nothing speaks against it");
        let shared = |unfrozen_bytes| Dirty { unfrozen_bytes, ..dirty(GIB) };
        assert!(forked(shared(64 * MIB), process(0, GIB)));
        assert!(!forked(shared(64 * MIB + 1), process(0, GIB)));
    }

    #[test]
    fn a_fork_that_is_asked_for_is_only_refused_if_it_would_not_freeze() {
        let asked = |dirty, process| {
            matches!(choose(FreezeMode::Fork, dirty, process), FreezeMethod::Fork(_))
        };
        assert!(asked(dirty(MIB), Process { available_bytes: Some(0), ..process(GIB, 0) }));
        assert!(!asked(Dirty { unfrozen_bytes: GIB, ..dirty(2 * GIB) }, process(0, GIB)));
    }
}
