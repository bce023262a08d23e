//! Trees of plain values, which Python's front door stores as one region: as JSON, and in a few words.

use outlive_format::{Plain, PlainKind, PlainReader};
use outlive_types::{Error, Result};
use std::fmt::Write as _;

/// The dtype of such a region.
pub const TREE: &str = "py:tree";

/// What a tree is, in a few words; `None` if the bytes are none.
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

/// A tree as JSON. What JSON lacks becomes text: NaN, infinities, integers beyond 64 bits (in hexadecimal
/// digits) and byte strings (as well). A complex number is an array of two, a tuple an array. Keys are
/// text; those that were none are the JSON of the key.
///
/// # Errors
/// `Damaged` if the bytes are none.
pub fn json(bytes: &[u8]) -> Result<String> {
    let mut writer = Writer { from: PlainReader::new(bytes)?, text: String::new() };
    writer.value(&mut Vec::new())?;
    match writer.from.next()? {
        None => Ok(writer.text),
        Some(_) => Err(Error::damaged("something follows a tree of plain values")),
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
                let mut inner = Vec::new();
                for at in 0..count {
                    let begin = self.text.len();
                    self.value(&mut Vec::new())?;
                    let key = self.text.split_off(begin);
                    let key = if key.starts_with('"') { key } else { quoted(&key) };
                    self.entry(at, &key, &mut inner)?;
                    keys.push(key);
                }
                self.end(count, '{', '}');
            }
            Plain::Again(count) => {
                let mut inner = Vec::new();
                for (at, key) in keys.iter().enumerate().take(count) {
                    self.entry(at, key, &mut inner)?;
                }
                self.end(count, '{', '}');
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

    fn entry(&mut self, at: usize, key: &str, inner: &mut Vec<String>) -> Result<()> {
        self.text.push(if at == 0 { '{' } else { ',' });
        self.text.push_str(key);
        self.text.push(':');
        self.value(inner)
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

    /// Bytes in hexadecimal digits; those of an integer from the highest on, with its sign.
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
        assert_eq!(summary(b"OLPV"), None);
    }
}
