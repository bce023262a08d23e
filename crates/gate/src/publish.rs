//! Files that appear when they are committed: a rename.

use crate::sink::{Answer, OutputKey, Sink};
use outlive_types::{Error, Result};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// End of the name that a file has between its publication and its release.
const STAGED: &str = ".gate";

/// Moves a finished file to a name of the gate's beside `last`, so that the program may write
/// `temporary` again. Returns the token. `owner` is a number of the job's, and `id` is random.
///
/// # Errors
/// `Invalid` if `temporary` is no regular file, or on another file system; errors of the file system.
pub fn stage(temporary: &Path, last: &Path, owner: u32, id: u64) -> Result<Vec<u8>> {
    let absolute = |path: &Path| {
        std::path::absolute(path).map_err(|error| Error::io_named("looking at", path, &error))
    };
    let (temporary, last) = (absolute(temporary)?, absolute(last)?);
    let found = temporary.symlink_metadata();
    if !found.map_err(|error| Error::io_named("looking at", &temporary, &error))?.is_file() {
        let shown = temporary.display();
        return Err(Error::invalid(format!("{shown} is no regular file, and cannot be published")));
    }
    if last.is_dir() || last.file_name().is_none() {
        let shown = last.display();
        return Err(Error::invalid(format!("{shown} is a directory: name the file to publish")));
    }
    let staged = staged_name(&last, owner, id);
    if staged.file_name().is_some_and(|name| name.len() > 255) {
        let shown = last.display();
        return Err(Error::invalid(format!(
            "{shown}: the name is too long to be published: choose a shorter one"
        )));
    }
    File::open(&temporary)
        .and_then(|file| file.sync_all())
        .map_err(|error| Error::io_named("syncing", &temporary, &error))?;
    fs::rename(&temporary, &staged).map_err(|error| match error.kind() {
        ErrorKind::CrossesDevices => Error::invalid(format!(
            "{} and {} are on different file systems: write the temporary file beside the last one",
            temporary.display(),
            last.display()
        )),
        _ => Error::io_named("renaming", &temporary, &error),
    })?;
    sync_folder(&staged).map_err(|error| Error::io("syncing the folder of", &staged, &error))?;
    Ok([staged.as_os_str().as_bytes(), &[0], last.as_os_str().as_bytes()].concat())
}

fn staged_name(last: &Path, owner: u32, id: u64) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(last.file_name().unwrap_or_else(|| OsStr::new("file")));
    name.push(format!(".{owner:08x}.{id:016x}{STAGED}"));
    last.with_file_name(name)
}

/// Splits a token into the file's present and its last name.
fn names(token: &[u8]) -> Option<(PathBuf, PathBuf)> {
    let at = token.iter().position(|byte| *byte == 0)?;
    let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
    Some((path(&token[..at]), path(&token[at + 1..])))
}

fn sync_folder(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

/// Removes files that earlier runs have staged for `last`, except those of `tokens`. Only a program
/// that is the job's one writer calls it.
pub fn remove_leftovers(last: &Path, owner: u32, tokens: &[&[u8]]) {
    let Ok(last) = std::path::absolute(last) else { return };
    let (Some(folder), Some(name)) = (last.parent(), last.file_name()) else { return };
    let kept: HashSet<PathBuf> = tokens.iter().filter_map(|token| Some(names(token)?.0)).collect();
    let prefix = [b".", name.as_bytes(), format!(".{owner:08x}.").as_bytes()].concat();
    let is_staged = |name: &OsStr| {
        let id = name.as_bytes().strip_prefix(&prefix[..]);
        let id = id.and_then(|rest| rest.strip_suffix(STAGED.as_bytes()));
        id.is_some_and(|id| id.len() == 16 && id.iter().all(u8::is_ascii_hexdigit))
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if is_staged(&entry.file_name()) && !kept.contains(&entry.path()) {
            // Without success it only takes space.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Gives published files their last names.
pub struct PublishSink;

impl Sink for PublishSink {
    fn is_idempotent(&self) -> bool {
        true
    }

    fn release(&self, _: &OutputKey, token: &[u8]) -> Answer {
        let Some((staged, last)) = names(token) else {
            return Answer::Failed("its token is damaged".to_owned());
        };
        let renamed = fs::rename(&staged, &last);
        let done = match renamed {
            // An earlier attempt has renamed it.
            Err(error) if error.kind() == ErrorKind::NotFound && last.exists() => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Answer::Failed(format!("{} is gone", staged.display()));
            }
            renamed => renamed,
        };
        match done.and_then(|()| sync_folder(&last)) {
            Ok(()) => Answer::Released,
            Err(error) => Answer::Later(format!("cannot publish {}: {error}", last.display())),
        }
    }

    fn abort(&self, token: &[u8]) {
        if let Some((staged, _)) = names(token) {
            let _ = fs::remove_file(staged);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_types::JobName;

    fn release(token: &[u8]) -> Answer {
        let job = JobName::new("j").unwrap();
        PublishSink.release(&OutputKey { pool: 0, job, rank: None, epoch: 1, number: 0 }, token)
    }

    fn listed(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_at_its_release_and_a_second_one_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (tmp, last) = (dir.path().join("tmp"), dir.path().join("model"));
        fs::write(&tmp, "one").unwrap();
        let token = stage(&tmp, &last, 7, 1).unwrap();
        assert!(!tmp.exists() && !last.exists());
        assert_eq!(release(&token), Answer::Released);
        // The program writes the next one, which is not committed.
        fs::write(&tmp, "two").unwrap();
        let second = stage(&tmp, &last, 7, 2).unwrap();
        assert_eq!(release(&token), Answer::Released);
        assert_eq!(fs::read(&last).unwrap(), b"one");
        PublishSink.abort(&second);
        assert_eq!(listed(dir.path()), ["model"]);
        fs::remove_file(&last).unwrap();
        assert!(matches!(release(&token), Answer::Failed(_)));
    }

    #[test]
    fn leftovers_of_earlier_runs_go_and_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (tmp, last) = (dir.path().join("tmp"), dir.path().join("a"));
        let token = |id| {
            fs::write(&tmp, "x").unwrap();
            stage(&tmp, &last, 7, id).unwrap()
        };
        let (_, kept) = (token(1), token(2));
        for other in [".a.00000008.0000000000000001.gate", ".a.txt.gate", "a.gate"] {
            fs::write(dir.path().join(other), "").unwrap();
        }
        remove_leftovers(&last, 7, &[&kept]);
        let left = [
            ".a.00000007.0000000000000002.gate",
            ".a.00000008.0000000000000001.gate",
            ".a.txt.gate",
            "a.gate",
        ];
        assert_eq!(listed(dir.path()), left);
    }

    #[test]
    fn what_cannot_be_published_is_refused_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let tmp = dir.path().join("tmp");
        assert!(stage(&tmp, &dir.path().join("a"), 7, 1).is_err());
        fs::write(&tmp, "x").unwrap();
        assert!(stage(&tmp, dir.path(), 7, 1).is_err());
        assert!(stage(dir.path(), &dir.path().join("a"), 7, 1).is_err());
        assert_eq!(listed(dir.path()), ["tmp"]);
    }
}
