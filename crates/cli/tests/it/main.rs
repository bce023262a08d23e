//! All integration tests of this crate in one program, since each program takes long to link.

mod bucket;
mod bucket_pool;
mod cli;
mod common;
mod copy;
mod diff;
mod du;
mod epochs;
#[path = "../../../etcd/tests/it/support/mod.rs"]
mod etcd;
mod files;
mod log_replicas;
mod move_log;
#[path = "common/bucket.rs"]
mod place;
mod pool;
mod prune;
mod ranks;
mod scrub;
mod silent;
mod space;
mod suspect;
mod tiers;
mod usage;
mod volatile;
