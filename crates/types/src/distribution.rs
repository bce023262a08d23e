//! The share of a region that each rank of a checkpoint has.

use crate::Part;

/// Distribution of a region over the ranks of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Distribution {
    /// The region is this rank's alone; other ranks may have regions of the same name.
    #[default]
    Local,
    /// The region is a box of a global array. (MPI calls it a subarray, HDF5 a hyperslab, PyTorch
    /// and JAX a shard.) The regions of that name of all ranks make up the array.
    Subarray {
        /// Extents of the global array, outermost first; one for each dimension of the region's
        /// shape.
        global_shape: Vec<u64>,
        /// Start of the region in the array, in elements along each dimension.
        offset: Vec<u64>,
    },
    /// The region is a part of a global array that is dealt out to the ranks in blocks, along each
    /// dimension independently. Element l of the region is element `offset + l / block * stride + l
    /// % block` of the array. (ScaLAPACK and HPF call it block-cyclic, and cyclic with a block of
    /// 1; MPI calls it a darray.) The last block may be cut.
    BlockCyclic {
        /// As for a subarray.
        global_shape: Vec<u64>,
        /// Start of the first block in the array, in elements along each dimension.
        offset: Vec<u64>,
        /// Elements of a block along each dimension, at least 1.
        block: Vec<u64>,
        /// Elements of the array from the start of a block to the start of the next along each
        /// dimension, at least the length of a block.
        stride: Vec<u64>,
    },
    /// Every rank holds the same bytes.
    Replicated,
}

impl Distribution {
    /// Returns the extents of the global array to which the region belongs.
    pub fn global_shape(&self) -> Option<&[u64]> {
        match self {
            Distribution::Local | Distribution::Replicated => None,
            Distribution::Subarray { global_shape, .. }
            | Distribution::BlockCyclic { global_shape, .. } => Some(global_shape),
        }
    }

    /// Returns the part of the global array that a region of this shape is, if it belongs to one.
    pub fn part(&self, shape: &[u64]) -> Option<Part> {
        match self {
            Distribution::Local | Distribution::Replicated => None,
            Distribution::Subarray { offset, .. } => Some(Part::subarray(offset, shape)),
            Distribution::BlockCyclic { offset, block, stride, .. } => {
                Some(Part::block_cyclic(offset, shape, block, stride))
            }
        }
    }

    /// Checks that a region of this shape can have this distribution.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub fn check(&self, shape: &[u64]) -> Result<(), String> {
        let (global_shape, offset, blocks) = match self {
            Distribution::Local | Distribution::Replicated => return Ok(()),
            Distribution::Subarray { global_shape, offset } => (global_shape, offset, None),
            Distribution::BlockCyclic { global_shape, offset, block, stride } => {
                (global_shape, offset, Some((block, stride)))
            }
        };
        let dimensions = [shape.len(), global_shape.len(), offset.len()];
        if shape.is_empty() || dimensions != [shape.len(); 3] {
            return Err(format!(
                "part of a global array: its shape, the global shape and its offset have {}, {} and {} \
                 dimensions; they need equally many, at least one",
                dimensions[0], dimensions[1], dimensions[2]
            ));
        }
        if let Some((block, stride)) = blocks {
            if [block.len(), stride.len()] != [shape.len(); 2] {
                return Err(format!(
                    "part of a global array: it has {} dimensions, its block {} and its stride {}; they \
                     need equally many",
                    shape.len(),
                    block.len(),
                    stride.len()
                ));
            }
            let mut pairs = block.iter().zip(stride).enumerate();
            if let Some((dimension, (block, stride))) =
                pairs.find(|(_, (block, stride))| **block == 0 || stride < block)
            {
                return Err(format!(
                    "part of a global array: in dimension {dimension} it has blocks of {block} elements, \
                     every {stride}; a block needs at least one, and the next begins behind it"
                ));
            }
        }
        self.part(shape).map_or(Ok(()), |part| part.check(global_shape))
    }
}
