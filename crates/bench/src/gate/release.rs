//! When a gate lets an output go.

/// The rule by which outputs are held. Times never decrease: a later output goes no earlier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// Each output for the same time, as in the seed: checkpoints are so frequent that only their
    /// validation counts.
    After { ns: u64 },
    /// Until the checkpoint that covers it is committed. Checkpoints are taken at multiples of the
    /// interval, and each is committed some time later.
    Checkpoints { every_ns: u64, commit_ns: u64 },
}

impl Release {
    /// Returns the time from which an output of the time `at_ns` may be seen.
    pub fn at(self, at_ns: u64) -> u64 {
        match self {
            Release::After { ns } => at_ns + ns,
            // An output at the very moment of a checkpoint is covered by the next one.
            Release::Checkpoints { every_ns, commit_ns } => {
                (at_ns / every_ns.max(1) + 1) * every_ns.max(1) + commit_ns
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_wait_for_the_checkpoint_that_covers_them() {
        assert_eq!(Release::After { ns: 7 }.at(100), 107);
        let every = Release::Checkpoints { every_ns: 100, commit_ns: 30 };
        assert_eq!([0, 1, 99, 100].map(|at| every.at(at)), [130, 130, 130, 230]);
    }
}
