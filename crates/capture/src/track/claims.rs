//! Who tracks which memory of this process. Two trackers on the same pages would arm them for each
//! other, and each would miss the writes that the other has seen.

use super::{Pages, Refusal};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Of a tracker, unique in this process.
#[derive(Debug)]
pub(super) struct Owner(u64);

#[derive(Debug, Default)]
struct Claims {
    /// A forked child starts with none.
    process_id: u32,
    claims: Vec<(Pages, u64)>,
}

static CLAIMS: Mutex<Claims> = Mutex::new(Claims { process_id: 0, claims: Vec::new() });
static LAST: AtomicU64 = AtomicU64::new(0);

impl Owner {
    pub fn new() -> Owner {
        Owner(LAST.fetch_add(1, Ordering::Relaxed))
    }

    /// Claims pages that nobody has.
    pub fn claim(&self, pages: Pages) -> Result<(), Refusal> {
        let mut claims = lock();
        let overlap =
            |(other, _): &&(Pages, u64)| pages.start < other.end && other.start < pages.end;
        match claims.claims.iter().find(overlap) {
            None => {
                claims.claims.push((pages, self.0));
                Ok(())
            }
            Some((_, owner)) if *owner == self.0 => {
                Err(Refusal("another region of this job lies in the same memory".into()))
            }
            Some(_) => Err(Refusal("another job of this process tracks it".into())),
        }
    }

    /// Gives a claim back.
    pub fn release(&self, pages: Pages) {
        lock().claims.retain(|claim| *claim != (pages, self.0));
    }

    /// Gives all claims back.
    pub fn release_all(&self) {
        lock().claims.retain(|(_, owner)| *owner != self.0);
    }
}

fn lock() -> MutexGuard<'static, Claims> {
    let mut claims = CLAIMS.lock().unwrap_or_else(PoisonError::into_inner);
    if claims.process_id != std::process::id() {
        *claims = Claims { process_id: std::process::id(), claims: Vec::new() };
    }
    claims
}
