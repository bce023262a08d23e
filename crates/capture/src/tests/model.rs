//! Random programs: every freeze is compared, byte by byte, with the memory at the freeze.

use super::*;
use outlive_types::{PACKED_BELOW_BYTES, PACKED_STREAM, SharedImage, SharedRun};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;

#[derive(Clone, Debug)]
enum Step {
    /// Writes `byte` to some bytes of a region.
    Edit {
        region: usize,
        at: usize,
        length: usize,
        byte: u8,
    },
    /// Gives a region another length; new bytes are zero.
    Resize {
        region: usize,
        length: usize,
    },
    Add {
        name: u8,
        length: usize,
    },
    Remove {
        region: usize,
    },
    /// Puts the regions in another order.
    Rotate,
    Save {
        settle: bool,
        known: bool,
        budget_bytes: u64,
        mode: FreezeMode,
        also: Vec<(u8, u64, u64)>,
    },
    Forget,
    /// Primes the tracker as after a restore of the present memory.
    Prime,
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![
        Just(0),
        1usize..5000,
        PACKED_BELOW_BYTES - 2..PACKED_BELOW_BYTES + 2,
        PACKED_BELOW_BYTES..200_000,
        (2usize << 20) - 5000..(2 << 20) + 10_000,
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let edit = (0usize..8, 0usize..3 << 20, prop_oneof![Just(1usize), 1usize..20_000], 0u8..3)
        .prop_map(|(region, at, length, byte)| Step::Edit { region, at, length, byte });
    let save = (
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.9),
        prop_oneof![Just(0u64), 0u64..300_000, Just(u64::MAX)],
        prop_oneof![Just(FreezeMode::Copy), Just(FreezeMode::Fork)],
        prop::collection::vec((0u8..10, 0u64..600, 0u64..20), 0..4),
    )
        .prop_map(|(settle, known, budget_bytes, mode, also)| Step::Save {
            settle,
            known,
            budget_bytes,
            mode,
            also,
        });
    prop_oneof![
        8 => edit,
        8 => save,
        2 => (0usize..8, length()).prop_map(|(region, length)| Step::Resize { region, length }),
        2 => (0u8..10, length()).prop_map(|(name, length)| Step::Add { name, length }),
        1 => (0usize..8).prop_map(|region| Step::Remove { region }),
        1 => Just(Step::Rotate),
        1 => Just(Step::Forget),
        1 => Just(Step::Prime),
    ]
}

/// The streams of an image, by name.
type Image = BTreeMap<String, Vec<u8>>;

struct Program {
    tracker: Arc<ChangeTracker>,
    regions: Vec<(String, Vec<u8>)>,
    /// Expected baseline of the tracker: its epoch and image.
    baseline: Option<(u64, Image)>,
    epoch: u64,
}

impl Program {
    fn image(&self) -> Image {
        let mut image = Image::new();
        for (name, bytes) in &self.regions {
            if bytes.len() >= PACKED_BELOW_BYTES {
                image.insert(name.clone(), bytes.clone());
            } else {
                let packed = image.entry(PACKED_STREAM.into()).or_default();
                packed.resize(packed.len().div_ceil(16) * 16, 0);
                packed.extend(bytes);
            }
        }
        image
    }

    fn regions(&self) -> Vec<Region> {
        self.regions.iter().map(|(name, bytes)| raw(name, bytes)).collect()
    }

    fn step(&mut self, step: Step) {
        let count = self.regions.len();
        match step {
            Step::Edit { region, at, length, byte } if count > 0 => {
                let bytes = &mut self.regions[region % count].1;
                if !bytes.is_empty() {
                    let at = at % bytes.len();
                    let end = (at + length).min(bytes.len());
                    bytes[at..end].fill(byte);
                }
            }
            Step::Resize { region, length } if count > 0 => {
                self.regions[region % count].1.resize(length, 0);
            }
            Step::Add { name, length } => {
                let name = format!("region {name}");
                if self.regions.iter().all(|(other, _)| *other != name) {
                    self.regions.push((name, vec![0; length]));
                }
            }
            Step::Remove { region } if count > 0 => drop(self.regions.remove(region % count)),
            Step::Rotate if count > 0 => self.regions.rotate_left(1),
            Step::Save { settle, known, budget_bytes, mode, also } => {
                self.save(settle, known, (mode, budget_bytes), &also);
            }
            Step::Forget => {
                self.tracker.forget();
                self.baseline = None;
            }
            Step::Prime => {
                let image = self.image();
                self.epoch += 1;
                let streams: Vec<_> = image.iter().map(|(n, bytes)| (&n[..], &bytes[..])).collect();
                self.tracker.prime(self.epoch, &streams, 2);
                self.baseline = Some((self.epoch, image));
            }
            _ => {}
        }
    }

    fn save(
        &mut self,
        settle: bool,
        known: bool,
        (freeze_mode, budget_bytes): (FreezeMode, u64),
        wanted: &[(u8, u64, u64)],
    ) {
        assert_eq!(self.tracker.baseline(), self.baseline.as_ref().map(|(epoch, _)| *epoch));
        let now = self.image();
        let request = FreezeRequest {
            baseline: if known { self.tracker.baseline() } else { Some(u64::MAX) },
            also: wanted
                .iter()
                .map(|(name, first, count)| also(&format!("region {name}"), *first, *count))
                .chain(wanted.iter().map(|(_, first, count)| also("", *first, *count)))
                .collect(),
            freeze_bytes_max: budget_bytes,
            freeze: freeze_mode,
            is_shared: self.epoch.is_multiple_of(3),
        };
        let frozen = freeze(&self.tracker, self.regions(), &request).unwrap();
        let streams: BTreeSet<_> = frozen.streams().iter().map(|s| s.name.clone()).collect();
        assert_eq!(streams, now.keys().cloned().collect());
        assert_eq!(pages_of_runs(&*frozen), self.expected_pages(&now, &request));
        check_bytes(&*frozen, &now, 0);
        let report = frozen.report();
        match freeze_mode {
            FreezeMode::Fork => {
                assert_eq!((frozen.live_runs(), report.copied_bytes), (0, 0), "{}", report.freeze);
            }
            _ => check_budget(&*frozen, budget_bytes),
        }

        frozen.release_live();
        let scribble = |program: &mut Program| {
            for (_, bytes) in &mut program.regions {
                bytes.iter_mut().for_each(|byte| *byte ^= 0xFF);
            }
        };
        scribble(self);
        check_bytes(&*frozen, &now, frozen.live_runs());
        check_shared(&*frozen, &now, request.is_shared, budget_bytes);
        self.epoch += 1;
        if settle {
            frozen.commit_baseline(Some(self.epoch));
            self.baseline = Some((self.epoch, now));
        } else if self.epoch.is_multiple_of(2) {
            frozen.commit_baseline(None);
        }
        drop(frozen);
        scribble(self);
    }

    /// Returns the pages, as stream name and number, that differ from the baseline or are
    /// requested.
    fn expected_pages(&self, now: &Image, request: &FreezeRequest) -> BTreeSet<(String, u64)> {
        let old = self
            .baseline
            .as_ref()
            .filter(|(epoch, _)| request.baseline == Some(*epoch))
            .map(|(_, image)| image);
        let mut pages = BTreeSet::new();
        for (name, bytes) in now {
            let old = old.and_then(|image| image.get(name));
            for (page, bytes) in bytes.chunks(PAGE_BYTES).enumerate() {
                let clean = old.and_then(|old| old.chunks(PAGE_BYTES).nth(page)) == Some(bytes);
                let wanted = request.also.iter().any(|(wanted, range)| {
                    wanted == name
                        && (range.first..range.first + range.count).contains(&(page as u64))
                });
                if !clean || wanted {
                    pages.insert((name.clone(), page as u64));
                }
            }
        }
        pages
    }
}

/// Checks the bytes that another process would read.
fn check_shared(frozen: &dyn Frozen, now: &Image, is_shared: bool, budget_bytes: u64) {
    let shared = frozen.shared();
    if !is_shared || frozen.live_runs() > 0 {
        return assert!(shared.is_err());
    }
    if shared.is_err() {
        // A constant part does not fit into the budget.
        let total: usize = (0..frozen.runs().len()).map(|run| held(frozen, run).len()).sum();
        return assert!(total as u64 > budget_bytes, "{shared:?}");
    }
    let SharedImage { copies, child, runs } = shared.unwrap();
    let copies = copies.map(|file| File::from(file.try_clone().unwrap()));
    assert_eq!(runs.len(), frozen.runs().len());
    for (run, at) in frozen.runs().iter().zip(runs) {
        let stream = &frozen.streams()[run.stream as usize];
        let (offset, length) = crate::runs::extent(run, stream.bytes);
        let mut bytes = vec![0; length];
        match at {
            SharedRun::Copied(at) => copies.as_ref().unwrap().read_exact_at(&mut bytes, at),
            SharedRun::Forked(at) => child.as_ref().unwrap().memory.read_exact_at(&mut bytes, at),
        }
        .unwrap();
        assert!(bytes == now[&stream.name][offset..][..length]);
    }
}

/// Returns the pages of the runs, which are in order, disjoint, and within blocks.
fn pages_of_runs(frozen: &dyn Frozen) -> BTreeSet<(String, u64)> {
    let mut pages = BTreeSet::new();
    let mut end = (0, 0);
    for run in frozen.runs() {
        assert!((run.stream, run.first_page) >= end, "runs are sorted and do not overlap");
        assert!(run.pages >= 1 && run.first_page % 512 + u64::from(run.pages) <= 512);
        end = (run.stream, run.first_page + u64::from(run.pages));
        let name = &frozen.streams()[run.stream as usize].name;
        pages.extend((run.first_page..end.1).map(|page| (name.clone(), page)));
    }
    pages
}

/// Checks that runs from `first` on hold the memory as of the freeze.
fn check_bytes(frozen: &dyn Frozen, now: &Image, first: usize) {
    for number in first..frozen.runs().len() {
        let run = &frozen.runs()[number];
        let bytes = &now[&frozen.streams()[run.stream as usize].name];
        let start = run.first_page as usize * PAGE_BYTES;
        let end = (start + run.pages as usize * PAGE_BYTES).min(bytes.len());
        assert!(held(frozen, number) == bytes[start..end], "run {number}: {run:?}");
    }
}

/// Checks that no more is copied than allowed, and as much as fits.
fn check_budget(frozen: &dyn Frozen, budget_bytes: u64) {
    let length = |number: usize| {
        let packed = frozen.streams()[frozen.runs()[number].stream as usize].name.is_empty();
        if packed { 0 } else { held(frozen, number).len() as u64 }
    };
    let live = frozen.live_runs();
    let copied: u64 = (live..frozen.runs().len()).map(length).sum();
    assert!(copied <= budget_bytes);
    assert!(live == 0 || copied + length(live - 1) > budget_bytes, "one more would have fitted");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn runs_are_exactly_the_changed_pages(steps in prop::collection::vec(step(), 1..40)) {
        let _turn = crate::fork::tests::alone();
        let mut program = Program {
            tracker: Arc::new(ChangeTracker::new()),
            regions: vec![("region 0".into(), vec![0; 3 << 20]), ("region 1".into(), vec![0; 9000])],
            baseline: None,
            epoch: 0,
        };
        steps.into_iter().for_each(|step| program.step(step));
    }
}
