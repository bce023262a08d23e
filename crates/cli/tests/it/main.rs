//! All integration tests of this crate in one program, since each program takes long to link.

mod block;
mod bucket;
mod bucket_pool;
#[path = "../../../node-server/tests/it/certificates.rs"]
mod certificates;
mod chosen_files;
mod cli;
mod common;
mod copy;
mod diff;
mod du;
mod encryption;
mod epochs;
#[path = "../../../etcd/tests/it/support/mod.rs"]
mod etcd;
mod export_json;
mod files;
mod find;
mod globals;
mod log_replicas;
#[path = "../../../block/tests/it/loop_device.rs"]
mod loop_device;
mod move_log;
mod node;
mod node_local;
mod node_tls;
#[path = "common/bucket.rs"]
mod place;
mod pool;
mod probe;
mod prune;
mod prune_rules;
mod ranks;
mod scrub;
mod shell;
mod silent;
mod space;
mod suspect;
mod tiers;
mod usage;
mod volatile;
mod web;
