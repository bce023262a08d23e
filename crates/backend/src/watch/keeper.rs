//! The thread that lets time pass for all watches of a process. Other threads with timers may wait
//! for a target meanwhile, so they cannot notice its silence.

use super::TargetWatch;
use outlive_io::PerProcess;
use outlive_types::sync::plain::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Time between two ticks.
const PULSE: Duration = Duration::from_secs(1);

/// The watches that have work to watch.
#[derive(Default)]
struct Keeper {
    watches: Mutex<Vec<Weak<TargetWatch>>>,
    arrived: Condvar,
}

/// Starts at first need. A forked child starts its own.
static KEEPER: PerProcess<Option<Arc<Keeper>>> = PerProcess::new(|_| None);

/// Ticks a watch until it has no work to watch. If no thread can start, nothing is given up, as
/// without a watch.
pub(super) fn keep(watch: &Arc<TargetWatch>) {
    let keeper = {
        let mut known = KEEPER.lock();
        if known.is_none() {
            let keeper = Arc::<Keeper>::default();
            let its = keeper.clone();
            let thread = thread::Builder::new().name("outlive-watch".to_owned());
            *known = thread.spawn(move || its.serve()).ok().map(|_| keeper);
        }
        known.clone()
    };
    if let Some(keeper) = keeper {
        keeper.watches.lock().push(Arc::downgrade(watch));
        keeper.arrived.notify_one();
    }
}

impl Keeper {
    fn serve(&self) {
        loop {
            let mut watches = self.watches.lock();
            while watches.is_empty() {
                watches = self.arrived.wait(watches);
            }
            drop(watches);
            thread::sleep(PULSE);
            let mut watches = {
                let mut watches = self.watches.lock();
                std::mem::take(&mut *watches)
            };
            let now = Instant::now();
            watches.retain(|watch| {
                watch.upgrade().is_some_and(|watch| {
                    watch.beat(now);
                    watch.tick(now)
                })
            });
            self.watches.lock().append(&mut watches);
        }
    }
}
