//! Checks that the ranks save regions that belong together. Lengths may differ, since the parts of
//! an array are seldom of one size. Names, types and global shapes must be the same.

use outlive_format::fingerprint;
use outlive_types::{Distribution, Error, PageSource, RegionDesc, Result, Scalar};
use std::collections::BTreeMap;

/// Longest text in a message; a longer one is shown by its fingerprint.
const TEXT_CHARS_MAX: usize = 60;

/// The regions that a rank will save: a line for each region, then a line for each value that all
/// ranks must have.
#[derive(Debug)]
pub struct Claims(String);

impl Claims {
    /// Makes the claims of a rank that saves `source` as `job` to the pool `id`, except the regions
    /// that `is_lone` names. `says` is its policy for failed saves.
    ///
    /// # Errors
    /// `Invalid` for regions that no image can hold.
    pub fn new(
        id: &str,
        job: &str,
        says: &str,
        source: &mut dyn PageSource,
        is_lone: fn(&str) -> bool,
    ) -> Result<Claims> {
        let (regions, compared) = (source.regions()?, source.compared()?);
        Ok(Claims::of([id, job, says], &regions, compared, is_lone))
    }

    fn of(
        [id, job, says]: [&str; 3],
        regions: &[RegionDesc],
        compared: Vec<(String, Vec<u8>)>,
        is_lone: fn(&str) -> bool,
    ) -> Claims {
        let compared: BTreeMap<String, Vec<u8>> = compared.into_iter().collect();
        let shared = regions.iter().filter(|region| !is_lone(&region.name));
        let (mut lines, mut values) = (Vec::new(), Vec::new());
        for region in shared {
            lines.push(line(region));
            if let Some(bytes) = compared.get(&region.name) {
                values.push(value(region, bytes));
            }
        }
        lines.sort_unstable();
        values.sort_unstable();
        lines.append(&mut values);
        Claims(format!("the pool {id}\nthe job {job:?}\n{says}\n{}", lines.join("\n")))
    }

    /// Returns a digest. Two ranks with the same digest save regions that belong together.
    pub fn digest(&self) -> Vec<u8> {
        fingerprint(self.0.as_bytes()).0.to_vec()
    }

    /// Returns all lines.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0.into_bytes()
    }

    /// Returns an error with a difference between the claims of the ranks, which must differ.
    pub fn difference(all: &[Vec<u8>]) -> Error {
        let texts: Vec<String> =
            all.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect();
        let first = texts.first().cloned().unwrap_or_default();
        let Some((rank, other)) = texts.iter().enumerate().find(|(_, text)| **text != first) else {
            return Error::bug("the claims of the ranks differ, and are equal");
        };
        let lacks = |of: &str, line: &str| !of.lines().any(|other| other == line);
        let extra = other.lines().find(|line| lacks(&first, line));
        let missing = first.lines().find(|line| lacks(other, line));
        let is_value = |line: Option<&str>| line.is_some_and(|line| line.starts_with('"'));
        if is_value(extra) && is_value(missing) {
            return Error::invalid(format!(
                "rank {rank} has {}, and rank 0 has {}: a rank has left out a save, or made one more than the \
                 others. All ranks must save at the same steps, and a replicated region must be the same on \
                 all ranks. Nothing was saved; end the program if the ranks are at different steps",
                extra.unwrap_or_default(),
                missing.unwrap_or_default()
            ));
        }
        let what = match (extra, missing) {
            (Some(extra), Some(missing)) => {
                format!("rank {rank} has {extra}, where rank 0 has {missing}")
            }
            (Some(extra), None) => format!("rank {rank} has {extra}, which rank 0 lacks"),
            (None, missing) => {
                format!("rank {rank} lacks {}, which rank 0 has", missing.unwrap_or("something"))
            }
        };
        Error::invalid(format!(
            "the ranks do not save the same: {what}. All ranks of a group must use one pool and job, with the \
             same on_failure, and save regions of the same names, types and global shapes; a rank that has nothing of one saves \
             it with length 0. Nothing was saved"
        ))
    }
}

/// Returns the line of a value, which begins with the region's name in quotes.
fn value(region: &RegionDesc, bytes: &[u8]) -> String {
    let RegionDesc { name, dtype, shape, .. } = region;
    // An array of one element is a number, too.
    let shape = if shape.iter().product::<u64>() == 1 { &[] } else { &shape[..] };
    let text = match Scalar::read(dtype, shape, bytes) {
        Some(Scalar::None) => "None".to_owned(),
        Some(Scalar::Bool(value)) => value.to_string(),
        Some(Scalar::Int(value)) => value.to_string(),
        // For programs all zeros are equal, and so are all NaN.
        Some(Scalar::Float(0.0)) => "0.0".to_owned(),
        Some(Scalar::Float(value)) => format!("{value:?}"),
        Some(Scalar::Text(text)) if text.chars().count() <= TEXT_CHARS_MAX => format!("{text:?}"),
        _ => format!("{} bytes with the fingerprint {}", bytes.len(), fingerprint(bytes)),
    };
    format!("\"{}\" = {text}", name.escape_debug())
}

fn line(region: &RegionDesc) -> String {
    let RegionDesc { name, dtype, shape, distribution, .. } = region;
    let name = name.escape_debug();
    match distribution {
        Distribution::Local => format!("region \"{name}\" ({dtype}, of each rank its own)"),
        Distribution::Subarray { global_shape, .. }
        | Distribution::BlockCyclic { global_shape, .. } => {
            format!("region \"{name}\" ({dtype}, part of {global_shape:?})")
        }
        Distribution::Replicated if shape.is_empty() => {
            format!("region \"{name}\" ({dtype}, one value, the same on all ranks)")
        }
        Distribution::Replicated => {
            format!("region \"{name}\" ({dtype}, {shape:?}, the same on all ranks)")
        }
    }
}

/// Returns whether all ranks have made the same claims.
pub fn are_equal(digests: &[Vec<u8>]) -> bool {
    digests.windows(2).all(|pair| pair[0] == pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_types::{ErrorKind, RegionLocation};

    fn region(name: &str, dtype: &str, distribution: Distribution) -> RegionDesc {
        let (shape, location) = (vec![2], RegionLocation::Own);
        RegionDesc {
            name: name.into(),
            dtype: dtype.into(),
            shape,
            bytes: 16,
            location,
            distribution,
        }
    }

    #[test]
    fn a_difference_is_named() {
        let part = |offset| Distribution::Subarray { global_shape: vec![9], offset: vec![offset] };
        let is_lone = |name: &str| name.starts_with("lone");
        let of =
            |regions: &[RegionDesc]| Claims::of(["07", "job", ""], regions, Vec::new(), is_lone);
        let (u, v) = (region("u", "<f8", part(0)), region("v", "<f8", Distribution::Local));
        let lone = region("lone 7", "<f8", Distribution::Local);
        let same = [lone, region("v", "<f8", Distribution::Local), region("u", "<f8", part(4))];
        assert_eq!(of(&[u.clone(), v.clone()]).digest(), of(&same).digest());
        let difference = |other: &[RegionDesc]| {
            let all = [of(&[u.clone(), v.clone()]), of(&same), of(other)];
            let digests: Vec<Vec<u8>> = all.iter().map(Claims::digest).collect();
            assert!(!are_equal(&digests));
            Claims::difference(&all.map(Claims::into_bytes))
        };
        let missing = difference(std::slice::from_ref(&u));
        assert_eq!(missing.kind(), ErrorKind::Invalid);
        assert!(missing.message().contains("rank 2 lacks region \"v\""), "{missing}");
        let w = region("w", "<f8", Distribution::Local);
        let extra = difference(&[u.clone(), v.clone(), w]);
        assert!(extra.message().contains("rank 2 has region \"w\""), "{extra}");
        let other = difference(&[u.clone(), region("v", "<f4", Distribution::Local)]);
        assert!(other.message().contains("<f4") && other.message().contains("<f8"), "{other}");
    }

    #[test]
    fn a_value_that_differs_is_told() {
        let of = |dtype: &str, shape: &[u64], bytes: &[u8]| {
            let (shape, length) = (shape.to_vec(), bytes.len() as u64);
            let step = RegionDesc {
                shape,
                bytes: length,
                ..region("step", dtype, Distribution::Replicated)
            };
            assert!(step.is_compared(), "{step:?}");
            let compared = vec![("step".to_owned(), bytes.to_vec())];
            Claims::of(["07", "job", ""], &[step], compared, |_| false)
        };
        let told = |dtype: &str, shape: &[u64], all: [&[u8]; 2]| {
            let all = all.map(|bytes| of(dtype, shape, bytes).into_bytes());
            Claims::difference(&all).message().to_owned()
        };
        let integers = told("<i8", &[], [&5i64.to_le_bytes(), &6i64.to_le_bytes()]);
        assert!(
            integers.starts_with("rank 1 has \"step\" = 6, and rank 0 has \"step\" = 5:"),
            "{integers}"
        );
        let lone = told("<i4", &[1], [&5i32.to_le_bytes(), &6i32.to_le_bytes()]);
        assert!(lone.contains("= 6, and rank 0 has \"step\" = 5:"), "{lone}");
        let floats = told("py:float", &[], [&0.5f64.to_le_bytes(), &0.25f64.to_le_bytes()]);
        assert!(floats.contains("= 0.25, and rank 0 has \"step\" = 0.5:"), "{floats}");
        for [one, two] in [[0.0, -0.0], [f64::NAN, -f64::NAN]] {
            for dtype in ["py:float", "<f8", "scalar:<f8"] {
                let [one, two] = [one, two].map(|value| of(dtype, &[], &value.to_le_bytes()));
                assert_eq!(one.into_bytes(), two.into_bytes(), "{dtype}");
            }
        }
        let texts = told("py:str", &[], [b"a", b"b"]);
        assert!(texts.contains("= \"b\", and"), "{texts}");
        let arrays = told("|i1", &[2], [b"ab", b"cd"]);
        assert!(arrays.contains("= 2 bytes with the fingerprint"), "{arrays}");
        let floats =
            RegionDesc { shape: vec![2], ..region("mean", "<f4", Distribution::Replicated) };
        assert!(!floats.is_compared(), "its last bits may differ");
        assert!(!region("own", "<i8", Distribution::Local).is_compared());
        for raw in ["|V24", "|u1", "[('a', '<i4')]"] {
            assert!(!region("raw", raw, Distribution::Replicated).is_compared(), "{raw}");
        }
    }
}
