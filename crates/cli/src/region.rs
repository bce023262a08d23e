//! Values of small regions, as the language bindings write them.

use crate::output::shown;
use crate::tree::{self, TREE};
use outlive_types::{Distribution, RegionDesc, Scalar};
use serde_json::{Value, json};

/// Longest text that is shown as a value.
const TEXT_CHARS_MAX: usize = 60;

/// Longest tree of plain values that programs get as a value.
const TREE_BYTES_MAX: usize = 4096;

/// Returns a scalar's value, for people and for programs; `None` if it is none, or of an unknown
/// type.
pub fn value(dtype: &str, shape: &[u64], bytes: &[u8]) -> Option<(String, Value)> {
    let told = |text: String, value: Value| Some((text, value));
    if dtype == TREE {
        let text = tree::summary(bytes)?;
        // Large ones would fill the screen; an export has the whole value.
        let is_small = bytes.len() <= TREE_BYTES_MAX;
        let value = is_small.then(|| tree::json(bytes).ok()).flatten();
        let value = value.and_then(|text| serde_json::from_str(&text).ok());
        return told(text.clone(), value.unwrap_or_else(|| json!(text)));
    }
    match Scalar::read(dtype, shape, bytes)? {
        Scalar::None => told("None".to_owned(), Value::Null),
        Scalar::Bool(false) => told("False".to_owned(), json!(false)),
        Scalar::Bool(true) => told("True".to_owned(), json!(true)),
        Scalar::Float(value) => float(value),
        Scalar::Text(text) if text.chars().count() > TEXT_CHARS_MAX => None,
        Scalar::Text(text) => told(format!("\"{}\"", shown(&text)), json!(text)),
        Scalar::Int(value) => {
            let exact = match (i64::try_from(value), u64::try_from(value)) {
                (Ok(value), _) => json!(value),
                (_, Ok(value)) if dtype != "py:int" => json!(value),
                // Programs that read JSON may store numbers as doubles; a text loses nothing.
                _ => json!(value.to_string()),
            };
            told(value.to_string(), exact)
        }
    }
}

fn float(value: f64) -> Option<(String, Value)> {
    // JSON has no infinities and no NaN.
    let exact = if value.is_finite() { json!(value) } else { json!(value.to_string()) };
    Some((format!("{value:?}"), exact))
}

/// Returns a shape in Python's notation.
pub fn shape(shape: &[u64]) -> String {
    let parts: Vec<String> = shape.iter().map(u64::to_string).collect();
    match &parts[..] {
        [] => "()".to_owned(),
        [one] => format!("({one},)"),
        _ => format!("({})", parts.join(", ")),
    }
}

/// Returns a region's shape, and its distribution over ranks.
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
    use outlive_types::RegionLocation;

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
                location: RegionLocation::Own,
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
