//! Integration tests.

mod benches;
