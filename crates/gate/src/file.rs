//! Files to which a program appends. A token has the offset of its bytes, so a second release writes
//! the same bytes again.

use crate::sink::{Answer, OutputKey, Sink};
use outlive_types::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Treatment of the content that a file has when a program first opens it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileMode {
    /// Outputs follow it.
    Append,
    /// The first release removes it.
    Truncate,
}

/// Bytes of a token before the output's own.
const HEAD_BYTES: usize = 9;
/// The release cuts the file at the offset first.
const TRUNCATES: u8 = 1;

/// Returns the beginning of a token whose bytes belong at `offset`.
pub fn head(offset: u64, truncates: bool) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[0] = u8::from(truncates) * TRUNCATES;
    head[1..].copy_from_slice(&offset.to_le_bytes());
    head
}

/// Splits a token into whether it truncates, its offset, and its bytes.
fn parts(token: &[u8]) -> Option<(bool, u64, &[u8])> {
    let (head, bytes) = token.split_at_checked(HEAD_BYTES)?;
    Some((head[0] == TRUNCATES, u64::from_le_bytes(head[1..].try_into().ok()?), bytes))
}

/// A file, ready for outputs. Nothing has changed there yet.
#[derive(Debug)]
pub struct OpenedFile {
    /// Offset of the next output.
    pub position: u64,
    /// New tokens of the outputs that wait.
    pub tokens: Vec<Vec<u8>>,
    /// Whether the first output truncates the file.
    pub truncates: bool,
    /// Whether the file begins again: what was released to it before is not there.
    pub is_new: bool,
    /// A sentence for the user about the file.
    pub notice: Option<String>,
}

/// Opens a file. A program that continues from a checkpoint passes the position there, and the
/// tokens that wait.
///
/// # Errors
/// `Invalid` if it is no regular file, or shorter than the released bytes; errors of the file
/// system.
pub fn open(
    path: &Path,
    mode: FileMode,
    position: Option<u64>,
    tokens: &[&[u8]],
) -> Result<OpenedFile> {
    let shown = path.display();
    let length = match path.metadata() {
        Ok(found) if found.is_file() => Some(found.len()),
        Ok(_) => {
            return Err(Error::invalid(format!(
                "{shown} is no regular file, so the gate cannot write it twice: use `gate.print` or `gate.call`"
            )));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(Error::io_named("looking at", path, &error)),
    };
    let plain = |position, truncates| OpenedFile {
        position,
        tokens: tokens.iter().map(|token| token.to_vec()).collect(),
        truncates,
        is_new: truncates,
        notice: None,
    };
    let Some(position) = position else {
        let truncates = mode == FileMode::Truncate;
        return Ok(plain(if truncates { 0 } else { length.unwrap_or(0) }, truncates));
    };
    let first = tokens.first().and_then(|token| Some(parts(token)?.1)).unwrap_or(position);
    let cuts_all = tokens.first().and_then(|token| parts(token)).is_some_and(|parts| parts.0);
    if cuts_all || length.is_some_and(|length| length >= first) {
        return Ok(plain(position, false));
    }
    // A rotated log: the outputs that wait begin a new file. An earlier run may have begun it.
    if length.is_some_and(|length| !begins(path, length, tokens)) {
        return Err(Error::invalid(format!(
            "{shown} has {} bytes, and the checkpoint has released {first}: put the file back, or move it away to \
             begin a new one",
            length.unwrap_or(0)
        )));
    }
    let moved = tokens.iter().filter_map(|token| {
        let (truncates, offset, bytes) = parts(token)?;
        Some([&head(offset.saturating_sub(first), truncates)[..], bytes].concat())
    });
    let notice = (first > 0).then(|| {
        format!(
            "{shown} is gone, with the {first} bytes that the gate has released: a new one begins"
        )
    });
    let position = position.saturating_sub(first);
    Ok(OpenedFile { position, tokens: moved.collect(), truncates: false, is_new: true, notice })
}

/// Returns whether a file of `length` bytes has the first bytes of the outputs; none will do.
fn begins(path: &Path, length: u64, tokens: &[&[u8]]) -> bool {
    let bytes: Vec<u8> =
        tokens.iter().filter_map(|token| parts(token)).flat_map(|parts| parts.2).copied().collect();
    length <= bytes.len() as u64 && std::fs::read(path).is_ok_and(|there| bytes.starts_with(&there))
}

/// Cuts off what is behind `position`, since the program repeats it. `known` is the length after the
/// last release, if that is known: bytes behind it are of others. Returns a sentence for the user if
/// the file has changed.
///
/// # Errors
/// `Invalid` if there are bytes of others; errors of the file system.
pub fn cut(path: &Path, position: u64, known: Option<u64>) -> Result<Option<String>> {
    let shown = path.display();
    let length = match path.metadata() {
        Ok(found) => found.len(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io_named("looking at", path, &error)),
    };
    if length <= position {
        return Ok(None);
    }
    if let Some(known) = known.filter(|known| length > *known) {
        return Err(Error::invalid(format!(
            "{shown} has {length} bytes, and the gate has released {known}: another program writes it"
        )));
    }
    let file = OpenOptions::new().write(true).open(path);
    file.and_then(|file| file.set_len(position).and_then(|()| file.sync_all()))
        .map_err(|error| Error::io_named("cutting", path, &error))?;
    Ok(Some(format!(
        "{shown} had {} bytes more than the restored checkpoint: they are cut off, as the program repeats them",
        length - position
    )))
}

/// Returns the offset behind the bytes of a token.
pub fn end_of(token: &[u8]) -> u64 {
    parts(token).map_or(0, |(_, offset, bytes)| offset + bytes.len() as u64)
}

/// Writes outputs to one file.
pub struct FileSink(pub PathBuf);

impl FileSink {
    fn write(&self, token: &[u8]) -> std::io::Result<Answer> {
        let FileSink(path) = self;
        let Some((truncates, offset, bytes)) = parts(token) else {
            return Ok(Answer::Failed("its token is damaged".to_owned()));
        };
        let is_new = !path.exists();
        if is_new && offset > 0 && !truncates {
            return Ok(Answer::Failed(format!(
                "{} is gone, with the {offset} bytes that were released: the next run begins a new one",
                path.display()
            )));
        }
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let found = file.metadata()?;
        if !found.is_file() {
            return Ok(Answer::Failed(format!("{} is no regular file any more", path.display())));
        }
        if truncates {
            file.set_len(offset)?;
        } else if let Some(why) = conflict(&file, found.len(), offset, bytes)? {
            return Ok(Answer::Failed(format!("{} {why}", path.display())));
        }
        file.write_all_at(bytes, offset)?;
        file.sync_all()?;
        if let (true, Some(parent)) = (is_new, path.parent()) {
            File::open(parent)?.sync_all()?;
        }
        Ok(Answer::Released)
    }
}

/// Returns what is wrong with a file into which `bytes` are to be written at `offset`. An earlier
/// attempt may have written some of them.
fn conflict(
    file: &File,
    length: u64,
    offset: u64,
    bytes: &[u8],
) -> std::io::Result<Option<String>> {
    if length < offset {
        return Ok(Some(format!(
            "has {length} bytes, and the gate has released {offset}: another program has cut it"
        )));
    }
    let there = usize::try_from(length - offset).unwrap_or(usize::MAX).min(bytes.len());
    let mut before = vec![0; there];
    file.read_exact_at(&mut before, offset)?;
    // Bytes behind them may be those of the next output, released as well.
    if before != bytes[..there] {
        return Ok(Some(format!(
            "has other bytes from {offset} on: another program writes it, or this one beside the gate"
        )));
    }
    Ok(None)
}

impl Sink for FileSink {
    fn is_idempotent(&self) -> bool {
        true
    }

    fn release(&self, _: &OutputKey, token: &[u8]) -> Answer {
        self.write(token).unwrap_or_else(|error| {
            Answer::Later(format!("cannot write {}: {error}", self.0.display()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_types::JobName;
    use std::fs;

    fn key() -> OutputKey {
        OutputKey { pool: 0, job: JobName::new("j").unwrap(), rank: None, epoch: 1, number: 0 }
    }

    fn token(offset: u64, bytes: &[u8]) -> Vec<u8> {
        [&head(offset, false)[..], bytes].concat()
    }

    fn open_at(path: &Path, position: u64, tokens: &[&[u8]]) -> Result<OpenedFile> {
        open(path, FileMode::Append, Some(position), tokens)
    }

    #[test]
    fn a_second_release_changes_nothing_and_half_a_release_is_completed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let sink = FileSink(path.clone());
        for _ in 0..2 {
            assert_eq!(sink.release(&key(), &token(0, b"one\n")), Answer::Released);
        }
        fs::write(&path, "one\ntw").unwrap();
        assert_eq!(sink.release(&key(), &token(4, b"two\n")), Answer::Released);
        // Both were released before a crash, and neither is known to be.
        assert_eq!(sink.release(&key(), &token(0, b"one\n")), Answer::Released);
        assert_eq!(fs::read(&path).unwrap(), b"one\ntwo\n");
    }

    #[test]
    fn bytes_of_others_are_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let sink = FileSink(path.clone());
        for (content, word) in
            [("one\nXX", "other bytes"), ("one", "cut it"), ("one\ntwoX", "other")]
        {
            fs::write(&path, content).unwrap();
            let Answer::Failed(why) = sink.release(&key(), &token(4, b"two\n")) else { panic!() };
            assert!(why.contains(word), "{why}");
            assert_eq!(fs::read(&path).unwrap(), content.as_bytes());
        }
    }

    #[test]
    fn a_missing_folder_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let sink = FileSink(dir.path().join("none/out"));
        assert!(matches!(sink.release(&key(), &token(0, b"x")), Answer::Later(_)));
    }

    #[test]
    fn a_first_open_continues_the_file_or_replaces_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        fs::write(&path, "before\n").unwrap();
        let opened = open(&path, FileMode::Append, None, &[]).unwrap();
        assert_eq!((opened.position, opened.truncates), (7, false));
        let opened = open(&path, FileMode::Truncate, None, &[]).unwrap();
        assert_eq!((opened.position, opened.truncates), (0, true));
        let all = [&head(0, true)[..], b"new"].concat();
        assert_eq!(FileSink(path.clone()).release(&key(), &all), Answer::Released);
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert!(open(dir.path(), FileMode::Append, None, &[]).is_err());
        assert!(open(Path::new("/dev/null"), FileMode::Append, None, &[]).is_err());
    }

    #[test]
    fn a_rollback_cuts_the_file_to_its_checkpoint_and_no_bytes_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        fs::write(&path, "one\ntwo\nthree\n").unwrap();
        let opened = open_at(&path, 8, &[&token(4, b"two\n")]).unwrap();
        assert_eq!((opened.position, opened.tokens), (8, vec![token(4, b"two\n")]));
        assert!(cut(&path, 8, Some(13)).unwrap_err().message().contains("another program"));
        assert!(cut(&path, 8, Some(14)).unwrap().unwrap().contains("6 bytes more"));
        assert_eq!(fs::read(&path).unwrap(), b"one\ntwo\n");
        assert!(cut(&path, 8, None).unwrap().is_none());
        assert!(cut(&dir.path().join("none"), 8, None).unwrap().is_none());
    }

    #[test]
    fn a_file_that_goes_away_stops_and_begins_again_in_the_next_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let Answer::Failed(why) = FileSink(path.clone()).release(&key(), &token(4, b"two\n"))
        else {
            panic!()
        };
        assert!(why.contains("is gone") && !path.exists(), "{why}");
        let tokens: [&[u8]; 2] = [&token(4, b"two\n"), &token(8, b"three\n")];
        // That run was killed after it had released half of one of them.
        fs::write(&path, "two").unwrap();
        let opened = open_at(&path, 14, &tokens).unwrap();
        assert_eq!(opened.tokens, [token(0, b"two\n"), token(4, b"three\n")]);
        assert_eq!(opened.position, 10);
    }

    #[test]
    fn a_file_that_was_cut_is_refused_and_a_rotated_one_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        fs::write(&path, "on").unwrap();
        let error = open_at(&path, 8, &[&token(4, b"two\n")]).unwrap_err();
        assert!(error.message().contains("put the file back"), "{error}");
        fs::remove_file(&path).unwrap();
        let opened = open_at(&path, 8, &[&token(4, b"two\n")]).unwrap();
        assert_eq!((opened.position, opened.tokens), (4, vec![token(0, b"two\n")]));
        assert!(opened.notice.unwrap().contains("is gone"));
        // Nothing was released yet, so nothing is gone.
        let opened = open_at(&path, 4, &[&token(0, b"one\n")]).unwrap();
        assert_eq!((opened.position, opened.notice), (4, None));
    }
}
