//! The types of elements that a program can name, in NumPy's notation.

use crate::call::{Failure, invalid};

/// The machine's own byte order.
const NATIVE: char = if cfg!(target_endian = "little") { '<' } else { '>' };

/// Types that packages add to NumPy, with the bytes of an element. They are named `ext:NAME`.
const EXTENSIONS: [(&str, u64); 9] = [
    ("bfloat16", 2),
    ("float8_e3m4", 1),
    ("float8_e4m3", 1),
    ("float8_e4m3b11fnuz", 1),
    ("float8_e4m3fn", 1),
    ("float8_e4m3fnuz", 1),
    ("float8_e5m2", 1),
    ("float8_e5m2fnuz", 1),
    ("float8_e8m0fnu", 1),
];

/// A type of elements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Dtype {
    /// As it is stored: with its byte order.
    pub text: String,
    /// Bytes of one element.
    pub bytes: u64,
}

impl Dtype {
    /// Reads NumPy's notation: an order (`<`, `>`; the machine's without one), a kind and the bytes
    /// of an element, such as `f8`, `<i4`, `|S16`, `V24`.
    pub fn parse(text: &str) -> Result<Dtype, Failure> {
        let refuse = || {
            Err(invalid(format!(
                "{text:?} is no dtype: write a kind and the bytes of an element, such as \"f8\", \"i4\", \
                 \"u1\", \"c16\", \"b1\", or \"V24\" for structures of 24 bytes"
            )))
        };
        if let Some(name) = text.strip_prefix("ext:") {
            return match EXTENSIONS.iter().find(|(known, _)| *known == name) {
                Some((_, bytes)) => Ok(Dtype { text: text.to_owned(), bytes: *bytes }),
                None => refuse(),
            };
        }
        let (order, rest) = match text.chars().next() {
            Some(order @ ('<' | '>' | '|' | '=')) => (order, &text[1..]),
            _ => ('=', text),
        };
        let Some(kind) = rest.chars().next() else { return refuse() };
        let digits = &rest[kind.len_utf8()..];
        let is_number = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
        let Some(count) = is_number.then(|| digits.parse::<u64>().ok()).flatten() else {
            return refuse();
        };
        let (is_known, bytes, has_order) = match kind {
            'b' => (count == 1, 1, false),
            'i' | 'u' => (matches!(count, 1 | 2 | 4 | 8), count, count > 1),
            'f' => (matches!(count, 2 | 4 | 8 | 16), count, true),
            'c' => (matches!(count, 8 | 16 | 32), count, true),
            'S' | 'V' => (count <= u64::from(u32::MAX), count, false),
            'U' => (count <= u64::from(u32::MAX) / 4, count * 4, true),
            _ => (false, 0, false),
        };
        if !is_known || has_order && order == '|' {
            return refuse();
        }
        let order = match (has_order, order) {
            (false, _) => '|',
            (true, '=') => NATIVE,
            (true, order) => order,
        };
        Ok(Dtype { text: format!("{order}{kind}{count}"), bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_dtypes_are_parsed_and_all_other_texts_are_refused() {
        for (text, stored, bytes) in [
            ("f8", "<f8", 8),
            ("<f8", "<f8", 8),
            ("=f4", "<f4", 4),
            (">f4", ">f4", 4),
            ("f16", "<f16", 16),
            ("c16", "<c16", 16),
            ("u1", "|u1", 1),
            ("<u1", "|u1", 1),
            ("b1", "|b1", 1),
            ("|S5", "|S5", 5),
            ("V24", "|V24", 24),
            ("U3", "<U3", 12),
            ("ext:bfloat16", "ext:bfloat16", 2),
        ] {
            let dtype = Dtype::parse(text).unwrap();
            assert_eq!((&dtype.text[..], dtype.bytes), (stored, bytes), "{text}");
        }
        for text in [
            "",
            "f",
            "8",
            "f9",
            "i3",
            "|f8",
            "<",
            "x4",
            "f-8",
            "f+8",
            "f 8",
            "f8 ",
            "ext:",
            "ext:f8",
            "f99999999999999999999",
            "U4294967295",
            "py:float",
            "é8",
            "O8",
            "f8,f8",
        ] {
            assert!(Dtype::parse(text).is_err(), "{text:?}");
        }
    }
}
