//! Keeps the seats of a pool: takes one for this host, gives up hosts that are gone, and repairs. All
//! nodes of a job run this, and the first one that answers does what has to be done once.

use crate::output::{Reporter, bytes, count};
use outlive_pool::{Pool, RepairOptions, Seat, SeatState, host_name};
use outlive_store::{FillOptions, Uses, leave_seat, recreate_lost, repair, vacate};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, ErrorKind, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time between two looks at the seats, as long as the pool is not ready.
const LOOK: Duration = Duration::from_millis(500);
/// The same once it is ready, at most.
const READY_LOOK: Duration = Duration::from_secs(3);
/// Signs of life in the time after which a host is given up.
const SIGNS: u32 = 4;
/// A host with data that is nowhere else is given up after this many times the usual time.
const PATIENCE: u32 = 5;
/// Time for which a node tries to leave while programs save, or while another command changes the
/// targets. Without locks, as in a bucket, it does not wait for that one in any other way.
const LEAVE_TIME: Duration = Duration::from_secs(60);

/// State of the seats, as this node sees it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct State {
    /// Seat of this node.
    pub own: Option<u32>,
    /// Number of seats whose node answers.
    pub taken: u64,
    /// Number of seats that no node has.
    pub vacant: u64,
    /// Number of seats whose node does not answer.
    pub away: u64,
    /// Whether saves get all their redundancy, and no host is missing that may come back.
    pub is_ready: bool,
    /// Whether the seats were looked at.
    pub is_known: bool,
}

impl State {
    fn seats(&self) -> u32 {
        u32::try_from(self.taken + self.vacant + self.away).unwrap_or(u32::MAX)
    }
}

/// The seat of this host, and the thread that keeps the seats.
pub struct Local {
    shared: Arc<Shared>,
    keeper: Option<JoinHandle<()>>,
}

struct Shared {
    pool: Pool,
    /// URL of the node.
    url: String,
    /// Directory that the node serves.
    data: PathBuf,
    give_up: Duration,
    /// Name of the folder of this node's seat.
    folder: Mutex<String>,
    state: Mutex<State>,
    ends: AtomicBool,
}

/// Memory of the keeper between two looks.
#[derive(Default)]
struct Keeper {
    /// Hosts that do not answer.
    missing: BTreeMap<u32, Missing>,
    /// Table and seats of the last repair that had nothing left to do.
    repaired: Option<(u64, BTreeSet<u32>)>,
    /// Number of signs of life, and the time of the last one.
    signs: u64,
    signed: Option<Instant>,
    /// The last error that was told.
    told: Option<String>,
}

/// A host that does not answer.
struct Missing {
    /// Time since which it neither answers nor gives a sign of life.
    since: Instant,
    /// Its last sign of life.
    sign: Option<Vec<u8>>,
    /// Whether the pool can do without it, and when that was found out.
    needed: Option<(bool, Instant)>,
}

impl Local {
    /// Begins to keep the seats, for a node that serves `data` at `url`.
    ///
    /// # Errors
    /// `Retry` if the system gives no thread.
    pub fn start(pool: Pool, url: String, data: PathBuf, give_up: Duration) -> Result<Local> {
        let shared = Arc::new(Shared {
            folder: Mutex::new(String::new()),
            pool,
            url,
            data,
            give_up,
            state: Mutex::default(),
            ends: AtomicBool::new(false),
        });
        let of_thread = shared.clone();
        let keep = move || {
            let mut keeper = Keeper::default();
            while !of_thread.ends.load(Ordering::Relaxed) {
                let kept = of_thread.keep(&mut keeper);
                keeper.tell(&of_thread.pool, kept.err());
                thread::park_timeout(of_thread.pause());
            }
        };
        let keeper = thread::Builder::new().name("outlive-seats".to_owned()).spawn(keep);
        let keeper = keeper.map_err(|error| Error::no_thread("the seats", &error))?;
        Ok(Local { shared, keeper: Some(keeper) })
    }

    /// Returns the state of the seats.
    pub fn state(&self) -> State {
        self.shared.state.lock().clone()
    }

    /// Returns the location of this node's seat.
    pub fn location(&self) -> String {
        self.shared.location(&self.shared.folder.lock())
    }

    /// Begins to give the seat back. The thread returns the last words.
    pub fn leave(mut self, reporter: Arc<Reporter>) -> JoinHandle<Result<String>> {
        self.shared.ends.store(true, Ordering::Relaxed);
        let (shared, keeper) = (self.shared.clone(), self.keeper.take());
        thread::spawn(move || {
            if let Some(keeper) = keeper {
                keeper.thread().unpark();
                let _ = keeper.join();
            }
            shared.leave(&reporter)
        })
    }
}

impl Keeper {
    /// Warns of an error, once as long as it stays the same.
    fn tell(&mut self, pool: &Pool, error: Option<Error>) {
        let text = error.map(|error| error.message().to_owned());
        if let Some(text) = text.as_ref().filter(|text| self.told.as_ref() != Some(text)) {
            pool.warn(text.clone());
        }
        self.told = text;
    }

    /// Returns the seats whose hosts are gone: they have not answered and given no sign of life for
    /// `give_up`. A host that has something that is nowhere else gets more time.
    fn lost(&mut self, pool: &Pool, seats: &[Seat], give_up: Duration) -> Result<BTreeSet<u32>> {
        let now = Instant::now();
        let away: Vec<&Seat> = seats.iter().filter(|seat| is_away(seat)).collect();
        self.missing.retain(|id, _| away.iter().any(|seat| seat.id == *id));
        let mut lost = BTreeSet::new();
        for seat in away {
            let sign = pool.sign_of(seat)?;
            let begun = || Missing { since: now, sign: sign.clone(), needed: None };
            let missing = self.missing.entry(seat.id).or_insert_with(begun);
            if missing.sign != sign {
                (missing.since, missing.sign) = (now, sign);
            }
            let silent = now.saturating_duration_since(missing.since);
            if silent < give_up {
                continue;
            }
            let is_old = |at: Instant| now.saturating_duration_since(at) > give_up / 2;
            if silent < give_up * PATIENCE && missing.needed.is_none_or(|(_, at)| is_old(at)) {
                // Where it cannot be known, as without the slow tier, it may be needed.
                let is_needed = pool.needed_of(seat.id, &Uses).map_or(true, |why| why.is_some());
                missing.needed = Some((is_needed, now));
            }
            let is_needed = missing.needed.is_some_and(|(is_needed, _)| is_needed);
            if !is_needed || silent >= give_up * PATIENCE {
                lost.insert(seat.id);
            }
        }
        Ok(lost)
    }
}

fn is_away(seat: &Seat) -> bool {
    matches!(seat.state, SeatState::Away(_))
}

/// Returns whether a node answers, and does not have what its seat should have.
fn is_wrong(seat: &Seat) -> bool {
    matches!(&seat.state, SeatState::Away(error) if error.kind() != ErrorKind::Retry)
}

impl Shared {
    fn location(&self, folder: &str) -> String {
        format!("{}/{folder}", self.url)
    }

    /// Returns the time until the next look. Each node asks each other one: the more there are, the
    /// more rarely.
    fn pause(&self) -> Duration {
        let state = self.state.lock();
        let look = match state.is_ready && state.own.is_some() {
            true => (self.give_up / (4 * SIGNS)).clamp(LOOK, READY_LOOK),
            false => LOOK,
        };
        look + LOOK / 50 * state.seats()
    }

    /// Looks at the seats once, and does what this node has to.
    fn keep(&self, keeper: &mut Keeper) -> Result<()> {
        let mut seats = self.pool.seats()?;
        // First its own: others may wait for what it has.
        let own = self.own(&seats);
        if own.is_none_or(|own| own.location != self.location(&self.folder.lock()) || is_wrong(own))
        {
            self.take(&seats)?;
            seats = self.pool.seats()?;
        }
        *self.state.lock() = self.see(&seats);
        let own = self.own(&seats).filter(|own| own.state == SeatState::Taken).map(|own| own.id);
        // Another host may not reach this one, and sees that it is alive all the same.
        let is_due = keeper.signed.is_none_or(|at| at.elapsed() >= self.give_up / SIGNS);
        if own.is_some() && is_due {
            keeper.signs += 1;
            self.pool.give_sign(&self.folder.lock(), &keeper.signs.to_string())?;
            keeper.signed = Some(Instant::now());
        }
        let first = seats.iter().find(|seat| seat.state == SeatState::Taken).map(|seat| seat.id);
        let lost = keeper.lost(&self.pool, &seats, self.give_up)?;
        // A node without a seat does it if no other one is there.
        let mut vacated = Ok(None);
        if first == own && !lost.is_empty() {
            vacated = vacate(&self.pool, &lost);
            let gone = seats.iter().filter(|seat| vacated.is_ok() && lost.contains(&seat.id));
            gone.filter_map(|seat| seat.location.rsplit('/').next())
                .for_each(|folder| self.pool.forget_sign(folder));
            seats = self.pool.seats()?;
            *self.state.lock() = self.see(&seats);
        }
        vacated?;
        // A host was given up by a process that did not finish that. If others are at work, the
        // next look tries again.
        if seats.iter().any(|seat| seat.is_unsettled) {
            recreate_lost(&self.pool, self.give_up / SIGNS)?;
        }
        // A host that is away may come back with all that it has.
        match first == own && own.is_some() && !seats.iter().any(is_away) {
            true => self.repair(keeper, &seats),
            false => Ok(()),
        }
    }

    /// Returns the seat of this node.
    fn own<'a>(&self, seats: &'a [Seat]) -> Option<&'a Seat> {
        let folder = self.folder.lock();
        seats.iter().find(|seat| !folder.is_empty() && is_in(seat, &folder))
    }

    /// Takes the seat that this directory had, or a vacant one. Deletes the data of seats that were
    /// given up.
    fn take(&self, seats: &[Seat]) -> Result<()> {
        let (mut own, mut given_up) = (None, Vec::new());
        for folder in self.folders()? {
            match seats.iter().find(|seat| is_in(seat, &folder)) {
                // Its data is gone: the pool has to hear that before anything is written there.
                Some(seat) if is_wrong(seat) && seat.location == self.location(&folder) => {
                    self.pool.warn(format!("this node has lost the data of seat {}", seat.id));
                    vacate(&self.pool, &BTreeSet::from([seat.id]))?;
                    given_up.push(folder);
                }
                Some(_) if own.is_none() => own = Some(folder),
                Some(_) => {}
                None => given_up.push(folder),
            }
        }
        if own.is_none() && !self.pool.seats()?.iter().any(|seat| seat.state == SeatState::Vacant) {
            return Ok(());
        }
        let folder = own.unwrap_or_else(|| {
            let mut number = [0; 8];
            self.pool.env().rng.fill(&mut number);
            format!("{}{:016x}", folder_prefix(&self.pool), u64::from_le_bytes(number))
        });
        let location = self.location(&folder);
        let answers = outlive_registry::parse(&location)?.check();
        answers.map_err(|error| {
            error.context("this node does not reach itself, so it takes no seat")
        })?;
        *self.folder.lock() = folder;
        if self.pool.take_seat(&location, &host_name())?.is_some() {
            for folder in given_up {
                self.pool.warn(format!(
                    "{} was given up: its old data is deleted",
                    self.data.join(&folder).display()
                ));
                self.delete(&folder)?;
            }
        }
        Ok(())
    }

    /// Returns the folders of this pool's seats in the directory.
    fn folders(&self) -> Result<Vec<String>> {
        let list = |error| Error::io("listing", &self.data, &error);
        let prefix = folder_prefix(&self.pool);
        let mut folders = Vec::new();
        for entry in fs::read_dir(&self.data).map_err(list)? {
            let name = entry.map_err(list)?.file_name();
            folders
                .extend(name.to_str().filter(|name| name.starts_with(&prefix)).map(str::to_owned));
        }
        folders.sort_unstable();
        Ok(folders)
    }

    fn delete(&self, folder: &str) -> Result<()> {
        let dir = self.data.join(folder);
        self.pool.forget_sign(folder);
        fs::remove_dir_all(&dir).map_err(|error| Error::io("deleting", &dir, &error))
    }

    /// Repairs if seats have come or gone since the last repair. Checkpoints that only the slow tier
    /// has stay there.
    fn repair(&self, keeper: &mut Keeper, seats: &[Seat]) -> Result<()> {
        let taken = seats.iter().filter(|seat| seat.state == SeatState::Taken);
        let now = (self.pool.table_seen(), taken.map(|seat| seat.id).collect());
        if keeper.repaired.as_ref() == Some(&now) {
            return Ok(());
        }
        let options = RepairOptions { leaves_slow_only: true, ..RepairOptions::default() };
        let report = repair(&self.pool, options)?;
        if report.shards > 0 {
            let shards = count(report.shards, "shard");
            let written = bytes(report.written_bytes);
            self.pool.warn(format!("{shards} of {written} rebuilt on the hosts that are there"));
        }
        // Shards without a place now get one when the next host comes.
        if report.failed.is_empty() {
            keeper.repaired = Some(now);
        }
        Ok(())
    }

    fn see(&self, seats: &[Seat]) -> State {
        let count =
            |is: fn(&SeatState) -> bool| seats.iter().filter(|seat| is(&seat.state)).count() as u64;
        let taken = count(|state| *state == SeatState::Taken);
        let vacant = count(|state| *state == SeatState::Vacant);
        let hosts: BTreeSet<&str> = seats
            .iter()
            .filter(|seat| seat.state == SeatState::Taken)
            .filter_map(|seat| seat.host.as_deref())
            .collect();
        let geometry = self.pool.config().geometry();
        let wanted = usize::from(geometry.k) + usize::from(geometry.m);
        let away = seats.len() as u64 - taken - vacant;
        let is_ready = away == 0 && hosts.len() >= wanted;
        let own = self.own(seats).map(|seat| seat.id);
        State { own, taken, vacant, away, is_ready, is_known: true }
    }

    /// Gives the seat back once the pool can do without what it holds.
    fn leave(&self, reporter: &Reporter) -> Result<String> {
        let stays = |why: &str| {
            Error::retry(format!(
                "This node's seat and its data in {} stay: {why}. Start the node again with the same --data.",
                self.data.display()
            ))
        };
        let seats = self.pool.seats().map_err(|error| stays(error.message()))?;
        let folders = self.folders()?;
        let own = |seat: &&Seat| folders.iter().any(|folder| is_in(seat, folder));
        let Some(Seat { id, location, .. }) = seats.iter().find(own) else {
            return Ok("This node has no seat to give back.".to_owned());
        };
        if !self.pool.has_slow_tier() {
            return Err(stays("the pool has no slow tier"));
        }
        let mut refused: Option<Instant> = None;
        loop {
            reporter.busy("copying what the slow tier lacks");
            // Other nodes may leave at the same time, and fill, too.
            let all = FillOptions { all: true, waits: true, ..FillOptions::default() };
            let filled = outlive_store::fill(&self.pool, all);
            reporter.finish();
            let filled = filled.map_err(|error| stays(error.message()))?;
            if let Some((_, error)) = filled.failed.first() {
                return Err(stays(error.message()));
            }
            if let Some((job, epoch, error)) = filled.unread.first() {
                return Err(stays(&format!(
                    "checkpoint {epoch} of {job} cannot be read: {}",
                    error.message()
                )));
            }
            match leave_seat(&self.pool, *id) {
                Ok(_) => break,
                Err(error)
                    if error.kind() == ErrorKind::Retry
                        && refused.get_or_insert_with(Instant::now).elapsed() < LEAVE_TIME =>
                {
                    thread::sleep(LOOK);
                }
                // The table may be changed, and the logs not yet: the next program does the rest.
                Err(error) => match self.pool.seats() {
                    Ok(seats) if !seats.iter().any(|seat| seat.id == *id) => break,
                    _ => return Err(stays(error.message())),
                },
            }
        }
        let folder = location.rsplit('/').next().unwrap_or_default();
        let deleted = self.delete(folder);
        Ok(match deleted {
            Ok(()) => format!("The slow tier has everything. Seat {id} is given back."),
            Err(error) => format!(
                "The slow tier has everything. Seat {id} is given back, and its old data is still there: {error}"
            ),
        })
    }
}

/// Returns whether a seat has this folder of a node.
fn is_in(seat: &Seat, folder: &str) -> bool {
    seat.location.ends_with(&format!("/{folder}"))
}

/// Returns the beginning of the names of a pool's folders on a node.
fn folder_prefix(pool: &Pool) -> String {
    format!("{}-", &pool.config().format.pool_id[..8])
}
