//! The index of a model in several files: `model.safetensors.index.json`.

use outlive_types::{Error, Result};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The file of each tensor.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Index {
    /// Names of files by names of tensors. Files are in the directory of the index.
    pub files: BTreeMap<String, String>,
}

#[derive(serde::Deserialize)]
struct Whole {
    weight_map: BTreeMap<String, String>,
}

impl Index {
    /// Reads an index.
    ///
    /// # Errors
    /// `Invalid` for another text, and for files in other directories.
    pub fn decode(text: &[u8]) -> Result<Index> {
        let whole: Whole = serde_json::from_slice(text)
            .map_err(|error| Error::invalid(format!("it is no index of a model: {error}")))?;
        let is_plain = |file: &str| !matches!(file, "" | "." | "..") && !file.contains(['/', '\0']);
        match whole.weight_map.iter().find(|(_, file)| !is_plain(file)) {
            Some((name, file)) => Err(Error::invalid(format!(
                "the index has {name:?} in {file:?}, which is no name of a file beside it"
            ))),
            None => Ok(Index { files: whole.weight_map }),
        }
    }

    /// Returns the text of the index; `total_bytes` are those of all tensors.
    pub fn encode(&self, total_bytes: u64) -> Vec<u8> {
        let whole: Value =
            json!({ "metadata": { "total_size": total_bytes }, "weight_map": self.files });
        format!("{whole:#}\n").into_bytes()
    }

    /// Returns the names of the files, each once.
    pub fn file_names(&self) -> BTreeSet<&str> {
        self.files.values().map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_read_as_it_was_written() {
        let files = [("a", "model-00001-of-00002.safetensors"), ("b", "x"), ("c", "x")];
        let files = files.map(|(name, file)| (name.to_owned(), file.to_owned())).into();
        let index = Index { files };
        assert_eq!(Index::decode(&index.encode(7)).unwrap(), index);
        assert_eq!(index.file_names().len(), 2);
    }

    #[test]
    fn files_elsewhere_are_refused() {
        for file in ["", "..", ".", "../x", "/etc/passwd", "a/b", "a\\u0000"] {
            let text = format!(r#"{{"weight_map":{{"a":"{file}"}}}}"#);
            assert!(Index::decode(text.as_bytes()).is_err(), "{file}");
        }
        assert!(Index::decode(b"{}").is_err());
        assert!(Index::decode(b"[").is_err());
    }
}
