//! An etcd cluster as a [`LogMedium`](outlive_log::LogMedium) for records; an [`EtcdUrl`] names
//! it. It stores no shards.
//!
//! ```no_run
//! use outlive_backend::BackendLocation;
//! use outlive_etcd::EtcdUrl;
//! use outlive_log::RecordLog;
//!
//! # fn main() -> outlive_types::Result<()> {
//! let location = EtcdUrl::parse("etcd://node1,node2,node3/ckpt/gray-scott")?;
//! location.check()?; // is it available, and may it be used?
//! let log = RecordLog::over(location.medium()?);
//! # Ok(())
//! # }
//! ```

mod cluster;
mod endpoint;
mod errors;
mod files;
mod gateway;
mod keys;
mod leases;
mod medium;
mod settings;
mod url;

pub use files::EtcdFiles;
pub use medium::EtcdMedium;
pub use url::{ETCD, ETCDS, EtcdUrl};
