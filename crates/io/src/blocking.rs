//! Lets a thread wait while another thread does its other work.

use std::cell::Cell;

/// Function that runs its argument, which waits, while another thread does the work of this one.
pub type StandIn = fn(&mut dyn FnMut());

thread_local! {
    static STAND_IN: Cell<Option<StandIn>> = const { Cell::new(None) };
}

/// Sets how this thread waits. For the threads of a runtime: the awaited work may be their own.
pub fn stand_in(how: StandIn) {
    STAND_IN.set(Some(how));
}

/// Runs `wait`, which may wait for the work of another thread.
pub fn blocking<T>(wait: impl FnOnce() -> T) -> T {
    let Some(stand_in) = STAND_IN.get() else { return wait() };
    let (mut wait, mut outcome) = (Some(wait), None);
    stand_in(&mut || outcome = wait.take().map(|wait| wait()));
    match outcome {
        Some(outcome) => outcome,
        None => unreachable!("a stand-in runs what it is given"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_has_a_stand_in_waits_with_it() {
        assert_eq!(blocking(|| 1), 1);
        thread_local!(static WAITS: Cell<u32> = const { Cell::new(0) });
        stand_in(|wait| {
            WAITS.set(WAITS.get() + 1);
            wait();
        });
        assert_eq!((blocking(|| 2), WAITS.get()), (2, 1));
    }
}
