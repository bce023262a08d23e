//! One dimension of a part.

/// Which elements of one dimension of a global array a part has. Equal ones have the same elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Axis {
    /// Global index of the first element.
    pub offset: u64,
    /// Number of elements.
    pub extent: u64,
    /// Elements of a block; the last one may have fewer.
    pub block: u64,
    /// Elements of the global array from the begin of one block to the begin of the next. As many as a
    /// block has if all elements lie side by side, and more otherwise.
    pub stride: u64,
}

impl Axis {
    /// Elements that lie side by side.
    pub fn side_by_side(offset: u64, extent: u64) -> Axis {
        let block = extent.max(1);
        Axis { offset, extent, block, stride: block }
    }

    /// Elements in blocks. A block that is empty, or longer than its stride, is for [`Axis::check`].
    pub fn in_blocks(offset: u64, extent: u64, block: u64, stride: u64) -> Axis {
        match extent <= block || block == stride {
            true => Axis::side_by_side(offset, extent),
            false => Axis { offset, extent, block, stride },
        }
    }

    /// Why there is no such axis in an array that has so many elements along it.
    pub fn check(&self, global: u64) -> Result<(), String> {
        let Axis { offset, extent, block, stride } = *self;
        if block == 0 || stride < block {
            return Err(format!(
                "it has blocks of {block} elements, every {stride}; a block needs at least one, and the \
                 next begins behind it"
            ));
        }
        // Without elements it has none outside.
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

    /// Whether nothing lies between its elements.
    pub fn is_side_by_side(&self) -> bool {
        self.block == self.stride
    }

    /// Whether it has all elements of another, as far as that can be said at once.
    pub fn covers(&self, other: &Axis) -> bool {
        let grid = |axis: &Axis| (axis.offset, axis.block, axis.stride);
        let is_within = self.offset <= other.offset && other.end() <= self.end();
        self.is_side_by_side() && is_within
            || grid(self) == grid(other) && other.extent <= self.extent
    }

    /// One more than the global index of the last element.
    pub fn end(&self) -> u64 {
        match self.extent.checked_sub(1) {
            Some(last) => self.offset + last / self.block * self.stride + last % self.block + 1,
            None => self.offset,
        }
    }

    /// The first elements from a global index on that lie side by side: begin and end.
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

    /// Local index of an element. It wraps before the offset of an axis side by side.
    pub fn local(&self, global: u64) -> u64 {
        if self.is_side_by_side() {
            return global.wrapping_sub(self.offset);
        }
        let behind = global - self.offset;
        behind / self.stride * self.block + behind % self.stride
    }

    /// How many elements it has in a period of so many: a multiple of its stride.
    pub fn in_period(&self, period: u64) -> u64 {
        period / self.stride * self.block
    }
}

/// After how many elements all these strides begin together again; `u64::MAX` for more than there can be.
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
