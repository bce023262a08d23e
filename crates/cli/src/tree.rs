//! Trees of plain values, which the Python binding stores as one region: as JSON, and as a summary.

use outlive_format::{Plain, PlainKind, PlainReader};
use outlive_types::{Error, Result};
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::ops::Range;

/// Dtype of such a region.
pub const TREE: &str = "py:tree";

/// Returns a tree's summary; `None` if the bytes are no tree.
pub fn summary(bytes: &[u8]) -> Option<String> {
    let (kind, count) = match PlainReader::new(bytes).ok()?.next().ok()?? {
        Plain::Open(kind, count) | Plain::Run(kind, count, _) => (kind, count),
        _ => return None,
    };
    let kind = match kind {
        PlainKind::List => "list",
        PlainKind::Tuple => "tuple",
        PlainKind::Dict => "dict",
    };
    Some(format!("{kind} of {count}"))
}

/// Returns a tree as JSON. Values that JSON lacks become text: NaN, infinities, integers beyond 64
/// bits and byte strings, the last two in hexadecimal digits. A complex number is an array of two,
/// a tuple an array. Keys are text; a key of another type becomes the text of its JSON. A dict in
/// which two keys become equal is an array of pairs.
///
/// # Errors
/// `Damaged` if the bytes are no tree.
pub fn json(bytes: &[u8]) -> Result<String> {
    let mut writer = Writer { from: PlainReader::new(bytes)?, text: String::new() };
    writer.value(&mut Vec::new())?;
    match writer.from.next()? {
        None => Ok(writer.text),
        Some(_) => Err(Error::damaged("something follows a tree of plain values")),
    }
}

/// Start of a dict in the text, and the positions of its values.
struct Entries {
    begin: usize,
    values: Vec<Range<usize>>,
}

impl Entries {
    fn new(begin: usize) -> Entries {
        Entries { begin, values: Vec::new() }
    }
}

struct Writer<'a> {
    from: PlainReader<'a>,
    text: String,
}

impl Writer<'_> {
    /// Writes the next value. `keys` are those of the last dict in the same container.
    fn value(&mut self, keys: &mut Vec<String>) -> Result<()> {
        let next = loop {
            match self.from.next()? {
                Some(Plain::Pad) => {}
                next => break next,
            }
        };
        match next.ok_or_else(|| Error::damaged("a tree of plain values ends too early"))? {
            Plain::Pad | Plain::None => self.text.push_str("null"),
            Plain::Bool(value) => self.text.push_str(if value { "true" } else { "false" }),
            Plain::Int(value) => self.write(value),
            Plain::Unsigned(value) => self.write(value),
            Plain::Big(bytes) => self.hex(bytes, true),
            Plain::Float(value) => self.float(value),
            Plain::Complex(real, imaginary) => {
                self.text.push('[');
                self.float(real);
                self.text.push(',');
                self.float(imaginary);
                self.text.push(']');
            }
            Plain::Text(text) => self.string(&String::from_utf8_lossy(text)),
            Plain::Bytes(bytes) => self.hex(bytes, false),
            Plain::Run(_, _, numbers) => {
                self.text.push('[');
                let mut separator = "";
                let text = &mut self.text;
                let int = |value: i64| value.to_string();
                numbers.each(int, float, |number| {
                    let _ = write!(text, "{separator}{number}");
                    separator = ",";
                });
                self.text.push(']');
            }
            Plain::Open(PlainKind::Dict, count) => {
                keys.clear();
                let (mut inner, mut dict) = (Vec::new(), Entries::new(self.text.len()));
                for _ in 0..count {
                    let begin = self.text.len();
                    self.value(&mut Vec::new())?;
                    let key = self.text.split_off(begin);
                    self.entry(&mut dict, &key, &mut inner)?;
                    keys.push(key);
                }
                self.end_dict(&dict, keys);
            }
            Plain::Again(count) => {
                let (mut inner, mut dict) = (Vec::new(), Entries::new(self.text.len()));
                for key in keys.iter().take(count) {
                    self.entry(&mut dict, key, &mut inner)?;
                }
                self.end_dict(&dict, keys);
            }
            Plain::Open(_, count) => {
                let mut inner = Vec::new();
                for at in 0..count {
                    self.text.push(if at == 0 { '[' } else { ',' });
                    self.value(&mut inner)?;
                }
                self.end(count, '[', ']');
            }
        }
        Ok(())
    }

    fn entry(&mut self, dict: &mut Entries, key: &str, inner: &mut Vec<String>) -> Result<()> {
        self.text.push(if dict.values.is_empty() { '{' } else { ',' });
        self.text.push_str(&as_key(key));
        self.text.push(':');
        let begin = self.text.len();
        self.value(inner)?;
        dict.values.push(begin..self.text.len());
        Ok(())
    }

    /// Ends a dict; `keys` are the JSON of its keys.
    fn end_dict(&mut self, dict: &Entries, keys: &[String]) {
        let mut seen = HashSet::with_capacity(keys.len());
        if keys.iter().all(|key| seen.insert(as_key(key))) {
            return self.end(dict.values.len(), '{', '}');
        }
        let mut pairs = String::new();
        for (key, value) in keys.iter().zip(&dict.values) {
            pairs.push(if pairs.is_empty() { '[' } else { ',' });
            let _ = write!(pairs, "[{key},{}]", &self.text[value.clone()]);
        }
        self.text.truncate(dict.begin);
        self.text.push_str(&pairs);
        self.text.push(']');
    }

    fn end(&mut self, count: usize, open: char, close: char) {
        if count == 0 {
            self.text.push(open);
        }
        self.text.push(close);
    }

    fn write(&mut self, value: impl std::fmt::Display) {
        let _ = write!(self.text, "{value}");
    }

    fn float(&mut self, value: f64) {
        self.text.push_str(&float(value));
    }

    fn string(&mut self, text: &str) {
        self.text.push_str(&quoted(text));
    }

    /// Writes bytes in hexadecimal digits; those of an integer from the highest on, with its sign.
    fn hex(&mut self, bytes: &[u8], is_integer: bool) {
        let mut digits = String::new();
        if is_integer {
            let negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
            let mut carry = negative;
            let magnitude: Vec<u8> = bytes
                .iter()
                .map(|byte| {
                    if !negative {
                        return *byte;
                    }
                    let (sum, over) = (!byte).overflowing_add(u8::from(carry));
                    carry = over;
                    sum
                })
                .collect();
            digits.push_str(if negative { "-0x" } else { "0x" });
            magnitude.iter().rev().for_each(|byte| {
                let _ = write!(digits, "{byte:02x}");
            });
        } else {
            bytes.iter().for_each(|byte| {
                let _ = write!(digits, "{byte:02x}");
            });
        }
        self.string(&digits);
    }
}

fn float(value: f64) -> String {
    if value.is_finite() { format!("{value:?}") } else { format!("\"{value}\"") }
}

/// Returns the JSON text for a key.
fn as_key(key: &str) -> Cow<'_, str> {
    if key.starts_with('"') { key.into() } else { quoted(key).into() }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_format::PlainWriter;
    use serde_json::json;

    fn tree(write: impl Fn(&mut PlainWriter<'_>)) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut PlainWriter::new(&mut bytes));
        bytes
    }

    #[test]
    fn trees_are_json() {
        let bytes = tree(|to| {
            to.open(PlainKind::List, 8);
            to.open(PlainKind::Dict, 2);
            to.text(b"a\"");
            to.ints(PlainKind::Tuple, &[1, -2]);
            to.int(7);
            to.none();
            to.again();
            to.float(-0.5);
            to.bool(true);
            to.pad();
            to.open(PlainKind::List, 0);
            to.open(PlainKind::Dict, 0);
            to.big(&[0xFE, 0xFF, 0xFF]);
            to.bytes(b"\x01\xAB");
            to.complex(1.0, f64::INFINITY);
            to.float(f64::NAN);
        });
        let text = json(&bytes).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let wanted = json!([
            {"a\"": [1, -2], "7": null}, {"a\"": -0.5, "7": true}, [], {}, "-0x000002", "01ab",
            [1.0, "inf"], "NaN"
        ]);
        assert_eq!(value, wanted);
        assert_eq!(summary(&bytes).unwrap(), "list of 8");
        let run = tree(|to| to.ints(PlainKind::Tuple, &[1, 2, 3]));
        assert_eq!(
            (json(&run).unwrap(), summary(&run).unwrap()),
            ("[1,2,3]".into(), "tuple of 3".into())
        );
        assert!(json(&bytes[..bytes.len() - 1]).is_err());
        let same = tree(|to| {
            to.open(PlainKind::List, 2);
            to.open(PlainKind::Dict, 2);
            to.int(1);
            to.text(b"a");
            to.text(b"1");
            to.ints(PlainKind::List, &[4, 5]);
            to.again();
            to.none();
            to.open(PlainKind::Dict, 0);
        });
        let pairs = r#"[[[1,"a"],["1",[4,5]]],[[1,null],["1",{}]]]"#;
        assert_eq!(json(&same).unwrap(), pairs);
        assert_eq!(summary(b"OLPV"), None);
    }
}
