//! One dimension of a part.

/// The elements that a part has along one dimension of a global array. Equal axes have the same
/// elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Axis {
    /// Global index of the first element.
    pub offset: u64,
    /// Number of elements.
    pub extent: u64,
    /// Elements of a block; the last one may have fewer.
    pub block: u64,
    /// Elements of the global array from the start of one block to the start of the next. Equal to
    /// `block` if all elements lie side by side, larger otherwise.
    pub stride: u64,
}

impl Axis {
    /// Returns an axis of elements that lie side by side.
    pub fn side_by_side(offset: u64, extent: u64) -> Axis {
        let block = extent.max(1);
        Axis { offset, extent, block, stride: block }
    }

    /// Returns an axis of elements in blocks. [`Axis::check`] refuses an empty block, and one
    /// longer than its stride.
    pub fn in_blocks(offset: u64, extent: u64, block: u64, stride: u64) -> Axis {
        match extent <= block || block == stride {
            true => Axis::side_by_side(offset, extent),
            false => Axis { offset, extent, block, stride },
        }
    }

    /// Returns the reason if an array of `global` elements along this dimension cannot have the
    /// axis.
    pub fn check(&self, global: u64) -> Result<(), String> {
        let Axis { offset, extent, block, stride } = *self;
        if block == 0 || stride < block {
            return Err(format!(
                "it has blocks of {block} elements, every {stride}; a block needs at least one, and the \
                 next begins behind it"
            ));
        }
        // An axis without elements has none outside the array.
        let Some(last) = extent.checked_sub(1) else { return Ok(()) };
        let blocks = (last / block).checked_mul(stride);
        let last = blocks.and_then(|blocks| offset.checked_add(blocks)?.checked_add(last % block));
        if last.is_some_and(|last| last < global) {
            return Ok(());
        }
        let how = match self.is_side_by_side() {
            true => String::new(),
            false => format!(" in blocks of {block}, every {stride}"),
        };
        Err(format!(
            "it begins at {offset} and has {extent} elements{how}, and the global array has {global}"
        ))
    }

    /// Returns whether its elements lie side by side, without gaps.
    pub fn is_side_by_side(&self) -> bool {
        self.block == self.stride
    }

    /// Returns true if it has all elements of `other`; may return false where a longer test would
    /// be needed.
    pub fn covers(&self, other: &Axis) -> bool {
        let grid = |axis: &Axis| (axis.offset, axis.block, axis.stride);
        let is_within = self.offset <= other.offset && other.end() <= self.end();
        self.is_side_by_side() && is_within
            || grid(self) == grid(other) && other.extent <= self.extent
    }

    /// Returns the global index of the last element plus one.
    pub fn end(&self) -> u64 {
        match self.extent.checked_sub(1) {
            Some(last) => self.offset + last / self.block * self.stride + last % self.block + 1,
            None => self.offset,
        }
    }

    /// Returns start and end of the first elements that lie side by side, from global index `at`
    /// on.
    pub fn run_from(&self, at: u64) -> Option<(u64, u64)> {
        let behind = at.saturating_sub(self.offset);
        let mut number = behind / self.stride;
        if behind % self.stride >= self.block {
            number += 1;
        }
        let before = number.checked_mul(self.block).filter(|before| *before < self.extent)?;
        let begin = self.offset + number * self.stride;
        let end = begin + self.block.min(self.extent - before);
        (at < end).then_some((begin.max(at), end))
    }

    /// Returns the local index of an element. It wraps before the offset if elements lie side by
    /// side.
    pub fn local(&self, global: u64) -> u64 {
        if self.is_side_by_side() {
            return global.wrapping_sub(self.offset);
        }
        let behind = global - self.offset;
        behind / self.stride * self.block + behind % self.stride
    }

    /// Returns the number of its elements in a period, which is a multiple of its stride.
    pub fn in_period(&self, period: u64) -> u64 {
        period / self.stride * self.block
    }
}

/// Returns the number of elements after which all strides begin together again; `u64::MAX` if that
/// overflows.
pub(super) fn period(strides: impl IntoIterator<Item = u64>) -> u64 {
    let mut period = 1u64;
    for stride in strides {
        let (mut a, mut b) = (period, stride);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        match (period / a).checked_mul(stride) {
            Some(common) => period = common,
            None => return u64::MAX,
        }
    }
    period
}
