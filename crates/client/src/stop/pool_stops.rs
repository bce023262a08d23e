//! Requests to stop that a person leaves in the pool.

use super::run_folder::monotonic;
use outlive_pool::Pool;
use outlive_types::sync::plain::Mutex;
use outlive_types::{JobName, Result};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Time between two looks: at a directory, and over a network.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const REMOTE_LOOK_EVERY: Duration = Duration::from_secs(10);

/// Writes a request to stop into a pool, for the programs that run the job now. A program that
/// starts later does not obey it.
///
/// # Errors
/// `Invalid` for a pool without a home; errors of the backend.
pub fn ask_in_pool(pool: &Pool, job: &JobName, reason: &str) -> Result<()> {
    let mut id = [0; 16];
    pool.env().rng.fill(&mut id);
    let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!("{id}\n{}\n", reason.replace('\n', " "));
    pool.write_run_file(job, "stop", text.as_bytes())
}

/// A request in the pool.
#[derive(PartialEq, Eq)]
struct PoolRequest {
    id: String,
    reason: String,
}

fn request_in_pool(pool: &Pool, job: &JobName) -> Result<Option<PoolRequest>> {
    let Some(bytes) = pool.read_run_file(job, "stop")? else { return Ok(None) };
    let text = String::from_utf8_lossy(&bytes);
    let (id, reason) = text.split_once('\n').unwrap_or((&text, ""));
    Ok(Some(PoolRequest { id: id.to_owned(), reason: reason.trim_end().to_owned() }))
}

/// A watch for requests in the pool that are newer than its first look. A thread looks now and then:
/// a pool that hangs must not hold up the program.
pub struct PoolStops(Arc<Mutex<Looked>>);

#[derive(Default)]
struct Looked {
    /// The request at the first look; `None` before that.
    first: Option<Option<PoolRequest>>,
    /// The reason of a newer one.
    found: Option<String>,
    is_looking: bool,
    next_look: Duration,
}

impl PoolStops {
    /// Begins the first look.
    pub fn begin(pool: &Pool, job: &JobName) -> PoolStops {
        let stops = PoolStops(Arc::default());
        stops.look(pool, job);
        stops
    }

    /// Returns the reason of a newer request, if a look has found one. Begins another look once a
    /// second, or every ten seconds over a network. Never waits.
    pub fn look(&self, pool: &Pool, job: &JobName) -> Option<String> {
        let mut looked = self.0.lock();
        let now = monotonic();
        if looked.found.is_none() && !looked.is_looking && now >= looked.next_look {
            looked.next_look = now + if pool.is_remote() { REMOTE_LOOK_EVERY } else { LOOK_EVERY };
            let (pool, job, shared) = (pool.clone(), job.clone(), self.0.clone());
            let look = move || {
                let answer = request_in_pool(&pool, &job);
                drop(pool);
                shared.lock().note(answer);
            };
            let started = thread::Builder::new().name("outlive-stop".to_owned()).spawn(look);
            // Without a thread the next look tries again.
            looked.is_looking = started.is_ok();
        }
        looked.found.clone()
    }
}

impl Looked {
    /// Notes the result of a look. One that has failed is repeated.
    fn note(&mut self, answer: Result<Option<PoolRequest>>) {
        self.is_looking = false;
        match (answer, &self.first) {
            (Err(_), _) => {}
            (Ok(request), None) => self.first = Some(request),
            (Ok(request), Some(first)) if request == *first => {}
            (Ok(request), Some(_)) => self.found = request.map(|request| request.reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_types::Error;

    fn request(id: &str) -> Result<Option<PoolRequest>> {
        Ok(Some(PoolRequest { id: id.into(), reason: format!("reason {id}") }))
    }

    #[test]
    fn only_a_request_after_the_first_look_counts() {
        let mut looked = Looked::default();
        looked.note(Err(Error::retry("away")));
        looked.note(request("old"));
        looked.note(request("old"));
        looked.note(Err(Error::retry("away")));
        assert_eq!(looked.found, None);
        looked.note(request("new"));
        assert_eq!(looked.found.as_deref(), Some("reason new"));

        let mut looked = Looked::default();
        looked.note(Ok(None));
        assert_eq!(looked.found, None);
        looked.note(request("first of all"));
        assert_eq!(looked.found.as_deref(), Some("reason first of all"));
    }
}
