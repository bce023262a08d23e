//! Small matrices over the field.

use crate::field::{inverse, mul};

/// A matrix, row by row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Matrix {
    columns: usize,
    cells: Vec<u8>,
}

impl Matrix {
    /// Returns a matrix of the values of `cell(row, column)`.
    pub fn new(rows: usize, columns: usize, cell: impl Fn(usize, usize) -> u8) -> Matrix {
        let cell = |at: usize| cell(at / columns, at % columns);
        Matrix { columns, cells: (0..rows * columns).map(cell).collect() }
    }

    /// Returns one row.
    pub fn row(&self, row: usize) -> &[u8] {
        &self.cells[row * self.columns..][..self.columns]
    }

    /// Multiplies a row by this matrix.
    pub fn times(&self, row: &[u8]) -> Vec<u8> {
        let sum = |column: usize| {
            let each = row.iter().enumerate();
            each.fold(0, |sum, (at, cell)| sum ^ mul(*cell, self.row(at)[column]))
        };
        (0..self.columns).map(sum).collect()
    }

    /// Returns the inverse of a square matrix, by Gauss-Jordan elimination; `None` if it has none.
    pub fn inverted(mut self) -> Option<Matrix> {
        let size = self.columns;
        let mut inverted = Matrix::new(size, size, |row, column| u8::from(row == column));
        for at in 0..size {
            let pivot = (at..size).find(|row| self.row(*row)[at] != 0)?;
            for matrix in [&mut self, &mut inverted] {
                (0..size).for_each(|column| {
                    matrix.cells.swap(at * size + column, pivot * size + column)
                });
            }
            let scale = inverse(self.row(at)[at]);
            for matrix in [&mut self, &mut inverted] {
                matrix.cells[at * size..][..size]
                    .iter_mut()
                    .for_each(|cell| *cell = mul(*cell, scale));
            }
            for row in (0..size).filter(|row| *row != at) {
                let factor = self.row(row)[at];
                for matrix in [&mut self, &mut inverted] {
                    for column in 0..size {
                        let other = matrix.cells[at * size + column];
                        matrix.cells[row * size + column] ^= mul(factor, other);
                    }
                }
            }
        }
        Some(inverted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inverse_undoes() {
        let matrix = Matrix::new(5, 5, |row, column| inverse((row as u8 + 100) ^ column as u8));
        let inverted = matrix.clone().inverted().unwrap();
        for row in 0..5 {
            let unit: Vec<u8> = (0..5).map(|column| u8::from(row == column)).collect();
            assert_eq!(inverted.times(matrix.row(row)), unit);
        }
        assert_eq!(Matrix::new(3, 3, |row, _| row as u8).inverted(), None);
        // Rows must be swapped during elimination.
        let swapped = Matrix::new(2, 2, |row, column| u8::from(row != column));
        assert_eq!(swapped.clone().inverted(), Some(swapped));
    }
}
