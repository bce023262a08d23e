//! Claims of trackers on memory of this process. Two trackers on the same pages would arm them for
//! each other, and each would miss writes that the other has seen.

use super::{Pages, Refusal, TrackerKind};
use outlive_types::sync::plain::{Mutex, MutexGuard};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A tracker, unique in this process.
#[derive(Debug)]
pub(super) struct Owner {
    number: u64,
    kind: TrackerKind,
    /// The job that it serves, if that is known.
    job: OnceLock<String>,
}

#[derive(Debug, Default)]
struct Claims {
    /// The process of the claims; a forked child starts without claims.
    process_id: u32,
    claims: Vec<Claim>,
}

#[derive(Debug)]
struct Claim {
    pages: Pages,
    owner: u64,
    /// Description of the owner, for people.
    who: String,
}

static CLAIMS: Mutex<Claims> = Mutex::new(Claims { process_id: 0, claims: Vec::new() });
static LAST: AtomicU64 = AtomicU64::new(0);

impl Owner {
    pub fn new(kind: TrackerKind) -> Owner {
        Owner { number: LAST.fetch_add(1, Ordering::Relaxed), kind, job: OnceLock::new() }
    }

    /// Sets the job that it serves.
    pub fn serve(&self, job: &str) {
        let _ = self.job.set(job.to_owned());
    }

    fn who(&self) -> String {
        match self.job.get() {
            Some(job) => format!("job {job:?} of this process tracks it ({})", self.kind),
            None => format!("another job of this process tracks it ({})", self.kind),
        }
    }

    /// Claims pages that have no owner.
    pub fn claim(&self, pages: Pages) -> Result<(), Refusal> {
        let mut claims = lock();
        match claims.claims.iter().find(|claim| claim.overlaps(pages)) {
            None => {
                claims.claims.push(Claim { pages, owner: self.number, who: self.who() });
                Ok(())
            }
            Some(claim) if claim.owner == self.number => {
                Err(Refusal("another region of this job lies in the same memory".into()))
            }
            Some(claim) => Err(Refusal(claim.who.clone())),
        }
    }

    /// Releases a claim.
    pub fn release(&self, pages: Pages) {
        lock().claims.retain(|claim| (claim.pages, claim.owner) != (pages, self.number));
    }

    /// Releases all claims.
    pub fn release_all(&self) {
        lock().claims.retain(|claim| claim.owner != self.number);
    }
}

impl Claim {
    fn overlaps(&self, pages: Pages) -> bool {
        self.pages.start < pages.end && pages.start < self.pages.end
    }
}

/// Describes the owner of any of these pages, for people: "job x of this process tracks it
/// (wp-async)".
pub(crate) fn holder(pages: Pages) -> Option<String> {
    let claims = lock();
    claims.claims.iter().find(|claim| claim.overlaps(pages)).map(|claim| claim.who.clone())
}

fn lock() -> MutexGuard<'static, Claims> {
    let mut claims = CLAIMS.lock();
    if claims.process_id != std::process::id() {
        *claims = Claims { process_id: std::process::id(), claims: Vec::new() };
    }
    claims
}
