//! What the bytes of small regions mean, as the front doors write them.

use crate::output::shown;
use crate::tree::{self, TREE};
use outlive_types::{Distribution, RegionDesc};
use serde_json::{Value, json};

/// Longest text that is shown as a value.
const TEXT_CHARS_MAX: usize = 60;

/// Longest tree of plain values that programs get as a value.
const TREE_BYTES_MAX: usize = 4096;

/// A scalar's value, for people and for programs; `None` for what is none, or is not understood.
pub fn value(dtype: &str, shape: &[u64], bytes: &[u8]) -> Option<(String, Value)> {
    if !shape.is_empty() && !dtype.starts_with("py:") {
        return None;
    }
    let number = |text: String, value: Value| Some((text, value));
    match dtype {
        "py:none" => number("None".to_owned(), Value::Null),
        "py:bool" | "|b1" | "?" => match bytes {
            [0] => number("False".to_owned(), json!(false)),
            [1] => number("True".to_owned(), json!(true)),
            _ => None,
        },
        "py:int" => {
            let value = integer(bytes, true)?;
            // Programs that read JSON may hold numbers as doubles; a text loses nothing.
            let exact =
                i64::try_from(value).map_or_else(|_| json!(value.to_string()), |n| json!(n));
            number(value.to_string(), exact)
        }
        "py:float" | "<f8" => float(f64::from_le_bytes(bytes.try_into().ok()?)),
        "<f4" => float(f64::from(f32::from_le_bytes(bytes.try_into().ok()?))),
        TREE => {
            let text = tree::summary(bytes)?;
            // Large ones would fill the screen; an export has all of it.
            let is_small = bytes.len() <= TREE_BYTES_MAX;
            let value = is_small.then(|| tree::json(bytes).ok()).flatten();
            let value = value.and_then(|text| serde_json::from_str(&text).ok());
            number(text.clone(), value.unwrap_or_else(|| json!(text)))
        }
        "py:str" => {
            let text = std::str::from_utf8(bytes).ok()?;
            if text.chars().count() > TEXT_CHARS_MAX {
                return None;
            }
            number(format!("\"{}\"", shown(text)), json!(text))
        }
        _ => {
            let (signed, width) = match dtype.as_bytes() {
                [b'<' | b'|', b'i', width @ b'1'..=b'8'] => (true, width - b'0'),
                [b'<' | b'|', b'u', width @ b'1'..=b'8'] => (false, width - b'0'),
                _ => return None,
            };
            if bytes.len() != usize::from(width) {
                return None;
            }
            let value = integer(bytes, signed)?;
            let exact = match (i64::try_from(value), u64::try_from(value)) {
                (Ok(value), _) => json!(value),
                (_, Ok(value)) => json!(value),
                _ => return None,
            };
            number(value.to_string(), exact)
        }
    }
}

/// A little-endian integer of up to 16 bytes (15 without a sign); no bytes are zero.
fn integer(bytes: &[u8], signed: bool) -> Option<i128> {
    if bytes.len() > if signed { 16 } else { 15 } {
        return None;
    }
    let negative = signed && bytes.last().is_some_and(|last| last & 0x80 != 0);
    let mut wide = [if negative { 0xFF } else { 0 }; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    Some(i128::from_le_bytes(wide))
}

fn float(value: f64) -> Option<(String, Value)> {
    // JSON has no infinities and no NaN.
    let exact = if value.is_finite() { json!(value) } else { json!(value.to_string()) };
    Some((format!("{value:?}"), exact))
}

/// A shape as Python writes it.
pub fn shape(shape: &[u64]) -> String {
    let parts: Vec<String> = shape.iter().map(u64::to_string).collect();
    match &parts[..] {
        [] => "()".to_owned(),
        [one] => format!("({one},)"),
        _ => format!("({})", parts.join(", ")),
    }
}

/// A region's shape, and what other ranks have of it.
pub fn extent(region: &RegionDesc) -> String {
    let own = shape(&region.shape);
    match &region.distribution {
        Distribution::Local => own,
        Distribution::Subarray { global_shape, offset } => {
            format!("{own} at {} of {}", shape(offset), shape(global_shape))
        }
        Distribution::BlockCyclic { global_shape, offset, block, stride } => format!(
            "{own} at {} of {}, blocks of {} every {}",
            shape(offset),
            shape(global_shape),
            shape(block),
            shape(stride)
        ),
        Distribution::Replicated => format!("{own} on all ranks"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_types::RegionPlace;

    #[test]
    fn scalars_are_understood() {
        let text = |dtype: &str, bytes: &[u8]| value(dtype, &[], bytes).map(|(text, _)| text);
        assert_eq!(text("py:int", &[]), Some("0".into()));
        assert_eq!(text("py:int", &[0xFF]), Some("-1".into()));
        assert_eq!(text("py:int", &[0xFF, 0]), Some("255".into()));
        assert_eq!(text("py:int", &i128::MIN.to_le_bytes()), Some(i128::MIN.to_string()));
        assert_eq!(text("py:int", &[1; 17]), None);
        assert_eq!(text("py:float", &1.5f64.to_le_bytes()), Some("1.5".into()));
        assert_eq!(text("py:float", &[0; 7]), None);
        assert_eq!(text("py:str", "a\"\n".as_bytes()), Some("\"a\"\\n\"".into()));
        assert_eq!(text("py:str", &[0xFF]), None);
        assert_eq!(text("py:bool", &[1]), Some("True".into()));
        assert_eq!(text("py:bool", &[2]), None);
        assert_eq!(text("py:none", &[]), Some("None".into()));
        assert_eq!(text("<u8", &u64::MAX.to_le_bytes()), Some(u64::MAX.to_string()));
        assert_eq!(text("<i4", &(-7i32).to_le_bytes()), Some("-7".into()));
        assert_eq!(text("<i4", &[1]), None);
        assert_eq!(value("<f8", &[1], &[0; 8]), None, "an array is no scalar");
        assert_eq!(value("py:float", &[], &f64::NAN.to_le_bytes()).unwrap().1, json!("NaN"));
    }

    #[test]
    fn parts_of_global_arrays_say_where_they_are() {
        let told = |distribution| {
            extent(&RegionDesc {
                name: "r".to_owned(),
                dtype: "<f8".to_owned(),
                shape: vec![2, 3],
                bytes: 48,
                place: RegionPlace::Own,
                distribution,
            })
        };
        let (global_shape, offset) = (vec![8, 3], vec![4, 0]);
        let part = Distribution::Subarray { global_shape, offset };
        let (global_shape, offset, block, stride) =
            (vec![8, 9], vec![4, 1], vec![2, 1], vec![4, 3]);
        let blocks = Distribution::BlockCyclic { global_shape, offset, block, stride };
        assert_eq!(told(blocks), "(2, 3) at (4, 1) of (8, 9), blocks of (2, 1) every (4, 3)");
        assert_eq!(told(Distribution::Local), "(2, 3)");
        assert_eq!(told(part), "(2, 3) at (4, 0) of (8, 3)");
        assert_eq!(told(Distribution::Replicated), "(2, 3) on all ranks");
    }

    #[test]
    fn shapes_are_python_s() {
        assert_eq!([shape(&[]), shape(&[3]), shape(&[3, 4])], ["()", "(3,)", "(3, 4)"]);
    }
}
