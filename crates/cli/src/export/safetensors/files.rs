//! Divides the tensors of a model among files, as the hub of models does.

use super::layout::{Found, Tensor};
use outlive_safetensors::{Header, Index, TensorInfo};
use outlive_store::MemoryImage;
use outlive_types::{Error, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const EXTENSION: &str = ".safetensors";
/// Name of a model's files in a directory that a command names.
const STEM: &str = "model";

/// Directory and name of a model.
pub struct Place {
    /// The directory.
    pub dir: PathBuf,
    /// The name of its files, up to the extension.
    stem: String,
}

impl Place {
    /// Returns the place that `--to` names: a directory, or a file with the extension of the format.
    ///
    /// # Errors
    /// `Invalid` for a name that is no text.
    pub fn of(to: &Path) -> Result<Place> {
        let Some(name) =
            to.file_name().filter(|name| name.as_encoded_bytes().ends_with(EXTENSION.as_bytes()))
        else {
            return Ok(Place { dir: to.to_owned(), stem: STEM.to_owned() });
        };
        let stem = name.to_str().and_then(|name| name.strip_suffix(EXTENSION));
        let stem = stem.filter(|stem| !stem.is_empty()).ok_or_else(|| {
            Error::invalid(format!("{} is no name for a model: choose another one", to.display()))
        })?;
        let dir = to.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
        Ok(Place { dir: dir.to_owned(), stem: stem.to_owned() })
    }

    fn index(&self) -> String {
        format!("{}{EXTENSION}.index.json", self.stem)
    }
}

/// One file of a model.
pub struct ModelFile {
    /// Its name.
    pub name: String,
    /// Its header.
    pub header: Header,
    /// The encoded header.
    pub head: Vec<u8>,
    /// For each tensor of the header, its number in the model.
    pub tensors: Vec<usize>,
}

impl ModelFile {
    /// Returns its length.
    pub fn bytes(&self) -> u64 {
        self.head.len() as u64 + self.header.tensors.last().map_or(0, |last| last.end)
    }
}

/// All files of a model.
pub struct Model {
    /// The files.
    pub files: Vec<ModelFile>,
    /// Bytes of all tensors.
    pub bytes: u64,
}

impl Model {
    /// Divides the arrays among files of at most `most_bytes`; one that is longer is alone.
    ///
    /// # Errors
    /// `Invalid` if a header would be too long.
    pub fn new(
        found: &Found,
        checkpoint: &MemoryImage,
        place: &Place,
        most_bytes: Option<u64>,
    ) -> Result<Model> {
        let mut parts: Vec<Vec<usize>> = vec![Vec::new()];
        let mut part_bytes = 0u64;
        for (number, tensor) in found.tensors.iter().enumerate() {
            let bytes = tensor.bytes();
            let is_full = most_bytes.is_some_and(|most| part_bytes.saturating_add(bytes) > most);
            if is_full && parts.last().is_some_and(|part| !part.is_empty()) {
                parts.push(Vec::new());
                part_bytes = 0;
            }
            part_bytes += bytes;
            if let Some(part) = parts.last_mut() {
                part.push(number);
            }
        }
        let count = parts.len();
        let mut metadata = BTreeMap::from([
            ("format".to_owned(), if found.is_torch { "pt" } else { "np" }.to_owned()),
            ("outlive".to_owned(), format!("{}@{}", checkpoint.job(), checkpoint.epoch())),
        ]);
        let mut files = Vec::new();
        for (at, part) in parts.into_iter().enumerate() {
            let name = match count {
                1 => format!("{}{EXTENSION}", place.stem),
                _ => format!("{}-{:05}-of-{count:05}{EXTENSION}", place.stem, at + 1),
            };
            let of = |number: &usize| &found.tensors[*number].name;
            let tied =
                found.tied.iter().filter(|(_, first)| part.iter().map(of).any(|it| it == *first));
            let tied: Vec<_> = tied.map(|(name, first)| (name.clone(), first.clone())).collect();
            metadata.extend(tied.clone());
            files.push(file(name, part, &found.tensors, &metadata)?);
            tied.iter().for_each(|(name, _)| drop(metadata.remove(name)));
        }
        let bytes = found.tensors.iter().map(Tensor::bytes).sum();
        Ok(Model { files, bytes })
    }

    /// Returns the name of the index, if there is one.
    pub fn index_name(&self, place: &Place) -> Option<String> {
        (self.files.len() > 1).then(|| place.index())
    }

    /// Returns the index of several files.
    pub fn index(&self) -> Vec<u8> {
        let of = |file: &ModelFile| {
            let names = file.header.tensors.iter().map(|tensor| tensor.name.clone());
            names.map(|name| (name, file.name.clone())).collect::<Vec<_>>()
        };
        Index { files: self.files.iter().flat_map(of).collect() }.encode(self.bytes)
    }

    /// Refuses to replace existing files.
    ///
    /// # Errors
    /// `Invalid` if one of them is there.
    pub fn check_free(&self, place: &Place) -> Result<()> {
        let files = self.files.iter().map(|file| file.name.clone());
        for path in files.chain(self.index_name(place)).map(|name| place.dir.join(name)) {
            if fs::symlink_metadata(&path).is_ok() {
                return Err(Error::invalid(format!(
                    "{} is there already: choose another place, or replace files with --force",
                    path.display()
                )));
            }
        }
        Ok(())
    }
}

fn file(
    name: String,
    mut numbers: Vec<usize>,
    tensors: &[Tensor],
    metadata: &BTreeMap<String, String>,
) -> Result<ModelFile> {
    // Longer elements first: so each tensor begins at a multiple of its element.
    numbers.sort_by(|a, b| {
        let (a, b) = (&tensors[*a], &tensors[*b]);
        (b.item_bytes, &a.name).cmp(&(a.item_bytes, &b.name))
    });
    let mut header = Header { tensors: Vec::new(), metadata: metadata.clone() };
    let mut at = 0;
    for number in &numbers {
        let tensor = &tensors[*number];
        let end = at + tensor.bytes();
        header.tensors.push(TensorInfo {
            name: tensor.name.clone(),
            dtype: tensor.dtype,
            shape: tensor.file_shape.clone(),
            begin: at,
            end,
        });
        at = end;
    }
    let head = header.encode()?;
    Ok(ModelFile { name, header, head, tensors: numbers })
}
