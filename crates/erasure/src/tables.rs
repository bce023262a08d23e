//! Products that are looked up half a byte at a time.

use crate::field::mul;

/// For each sum and each of its terms, what a coefficient makes of a byte.
pub struct Tables(pub Vec<Vec<Products>>);

/// The products of one coefficient with the lower and with the upper half of a byte: their sum is that
/// with the byte.
pub struct Products {
    /// With the lower half.
    pub low: [u8; 16],
    /// With the upper half.
    pub high: [u8; 16],
}

impl Tables {
    /// Those of the coefficients `rows[out][in]`.
    pub fn new(rows: &[Vec<u8>]) -> Tables {
        let of = |coefficient: &u8| {
            let low = std::array::from_fn(|half| mul(*coefficient, half as u8));
            let high = std::array::from_fn(|half| mul(*coefficient, (half << 4) as u8));
            Products { low, high }
        };
        Tables(rows.iter().map(|row| row.iter().map(of).collect()).collect())
    }
}
