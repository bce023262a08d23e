//! The objects of a shard: their names, and the end of an upload without a shard.

use crate::bucket::Bucket;
use crate::errors::is_missing;
use object_store::multipart::MultipartStore;
use outlive_backend::ShardName;
use outlive_types::{PackId, Result, Rng, SystemRng};

/// Returns the name of an object of `shard`, finished ("shard") or not ("part").
pub(crate) fn name(shard: ShardName, state: &str) -> String {
    format!("packs/{:02x}/{shard}.{state}", shard.pack.0[19])
}

/// Parses an object's name that [`name`] made, with anything after a slash.
pub(crate) fn parse_name(object: &str, state: &str) -> Option<ShardName> {
    let (_, rest) = object.strip_prefix("packs/")?.split_once('/')?;
    let file = rest.split('/').next()?;
    let (pack, number) = file.strip_suffix(state)?.strip_suffix('.')?.split_once('.')?;
    let shard = ShardName { pack: PackId::parse(pack)?, shard: number.parse().ok()? };
    let expected = name(shard, state);
    // An object in the wrong folder would be listed but never found.
    (object == expected || object.starts_with(&format!("{expected}/"))).then_some(shard)
}

/// Prefix of the names of uploads that replace a finished shard.
const REPLACING: &str = "replaces-";

/// Returns a new name for an upload of `shard`.
pub(crate) fn new_marker(shard: ShardName, replaces: bool) -> String {
    let mut random = [0; 8];
    SystemRng.fill(&mut random);
    let kind = if replaces { REPLACING } else { "" };
    format!("{}/{kind}{:016x}", name(shard, "part"), u64::from_le_bytes(random))
}

/// Returns whether an object names an upload that replaces a finished shard.
pub(crate) fn is_of_replacing(marker: &str) -> bool {
    marker.rsplit('/').next().is_some_and(|last| last.starts_with(REPLACING))
}

/// Ends all uploads of `shard` that have a name, so that no process can complete them.
pub(crate) async fn end_uploads(bucket: &Bucket, shard: ShardName) -> Result<()> {
    for marker in bucket.names(&name(shard, "part")).await? {
        let Some(id) = bucket.get(&marker).await? else { continue };
        end_upload(bucket, shard, &marker, String::from_utf8_lossy(&id).into_owned()).await?;
    }
    Ok(())
}

/// Ends the upload `id`, then removes the object that names it. An upload that is complete or
/// already ended stays as it is.
pub(crate) async fn end_upload(
    bucket: &Bucket,
    shard: ShardName,
    marker: &str,
    id: String,
) -> Result<()> {
    let object = name(shard, "shard");
    let client = bucket.clients()?.calls;
    match client.abort_multipart(&bucket.path(&object)?, &id).await {
        Err(error) if !is_missing(&error) => {
            Err(bucket.explain("ending the upload of", &object, &error))
        }
        _ => bucket.delete(marker).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_types::SessionId;

    #[test]
    fn names_are_read_as_they_are_given() {
        let shard = ShardName { pack: PackId::new(SessionId([7; 12]), 3, 258), shard: 12 };
        let object = name(shard, "shard");
        assert!(object.starts_with("packs/02/") && object.ends_with(".12.shard"), "{object}");
        assert_eq!(parse_name(&object, "shard"), Some(shard));
        assert_eq!(parse_name(&object, "part"), None);
        let part = name(shard, "part");
        assert_eq!(parse_name(&format!("{part}/0123"), "part"), Some(shard));
        for replaces in [false, true] {
            let marker = new_marker(shard, replaces);
            assert_eq!(parse_name(&marker, "part"), Some(shard), "{marker}");
            assert_eq!(is_of_replacing(&marker), replaces, "{marker}");
        }
        for other in [
            "packs/.pool.toml".to_owned(),
            "packs/02/x.shard".to_owned(),
            object.replace("packs/02", "packs/03"),
            object.replace(".12.", ".012."),
            object.replace(".12.", ".300."),
        ] {
            assert_eq!(parse_name(&other, "shard"), None, "{other}");
        }
    }
}
