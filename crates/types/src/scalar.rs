//! Values of regions that hold one value, as the language bindings write them.

/// One value.
#[derive(Clone, PartialEq, Debug)]
pub enum Scalar {
    /// Python's `None`.
    None,
    /// True or false.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// A floating-point number.
    Float(f64),
    /// A text.
    Text(String),
}

impl Scalar {
    /// Returns the value of a region of this type and shape; `None` for an array or an unknown
    /// type.
    pub fn read(dtype: &str, shape: &[u64], bytes: &[u8]) -> Option<Scalar> {
        if !shape.is_empty() && !dtype.starts_with("py:") {
            return None;
        }
        // NumPy's scalars, as Python saves them.
        let dtype = dtype.strip_prefix("scalar:").unwrap_or(dtype);
        match dtype {
            "py:none" => Some(Scalar::None),
            "py:bool" | "|b1" | "?" => match bytes {
                [0] => Some(Scalar::Bool(false)),
                [1] => Some(Scalar::Bool(true)),
                _ => None,
            },
            "py:int" => integer(bytes, true).map(Scalar::Int),
            "py:float" | "<f8" => Some(Scalar::Float(f64::from_le_bytes(bytes.try_into().ok()?))),
            "<f4" => Some(Scalar::Float(f64::from(f32::from_le_bytes(bytes.try_into().ok()?)))),
            "py:str" => std::str::from_utf8(bytes).ok().map(|text| Scalar::Text(text.to_owned())),
            _ => {
                let (signed, width) = match dtype.as_bytes() {
                    [b'<' | b'|', b'i', width @ b'1'..=b'8'] => (true, width - b'0'),
                    [b'<' | b'|', b'u', width @ b'1'..=b'8'] => (false, width - b'0'),
                    _ => return None,
                };
                let is_whole = bytes.len() == usize::from(width);
                is_whole.then(|| integer(bytes, signed))?.map(Scalar::Int)
            }
        }
    }
}

/// Reads a little-endian integer of up to 16 bytes (15 without a sign); no bytes are zero.
fn integer(bytes: &[u8], signed: bool) -> Option<i128> {
    if bytes.len() > if signed { 16 } else { 15 } {
        return None;
    }
    let negative = signed && bytes.last().is_some_and(|last| last & 0x80 != 0);
    let mut wide = [if negative { 0xFF } else { 0 }; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    Some(i128::from_le_bytes(wide))
}
