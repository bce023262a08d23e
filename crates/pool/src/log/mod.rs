//! Opens the log of a pool: one directory, bucket or cluster, or several replicas.

pub(crate) mod open;
pub(crate) mod replicas;
pub(crate) mod room;
