//! S3 and its like: a bucket as a [`Target`](outlive_target::Target) that keeps shards, and as a
//! [`LogMedium`](outlive_target::LogMedium) that keeps records. A bucket is named by an [`S3Place`].

mod bucket;
mod errors;
mod files;
mod medium;
mod objects;
mod parts;
mod place;
mod probe;
mod profiles;
mod runtime;
mod settings;
mod target;
mod upload;
mod writer;

pub use files::S3Files;
pub use medium::S3Medium;
pub use place::S3Place;
pub use target::S3Target;
