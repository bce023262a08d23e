//! What every [`Target`](crate::Target), every [`LogMedium`](crate::LogMedium) and every
//! [`ManifestLog`](crate::ManifestLog) must do, as
//! checks that panic when one does not. Backends and wrappers run them in their tests.

mod log;
mod medium;
mod target;

pub use log::check_log;
pub use medium::check_medium;
pub use target::check_target;

use std::sync::Arc;

/// Makes an empty place.
type Make<T> = dyn Fn() -> Arc<T>;

/// One check, by name.
type Check<T> = (&'static str, fn(&Make<T>));

fn run_all<T: ?Sized>(checks: &[Check<T>], make: &Make<T>) {
    for (name, check) in checks {
        // A captured line, shown when the check fails: which one it was.
        println!("conformance: {name}");
        check(make);
    }
}
