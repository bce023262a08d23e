//! S3 and similar servers: a bucket as a [`Target`](outlive_backend::Target) for shards, and as a
//! [`LogMedium`](outlive_log::LogMedium) for records. An [`S3Url`] names a bucket.
//!
//! ```no_run
//! use outlive_backend::BackendLocation;
//! use outlive_s3::S3Url;
//! use outlive_log::RecordLog;
//!
//! # fn main() -> outlive_types::Result<()> {
//! let location = S3Url::parse("s3://ckpt/gray-scott")?;
//! location.check()?; // is it available, and may it be used?
//! let target = location.target()?;
//! let medium = location.medium()?;
//! medium.check_conditional_put()?; // once, before a log is begun there
//! let log = RecordLog::over(medium);
//! # Ok(())
//! # }
//! ```

mod bucket;
mod errors;
mod files;
mod flow;
mod medium;
mod objects;
mod parts;
mod probe;
mod profiles;
mod queue;
mod reads;
mod settings;
mod target;
mod upload;
mod url;
mod writer;

pub use files::S3Files;
pub use medium::S3Medium;
pub use target::S3Target;
pub use url::{S3, S3Url};
