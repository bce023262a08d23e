//! Types of elements, by their names in the format and in outlive.

/// Type of a tensor's elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dtype {
    /// Name in a header.
    pub name: &'static str,
    /// Text of the dtype in a checkpoint; `None` for a type that no checkpoint can have.
    pub text: Option<&'static str>,
    /// Bits of an element.
    pub bits: u64,
    /// Elements that are one in a checkpoint: of these types an element is no whole byte.
    pub per_element: u64,
}

/// Text of PyTorch's `float4_e2m1fn_x2`: two elements in a byte.
const FLOAT4_X2: &str = "dlpack:17.4.2";

const DTYPES: [Dtype; 21] = [
    dtype("BOOL", "|b1", 8),
    dtype("U8", "|u1", 8),
    dtype("I8", "|i1", 8),
    dtype("I16", "<i2", 16),
    dtype("U16", "<u2", 16),
    dtype("F16", "<f2", 16),
    dtype("BF16", "ext:bfloat16", 16),
    dtype("I32", "<i4", 32),
    dtype("U32", "<u4", 32),
    dtype("F32", "<f4", 32),
    dtype("I64", "<i8", 64),
    dtype("U64", "<u8", 64),
    dtype("F64", "<f8", 64),
    dtype("C64", "<c8", 64),
    dtype("F8_E4M3", "ext:float8_e4m3fn", 8),
    dtype("F8_E5M2", "ext:float8_e5m2", 8),
    dtype("F8_E8M0", "ext:float8_e8m0fnu", 8),
    dtype("F8_E4M3FNUZ", "ext:float8_e4m3fnuz", 8),
    dtype("F8_E5M2FNUZ", "ext:float8_e5m2fnuz", 8),
    Dtype { name: "F4", text: Some(FLOAT4_X2), bits: 4, per_element: 2 },
    // NumPy and PyTorch have no arrays in which an element takes six bits.
    Dtype { name: "F6_E2M3", text: None, bits: 6, per_element: 1 },
];

const fn dtype(name: &'static str, text: &'static str, bits: u64) -> Dtype {
    Dtype { name, text: Some(text), bits, per_element: 1 }
}

impl Dtype {
    /// Returns the type with a name.
    pub fn named(name: &str) -> Option<Dtype> {
        let name = if name == "F6_E3M2" { "F6_E2M3" } else { name };
        DTYPES.into_iter().find(|dtype| dtype.name == name)
    }

    /// Returns the type for the text of a checkpoint.
    pub fn of_text(text: &str) -> Option<Dtype> {
        DTYPES.into_iter().find(|dtype| dtype.text == Some(text))
    }

    /// Returns the bytes of a tensor; `None` if they are too many, or no whole number.
    pub fn bytes_of(self, shape: &[u64]) -> Option<u64> {
        let elements = shape.iter().try_fold(1u64, |all, extent| all.checked_mul(*extent))?;
        let bits = elements.checked_mul(self.bits)?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }

    /// Returns the shape in a checkpoint, whose last axis may have fewer elements; `None` if they
    /// do not divide.
    pub fn stored_shape(self, shape: &[u64]) -> Option<Vec<u64>> {
        self.scaled(shape, |extent| {
            extent.is_multiple_of(self.per_element).then_some(extent / self.per_element)
        })
    }

    /// Returns the shape in a file for the one in a checkpoint.
    pub fn file_shape(self, shape: &[u64]) -> Option<Vec<u64>> {
        self.scaled(shape, |extent| extent.checked_mul(self.per_element))
    }

    fn scaled(self, shape: &[u64], of: impl Fn(u64) -> Option<u64>) -> Option<Vec<u64>> {
        let mut shape = shape.to_vec();
        if self.per_element > 1 {
            let last = shape.last_mut()?;
            *last = of(*last)?;
        }
        Some(shape)
    }
}
