//! Tables of products, looked up by half a byte.

use crate::field::mul;

/// Product tables of each coefficient, for each sum and each of its terms.
pub struct Tables(pub Vec<Vec<Products>>);

/// Products of one coefficient with the lower and with the upper half of a byte; their sum is the
/// product with the byte.
pub struct Products {
    /// Products with the lower half.
    pub low: [u8; 16],
    /// Products with the upper half.
    pub high: [u8; 16],
}

impl Tables {
    /// Returns the tables of the coefficients `rows[out][in]`.
    pub fn new(rows: &[Vec<u8>]) -> Tables {
        let of = |coefficient: &u8| {
            let low = std::array::from_fn(|half| mul(*coefficient, half as u8));
            let high = std::array::from_fn(|half| mul(*coefficient, (half << 4) as u8));
            Products { low, high }
        };
        Tables(rows.iter().map(|row| row.iter().map(of).collect()).collect())
    }
}
