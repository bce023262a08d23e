//! Finds the arrays of a checkpoint: for each its type, its shape, and its bytes in a region.
//!
//! docs/format.md describes the notes by which Python's interface says how a tensor lies in memory.

use crate::export::matches;
use crate::output::shown;
use outlive_safetensors::{Dtype, METADATA};
use outlive_store::MemoryImage;
use outlive_types::{Error, RegionDesc, Result};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};

/// Newest version of the skeleton of Python's interface that this build reads.
const SKELETON_VERSION_MAX: u64 = 3;

/// An array, as its elements lie in the bytes of a region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tensor {
    /// Its name in the file.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape in the checkpoint.
    pub shape: Vec<u64>,
    /// Its shape in the file.
    pub file_shape: Vec<u64>,
    /// Number of the region that has its bytes.
    pub region: usize,
    /// Where its first element is in the region.
    pub offset: u64,
    /// Bytes between neighbours along each axis.
    pub strides: Vec<u64>,
    /// Bytes of an element.
    pub item_bytes: u64,
}

impl Tensor {
    /// Returns the bytes of all elements.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.item_bytes
    }

    /// Returns whether the elements follow each other as in a file.
    pub fn is_contiguous(&self) -> bool {
        let mut step = self.item_bytes;
        let axes = self.shape.iter().zip(&self.strides).rev();
        self.bytes() == 0
            || axes.into_iter().all(|(extent, stride)| {
                let follows = *extent == 1 || *stride == step;
                step *= extent;
                follows
            })
    }

    /// Returns the bytes behind the last one of the region that it needs; `None` if they are too
    /// many.
    fn end(&self) -> Option<u64> {
        if self.shape.contains(&0) {
            return Some(self.offset);
        }
        let mut last = self.offset;
        for (extent, stride) in self.shape.iter().zip(&self.strides) {
            last = last.checked_add((extent - 1).checked_mul(*stride)?)?;
        }
        last.checked_add(self.item_bytes)
    }
}

/// The arrays of a checkpoint.
#[derive(Debug, Default)]
pub struct Found {
    /// Those to write, in the order of the checkpoint.
    pub tensors: Vec<Tensor>,
    /// Names of arrays that are the very memory of another one, with the name of that.
    pub tied: BTreeMap<String, String>,
    /// Names of regions that no file can have, each with a reason.
    pub left_out: Vec<(String, String)>,
    /// Whether the program has tensors of PyTorch.
    pub is_torch: bool,
}

#[derive(Deserialize, Default)]
struct Skeleton {
    #[serde(default)]
    fortran: Vec<usize>,
    #[serde(default)]
    tensors: Vec<usize>,
    #[serde(default)]
    notes: Vec<(usize, Note)>,
    #[serde(default)]
    names: Option<Vec<String>>,
}

#[derive(Deserialize, Clone, Default)]
struct Note {
    axes: Option<Vec<usize>>,
    shape: Option<Vec<u64>>,
    of: Option<String>,
    offset: Option<u64>,
    strides: Option<Vec<i64>>,
    text: Option<String>,
    dtype: Option<String>,
    #[serde(default)]
    conj: bool,
    #[serde(default)]
    neg: bool,
}

/// Reads the skeleton of Python's interface; other interfaces save arrays in C order.
fn skeleton(attachment: &[u8]) -> Result<Skeleton> {
    let Ok(whole) = serde_json::from_slice::<Value>(attachment) else {
        return Ok(Skeleton::default());
    };
    let Some(version) = whole.get("outlive.python") else { return Ok(Skeleton::default()) };
    let newer = || {
        Error::invalid(format!(
            "another build of outlive has saved this checkpoint (version {version} of its skeleton), \
             and this one cannot tell how its arrays lie in memory: export it with that build"
        ))
    };
    match version.as_u64() {
        Some(1..=SKELETON_VERSION_MAX) => {
            serde_json::from_value(whole.clone()).map_err(|_| newer())
        }
        _ => Err(newer()),
    }
}

/// A view of a region's memory: the region, the offset, the shape, the strides and the dtype.
type Memory<'a> = (usize, u64, Vec<u64>, Vec<u64>, &'a str);

/// Finds the arrays whose names match one of `only`, below the container `root`.
///
/// # Errors
/// `Invalid` if a pattern matches nothing, or two arrays would have one name.
pub fn find(checkpoint: &MemoryImage, only: &[String], root: Option<&str>) -> Result<Found> {
    let regions = checkpoint.regions();
    if let Some(idle) = only.iter().find(|only| !regions.iter().any(|r| matches(only, &r.name))) {
        return Err(Error::invalid(format!(
            "no region of checkpoint {} matches \"{}\"; `outlive show` lists them",
            checkpoint.epoch(),
            shown(idle)
        )));
    }
    let skeleton = skeleton(checkpoint.attachment())?;
    let numbers: HashMap<&str, usize> =
        regions.iter().enumerate().map(|(at, region)| (&region.name[..], at)).collect();
    // Without names of its own the skeleton counts the regions.
    let number_of = |leaf: usize| match &skeleton.names {
        Some(names) => names.get(leaf).and_then(|name| numbers.get(&name[..]).copied()),
        None => Some(leaf),
    };
    let notes: HashMap<usize, &Note> =
        skeleton.notes.iter().filter_map(|(leaf, note)| Some((number_of(*leaf)?, note))).collect();
    let fortran: Vec<usize> = skeleton.fortran.iter().filter_map(|at| number_of(*at)).collect();
    let is_torch = !skeleton.tensors.is_empty() || !skeleton.notes.is_empty();
    let mut found = Found { is_torch, ..Found::default() };
    let mut memories: HashMap<Memory<'_>, String> = HashMap::new();
    let mut names: HashMap<String, String> = HashMap::new();
    for (number, region) in regions.iter().enumerate() {
        let Some(name) = name_in_file(&region.name, root) else { continue };
        if !only.is_empty() && !only.iter().any(|only| matches(only, &region.name)) {
            continue;
        }
        let note = notes.get(&number).copied().cloned().unwrap_or_default();
        let is_fortran = fortran.contains(&number);
        let tensor = match tensor(regions, &numbers, number, name.clone(), &note, is_fortran) {
            Ok(tensor) => tensor,
            Err(why) => {
                found.left_out.push((region.name.clone(), why));
                continue;
            }
        };
        if let Some(other) = names.insert(name.clone(), region.name.clone()) {
            return Err(Error::invalid(format!(
                "the regions {} and {} would have one name in the file, {}: choose one with `--only`",
                shown(&other),
                shown(&region.name),
                shown(&name)
            )));
        }
        if name == METADATA {
            return Err(Error::invalid(format!(
                "the region {} cannot be exported: the format keeps this name for itself",
                shown(&region.name)
            )));
        }
        let Tensor { region, offset, shape, strides, dtype, .. } = &tensor;
        let memory = (*region, *offset, shape.clone(), strides.clone(), dtype.name);
        if tensor.bytes() > 0
            && let Some(first) = memories.get(&memory)
        {
            found.tied.insert(name, first.clone());
            continue;
        }
        memories.insert(memory, name);
        found.tensors.push(tensor);
    }
    Ok(found)
}

/// Returns the name of a region in a file: its path below `root`, with the keys as they are.
fn name_in_file(region: &str, root: Option<&str>) -> Option<String> {
    let path = match root {
        None => region,
        Some(root) => region.strip_prefix(root.trim_end_matches('/'))?.strip_prefix('/')?,
    };
    let key = |part: &str| match part {
        "~" => String::new(),
        part => part.replace("~1", "/").replace("~0", "~"),
    };
    Some(path.split('/').map(key).collect::<Vec<_>>().join("/"))
}

/// Returns the array of a region, or why there is none.
fn tensor(
    regions: &[RegionDesc],
    numbers: &HashMap<&str, usize>,
    number: usize,
    name: String,
    note: &Note,
    is_fortran: bool,
) -> std::result::Result<Tensor, String> {
    let region = &regions[number];
    let text = note.text.as_deref().unwrap_or(&region.dtype);
    if text.starts_with("py:") || text.starts_with("scalar:") {
        return Err("a value".to_owned());
    }
    if let Some(dtype) = &note.dtype {
        return Err(format!("the format has no type for {dtype}"));
    }
    if note.conj || note.neg {
        return Err(
            "its values differ from those in memory by a sign: save a `clone()` of it".into()
        );
    }
    let dtype = Dtype::of_text(text).ok_or_else(|| format!("the format has no type for {text}"))?;
    let item_bytes = (dtype.bits * dtype.per_element) / 8;
    let strange = || "its layout cannot be read".to_owned();
    let mut found = Tensor {
        name,
        dtype,
        shape: region.shape.clone(),
        file_shape: Vec::new(),
        region: number,
        offset: 0,
        strides: steps(&region.shape, item_bytes, is_fortran).ok_or_else(strange)?,
        item_bytes,
    };
    if let Some(of) = &note.of {
        found.region = *numbers.get(&of[..]).ok_or_else(strange)?;
        found.offset = note.offset.ok_or_else(strange)?;
        let strides = note.strides.iter().flatten().map(|step| u64::try_from(*step).ok());
        found.strides = strides.collect::<Option<_>>().ok_or_else(strange)?;
        found.shape = note.shape.clone().ok_or_else(strange)?;
    } else {
        if let Some(axes) = &note.axes {
            (found.shape, found.strides) =
                unordered(&found.shape, &found.strides, axes).ok_or_else(strange)?;
        }
        if let Some(shape) = &note.shape {
            repeat(&mut found, shape).ok_or_else(strange)?;
        }
    }
    found.file_shape = dtype.file_shape(&found.shape).ok_or_else(strange)?;
    let fits = found.strides.len() == found.shape.len()
        && found.end().is_some_and(|end| end <= regions[found.region].bytes)
        && dtype.bytes_of(&found.file_shape).is_some();
    if fits { Ok(found) } else { Err(strange()) }
}

/// Returns the steps of an array without gaps.
fn steps(shape: &[u64], item_bytes: u64, is_fortran: bool) -> Option<Vec<u64>> {
    let mut strides = vec![0; shape.len()];
    let mut step = item_bytes;
    let mut set = |axis: usize| {
        strides[axis] = step;
        step = step.checked_mul(shape[axis].max(1))?;
        Some(())
    };
    match is_fortran {
        true => (0..shape.len()).try_for_each(&mut set)?,
        false => (0..shape.len()).rev().try_for_each(&mut set)?,
    }
    Some(strides)
}

/// Returns shape and steps of the array whose axes the memory has in the order `axes`.
fn unordered(shape: &[u64], strides: &[u64], axes: &[usize]) -> Option<(Vec<u64>, Vec<u64>)> {
    let mut found = (vec![None; axes.len()], vec![0; axes.len()]);
    if axes.len() != shape.len() {
        return None;
    }
    for (at, axis) in axes.iter().enumerate() {
        *found.0.get_mut(*axis)? = Some(shape[at]);
        *found.1.get_mut(*axis)? = strides[at];
    }
    Some((found.0.into_iter().collect::<Option<_>>()?, found.1))
}

/// Repeats the array along axes of length 1, up to a shape.
fn repeat(tensor: &mut Tensor, shape: &[u64]) -> Option<()> {
    if shape.len() != tensor.shape.len() {
        return None;
    }
    for ((there, stride), wanted) in tensor.shape.iter_mut().zip(&mut tensor.strides).zip(shape) {
        if there != wanted {
            if *there != 1 {
                return None;
            }
            (*there, *stride) = (*wanted, 0);
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_paths_with_their_keys() {
        let of = |region, root| name_in_file(region, root);
        assert_eq!(of("model/layers.0.weight", None).unwrap(), "model/layers.0.weight");
        assert_eq!(of("model/layers.0.weight", Some("model")).unwrap(), "layers.0.weight");
        assert_eq!(of("model/a~1b/~0/~", Some("model/")).unwrap(), "a/b/~/");
        assert_eq!(of("models/x", Some("model")), None);
    }

    #[test]
    fn contiguous_is_what_a_file_has() {
        let tensor = |shape: &[u64], strides: &[u64]| Tensor {
            name: String::new(),
            dtype: Dtype::named("F32").unwrap(),
            shape: shape.to_vec(),
            file_shape: shape.to_vec(),
            region: 0,
            offset: 0,
            strides: strides.to_vec(),
            item_bytes: 4,
        };
        assert!(tensor(&[2, 3], &[12, 4]).is_contiguous());
        assert!(!tensor(&[2, 3], &[4, 8]).is_contiguous());
        assert!(tensor(&[1, 3], &[99, 4]).is_contiguous());
        assert!(tensor(&[0, 3], &[1, 1]).is_contiguous());
        assert!(!tensor(&[2], &[0]).is_contiguous());
        assert_eq!(tensor(&[2, 3], &[4, 8]).end(), Some(4 + 16 + 4));
        assert_eq!(tensor(&[u64::MAX, 2], &[8, 4]).end(), None);
        assert_eq!(steps(&[2, 3], 4, true).unwrap(), [4, 8]);
        assert_eq!(unordered(&[4, 2, 3], &[24, 12, 4], &[2, 0, 1]).unwrap().0, [2, 3, 4]);
        assert!(unordered(&[4, 2], &[8, 4], &[0, 0]).is_none());
    }
}
