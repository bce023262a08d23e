//! A gc ends the sessions of programs on other hosts whose leases have ended: these sessions would
//! hold space forever.
//!
//! A lease may end while its program runs: the host is cut off, or the program was suspended for
//! long. So the gc ends the session by a record. Every append of the program behind that record
//! fails: the program finds the record, and is fenced.

use super::report::{ATTEMPTS, append_behind};
use super::survey::{JobState, Survey};
use outlive_format::{Body, Close};
use outlive_pool::Pool;
use outlive_types::{Result, SessionId};

/// Ends the open sessions of a survey whose leases have ended. A dry run only counts them as ended.
///
/// # Errors
/// Errors of the log. A lease whose state cannot be read has not ended, and is no error.
pub fn end_lost_sessions(
    pool: &Pool,
    survey: &mut Survey,
    forget: bool,
    is_dry: bool,
) -> Result<()> {
    for at in 0..survey.jobs.len() {
        let state = &mut survey.jobs[at];
        let Some(session) = end_if_lost(pool, state, forget, is_dry)? else { continue };
        survey.session_has_ended(session);
        survey.look_for_progress(pool, at)?;
    }
    Ok(())
}

/// Ends the session of a job if its lease has ended, and then returns the session. `state` becomes
/// the last state that was read. A job whose log other processes write all the time keeps its
/// session.
///
/// # Errors
/// As [`end_lost_sessions`].
pub fn end_if_lost(
    pool: &Pool,
    state: &mut JobState,
    forget: bool,
    is_dry: bool,
) -> Result<Option<SessionId>> {
    let mut ended = None;
    for _ in 0..ATTEMPTS {
        let Some(session) = state.lost_session(pool) else { break };
        ended = Some(session);
        if is_dry || append_behind(pool, state, Body::Close(Close { session }))? {
            if !is_dry {
                pool.warn(format!(
                    "the program of job {} ({}) seems to have ended: this ends its session",
                    state.name,
                    state.program()
                ));
            }
            state.session_has_ended();
        } else {
            *state = JobState::read(pool, &state.name.clone(), forget)?;
        }
    }
    Ok(ended)
}
