//! The files of a model, opened and checked.

use outlive_safetensors::{HEADER_BYTES_MAX, Header, Index, LENGTH_BYTES, TensorInfo};
use outlive_types::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A tensor, and where its bytes are.
pub struct StoredTensor {
    /// Its description.
    pub info: TensorInfo,
    /// Number of the file.
    pub file: usize,
    /// Its first byte in the file.
    pub at: u64,
}

/// A model of one or several files.
pub struct Model {
    /// The open files.
    pub files: Vec<File>,
    /// All tensors, in the order of the files and of their bytes.
    pub tensors: Vec<StoredTensor>,
    /// Texts of the headers.
    pub metadata: BTreeMap<String, String>,
}

impl Model {
    /// Opens a model, given its file or its index.
    ///
    /// # Errors
    /// `Invalid` for files that cannot be read, or are none of the format; if an index and the files
    /// differ.
    pub fn open(path: &Path) -> Result<Model> {
        let (files, tensors, metadata) = Default::default();
        let mut model = Model { files, tensors, metadata };
        if !path.as_os_str().as_encoded_bytes().ends_with(b".json") {
            model.add(path)?;
            return Ok(model);
        }
        let of = |error: Error| error.context(path.display());
        let index = Index::decode(&index_text(path)?).map_err(of)?;
        let dir = path.parent().unwrap_or(Path::new("."));
        let mut names = BTreeSet::new();
        for file in index.file_names() {
            let before = model.tensors.len();
            model.add(&dir.join(file))?;
            for tensor in &model.tensors[before..] {
                let name = &tensor.info.name;
                if index.files.get(name).is_none_or(|there| there != file) {
                    return Err(of(Error::invalid(format!(
                        "{file} has the tensor {name:?}, which the index does not have there"
                    ))));
                }
                names.insert(name.clone());
            }
        }
        match index.files.iter().find(|(name, _)| !names.contains(*name)) {
            Some((name, file)) => {
                let why = format!("the index has {name:?} in {file}, which lacks it");
                Err(of(Error::invalid(why)))
            }
            None => Ok(model),
        }
    }

    /// Returns whether the files say that PyTorch reads them.
    pub fn is_torch(&self) -> bool {
        self.metadata.get("format").is_some_and(|format| format == "pt")
    }

    /// Returns the bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.info.end - tensor.info.begin).sum()
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        let unread = |error| Error::io_named("reading", path, &error);
        let file = File::open(path).map_err(unread)?;
        let stat = file.metadata().map_err(unread)?;
        if !stat.is_file() {
            return Err(Error::invalid(format!("{} is no file", path.display())));
        }
        let of = |error: Error| error.context(path.display());
        let mut first = [0; LENGTH_BYTES as usize];
        let short = |_| Error::invalid(format!("{} is no safetensors file", path.display()));
        file.read_exact_at(&mut first, 0).map_err(short)?;
        let length = Header::length(first, stat.len()).map_err(of)?;
        let mut text = vec![0; length as usize];
        file.read_exact_at(&mut text, LENGTH_BYTES).map_err(unread)?;
        let start = LENGTH_BYTES + length;
        let header = Header::decode(&text, stat.len() - start).map_err(of)?;
        let number = self.files.len();
        self.files.push(file);
        self.metadata.extend(header.metadata);
        let placed = |info: TensorInfo| StoredTensor { at: start + info.begin, info, file: number };
        self.tensors.extend(header.tensors.into_iter().map(placed));
        Ok(())
    }
}

fn index_text(path: &Path) -> Result<Vec<u8>> {
    let unread = |error| Error::io_named("reading", path, &error);
    let mut text = Vec::new();
    let file = File::open(path).map_err(unread)?;
    file.take(HEADER_BYTES_MAX + 1).read_to_end(&mut text).map_err(unread)?;
    match text.len() as u64 > HEADER_BYTES_MAX {
        true => Err(Error::invalid(format!(
            "{} is longer than {HEADER_BYTES_MAX} bytes: it is no index of a model",
            path.display()
        ))),
        false => Ok(text),
    }
}
