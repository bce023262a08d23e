//! What says which targets a pool has.

use crate::redundancy::TargetConfig;
use outlive_target::Target;
use outlive_types::Result;
use std::fmt;
use std::sync::Arc;

/// Says whether a target is where it was.
pub type StillThere = dyn Fn() -> Result<()> + Send + Sync;

/// A target, and a way to find out whether it is there.
pub type OpenTarget = (Arc<dyn Target>, Option<Box<StillThere>>);

/// Something that ends when it is dropped.
pub type Claim = Box<dyn Send>;

/// The table of a pool's targets: what is written down of them, for all programs that use the pool.
pub trait TargetTable: Send + Sync + fmt::Debug {
    /// Something that is another number whenever the table is another one.
    ///
    /// # Errors
    /// What the medium reports.
    fn version(&self) -> Result<u64>;

    /// The targets, each with its number.
    ///
    /// # Errors
    /// `Invalid` for a table that cannot be.
    fn rows(&self) -> Result<Vec<TargetConfig>>;

    /// A target, and a way to find out whether it is there.
    ///
    /// # Errors
    /// `Invalid` for a location that cannot be.
    fn open(&self, row: &TargetConfig) -> Result<OpenTarget>;

    /// Makes a new target the pool's own, before the table names it.
    ///
    /// # Errors
    /// `Invalid` if it is used by somebody.
    fn prepare(&self, row: &TargetConfig) -> Result<()>;

    /// A number that no target has or had.
    ///
    /// # Errors
    /// What the medium reports.
    fn next_id(&self) -> Result<u32>;

    /// Whether a volatile target is in the memory of this host.
    fn is_ours(&self, _row: &TargetConfig) -> bool {
        false
    }

    /// Whether everything is gone that was on a volatile target of this host: it is as a restart of the host
    /// leaves it, and nobody has made it anew.
    ///
    /// # Errors
    /// What the medium reports.
    fn is_wiped(&self, _row: &TargetConfig) -> Result<bool> {
        Ok(false)
    }

    /// Makes the place of a volatile target again, empty: before the table names the new one.
    ///
    /// # Errors
    /// `Invalid` if the place is not in memory; what the medium reports.
    fn make_place(&self, _row: &TargetConfig) -> Result<()> {
        Ok(())
    }

    /// Makes an empty place a volatile target that the table names.
    ///
    /// # Errors
    /// What the medium reports.
    fn mark(&self, row: &TargetConfig) -> Result<()> {
        self.prepare(row)
    }

    /// Keeps others from changing the table, if the lock of collectors does not: a medium may have no
    /// locks that end with their holder. The claim ends with what is answered.
    ///
    /// # Errors
    /// `Retry` if another has it; what the medium reports.
    fn claim(&self) -> Result<Option<Claim>> {
        Ok(None)
    }

    /// Ends the claim of somebody who was killed. Answers whose it was.
    ///
    /// # Errors
    /// What the medium reports.
    fn release(&self) -> Result<Option<String>> {
        Ok(None)
    }

    /// Puts another table in the place of this one, in one step. Only whoever holds the lock of
    /// collectors, or the claim, does that.
    ///
    /// # Errors
    /// What the medium reports; then it is not known which table is there.
    fn replace(&self, rows: &[TargetConfig]) -> Result<()>;
}
