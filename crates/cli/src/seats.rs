//! Keeps the seats of a pool: takes one for this host, gives up hosts that do not answer, and repairs.
//! All nodes of a job run this, and the first one that answers does what has to be done once.

use crate::output::{Reporter, bytes};
use outlive_pool::{Pool, RepairOptions, Seat, SeatState, host_name};
use outlive_store::{FillOptions, Uses, recreate_lost, repair, vacate};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time between two looks at the seats.
const LOOK: Duration = Duration::from_millis(500);

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
    /// Times at which seats were first found to be away.
    away_since: BTreeMap<u32, Instant>,
    /// Table and seats of the last repair that had nothing left to do.
    repaired: Option<(u64, BTreeSet<u32>)>,
    /// The last error that was told.
    told: Option<String>,
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
                // Each node asks each other one: the more there are, the more rarely.
                let seats = of_thread.state.lock().seats();
                thread::park_timeout(LOOK + LOOK / 50 * seats);
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

    /// Returns the seats that have been away for as long as `give_up`.
    fn lost(&mut self, seats: &[Seat], give_up: Duration) -> BTreeSet<u32> {
        let now = Instant::now();
        let away: BTreeSet<u32> =
            seats.iter().filter(|seat| is_away(seat)).map(|seat| seat.id).collect();
        self.away_since.retain(|id, _| away.contains(id));
        let since = &mut self.away_since;
        let is_lost = |id: &u32| *since.entry(*id).or_insert(now) + give_up <= now;
        away.into_iter().filter(is_lost).collect()
    }
}

fn is_away(seat: &Seat) -> bool {
    matches!(seat.state, SeatState::Away(_))
}

impl Shared {
    fn location(&self, folder: &str) -> String {
        format!("{}/{folder}", self.url)
    }

    /// Looks at the seats once, and does what this node has to.
    fn keep(&self, keeper: &mut Keeper) -> Result<()> {
        // A host that was given up, by a process that did not finish that.
        recreate_lost(&self.pool)?;
        let mut seats = self.pool.seats()?;
        let lost = keeper.lost(&seats, self.give_up);
        let mut own = self.own(&seats);
        let is_taken = |seat: &Seat| seat.state == SeatState::Taken;
        let first = seats.iter().find(|seat| is_taken(seat)).map(|seat| seat.id);
        // A node without a seat does it if no other one is there.
        let leads = first == own;
        if leads && !lost.is_empty() {
            vacate(&self.pool, &lost, None)?;
            seats = self.pool.seats()?;
        }
        if own.is_none() || self.has_moved(&seats, own) {
            self.take(&seats)?;
            seats = self.pool.seats()?;
            own = self.own(&seats);
        }
        // A host that is away may come back with all that it has.
        let may_repair = leads && own.is_some() && !seats.iter().any(is_away);
        let repaired = if may_repair { self.repair(keeper, &seats) } else { Ok(()) };
        *self.state.lock() = self.see(&seats, own);
        repaired
    }

    /// Returns the seat of this node.
    fn own(&self, seats: &[Seat]) -> Option<u32> {
        let folder = self.folder.lock();
        let is_own =
            |seat: &&Seat| !folder.is_empty() && seat.location.ends_with(&format!("/{folder}"));
        seats.iter().find(is_own).map(|seat| seat.id)
    }

    /// Returns whether the seat of this node is in the table under another address.
    fn has_moved(&self, seats: &[Seat], own: Option<u32>) -> bool {
        let location = self.location(&self.folder.lock());
        seats.iter().any(|seat| Some(seat.id) == own && seat.location != location)
    }

    /// Takes the seat that this directory had, or a vacant one. Deletes the data of seats that were
    /// given up.
    fn take(&self, seats: &[Seat]) -> Result<()> {
        let (mut own, mut given_up) = (None, Vec::new());
        for folder in self.folders()? {
            match seats.iter().any(|seat| seat.location.ends_with(&format!("/{folder}"))) {
                true if own.is_none() => own = Some(folder),
                true => {}
                false => given_up.push(folder),
            }
        }
        if own.is_none() && !seats.iter().any(|seat| seat.state == SeatState::Vacant) {
            return Ok(());
        }
        let folder = own.unwrap_or_else(|| {
            let mut number = [0; 8];
            self.pool.env().rng.fill(&mut number);
            format!("{}{:016x}", folder_prefix(&self.pool), u64::from_le_bytes(number))
        });
        if self.pool.take_seat(&self.location(&folder), &host_name())?.is_some() {
            *self.folder.lock() = folder;
            given_up.iter().try_for_each(|folder| self.delete(folder))?;
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
        fs::remove_dir_all(&dir).map_err(|error| Error::io("deleting", &dir, &error))
    }

    /// Repairs if seats have come or gone since the last repair.
    fn repair(&self, keeper: &mut Keeper, seats: &[Seat]) -> Result<()> {
        let taken = seats.iter().filter(|seat| seat.state == SeatState::Taken);
        let now = (self.pool.table_seen(), taken.map(|seat| seat.id).collect());
        if keeper.repaired.as_ref() == Some(&now) {
            return Ok(());
        }
        let report = repair(&self.pool, RepairOptions::default())?;
        if report.shards > 0 {
            let written = bytes(report.written_bytes);
            self.pool.warn(match report.shards {
                1 => format!("a shard that was lost with a host is written again, {written}"),
                many => {
                    format!("{many} shards that were lost with a host are written again, {written}")
                }
            });
        }
        // Shards without a place now get one when the next host comes.
        if report.failed.is_empty() {
            keeper.repaired = Some(now);
        }
        Ok(())
    }

    fn see(&self, seats: &[Seat], own: Option<u32>) -> State {
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
        let is_ready = own.is_some() && away == 0 && hosts.len() >= wanted;
        State { own, taken, vacant, away, is_ready }
    }

    /// Gives the seat back once the pool can do without what it holds.
    fn leave(&self, reporter: &Reporter) -> Result<String> {
        let Some(own) = self.own(&self.pool.seats()?) else {
            return Ok("This node has no seat to give back.".to_owned());
        };
        let stays = |why: &str| {
            Error::retry(format!(
                "Seat {own} and its data in {} stay, as {why}. Start this node again with the same --data.",
                self.data.display()
            ))
        };
        if !self.pool.has_slow_tier() {
            return Err(stays("the pool has no slow tier"));
        }
        reporter.busy("copying what the slow tier lacks");
        let filled =
            outlive_store::fill(&self.pool, FillOptions { all: true, ..FillOptions::default() });
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
        vacate(&self.pool, &BTreeSet::from([own]), Some(&Uses))
            .map_err(|error| stays(error.message()))?;
        self.delete(&self.folder.lock())?;
        Ok(format!("The slow tier has everything. Seat {own} is given back."))
    }
}

/// Returns the beginning of the names of a pool's folders on a node.
fn folder_prefix(pool: &Pool) -> String {
    format!("{}-", &pool.config().format.pool_id[..8])
}
