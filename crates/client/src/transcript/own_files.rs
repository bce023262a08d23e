//! Files of a rank of its own, to which its standard output and error lead.

use outlive_types::Rank;
use rustix::fs::{FileType, fstat};
use rustix::stdio::{dup2_stderr, dup2_stdout, stderr, stdout};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Lets standard output and error of a rank lead to files of its own, if they lead to the command's
/// or to a launcher. A launcher passes lines on later than the save that covers them. Returns the
/// names of the files.
pub(super) fn print_to_own_files(
    place: &Path,
    theirs: &[String],
    rank: Rank,
) -> io::Result<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    type Replace = fn(File) -> rustix::io::Result<()>;
    let both: [(&str, BorrowedFd<'_>, Replace); 2] = [
        ("stdout", stdout(), |file| dup2_stdout(file)),
        ("stderr", stderr(), |file| dup2_stderr(file)),
    ];
    for (stream, now, replace) in both {
        if !leads_away(now, place, theirs) {
            continue;
        }
        let stream = if theirs.iter().any(|it| it == "output") { "output" } else { stream };
        let name = format!("{stream}.{rank}");
        let file =
            OpenOptions::new().append(true).create(true).mode(0o600).open(place.join(&name))?;
        replace(file)?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

/// Returns whether a descriptor is no file of the user's choice: a pipe or a terminal of a launcher,
/// or a transcript of the command.
fn leads_away(now: BorrowedFd<'_>, place: &Path, theirs: &[String]) -> bool {
    let Ok(found) = fstat(now) else { return false };
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Fifo | FileType::Socket => true,
        FileType::CharacterDevice => rustix::termios::isatty(now),
        _ => theirs.iter().any(|it| {
            let there = place.join(it).metadata();
            there.is_ok_and(|there| (there.dev(), there.ino()) == (found.st_dev, found.st_ino))
        }),
    }
}
