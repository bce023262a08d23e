//! `outlive export --format json`: the values of a checkpoint as one JSON object.

use super::{ExportPlan, fortran_regions, publish_bytes, stream_name};
use crate::args::ExportArgs;
use crate::chosen::{select, skipped_json};
use crate::output::{Answer, Reporter, count, shown};
use crate::region;
use crate::show::{chosen_rank, no_checkpoint};
use crate::tree::{self, TREE};
use outlive_store::{Job, MemoryImage, RestoreSink};
use outlive_types::sync::plain::Mutex;
use outlive_types::{Epoch, Error, RegionDesc, RegionLocation, Result, Scalar};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Longer arrays are left out: a program that reads JSON has them in memory several times.
const ARRAY_BYTES_MAX: u64 = 64 << 10;
/// Most names of regions in a message.
const NAMED_MAX: usize = 5;

/// Streams on their way into memory.
struct Streams(BTreeMap<usize, Mutex<Vec<u8>>>);

impl RestoreSink for Streams {
    fn write(&self, stream: usize, offset: u64, bytes: &[u8]) {
        if let Some(memory) = self.0.get(&stream) {
            memory.lock()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Does nothing: the memory starts as zeros.
    fn zero(&self, _stream: usize, _offset: u64, _length: u64) {}
}

/// The values, and the regions that have none in JSON.
#[derive(Default)]
struct Values {
    text: String,
    names: Vec<String>,
    left_out: Vec<String>,
}

/// Writes the values to the file `--to`, or to standard output.
pub fn export(
    args: &ExportArgs,
    job: &Job,
    epoch: Option<Epoch>,
    reporter: &Arc<Reporter>,
) -> Result<Answer> {
    if args.dry_run {
        return Err(Error::invalid(
            "--dry-run does not work with --format json: leave out one of them",
        ));
    }
    let to = destination(args)?;
    let mut attempt = |checkpoint: &MemoryImage| values(checkpoint, &args.only);
    let rank = chosen_rank(job, epoch, args.rank)?;
    let found = job.attempt_rank(select(epoch), rank, &mut attempt)?;
    let (checkpoint, values, skipped) = found.ok_or_else(|| no_checkpoint(job))?;
    reporter.finish();
    let Values { text, names, left_out } = values;
    if !left_out.is_empty() {
        reporter.say(&format!("warning: {}", left_out_text(&left_out)));
    }
    let Some((dir, name)) = to else {
        return Ok(Answer::new(text, Value::Null));
    };
    publish_bytes(dir, name, text.as_bytes(), args.force)?;
    let path = args.to.display().to_string();
    let (epoch, shown_to) = (checkpoint.epoch(), shown(&path));
    let told = format!(
        "Exported {} of checkpoint {epoch} to {shown_to}.\n",
        count(names.len() as u64, "value")
    );
    let json = json!({
        "to": path,
        "job": job.name().as_str(),
        "epoch": epoch,
        "rank": rank,
        "regions": names,
        "left_out": left_out,
        "skipped": skipped_json(&skipped),
    });
    Ok(Answer::new(told, json))
}

/// Returns directory and name of the file; `None` for standard output.
///
/// # Errors
/// `Invalid` if the file is there already, or its directory is not.
pub fn destination(args: &ExportArgs) -> Result<Option<(&Path, &Path)>> {
    let to = &args.to;
    if to == Path::new("-") {
        return Ok(None);
    }
    let Some(name) = to.file_name().filter(|_| !to.as_os_str().as_encoded_bytes().ends_with(b"/"))
    else {
        return Err(Error::invalid(format!(
            "{} names no file: with this format, --to is a file, or - for standard output",
            to.display()
        )));
    };
    match fs::symlink_metadata(to) {
        Ok(there) if there.is_dir() => {
            return Err(Error::invalid(format!(
                "{} is a directory: with this format, --to is a file, or - for standard output",
                to.display()
            )));
        }
        Ok(_) if !args.force => {
            return Err(Error::invalid(format!(
                "{} is there already: choose another file, or replace it with --force",
                to.display()
            )));
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Error::io_named("making", to, &error));
        }
        _ => {}
    }
    let dir = to.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
    if !dir.is_dir() {
        return Err(Error::invalid(format!("{} is no directory", dir.display())));
    }
    Ok(Some((dir, Path::new(name))))
}

fn left_out_text(names: &[String]) -> String {
    let named: Vec<String> = names.iter().take(NAMED_MAX).map(|name| shown(name)).collect();
    let more = match names.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "no value in JSON for {}: {}{more} (arrays beyond 64 KiB, or of a type that JSON lacks; an \
         export without --format json has them)",
        count(names.len() as u64, "region"),
        named.join(", ")
    )
}

/// Reads the regions that may have a value, and makes the text.
fn values(checkpoint: &MemoryImage, only: &[String]) -> Result<Values> {
    let plan = ExportPlan::new(checkpoint, only)?;
    let fortran = fortran_regions(checkpoint.attachment());
    let is_fortran: BTreeSet<&str> = checkpoint
        .regions()
        .iter()
        .enumerate()
        .filter(|(number, _)| fortran.contains(number))
        .map(|(_, region)| region.name.as_str())
        .collect();
    let stream_of = checkpoint.stream_of();
    let mut streams = Streams(BTreeMap::new());
    let wanted = || plan.items.iter().map(|item| &item.region).filter(|region| may_have(region));
    for stream in wanted().filter_map(|region| stream_of.get(stream_name(region))) {
        if let std::collections::btree_map::Entry::Vacant(vacant) = streams.0.entry(*stream) {
            let length = checkpoint.streams()[*stream].tree.bytes;
            vacant.insert(Mutex::new(super::sink::zeros(length)?));
        }
    }
    let numbers: Vec<usize> = streams.0.keys().copied().collect();
    checkpoint.read(&numbers, &streams)?;
    let streams: BTreeMap<usize, Vec<u8>> =
        streams.0.into_iter().map(|(number, memory)| (number, memory.into_inner())).collect();
    let mut out = Values { text: "{".to_owned(), ..Values::default() };
    for item in &plan.items {
        let region = &item.region;
        let stream = stream_of.get(stream_name(region)).and_then(|number| streams.get(number));
        let bytes = match stream {
            Some(stream) => bytes_of(region, stream),
            None => (region.bytes == 0).then_some(&[][..]),
        };
        let bytes = bytes.filter(|_| may_have(region));
        let is_fortran = is_fortran.contains(region.name.as_str());
        match bytes.map(|bytes| value_of(region, bytes, is_fortran)).transpose()?.flatten() {
            Some(value) => {
                let separator = if out.names.is_empty() { "" } else { "," };
                let _ = write!(out.text, "{separator}\n  {}: {value}", json!(region.name));
                out.names.push(region.name.clone());
            }
            None => out.left_out.push(region.name.clone()),
        }
    }
    out.text.push_str(if out.names.is_empty() { "}\n" } else { "\n}\n" });
    Ok(out)
}

/// Returns whether a region may have a value in JSON, by its type and length.
fn may_have(region: &RegionDesc) -> bool {
    region.dtype.starts_with("py:") || region.bytes <= ARRAY_BYTES_MAX
}

fn bytes_of<'a>(region: &RegionDesc, stream: &'a [u8]) -> Option<&'a [u8]> {
    match region.location {
        RegionLocation::Own => stream.get(..usize::try_from(region.bytes).ok()?),
        RegionLocation::Packed { .. } => crate::show::packed_slice(region, stream),
    }
}

/// Returns a region's value as JSON; `None` if JSON has none for its type.
fn value_of(region: &RegionDesc, bytes: &[u8], is_fortran: bool) -> Result<Option<String>> {
    let RegionDesc { name, dtype, shape, .. } = region;
    if dtype == TREE {
        let text = tree::json(bytes).map_err(|e| e.context(format!("region {name:?}")))?;
        return Ok(Some(text));
    }
    if dtype == "py:bytes" {
        let hex = bytes.iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        return Ok(Some(json!(hex).to_string()));
    }
    if shape.is_empty() || dtype.starts_with("py:") {
        return Ok(scalar(dtype, bytes));
    }
    Ok(array(dtype, shape, bytes, is_fortran))
}

fn scalar(dtype: &str, bytes: &[u8]) -> Option<String> {
    match Scalar::read(dtype, &[], bytes)? {
        // All of a text, however long it is.
        Scalar::Text(text) => Some(json!(text).to_string()),
        _ => region::value(dtype, &[], bytes).map(|(_, value)| value.to_string()),
    }
}

/// Returns an array as lists within lists.
fn array(dtype: &str, shape: &[u64], bytes: &[u8], is_fortran: bool) -> Option<String> {
    let sizes: Vec<usize> =
        shape.iter().map(|n| usize::try_from(*n).ok()).collect::<Option<_>>()?;
    let items = sizes.iter().try_fold(1usize, |all, n| all.checked_mul(*n))?;
    let width = bytes.len().checked_div(items).unwrap_or(0);
    if width.checked_mul(items) != Some(bytes.len()) {
        return None;
    }
    // Items between neighbours of each dimension.
    let mut strides = vec![1usize; sizes.len()];
    let order: Vec<usize> = match is_fortran {
        true => (0..sizes.len()).collect(),
        false => (0..sizes.len()).rev().collect(),
    };
    for pair in order.windows(2) {
        strides[pair[1]] = strides[pair[0]].saturating_mul(sizes[pair[0]]);
    }
    let mut text = String::new();
    let item = |at: usize| scalar(dtype, &bytes[at * width..][..width]);
    lists(&sizes, &strides, 0, &item, &mut text)?;
    Some(text)
}

fn lists(
    sizes: &[usize],
    strides: &[usize],
    at: usize,
    item: &impl Fn(usize) -> Option<String>,
    text: &mut String,
) -> Option<()> {
    let (Some((size, sizes)), Some((stride, strides))) =
        (sizes.split_first(), strides.split_first())
    else {
        text.push_str(&item(at)?);
        return Some(());
    };
    text.push('[');
    for number in 0..*size {
        if number > 0 {
            text.push(',');
        }
        lists(sizes, strides, at + number * stride, item, text)?;
    }
    text.push(']');
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(dtype: &str, shape: &[u64], bytes: &[u8]) -> RegionDesc {
        RegionDesc {
            name: "r".to_owned(),
            dtype: dtype.to_owned(),
            shape: shape.to_vec(),
            bytes: bytes.len() as u64,
            location: RegionLocation::Own,
            distribution: outlive_types::Distribution::Local,
        }
    }

    fn value(dtype: &str, shape: &[u64], bytes: &[u8], is_fortran: bool) -> Option<String> {
        value_of(&region(dtype, shape, bytes), bytes, is_fortran).unwrap()
    }

    #[test]
    fn arrays_are_lists_within_lists() {
        let bytes = [1, 2, 3, 4, 5, 6];
        let of = |shape: &[u64], fortran| value("|u1", shape, &bytes, fortran).unwrap();
        assert_eq!(of(&[6], false), "[1,2,3,4,5,6]");
        assert_eq!(of(&[2, 3], false), "[[1,2,3],[4,5,6]]");
        assert_eq!(of(&[2, 3], true), "[[1,3,5],[2,4,6]]");
        assert_eq!(of(&[3, 1, 2], false), "[[[1,2]],[[3,4]],[[5,6]]]");
        assert_eq!(of(&[3, 1, 2], true), "[[[1,4]],[[2,5]],[[3,6]]]");
        assert_eq!(value("<f8", &[0], &[], false).unwrap(), "[]");
        assert_eq!(value("<f4", &[2, 0], &[], true).unwrap(), "[[],[]]");
        assert_eq!(value("<i2", &[2], &[0xFF, 0xFF, 1, 0], false).unwrap(), "[-1,1]");
        assert_eq!(value("|b1", &[2], &[0, 1], false).unwrap(), "[false,true]");
    }

    #[test]
    fn types_without_a_value_have_none() {
        assert_eq!(value("<c16", &[], &[0; 16], false), None);
        assert_eq!(value("<c16", &[2], &[0; 32], false), None);
        assert_eq!(value("|u1", &[4], &[0; 5], false), None, "a length that does not fit");
        assert_eq!(value("<f8", &[u64::MAX, u64::MAX], &[], false), None);
        assert_eq!(value("py:object", &[], &[1], false), None);
        assert!(value_of(&region(TREE, &[], &[0xFF; 3]), &[0xFF; 3], false).is_err());
    }

    #[test]
    fn scalars_are_whole() {
        let long = "x".repeat(1000);
        assert_eq!(value("py:str", &[], long.as_bytes(), false), Some(format!("\"{long}\"")));
        assert_eq!(value("py:bytes", &[], &[0, 255], false).unwrap(), "\"00ff\"");
        assert_eq!(value("py:none", &[], &[], false).unwrap(), "null");
        assert_eq!(value("<f8", &[], &f64::NAN.to_le_bytes(), false).unwrap(), "\"NaN\"");
    }
}
