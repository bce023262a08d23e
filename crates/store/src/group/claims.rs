//! Whether all ranks save what belongs together. Their regions may have other lengths, since parts of an
//! array seldom are of one size, but not other names, types or global shapes.

use outlive_format::fingerprint;
use outlive_types::{Distribution, Error, RegionDesc};

/// What a rank is about to save, a line each.
#[derive(Debug)]
pub struct Claims(String);

impl Claims {
    /// Of a rank that saves these regions of `job` to the pool `id`, but for those that `is_lone` names.
    pub fn new(id: &str, job: &str, regions: &[RegionDesc], is_lone: fn(&str) -> bool) -> Claims {
        let shared = regions.iter().filter(|region| !is_lone(&region.name));
        let mut lines: Vec<String> = shared.map(line).collect();
        lines.sort_unstable();
        Claims(format!("the pool {id}\nthe job {job:?}\n{}", lines.join("\n")))
    }

    /// Two ranks with the same one save what belongs together.
    pub fn digest(&self) -> Vec<u8> {
        fingerprint(self.0.as_bytes()).0.to_vec()
    }

    /// All of them.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0.into_bytes()
    }

    /// Says how the claims of the ranks differ; they do.
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
            "the ranks do not save the same: {what}. All ranks of a group must use one pool and job, and \
             save regions of the same names, types and global shapes; a rank that has nothing of one saves \
             it with length 0. Nothing was saved"
        ))
    }
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

/// What ranks have claimed, if it is the same.
pub fn are_equal(digests: &[Vec<u8>]) -> bool {
    digests.windows(2).all(|pair| pair[0] == pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_types::{ErrorKind, RegionPlace};

    fn region(name: &str, dtype: &str, distribution: Distribution) -> RegionDesc {
        let (shape, place) = (vec![2], RegionPlace::Own);
        RegionDesc { name: name.into(), dtype: dtype.into(), shape, bytes: 16, place, distribution }
    }

    #[test]
    fn a_difference_is_named() {
        let part = |offset| Distribution::Subarray { global_shape: vec![9], offset: vec![offset] };
        let is_lone = |name: &str| name.starts_with("lone");
        let of = |regions: &[RegionDesc]| Claims::new("07", "job", regions, is_lone);
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
}
