//! Chooses the interval between two saves of a job. Pure: the caller brings times and costs, and no
//! I/O happens here.
//!
//! [`optimum`] has the formulas, [`FailureRate`] the rate of failures, and `costs` learns what a
//! save costs and how that grows with the interval. [`Learner`] puts them together while a program
//! runs, and returns its [`Choice`] with the reasons.

mod choice;
mod costs;
mod every;
mod fills;
mod learner;
pub mod optimum;
mod rate;
mod steps;

pub use choice::{Bound, Choice, shown_time};
pub use costs::{CopiesCost, Cost, Stored};
pub use every::{Every, SLOWDOWN_MAX};
pub use learner::Learner;
pub use rate::{FailureRate, HOST_PRIOR_S, PRIOR_S, Past};
