//! The header of a file.

use crate::{Dtype, HEADER_BYTES_MAX, LENGTH_BYTES};
use outlive_types::{Error, Result};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashSet};
use std::fmt;

/// Key of the texts that belong to no tensor.
pub const METADATA: &str = "__metadata__";
/// Most axes of a tensor: those of a region.
const AXES_MAX: usize = 64;
/// The data begin at a multiple of this.
const ALIGN_BYTES: usize = 8;

/// One tensor of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its extents.
    pub shape: Vec<u64>,
    /// Its first byte, counted from the end of the header.
    pub begin: u64,
    /// The byte behind its last one.
    pub end: u64,
}

/// A header: tensors in the order of their bytes, which follow each other without gaps.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// The tensors.
    pub tensors: Vec<TensorInfo>,
    /// Texts that belong to no tensor.
    pub metadata: BTreeMap<String, String>,
}

#[derive(serde::Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The entries of an object. Unlike a map it shows a key that occurs twice.
struct Entries(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Entries, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Entries;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }

        from.deserialize_map(Collect)
    }
}

impl Header {
    /// Returns the length of the header of a file that begins with these bytes and is `file_bytes`
    /// long.
    ///
    /// # Errors
    /// `Invalid` if the file has no such header.
    pub fn length(first: [u8; LENGTH_BYTES as usize], file_bytes: u64) -> Result<u64> {
        let length = u64::from_le_bytes(first);
        let room = file_bytes.saturating_sub(LENGTH_BYTES);
        match length {
            0..2 => Err(refused(format!("its header has {length} bytes"))),
            _ if length > HEADER_BYTES_MAX => Err(refused(format!(
                "its header would have {length} bytes, and {HEADER_BYTES_MAX} is the most"
            ))),
            _ if length > room => Err(refused(format!(
                "its header would have {length} bytes, and the file ends before"
            ))),
            _ => Ok(length),
        }
    }

    /// Reads a header, whose file has `data_bytes` behind it.
    ///
    /// # Errors
    /// `Invalid` for any other text: names that occur twice, unknown types, offsets that overlap,
    /// leave gaps, lie beyond the end or do not fit the shape.
    pub fn decode(text: &[u8], data_bytes: u64) -> Result<Header> {
        if !text.starts_with(b"{") {
            return Err(refused("its header is no JSON object".to_owned()));
        }
        let Entries(entries) = serde_json::from_slice(text)
            .map_err(|error| refused(format!("its header cannot be read: {error}")))?;
        let mut header = Header::default();
        let mut names = HashSet::with_capacity(entries.len());
        for (name, value) in entries {
            if !names.insert(name.clone()) {
                return Err(of(&name, "occurs twice"));
            }
            if name == METADATA {
                header.metadata = serde_json::from_value(value)
                    .map_err(|error| of(&name, &format!("is no object of texts: {error}")))?;
                continue;
            }
            header.tensors.push(TensorInfo::of(name, value)?);
        }
        header.tensors.sort_by(|a, b| (a.begin, a.end, &a.name).cmp(&(b.begin, b.end, &b.name)));
        let mut at = 0;
        for tensor in &header.tensors {
            if tensor.begin != at {
                let begin = tensor.begin;
                let why =
                    format!("begins at byte {begin} of the data, and the one before ends at {at}");
                return Err(of(&tensor.name, &why));
            }
            at = tensor.end;
        }
        match at == data_bytes {
            true => Ok(header),
            false => Err(refused(format!(
                "its tensors have {at} bytes, and the file has {data_bytes} behind the header"
            ))),
        }
    }

    /// Returns the first bytes of a file with these tensors: the length of the header, and the
    /// header.
    ///
    /// # Errors
    /// `Invalid` if it would be too long.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut whole = Map::new();
        if !self.metadata.is_empty() {
            whole.insert(METADATA.to_owned(), json!(self.metadata));
        }
        for TensorInfo { name, dtype, shape, begin, end } in &self.tensors {
            let entry =
                json!({ "dtype": dtype.name, "shape": shape, "data_offsets": [begin, end] });
            whole.insert(name.clone(), entry);
        }
        let mut text = Value::Object(whole).to_string().into_bytes();
        text.resize(text.len().next_multiple_of(ALIGN_BYTES), b' ');
        if text.len() as u64 > HEADER_BYTES_MAX {
            return Err(Error::invalid(format!(
                "the header of a safetensors file would have {} bytes, and {HEADER_BYTES_MAX} is the most: \
                 export fewer tensors with `--only`, or several files with `--max-shard-size`",
                text.len()
            )));
        }
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.append(&mut text);
        Ok(bytes)
    }
}

impl TensorInfo {
    fn of(name: String, value: Value) -> Result<TensorInfo> {
        let entry: Entry = serde_json::from_value(value)
            .map_err(|error| of(&name, &format!("is described in another way: {error}")))?;
        let Entry { dtype, shape, data_offsets: (begin, end) } = entry;
        let Some(dtype) = Dtype::named(&dtype) else {
            return Err(of(
                &name,
                &format!("has elements of the type {dtype:?}, which is unknown"),
            ));
        };
        if shape.len() > AXES_MAX {
            return Err(of(
                &name,
                &format!("has {} axes, and {AXES_MAX} is the most", shape.len()),
            ));
        }
        let bytes = end.checked_sub(begin);
        match dtype.bytes_of(&shape).filter(|wanted| Some(*wanted) == bytes) {
            Some(_) => Ok(TensorInfo { name, dtype, shape, begin, end }),
            None => Err(of(
                &name,
                &format!("has the shape {shape:?}, which does not fit its bytes, {begin} to {end}"),
            )),
        }
    }
}

fn refused(why: String) -> Error {
    Error::invalid(format!("it is no whole safetensors file: {why}"))
}

fn of(name: &str, why: &str) -> Error {
    let shown: String = name.chars().take(200).collect();
    refused(format!("{shown:?} {why}"))
}

#[cfg(test)]
mod tests;
