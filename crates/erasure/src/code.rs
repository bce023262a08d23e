//! A code: which sums are parity, and how lost fragments are rebuilt.

use crate::field::{inverse, mul};
use crate::kernel::Kernel;
use crate::matrix::Matrix;
use outlive_types::{Error, Result};

/// Most fragments, data and parity together.
pub const FRAGMENTS_MAX: usize = 256;

/// A code of k data and m parity fragments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Code {
    k: usize,
    m: usize,
    /// Coefficients of the parity fragments: m rows of k.
    parity: Matrix,
    kernel: Kernel,
}

impl Code {
    /// Returns the code of `k` data fragments, at least one, and `m` parity fragments.
    ///
    /// # Errors
    /// `Invalid` for no data fragment, or more than 256 fragments in all.
    pub fn new(k: usize, m: usize) -> Result<Code> {
        Code::with(k, m, Kernel::best())
    }

    /// Returns the same code with a given kernel, which the processor must support: for tests and
    /// measurements.
    ///
    /// # Errors
    /// As [`Code::new`].
    #[doc(hidden)]
    pub fn with(k: usize, m: usize, kernel: Kernel) -> Result<Code> {
        if k == 0 || k > FRAGMENTS_MAX || m > FRAGMENTS_MAX - k {
            return Err(Error::invalid(format!(
                "a code of {k} data and {m} parity fragments is not possible: give at least one data \
                 fragment, and at most {FRAGMENTS_MAX} in all"
            )));
        }
        Ok(Code {
            k,
            m,
            parity: Matrix::new(m, k.max(1), |row, column| coefficient(k, row, column)),
            kernel,
        })
    }

    /// Number of data fragments.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Number of parity fragments, which is the number of fragments that may be lost.
    pub fn m(&self) -> usize {
        self.m
    }

    /// Computes the parity of `data`.
    ///
    /// # Errors
    /// `Bug` unless there are k and m fragments, all of one length.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<()> {
        let lengths = data.iter().map(|one| one.len()).chain(parity.iter().map(|one| one.len()));
        if (data.len(), parity.len()) != (self.k, self.m) || !is_one(lengths) {
            return Err(Error::bug(format!(
                "{} and {} fragments, perhaps of several lengths, are no {} data and {} parity",
                data.len(),
                parity.len(),
                self.k,
                self.m
            )));
        }
        let rows: Vec<Vec<u8>> = (0..self.m).map(|row| self.parity.row(row).to_vec()).collect();
        self.kernel.sums(&rows, data, parity);
        Ok(())
    }

    /// Rebuilds lost fragments, data or parity, from any k others. Fragments are numbered: data
    /// from 0 on, then parity. More than k may be given: the data fragments among them are used
    /// first, then parity in the order of its numbers.
    ///
    /// # Errors
    /// `Damaged` if less than k are given. `Bug` if a number is out of range or given twice, or if
    /// the lengths differ.
    pub fn rebuild(&self, given: &[(usize, &[u8])], lost: &mut [(usize, &mut [u8])]) -> Result<()> {
        let mut numbers: Vec<usize> = given.iter().map(|(number, _)| *number).collect();
        numbers.extend(lost.iter().map(|(number, _)| *number));
        numbers.sort_unstable();
        let are_numbers = numbers.windows(2).all(|two| two[0] != two[1])
            && numbers.last().is_none_or(|last| *last < self.k + self.m);
        let lengths = given.iter().map(|(_, one)| one.len());
        if !are_numbers || !is_one(lengths.chain(lost.iter().map(|(_, one)| one.len()))) {
            return Err(Error::bug(format!(
                "fragments {numbers:?}, perhaps of several lengths, are not of one code of {} + {}",
                self.k, self.m
            )));
        }
        if given.len() < self.k {
            return Err(Error::damaged(format!(
                "{} fragments are there, and {} are needed",
                given.len(),
                self.k
            )));
        }
        let mut given = given.to_vec();
        given.sort_by_key(|(number, _)| *number);
        given.truncate(self.k);
        // The given fragments are this matrix times the data; so the data are its inverse times
        // them.
        let there = |row: usize, column: usize| self.cell(given[row].0, column);
        let inverted = Matrix::new(self.k, self.k, there).inverted();
        let inverted =
            inverted.ok_or_else(|| Error::bug("a code whose fragments depend on each other"))?;
        let row_of = |number: usize| -> Vec<u8> {
            let row: Vec<u8> = (0..self.k).map(|column| self.cell(number, column)).collect();
            inverted.times(&row)
        };
        let rows: Vec<Vec<u8>> = lost.iter().map(|(number, _)| row_of(*number)).collect();
        let ins: Vec<&[u8]> = given.iter().map(|(_, bytes)| *bytes).collect();
        let mut outs: Vec<&mut [u8]> = lost.iter_mut().map(|(_, bytes)| &mut **bytes).collect();
        self.kernel.sums(&rows, &ins, &mut outs);
        Ok(())
    }

    /// Coefficient of data fragment `column` in fragment `number`.
    fn cell(&self, number: usize, column: usize) -> u8 {
        match number.checked_sub(self.k) {
            None => u8::from(number == column),
            Some(row) => self.parity.row(row)[column],
        }
    }
}

/// Coefficient of data fragment `column` in parity fragment `row`: an entry of the Cauchy matrix 1
/// / (x + y), with x = k + row and y = column. Its rows and then its columns are scaled so that the
/// first of each are 1. Scaling keeps every square submatrix invertible.
fn coefficient(k: usize, row: usize, column: usize) -> u8 {
    let cauchy = |row: usize, column: usize| inverse((k + row) as u8 ^ column as u8);
    let scaled = |row: usize, column: usize| mul(cauchy(row, column), inverse(cauchy(row, 0)));
    mul(scaled(row, column), inverse(scaled(0, column)))
}

fn is_one(mut lengths: impl Iterator<Item = usize>) -> bool {
    lengths.next().is_none_or(|first| lengths.all(|length| length == first))
}
