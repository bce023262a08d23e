//! The field GF(2^8) of the polynomial x^8 + x^4 + x^3 + x^2 + 1. Addition is exclusive or.

/// The polynomial without its highest term.
const POLYNOMIAL: u8 = 0x1D;

/// Returns the product of two elements, bit by bit.
pub const fn mul(a: u8, b: u8) -> u8 {
    let (mut product, mut power, mut rest) = (0, a, b);
    while rest != 0 {
        if rest & 1 != 0 {
            product ^= power;
        }
        let overflows = power & 0x80 != 0;
        power <<= 1;
        if overflows {
            power ^= POLYNOMIAL;
        }
        rest >>= 1;
    }
    product
}

/// Returns the inverse of a nonzero element: its 254th power.
pub const fn inverse(a: u8) -> u8 {
    let (mut power, mut product, mut bits) = (a, 1, 254);
    while bits != 0 {
        if bits & 1 != 0 {
            product = mul(product, power);
        }
        power = mul(power, power);
        bits >>= 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_field() {
        for a in 0..=255 {
            assert_eq!((mul(a, 1), mul(1, a), mul(a, 0)), (a, a, 0));
            if a != 0 {
                assert_eq!(mul(a, inverse(a)), 1);
            }
            for b in 0..=255 {
                assert_eq!(mul(a, b), mul(b, a));
                let c = a.wrapping_mul(7) ^ b;
                assert_eq!(mul(a, b ^ c), mul(a, b) ^ mul(a, c));
                assert_eq!(mul(a, mul(b, c)), mul(mul(a, b), c));
            }
        }
    }

    #[test]
    fn two_generates_all_of_it() {
        let mut seen = [false; 256];
        let mut power = 1;
        for _ in 0..255 {
            assert!(!std::mem::replace(&mut seen[usize::from(power)], true));
            power = mul(power, 2);
        }
        assert_eq!(power, 1);
    }
}
