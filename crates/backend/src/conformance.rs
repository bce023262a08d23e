//! Checks of the guarantees of [`Target`](crate::Target), [`SmallFiles`](crate::SmallFiles),
//! [`LogMedium`](outlive_log::LogMedium) and [`ManifestLog`](outlive_log::ManifestLog). A check
//! panics if an implementation breaks one. Backends and wrappers run them in their tests.

mod files;
mod log;
mod medium;
mod target;

pub use files::check_files;
pub use log::check_log;
pub use medium::check_medium;
pub use target::check_target;

use std::sync::Arc;

/// Makes an empty target, medium or log.
type Make<T> = dyn Fn() -> Arc<T>;

/// One check, by name.
type Check<T> = (&'static str, fn(&Make<T>));

fn run_all<T: ?Sized>(checks: &[Check<T>], make: &Make<T>) {
    for (name, check) in checks {
        // A captured line names the check when it fails.
        println!("conformance: {name}");
        check(make);
    }
}
