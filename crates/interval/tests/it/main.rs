//! Monte Carlo tests of the formulas, and the learner in a simulated program. All random numbers come
//! from seeds.

mod closed_loop;
mod continuous;
mod monte_carlo;
mod program;
mod random;
