//! The background half of a save, after the program may continue.

use super::handle::SaveHandle;
use super::inner::{Inner, SaveMode};
use super::pace::Pace;
use crate::save::{SavePlan, SaveRequest, SaveStats};
use outlive_io::make_way;
use outlive_pool::Pool;
use outlive_types::{Error, ErrorKind, Frozen, Result, metrics};
use std::sync::Arc;

/// Everything that a save needs after the program may continue.
pub(crate) struct Persist {
    pub inner: Arc<Inner>,
    pub frozen: Arc<dyn Frozen>,
    pub plan: SavePlan,
    pub mode: SaveMode,
    pub handle: SaveHandle,
    pub request: SaveRequest,
    pub pace: Arc<Pace>,
}

impl SaveMode {
    /// Gives up the save here, and informs the other ranks.
    pub fn give_up(&self, pool: &Pool, error: Error) -> Error {
        match self {
            SaveMode::Alone(_) => error,
            SaveMode::Together(member, group_save) => {
                member.give_up(pool, group_save.save_id, error)
            }
        }
    }
}

impl Persist {
    pub fn run(self) {
        let Persist { inner, frozen, plan, mode, handle, request, pace } = self;
        // The save keeps this pool, even if another client sets a newer one.
        let pool = inner.pool();
        if plan.live_blocks == 0 {
            make_way();
        }
        let live_done = || {
            frozen.release_live();
            handle.set_live_done();
        };
        let work = std::panic::AssertUnwindSafe(|| -> Result<SaveStats> {
            let mut writer = inner.writer();
            let (pool, writer) = (&pool, &mut *writer);
            let stats = match &mode {
                SaveMode::Alone(packs) => {
                    writer.execute(pool, packs, &plan, &*frozen, &request, &live_done)
                }
                SaveMode::Together(member, group_save) => {
                    member.execute(pool, writer, group_save, &plan, &*frozen, &request, &live_done)
                }
            };
            let stats = stats?;
            // The source's baseline and the store's base move together, under the writer's lock.
            frozen.commit_baseline(Some(stats.epoch));
            writer.rank.check_presence(pool, &inner.name, stats.epoch);
            Ok(stats)
        });
        let outcome = std::panic::catch_unwind(work).unwrap_or_else(|panic| {
            let what = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            let error = Error::bug(format!("the save panicked: {what}; please report this"));
            Err(mode.give_up(&pool, error))
        });
        let is_damage = |error: &Error| error.kind() == ErrorKind::Damaged;
        let outcome = outcome.map_err(|error| match is_damage(&error) {
            true => {
                error.context("the next save stores everything again, since this one met damage")
            }
            false => error,
        });
        if outcome.is_err() {
            live_done();
            frozen.commit_baseline(None);
        }
        let total = pool.env().clock.monotonic().saturating_sub(request.started);
        let mut outcome = outcome.map(|stats| SaveStats { total, ..stats });
        if let Ok(stats) = &mut outcome {
            stats.freeze.freeze += &request.held;
        }
        match &mut outcome {
            // Only rank 0 of a group knows the interval in use.
            Ok(stats) if inner.decides() => {
                let choice = pace.durable(&pool, stats);
                inner.behind.set_step(choice.slow_every.unwrap_or(1));
                stats.interval = Some(choice);
            }
            Ok(_) => {}
            Err(_) => pace.fail(),
        }
        if let Ok(stats) = &outcome {
            inner.health.committed();
            stats.count(pool.env().clock.unix_ns());
        }
        if let Err(error) = &outcome {
            if is_damage(error) {
                inner.writer().rank.begin_anew(&pool);
            }
            inner.health.failed(error);
            metrics::SAVES_FAILED.add(1);
            pool.warn(format!("a save of job {} failed: {error}", inner.name));
            inner.events.failed(&pool, handle.epoch(), error);
        }
        // The frozen image takes memory, and is no longer needed: but a helper may still complete a
        // failed save.
        inner.keeping.settle(frozen, outcome.as_ref().err());
        // Before the next save can begin, since its session must not end.
        inner.make_room(&pool, outcome.as_ref().err());
        // Collectors may have deleted packs that this program has read: closing the files frees
        // their space.
        pool.close_files(false);
        // Drop this thread's references to the image and the job before waiting threads continue.
        // These may free the memory, or rely on the job's end.
        drop(inner);
        handle.settle(outcome);
    }
}
