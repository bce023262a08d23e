//! The header of NumPy's file format (NEP 1), for regions that can have one.

use crate::region;
use outlive_types::RegionDesc;

const MAGIC: &[u8] = b"\x93NUMPY";
/// Data begin at a multiple of this, so that they can be memory-mapped.
const ALIGN_BYTES: usize = 64;

/// Returns the header that makes a region a `.npy` file. With `fortran`, the first index runs
/// fastest. Returns `None` if the region is no array that NumPy knows.
pub fn header(region: &RegionDesc, fortran: bool) -> Option<Vec<u8>> {
    let descr = if region.dtype.starts_with('[') {
        structured(region)?
    } else {
        let item_bytes = item_bytes(&region.dtype)?;
        let items = region.shape.iter().try_fold(1u64, |all, n| all.checked_mul(*n))?;
        if items.checked_mul(item_bytes)? != region.bytes {
            return None;
        }
        format!("'{}'", region.dtype)
    };
    let shape = region::shape(&region.shape);
    let order = if fortran { "True" } else { "False" };
    let dict = format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}");
    // Version 1.0 has a length field of 16 bits, 2.0 one of 32.
    let fits = dict.len() + 1 + ALIGN_BYTES <= usize::from(u16::MAX);
    let before = MAGIC.len() + 2 + if fits { 2 } else { 4 };
    let length = (before + dict.len() + 1).next_multiple_of(ALIGN_BYTES) - before;
    let mut out = Vec::with_capacity(before + length);
    out.extend_from_slice(MAGIC);
    if fits {
        out.extend_from_slice(&[1, 0]);
        out.extend_from_slice(&(length as u16).to_le_bytes());
    } else {
        out.extend_from_slice(&[2, 0]);
        out.extend_from_slice(&(length as u32).to_le_bytes());
    }
    out.extend_from_slice(dict.as_bytes());
    out.resize(before + length - 1, b' ');
    out.push(b'\n');
    Some(out)
}

/// Returns the bytes of an item of a simple dtype such as `<f8`, `|u1`, `<U12` or `<M8[ns]`.
fn item_bytes(dtype: &str) -> Option<u64> {
    let rest = dtype.strip_prefix(['<', '>', '|'])?;
    let kind = rest.chars().next().filter(|kind| "biufcmMSUV".contains(*kind))?;
    let rest = &rest[1..];
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = rest.split_at(digits);
    let plain = match kind {
        'm' | 'M' => {
            let unit = unit.strip_prefix('[').and_then(|unit| unit.strip_suffix(']'));
            unit.is_some_and(|unit| unit.bytes().all(|byte| byte.is_ascii_alphanumeric()))
        }
        _ => unit.is_empty(),
    };
    let number: u64 = number.parse().ok()?;
    let width = if kind == 'U' { 4 } else { 1 };
    plain.then(|| number.checked_mul(width)).flatten().filter(|bytes| *bytes > 0)
}

/// Returns a list of fields such as `[('x', '<f8'), ('n', '<i4', (2,))]`, unless it contains more.
fn structured(region: &RegionDesc) -> Option<String> {
    let text = &region.dtype;
    let mut open = Vec::new();
    let mut quoted = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'\'' => quoted = !quoted,
            b'\\' | b'"' | b'{' | b'}' => return None,
            _ if !(b' '..=b'~').contains(&byte) => return None,
            _ if quoted => {}
            b'[' | b'(' => open.push(byte),
            b']' | b')' => {
                let wanted = if byte == b']' { b'[' } else { b'(' };
                if open.pop() != Some(wanted) || (open.is_empty() && at + 1 < text.len()) {
                    return None;
                }
            }
            b',' | b' ' => {}
            _ if byte.is_ascii_digit() => {}
            _ => return None,
        }
    }
    (!quoted && open.is_empty()).then(|| text.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_types::{Distribution, RegionLocation};

    fn region(dtype: &str, shape: &[u64], bytes: u64) -> RegionDesc {
        let (name, dtype) = ("r".to_owned(), dtype.to_owned());
        RegionDesc {
            name,
            dtype,
            shape: shape.to_vec(),
            bytes,
            location: RegionLocation::Own,
            distribution: Distribution::Local,
        }
    }

    fn header(region: &RegionDesc) -> Option<Vec<u8>> {
        super::header(region, false)
    }

    #[test]
    fn a_header_is_numpy_s_own() {
        // numpy.save(file, numpy.zeros((3, 4))) begins with exactly these 128 bytes.
        let mut want = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
        want.extend_from_slice(b"{'descr': '<f8', 'fortran_order': False, 'shape': (3, 4), }");
        want.resize(127, b' ');
        want.push(b'\n');
        assert_eq!(header(&region("<f8", &[3, 4], 96)), Some(want));
        let fortran = super::header(&region("<f8", &[3, 4], 96), true).unwrap();
        let text = String::from_utf8_lossy(&fortran);
        assert!(text.contains("'fortran_order': True, ") && fortran.len() == 128, "{text}");
    }

    #[test]
    fn only_dtypes_that_numpy_can_read_become_npy() {
        for (dtype, bytes) in [
            ("|b1", 1),
            ("<c16", 16),
            ("<U3", 12),
            ("<M8[ns]", 8),
            ("|V5", 5),
            ("[('x', '<f8'), ('n', '<i4', (2,))]", 16),
        ] {
            let header = header(&region(dtype, &[], bytes)).expect(dtype);
            assert_eq!(header.len() % 64, 0, "{dtype}");
        }
        for (dtype, bytes) in [
            ("<f8", 7),
            ("|S0", 0),
            ("py:int", 1),
            ("", 0),
            ("<f8', 'x': '", 8),
            ("<M8[n'", 8),
            ("[('x', '<f8')], 'y': (", 8),
            ("[('x', __import__('os'))]", 8),
            ("|O", 8),
            ("<é8", 8),
        ] {
            assert_eq!(header(&region(dtype, &[], bytes)), None, "{dtype}");
        }
        assert_eq!(header(&region("<f8", &[u64::MAX, 2], 8)), None);
        let many = format!("[{}]", vec!["('a', '<f8')"; 10_000].join(", "));
        let long = header(&region(&many, &[], 80_000)).unwrap();
        assert_eq!((&long[6..8], long.len() % 64), (&[2, 0][..], 0));
    }
}
