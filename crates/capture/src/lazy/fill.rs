//! A fill in progress: the missing memory, the threads that wait for it, and how pages are placed.
//!
//! Bytes from the background go to a *shadow* first: private memory with the same alignment to the
//! hardware's blocks as the program's. Once a unit of 2 MiB is whole there, its pages are moved to
//! the program, huge ones in one step. So no bytes are copied twice, and nothing is in memory
//! twice.
#![allow(unsafe_code)]

use super::address_map::{AddressMap, At, Origin};
use super::sys::{self, Notice, Placed, Shadow, Uffd};
use super::unit::{Unit, WINDOW_BYTES, windows};
use outlive_types::sync::plain::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
use outlive_types::{BLOCK_BYTES, Error, Missing, PAGE_BYTES};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Number of retries for a page if the kernel has no memory, with a pause of 10 ms between.
const MEMORY_ATTEMPTS: u32 = 300;

/// Bytes of pages placed in each way, and the number of faults.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub moved: AtomicU64,
    pub copied: AtomicU64,
    pub zeros: AtomicU64,
    pub faults: AtomicU64,
}

/// One region whose interior is being filled.
#[derive(Debug)]
pub(super) struct Filling {
    pub stream: usize,
    /// Address of the region's first byte.
    start: usize,
    /// The whole pages of the region, by address.
    pub interior: Range<usize>,
    /// Address at which the first unit begins, a multiple of 2 MiB.
    first: usize,
    units: Vec<Mutex<Unit>>,
    /// Units that the background has not brought wholly.
    left_units: AtomicUsize,
    shadow: Shadow,
    /// Whether moving pages was refused permanently.
    copies: AtomicBool,
    /// Number among the fill's regions, by address.
    number: usize,
}

impl Filling {
    /// Prepares a region at `start` whose whole pages are `interior`, which is not empty.
    pub fn new(stream: usize, start: usize, interior: Range<usize>) -> std::io::Result<Filling> {
        let first = interior.start / BLOCK_BYTES * BLOCK_BYTES;
        let count = (interior.end - first).div_ceil(BLOCK_BYTES);
        let units = (0..count).map(|number| {
            let at = first + number * BLOCK_BYTES;
            let range = interior.start.max(at) - at..interior.end.min(at + BLOCK_BYTES) - at;
            Mutex::new(Unit::new(&range))
        });
        Ok(Filling {
            stream,
            start,
            first,
            units: units.collect(),
            left_units: AtomicUsize::new(count),
            shadow: Shadow::new(count * BLOCK_BYTES)?,
            copies: AtomicBool::new(false),
            number: 0,
            interior,
        })
    }

    fn unit(&self, number: usize) -> MutexGuard<'_, Unit> {
        self.units[number].lock()
    }

    /// Returns the address in the shadow for `address`.
    fn shadow_of(&self, address: usize) -> usize {
        self.shadow.start() + (address - self.first)
    }

    /// Returns the range to fill of a unit, by address.
    fn range_of(&self, unit: usize) -> Range<usize> {
        let at = self.first + unit * BLOCK_BYTES;
        self.interior.start.max(at)..self.interior.end.min(at + BLOCK_BYTES)
    }
}

/// All regions of one restore.
#[derive(Debug)]
pub struct MemoryFill {
    uffd: Uffd,
    /// Regions by address.
    fillings: Vec<Filling>,
    by_stream: HashMap<usize, usize>,
    process_id: u32,
    /// Current addresses of the regions. A thread that places pages holds the read lock until they
    /// are placed; a thread that reads notices holds the write lock. So no page is placed by an
    /// outdated table, or in a region that is whole: another fill may have its memory.
    addresses: RwLock<AddressMap>,
    pub(super) counts: Counts,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Regions that are not whole.
    left: usize,
    /// Threads that wait for a region.
    waiting: usize,
    failure: Option<Error>,
}

impl MemoryFill {
    /// Starts with regions that are registered with `uffd` and have lost their pages; `notices` are
    /// the kernel's notices about them since.
    pub(super) fn new(uffd: Uffd, mut fillings: Vec<Filling>, notices: Vec<Notice>) -> MemoryFill {
        fillings.sort_unstable_by_key(|filling| filling.interior.start);
        fillings.iter_mut().enumerate().for_each(|(number, filling)| filling.number = number);
        let state = State { left: fillings.len(), ..State::default() };
        let by_stream = fillings.iter().enumerate().map(|(at, f)| (f.stream, at)).collect();
        let addresses = AddressMap::new(fillings.iter().map(|filling| filling.interior.clone()));
        let fill = MemoryFill {
            uffd,
            fillings,
            by_stream,
            process_id: std::process::id(),
            addresses: RwLock::new(addresses),
            counts: Counts::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
        };
        for notice in notices {
            fill.heed(&mut fill.places_alone(), notice);
        }
        fill
    }

    /// Bytes of shadows that were used, in small and in huge pages.
    pub(super) fn touched(&self) -> [u64; 2] {
        let all = self.fillings.iter().map(|filling| filling.shadow.touched());
        all.fold([0; 2], |[small, huge], [s, h]| [small + s, huge + h])
    }

    fn addresses(&self) -> RwLockReadGuard<'_, AddressMap> {
        self.addresses.read()
    }

    fn places_alone(&self) -> RwLockWriteGuard<'_, AddressMap> {
        self.addresses.write()
    }

    fn is_whole(&self, filling: &Filling) -> bool {
        self.addresses().is_over(filling.number)
    }

    // --- Notices of the kernel -------------------------------------------------------------------

    /// Applies a notice. Returns the region and page that a thread waits for, if one does.
    fn heed(&self, addresses: &mut AddressMap, notice: Notice) -> Option<(usize, usize)> {
        match notice {
            Notice::Fault(address) => match addresses.known(address) {
                Origin::Home(region, home) => return Some((region, home)),
                Origin::Zero => self.zero(address),
            },
            Notice::Moved(from, to) => {
                addresses.moved(&from, to);
                self.uffd.wake(&from);
            }
            Notice::Dropped(range) => {
                addresses.dropped(&range);
                // A thread that waits there was served by the old state, which may be wrong now. It
                // faults again.
                self.uffd.wake(&range);
            }
            Notice::Unmapped(range) => {
                addresses.unmapped(&range);
                self.uffd.wake(&range);
            }
        }
        None
    }

    /// Reads a notice, if there is one: until then, pages cannot be placed. A thread whose fault is
    /// read here faults again.
    fn heed_next(&self) {
        if !self.heed_one(&mut self.places_alone()) {
            std::thread::yield_now();
        }
    }

    /// Reads until no notice is pending.
    fn heed_all<'a>(
        &'a self,
        mut addresses: RwLockWriteGuard<'a, AddressMap>,
    ) -> RwLockWriteGuard<'a, AddressMap> {
        while self.uffd.is_changing() {
            if !self.heed_one(&mut addresses) {
                drop(addresses);
                std::thread::yield_now();
                addresses = self.places_alone();
            }
        }
        addresses
    }

    /// Reads one notice. False if there is none at the moment.
    fn heed_one(&self, addresses: &mut AddressMap) -> bool {
        match self.uffd.read() {
            Some(Notice::Fault(address)) => self.uffd.wake(&(address..address + PAGE_BYTES)),
            Some(notice) => drop(self.heed(addresses, notice)),
            None => return false,
        }
        true
    }

    /// Gives the threads that wait at an address a page of zeros. If that is impossible now, they
    /// fault again.
    fn zero(&self, address: usize) {
        let page = address..address + PAGE_BYTES;
        self.uffd.zero(&page);
        self.uffd.wake(&page);
    }

    // --- Pages -----------------------------------------------------------------------------------

    pub(super) fn filling(&self, stream: usize) -> Option<&Filling> {
        self.by_stream.get(&stream).map(|at| &self.fillings[*at])
    }

    /// Returns the parts of regions that share their pages with other memory: stream and bytes.
    pub(super) fn edges(&self, lengths: &dyn Fn(usize) -> usize) -> Vec<(usize, Range<u64>)> {
        let edges_of = |filling: &Filling| {
            let head = 0..(filling.interior.start - filling.start) as u64;
            let tail =
                (filling.interior.end - filling.start) as u64..lengths(filling.stream) as u64;
            [(filling.stream, head), (filling.stream, tail)]
        };
        let edges = self.fillings.iter().flat_map(edges_of);
        edges.filter(|(_, range)| !range.is_empty()).collect()
    }

    /// Receives verified bytes for a part of a region, or zeros.
    pub(super) fn bring(
        &self,
        filling: &Filling,
        offset: usize,
        length: usize,
        bytes: Option<&[u8]>,
    ) {
        let from = filling.start + offset;
        let range = from.max(filling.interior.start)..(from + length).min(filling.interior.end);
        let mut next = range.start;
        while next < range.end {
            let number = (next - filling.first) / BLOCK_BYTES;
            let at = filling.first + number * BLOCK_BYTES;
            let part = next - at..(range.end - at).min(BLOCK_BYTES);
            next = at + part.end;
            let mut unit = filling.unit(number);
            let mut whole = false;
            for (window, part) in windows(&part) {
                if let Some(bytes) = bytes
                    && !unit.is_placed(window)
                {
                    let bytes = &bytes[at + part.start - from..at + part.end - from];
                    let to = filling.shadow_of(at + part.start);
                    filling.shadow.take(&(to..to + bytes.len()));
                    // SAFETY: the shadow is memory of ours and spans every unit. A thread that
                    // writes a unit's part of it, or moves it away, holds that unit's lock.
                    unsafe { sys::write(to, bytes) };
                }
                whole = unit.bring(window, part.len());
            }
            let last = whole && self.place_unit(filling, number, &mut unit);
            // A thread that waits for this lock may keep the region from being declared whole.
            drop(unit);
            if last {
                self.end(filling);
            }
        }
    }

    /// Places the windows of a unit that faults have not placed, once it is whole in the shadow.
    /// True if it was the last unit.
    fn place_unit(&self, filling: &Filling, number: usize, unit: &mut Unit) -> bool {
        let range = filling.range_of(number);
        let at = filling.first + number * BLOCK_BYTES;
        let relative = range.start - at..range.end - at;
        let mut leftovers = unit.any_placed(&relative);
        for run in unit.unplaced() {
            let part = (at + run.start * WINDOW_BYTES).max(range.start)
                ..(at + run.end * WINDOW_BYTES).min(range.end);
            leftovers |= self.place(filling, &part);
        }
        windows(&relative).for_each(|(window, _)| unit.set_placed(window));
        if unit.is_expected() {
            self.wake(filling, &range);
        }
        if leftovers {
            let shadow = filling.shadow_of(range.start)..filling.shadow_of(range.end);
            // SAFETY: the pages are ours, and everything that was brought is placed. If it fails,
            // they stay until the fill is over.
            let _ = unsafe { sys::drop_pages(&shadow) };
        }
        filling.left_units.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Places pages of the shadow in the program's memory. True if some remain in the shadow.
    fn place(&self, filling: &Filling, range: &Range<usize>) -> bool {
        let mut moving = !filling.copies.load(Ordering::Relaxed);
        let mut copied = !moving;
        let whole = self.place_each(filling, range, &mut |home, to, bytes| {
            let from = filling.shadow_of(home);
            if moving {
                // SAFETY: the unit's lock is held (see `bring`), so no other thread uses its
                // shadow.
                match unsafe { self.uffd.move_pages(to, from, bytes) } {
                    Placed::Refused(done, error) => {
                        (moving, copied) = (false, true);
                        // Pages that a fork ever shared are busy; any other error is permanent.
                        if error.raw_os_error() != Some(libc::EBUSY) {
                            filling.copies.store(true, Ordering::Relaxed);
                        }
                        if done > 0 {
                            return (&self.counts.moved, Placed::Refused(done, error));
                        }
                    }
                    placed => return (&self.counts.moved, placed),
                }
            }
            // SAFETY: as above; memory of a mapping is initialised.
            let bytes = unsafe { sys::slice(from, bytes) };
            (&self.counts.copied, self.uffd.copy(to, bytes))
        });
        copied || !whole
    }

    /// Calls `place` for all of a range of homes at their current addresses, in as many parts as
    /// necessary; it gets a home, its address, and a length. False if some of the range no longer
    /// belongs to the program, or the kernel refused.
    fn place_each<'a>(
        &self,
        filling: &Filling,
        range: &Range<usize>,
        place: &mut dyn FnMut(usize, usize, usize) -> (&'a AtomicU64, Placed),
    ) -> bool {
        let (mut done, mut whole, mut attempts) = (0, true, 0);
        let mut bytes_max = range.len();
        while done < range.len() {
            let home = range.start + done;
            let addresses = self.addresses();
            if addresses.is_over(filling.number) {
                return false;
            }
            let (to, bytes) = match addresses.at(&(home..range.end.min(home + bytes_max))) {
                At::Here(to, bytes) => (to, bytes),
                At::Nowhere(bytes) => {
                    (done, whole) = (done + bytes, false);
                    continue;
                }
            };
            let (count, placed) = place(home, to, bytes);
            let step = match &placed {
                Placed::All => bytes,
                Placed::UntilPresent(step)
                | Placed::Refused(step, _)
                | Placed::NotOne(step)
                | Placed::NotNow(step) => *step,
            };
            count.fetch_add(step as u64, Ordering::Relaxed);
            done += step;
            match placed {
                Placed::All => bytes_max = range.len(),
                Placed::UntilPresent(_) => {
                    self.uffd.wake(&(to + step..to + step + PAGE_BYTES));
                    done += PAGE_BYTES;
                }
                Placed::NotNow(_) => {
                    drop(addresses);
                    self.heed_next();
                }
                Placed::NotOne(_) if bytes - step > PAGE_BYTES => {
                    bytes_max = ((bytes - step) / 2).next_multiple_of(PAGE_BYTES);
                }
                // The program has unmapped the page: no thread waits for it.
                Placed::NotOne(_) => {
                    done += PAGE_BYTES;
                    whole = false;
                }
                Placed::Refused(_, error) => {
                    drop(addresses);
                    attempts += 1;
                    let again = step > 0 || error.raw_os_error() == Some(libc::ENOMEM);
                    if !again || attempts > MEMORY_ATTEMPTS {
                        self.fail(refused(&error));
                        return false;
                    }
                    if step == 0 {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                }
            }
        }
        whole
    }

    /// Waits until the program waits for a range that is not available, and returns it.
    pub(super) fn next_missing(&self) -> Option<Missing> {
        loop {
            if !self.uffd.wait() {
                return None;
            }
            let fault = {
                // The write lock makes sure that no thread places a page by the old state before
                // this notice is applied.
                let mut addresses = self.places_alone();
                self.uffd.read().and_then(|notice| self.heed(&mut addresses, notice))
            };
            let Some((region, home)) = fault else { continue };
            let filling = &self.fillings[region];
            self.counts.faults.fetch_add(1, Ordering::Relaxed);
            let number = (home - filling.first) / BLOCK_BYTES;
            let base = filling.first + number * BLOCK_BYTES;
            let window = (home - base) / WINDOW_BYTES;
            let range = window_of(filling, base, window);
            let unit = filling.unit(number);
            if !unit.is_placed(window) {
                let whole = filling.range_of(number);
                return Some(Missing {
                    stream: filling.stream,
                    offset: (range.start - filling.start) as u64,
                    length: range.len(),
                    is_written: unit.is_brought(window),
                    unit_offset: (whole.start - filling.start) as u64,
                    unit_length: whole.len(),
                });
            }
            // The kernel refused pages of this fill, so a missing page may not be zero. The program
            // ends soon.
            if self.failure().is_some() {
                continue;
            }
            // All pages of a placed window are there, so a missing page is zero.
            let page = &(home..home + PAGE_BYTES);
            self.place_each(filling, page, &mut |_, to, bytes| {
                (&self.counts.zeros, self.uffd.zero(&(to..to + bytes)))
            });
            self.wake(filling, page);
        }
    }

    /// Wakes the threads that wait for these homes. A thread whose page is still missing faults
    /// again.
    fn wake(&self, filling: &Filling, range: &Range<usize>) {
        let addresses = self.addresses();
        let mut home = range.start;
        while home < range.end && !addresses.is_over(filling.number) {
            home += match addresses.at(&(home..range.end)) {
                At::Nowhere(bytes) => bytes,
                At::Here(at, bytes) => {
                    self.uffd.wake(&(at..at + bytes));
                    bytes
                }
            };
        }
    }

    /// Makes the unit of a missing window wake its threads once it is whole. They fault again, and
    /// get a page of zeros where the page is zero.
    pub(super) fn expect(&self, missing: &Missing) {
        let Some(filling) = self.filling(missing.stream) else { return };
        let number = (filling.start + missing.offset as usize - filling.first) / BLOCK_BYTES;
        let mut unit = filling.unit(number);
        if unit.is_whole() {
            self.wake(filling, &filling.range_of(number));
        }
        unit.set_expected(true);
    }

    /// Wakes all threads that wait for whole units: they fault again.
    pub(super) fn expect_nothing(&self) {
        for filling in &self.fillings {
            for number in 0..filling.units.len() {
                let mut unit = filling.unit(number);
                if unit.is_expected() {
                    unit.set_expected(false);
                    self.wake(filling, &filling.range_of(number));
                }
            }
        }
    }

    /// Places the window of a fault, unless the background came first. Without `bytes` it takes
    /// them from the shadow.
    pub(super) fn deliver(&self, missing: &Missing, bytes: Option<&[u8]>) {
        let Some(filling) = self.filling(missing.stream) else { return };
        let address = filling.start + missing.offset as usize;
        let number = (address - filling.first) / BLOCK_BYTES;
        let base = filling.first + number * BLOCK_BYTES;
        let window = (address - base) / WINDOW_BYTES;
        let range = address..address + missing.length;
        let mut unit = filling.unit(number);
        if unit.is_placed(window) {
            self.wake(filling, &range);
            return;
        }
        match bytes {
            Some(bytes) => {
                self.place_each(filling, &range, &mut |home, to, length| {
                    let bytes = &bytes[home - address..][..length];
                    (&self.counts.copied, self.uffd.copy(to, bytes))
                });
                unit.set_placed(window);
            }
            None if unit.is_brought(window) => {
                // Also places the neighbours: a program that reads in order would fault on each of
                // them.
                let run = unit.brought_around(window);
                let at = |window| window_of(filling, base, window);
                self.place(filling, &(at(run.start).start..at(run.end - 1).end));
                run.for_each(|window| unit.set_placed(window));
                // The next fault places a page that is zero.
                self.wake(filling, &range);
            }
            None => {}
        }
    }

    /// Ends a region that is whole: its missing pages are zero, and the kernel may place them
    /// itself.
    fn end(&self, filling: &Filling) {
        // Without a pending notice, all pieces are where the table says. With one, something else
        // may be there, perhaps another region, and moved memory would stay registered.
        let mut addresses = self.heed_all(self.places_alone());
        loop {
            let pieces = addresses.of(filling.number);
            let refusals = pieces.filter_map(|at| self.uffd.unregister(at).err());
            // EINVAL: something else is mapped there, or nothing.
            let refusal =
                refusals.filter(|error| error.raw_os_error() != Some(libc::EINVAL)).last();
            if let Some(error) = refusal {
                drop(addresses);
                return self.fail(refused(&error));
            }
            if !self.uffd.is_changing() {
                break;
            }
            addresses = self.heed_all(addresses);
        }
        addresses.set_over(filling.number);
        drop(addresses);
        self.state().left -= 1;
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn fail(&self, error: Error) {
        self.state().failure.get_or_insert(error);
        self.changed.notify_all();
    }

    pub(super) fn failure(&self) -> Option<Error> {
        self.state().failure.clone()
    }

    /// Waits until a region, or all of them, are whole, or it is clear that they never will be.
    /// False if that takes longer than `timeout`.
    pub(super) fn wait_for(&self, stream: Option<usize>, timeout: Option<Duration>) -> bool {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.state();
        loop {
            let over = match stream {
                None => state.left == 0,
                Some(stream) => self.filling(stream).is_none_or(|filling| self.is_whole(filling)),
            };
            if over || state.failure.is_some() {
                return true;
            }
            let left = match until {
                None => Duration::from_secs(3600),
                Some(until) => match until.checked_duration_since(Instant::now()) {
                    None => return false,
                    Some(left) => left,
                },
            };
            state.waiting += 1;
            let waited = self.changed.wait_timeout(state, left);
            state = waited.0;
            state.waiting -= 1;
        }
    }

    /// Waits until nothing of these addresses is missing. `None` if that takes longer than
    /// `timeout`.
    ///
    /// # Errors
    /// If some of it will stay missing forever.
    pub(super) fn wait_for_parts(
        &self,
        parts: &[Range<usize>],
        timeout: Option<Duration>,
    ) -> Option<outlive_types::Result<()>> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let regions = self.addresses().overlapping(parts);
        for filling in regions.into_iter().map(|region| &self.fillings[region]) {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if !self.wait_for(Some(filling.stream), left) {
                return None;
            }
            if !self.is_whole(filling) {
                return Some(self.failure().map_or(Ok(()), Err));
            }
        }
        Some(Ok(()))
    }

    /// Waits for all regions.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> bool {
        self.wait_for(None, timeout)
    }

    /// Number of threads that wait at present.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.state().waiting
    }

    /// False in a forked child: no thread fills there, and locks that other threads of the parent
    /// held at the fork stay locked.
    pub(super) fn is_ours(&self) -> bool {
        self.process_id == std::process::id()
    }

    /// Runs `work` with the lock held, as a thread of the fill holds it for a moment.
    #[cfg(test)]
    pub(super) fn with_the_lock(&self, work: impl FnOnce()) {
        let _held = self.state();
        work();
    }

    /// True if the kernel has a page of the program registered with this fill.
    #[cfg(test)]
    pub(super) fn is_registered(&self, page: usize) -> bool {
        let placed = self.uffd.zero(&(page..page + PAGE_BYTES));
        assert!(!matches!(placed, Placed::NotNow(_)), "a notice is under way");
        matches!(placed, Placed::All | Placed::UntilPresent(_))
    }

    pub(super) fn is_over(&self) -> bool {
        let state = self.state();
        state.left == 0 || state.failure.is_some()
    }

    /// Ends the fill before it is whole: forks and waits must not wait for it.
    pub(super) fn give_up(&self) {
        self.fail(Error::retry("the fill was given up before it was whole"));
    }

    /// See [`LazyMemory::stop`](super::LazyMemory::stop).
    pub(super) fn stop(&self) {
        // Without the lock: a thread that waits to fork continues now.
        let left = self.state().left;
        match left {
            // Mappings that the program has extended since are registered as well.
            0 => self.uffd.close(),
            _ => self.uffd.stop(),
        }
    }

    /// Lets go of the memory: no thread waits for it or for its notices, even if others hold this
    /// fill.
    pub(super) fn detach(&self) {
        self.uffd.close();
    }
}

impl Drop for MemoryFill {
    /// Gives regions that never became whole back to the program, with their current content.
    fn drop(&mut self) {
        let addresses = self.addresses();
        for filling in self.fillings.iter().filter(|filling| !addresses.is_over(filling.number)) {
            for at in addresses.of(filling.number) {
                let _ = self.uffd.unregister(at);
            }
        }
    }
}

fn window_of(filling: &Filling, base: usize, window: usize) -> Range<usize> {
    let at = base + window * WINDOW_BYTES;
    at.max(filling.interior.start)..(at + WINDOW_BYTES).min(filling.interior.end)
}

fn refused(error: &std::io::Error) -> Error {
    let text = format!("the kernel does not take restored memory: {error}");
    match error.raw_os_error() {
        Some(libc::ENOMEM) => Error::full(text),
        _ => Error::bug(text),
    }
}

/// Makes the first touch of a region's pages wait, and drops their content.
pub(super) fn arm(uffd: &Uffd, interior: &Range<usize>) -> Result<(), String> {
    let told = |error: std::io::Error| match error.raw_os_error() {
        Some(libc::EBUSY) => {
            "another restore of this process fills it, or a library of the program \
                              has it, by a userfaultfd of its own: wait for that"
                .to_owned()
        }
        _ => error.to_string(),
    };
    uffd.register(interior).map_err(told)?;
    // SAFETY: the creator of the `MutRegion` has given up its content (`MutRegion::from_raw`). The
    // range is private and anonymous, as the caller has checked.
    unsafe { sys::drop_pages(interior) }.map_err(|error| {
        let _ = uffd.unregister(interior);
        told(error)
    })
}
