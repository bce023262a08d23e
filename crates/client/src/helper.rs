//! The helper of this host: whether a job uses it, and the wait for what it completes.

use crate::stop::is_helped;
use outlive_helper::HelperConnection;
use outlive_pool::Pool;
use outlive_store::{ImageKeeper, JobOptions};
use outlive_types::{FreezeMode, JobName};
use std::ffi::OsString;
use std::sync::{Arc, OnceLock};

/// Looks, ten a second, after which a wait is told.
const LOOKS_UNTIL_TOLD: u32 = 10;

static COMMAND: OnceLock<Vec<OsString>> = OnceLock::new();

/// Sets the command line of `outlive` that starts a helper, up to its subcommand; once a process. By
/// default it is `outlive`, of the search path.
pub fn set_helper_command(command: Vec<OsString>) {
    let _ = COMMAND.set(command);
}

/// Connects a job with the helper, if its pool or its supervisor wants one. Without a helper the
/// program goes on, and is warned.
pub(crate) fn keeper_of(
    pool: &Pool,
    name: &JobName,
    options: &JobOptions,
) -> Option<Arc<dyn ImageKeeper>> {
    let is_chosen = pool.config().tuning.freeze().is_ok_and(|mode| mode == FreezeMode::Helper);
    if !is_chosen && !is_helped(&pool.config().format.pool_id, name) {
        return None;
    }
    let command = COMMAND.get_or_init(|| vec!["outlive".into()]).clone();
    let (connection, trouble) = HelperConnection::open(pool, name, options.group.as_ref(), command);
    if let Some(error) = trouble {
        pool.warn(format!(
            "job {name}: no helper holds the images of saves ({error}): a save that is not \
             committed when this program is killed is lost"
        ));
    }
    Some(Arc::new(connection))
}

/// Waits until no helper of this host completes a save of an earlier program of this job, or `goes_on`
/// says no; it is asked ten times a second. Opening a job waits in the same way, without an end:
/// callers that hear signals wait here first.
pub fn await_helper(pool: &Pool, name: &JobName, goes_on: &mut dyn FnMut() -> bool) {
    let mut looks = 0;
    let mut goes_on = || {
        looks += 1;
        if looks == LOOKS_UNTIL_TOLD {
            pool.info(format!(
                "job {name}: waits until a helper has completed the last save of an earlier program"
            ));
        }
        goes_on()
    };
    match outlive_helper::settle(pool, name, &mut goes_on) {
        Ok(said) => said.into_iter().for_each(|text| pool.info(format!("job {name}: {text}"))),
        Err(error) => pool.warn(format!(
            "job {name}: whether a helper completes a save of an earlier program is not known: {error}"
        )),
    }
}
