//! Parts of global arrays, and the bytes that two parts have in common.

mod axis;
mod common;
mod overlap;
mod uncovered;

pub use overlap::Overlap;
pub use uncovered::uncovered;

use axis::Axis;

/// A part of a global array: along each dimension a run of elements, or blocks with gaps between
/// them. Its own elements lie in the order of the array, the last dimension side by side. Parts
/// with the same elements are equal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// The dimensions, outermost first.
    axes: Vec<Axis>,
}

impl Part {
    /// Returns a box. `offset` is its start and `shape` its extents, in elements along each
    /// dimension.
    pub fn subarray(offset: &[u64], shape: &[u64]) -> Part {
        let axes = offset.iter().zip(shape);
        Part { axes: axes.map(|(offset, extent)| Axis::side_by_side(*offset, *extent)).collect() }
    }

    /// Returns a part in blocks: see
    /// [`Distribution::BlockCyclic`](crate::Distribution::BlockCyclic).
    pub fn block_cyclic(offset: &[u64], shape: &[u64], block: &[u64], stride: &[u64]) -> Part {
        let axes = offset.iter().zip(shape).zip(block).zip(stride);
        let axes = axes.map(|(((offset, extent), block), stride)| {
            Axis::in_blocks(*offset, *extent, *block, *stride)
        });
        Part { axes: axes.collect() }
    }

    /// Checks that an array of this shape can have this part.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub fn check(&self, global_shape: &[u64]) -> Result<(), String> {
        if self.axes.len() != global_shape.len() {
            let (own, global) = (self.axes.len(), global_shape.len());
            return Err(format!(
                "part of a global array: it has {own} dimensions, and the array {global}"
            ));
        }
        for (dimension, (axis, global)) in self.axes.iter().zip(global_shape).enumerate() {
            axis.check(*global)
                .map_err(|why| format!("part of a global array: in dimension {dimension} {why}"))?;
        }
        Ok(())
    }

    /// Returns the indices of its first element in the global array.
    pub fn offset(&self) -> Vec<u64> {
        self.axes.iter().map(|axis| axis.offset).collect()
    }

    /// Returns its extents.
    pub fn shape(&self) -> Vec<u64> {
        self.axes.iter().map(|axis| axis.extent).collect()
    }

    /// Returns the number of its elements; `None` if that overflows.
    pub fn elements(&self) -> Option<u64> {
        self.axes.iter().try_fold(1u64, |all, axis| all.checked_mul(axis.extent))
    }
}

#[cfg(test)]
mod tests;
