//! Ctrl-C: the first asks the work to end properly, the second ends it.

use crate::EXIT_INTERRUPTED;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Returns whether the work was asked to end.
pub fn was_asked() -> bool {
    FLAG.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Returns a flag that Ctrl-C and a termination request set.
pub fn flag() -> Arc<AtomicBool> {
    let flag = FLAG.get_or_init(|| {
        let flag = Arc::new(AtomicBool::new(false));
        let set = flag.clone();
        // Without a handler Ctrl-C kills the process, which loses nothing either.
        let _ = ctrlc::set_handler(move || {
            if set.swap(true, Ordering::Relaxed) {
                std::process::exit(EXIT_INTERRUPTED);
            }
        });
        flag
    });
    flag.clone()
}
