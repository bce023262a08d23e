//! A program's lines under `outlive run --gate`. Each save notes how far its transcripts are, and the
//! supervisor shows them up to there once the checkpoint is committed.
//!
//! The lengths are a position in the checkpoint's list of outputs. So a checkpoint and its lengths
//! are committed in one step, and a restart knows them from what it restores.

mod own_files;
mod owner;

use crate::job_gate::RankLists;
use crate::stop::{Report, RunFolder, Span, TRANSCRIPT_VARIABLE, list_of, text_of};
use outlive_gate::position_in;
use outlive_io::{PerProcess, flush_stdio, on_exit};
use outlive_store::RankImages;
use outlive_types::sync::plain::{Mutex, MutexGuard};
use outlive_types::{Epoch, Error, Rank, Result};
use own_files::print_to_own_files;
use owner::{Before, Owner};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the position in a list of outputs. Sinks of programs have no colon.
const SINK: &str = "run:transcript";
/// Most parts of earlier transcripts that a checkpoint repeats; a position has 65,535 bytes at most.
const CARRIED_MAX: usize = 500;
/// Names of the transcripts of a command.
const STREAMS: [&str; 3] = ["stdout", "stderr", "output"];

/// The transcripts of this process. A forked child has none until it opens the job itself.
static OF_PROCESS: PerProcess<Option<Arc<Transcript>>> = PerProcess::new(|_| None);

/// The files to which a program prints, and how far its checkpoints cover them.
pub(crate) struct Transcript {
    folder: RunFolder,
    /// Folder of the transcripts of all attempts.
    root: PathBuf,
    files: Vec<Printed>,
    /// Whether an earlier program of the command has ended in order: then this one is no restart, and
    /// nothing repeats what is there.
    is_second: bool,
    owner: Owner,
    state: Mutex<State>,
}

/// A file to which this process prints.
struct Printed {
    /// Its name for the supervisor.
    name: String,
    path: PathBuf,
}

#[derive(Default)]
struct State {
    /// Whether the transcripts belong to another process, such as the one that has started this one.
    /// A process that only looks at a checkpoint drops nothing; one that saves is the program.
    is_guest: bool,
    /// Reports of a guest's restore, for the case that it saves.
    untold: Vec<Report>,
    /// Lengths of the files at the last restore.
    restored: Option<Vec<u64>>,
    /// Parts that the restored checkpoint covers. The supervisor may be killed before it has noted
    /// them, so later checkpoints list them as long as the transcripts are there.
    carried: Vec<Span>,
    /// Saves that are not over, and what they cover.
    saves: BTreeMap<Epoch, Vec<Span>>,
    /// The newest checkpoint that is committed.
    committed: Epoch,
}

impl Transcript {
    /// Returns the transcripts of this process, if its supervisor holds what it prints. A rank of a
    /// group begins to print to files of its own.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn of_this_process(
        folder: Option<&RunFolder>,
        rank: Option<Rank>,
    ) -> Result<Option<Arc<Transcript>>> {
        let place = std::env::var_os(TRANSCRIPT_VARIABLE).map(PathBuf::from);
        let (Some(folder), Some(place)) = (folder, place.filter(|place| place.is_dir())) else {
            return Ok(None);
        };
        let mut here = OF_PROCESS.lock();
        if let Some(here) = &*here {
            // A process that opens the job again has not ended its work.
            if !here.state().is_guest {
                here.owner.take();
            }
            return Ok(Some(here.clone()));
        }
        let owner = Owner(place.join(format!("owner.{}", rank.unwrap_or(0))));
        on_exit(exits);
        *here = Some(Arc::new(Transcript::begin(folder, &place, rank, owner)?));
        Ok(here.clone())
    }

    fn begin(
        folder: &RunFolder,
        place: &Path,
        rank: Option<Rank>,
        owner: Owner,
    ) -> Result<Transcript> {
        let before = owner.before();
        let (is_second, is_guest) = (before == Before::Ended, before == Before::Runs);
        if !is_guest {
            owner.take();
        }
        let attempt = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let theirs = STREAMS.map(str::to_owned).into_iter().filter(|it| place.join(it).exists());
        let theirs: Vec<String> = theirs.collect();
        let mut names = if rank.unwrap_or(0) == 0 { theirs.clone() } else { Vec::new() };
        if let Some(rank) = rank {
            let own = print_to_own_files(place, &theirs, rank);
            names.extend(own.map_err(|e| Error::io("making a transcript in", place, &e))?);
        }
        let printed = |stream: String| Printed {
            name: format!("{attempt}/{stream}"),
            path: place.join(&stream),
        };
        let files = names.into_iter().map(printed).collect();
        let state = Mutex::new(State { is_guest, ..State::default() });
        let (folder, root) = (folder.clone(), place.with_file_name(""));
        Ok(Transcript { folder, root, files, is_second, owner, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn lengths(&self) -> Result<Vec<u64>> {
        flush_stdio().map_err(|e| Error::io("writing to", Path::new("standard output"), &e))?;
        self.files.iter().map(|file| length_of(&file.path)).collect()
    }

    fn spans(&self, from: impl Iterator<Item = u64>, to: &[u64]) -> Vec<Span> {
        let each = self.files.iter().zip(from).zip(to);
        let span = |((file, from), to): ((&Printed, u64), &u64)| Span {
            file: file.name.clone(),
            from: from.min(*to),
            to: *to,
        };
        each.map(span).collect()
    }

    /// Returns what this program has printed since it restored, after what its restored checkpoint
    /// covers: a save that begins now covers it.
    ///
    /// # Errors
    /// Those of the file system: then no save must begin.
    pub fn printed(&self) -> Result<Vec<Span>> {
        let now = self.lengths()?;
        let mut state = self.state();
        if std::mem::take(&mut state.is_guest) {
            self.owner.take();
            state.untold.drain(..).for_each(|report| self.folder.report(&report));
        }
        state.carried.retain(|span| self.root.join(&span.file).exists());
        let restored = state.restored.clone().unwrap_or_else(|| vec![0; now.len()]);
        Ok([state.carried.clone(), self.spans(restored.into_iter(), &now)].concat())
    }

    /// Returns whether the program has printed anything since it restored.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn is_used(&self) -> Result<bool> {
        let now = self.lengths()?;
        Ok(self.state().restored.as_ref().is_some_and(|restored| *restored != now))
    }

    /// Notes what a save that has begun covers.
    pub fn saves(&self, epoch: Epoch, spans: Vec<Span>) {
        let mut state = self.state();
        // Its commit may have come before this call.
        if epoch <= state.committed {
            self.folder.report(&Report::Covered(spans));
        } else {
            state.saves.insert(epoch, spans);
        }
    }

    /// Reports what a checkpoint covers, as it is committed.
    pub fn committed(&self, epoch: Epoch) {
        let mut state = self.state();
        state.committed = state.committed.max(epoch);
        let later = state.saves.split_off(&(epoch + 1));
        let done = std::mem::replace(&mut state.saves, later);
        if let Some((_, spans)) = done.into_iter().next_back() {
            self.folder.report(&Report::Covered(spans));
        }
    }

    /// Forgets a save that has failed.
    pub fn failed(&self, epoch: Epoch) {
        self.state().saves.remove(&epoch);
    }

    /// Continues from a restored checkpoint, whose lists these are. Its lines are shown. Those that
    /// this program has printed before the restore are dropped: the first start has printed them.
    ///
    /// # Errors
    /// `Damaged` for a list that cannot be read; errors of the file system.
    pub fn restored(&self, lists: &RankLists) -> Result<()> {
        let mut covered = Vec::new();
        for (_, list) in lists {
            covered.extend(spans_in(list)?);
        }
        let now = self.lengths()?;
        let mut state = self.state();
        if self.is_second && state.restored.is_none() {
            covered.extend(self.spans(std::iter::repeat(0), &now));
        }
        let mut carried = covered.clone();
        carried.retain(|span| span.from < span.to);
        carried.drain(..carried.len().saturating_sub(CARRIED_MAX));
        let dropped = self.spans(now.iter().copied(), &now);
        let reports = [Report::Recovered(covered), Report::Dropped(dropped)];
        match state.is_guest {
            true => state.untold = reports.into(),
            false => reports.iter().for_each(|report| self.folder.report(report)),
        }
        (state.restored, state.carried, state.saves) = (Some(now), carried, BTreeMap::new());
        Ok(())
    }

    /// Notes that the program has ended its work with the job: a later program of the command does
    /// not repeat what it has printed.
    pub fn close(&self) {
        if !self.state().is_guest {
            self.owner.end();
        }
    }
}

/// A program that fails after it has closed its jobs has not ended in order. A front door closes them
/// as well if an exception ends the program.
fn exits(code: i32) {
    match &*OF_PROCESS.lock() {
        Some(here) if code != 0 && !here.state().is_guest => here.owner.fail(),
        _ => {}
    }
}

/// Returns the parts of transcripts that a checkpoint covers. A program that was killed has not
/// reported them if the commit came later, as that of a helper.
///
/// # Errors
/// `Damaged` if a catalog is missing or wrong, or errors of the pool.
pub fn covered_by(images: &RankImages<'_>) -> Result<Vec<Span>> {
    let mut covered = Vec::new();
    images.each(&mut |rank| {
        covered.extend(spans_in(&rank.outputs)?);
        Ok(())
    })?;
    Ok(covered)
}

fn spans_in(list: &[u8]) -> Result<Vec<Span>> {
    let text = position_in(list, SINK)?;
    let text = text.as_deref().map(String::from_utf8_lossy);
    Ok(text.and_then(|text| list_of(&text)).unwrap_or_default())
}

/// Returns the position for a checkpoint that covers these parts.
pub(crate) fn position(spans: &[Span]) -> (&'static str, Vec<u8>) {
    (SINK, text_of(spans).into_bytes())
}

fn length_of(path: &Path) -> Result<u64> {
    match path.metadata() {
        Ok(found) => Ok(found.len()),
        // A transcript that was removed costs no save.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(Error::io("looking at", path, &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_gate::Ledger;
    use std::fs::{self, OpenOptions};

    struct Attempt {
        dir: tempfile::TempDir,
        folder: RunFolder,
        place: PathBuf,
        read: u64,
    }

    impl Attempt {
        fn new() -> Attempt {
            let dir = tempfile::tempdir().unwrap();
            let folder = RunFolder::create(dir.path()).unwrap();
            let place = dir.path().join("7");
            fs::create_dir(&place).unwrap();
            fs::write(place.join("stdout"), "").unwrap();
            Attempt { dir, folder, place, read: 0 }
        }

        fn owner(&self) -> Owner {
            Owner(self.place.join("owner.0"))
        }

        fn begin(&self) -> Transcript {
            Transcript::begin(&self.folder, &self.place, None, self.owner()).unwrap()
        }

        fn print(&self, text: &str) {
            let file = OpenOptions::new().append(true).open(self.place.join("stdout"));
            io::Write::write_all(&mut file.unwrap(), text.as_bytes()).unwrap();
        }

        fn reports(&mut self) -> Vec<Report> {
            self.folder.reports(&mut self.read).unwrap()
        }
    }

    fn span(from: u64, to: u64) -> Vec<Span> {
        vec![Span { file: "7/stdout".into(), from, to }]
    }

    fn list(spans: &[Span]) -> RankLists {
        let (sink, position) = position(spans);
        let mut ledger = Ledger::default();
        ledger.set_position(sink, position);
        vec![(0, ledger.list().unwrap().0)]
    }

    #[test]
    fn a_commit_covers_what_was_printed_before_its_save_also_if_it_comes_first() {
        let mut attempt = Attempt::new();
        let transcript = attempt.begin();
        attempt.print("one");
        let spans = transcript.printed().unwrap();
        attempt.print("two");
        transcript.saves(4, spans);
        assert_eq!(attempt.reports(), []);
        transcript.committed(4);
        assert_eq!(attempt.reports(), [Report::Covered(span(0, 3))]);
        // The next one is committed before the call returns that began it.
        let spans = transcript.printed().unwrap();
        transcript.committed(5);
        transcript.saves(5, spans);
        assert_eq!(attempt.reports(), [Report::Covered(span(0, 6))]);
        // A failed save covers nothing.
        attempt.print("!");
        transcript.saves(6, transcript.printed().unwrap());
        transcript.failed(6);
        transcript.committed(7);
        assert_eq!(attempt.reports(), []);
        // Transcripts that are gone cost no save.
        fs::remove_dir_all(&attempt.place).unwrap();
        assert_eq!(transcript.printed().unwrap(), span(0, 0));
    }

    #[test]
    fn a_restore_drops_what_the_program_has_printed_and_a_second_program_drops_nothing() {
        let mut attempt = Attempt::new();
        let transcript = attempt.begin();
        attempt.print("begin");
        let before = vec![Span { file: "3/stdout".into(), from: 1, to: 9 }];
        assert!(!transcript.is_used().unwrap());
        transcript.restored(&list(&before)).unwrap();
        let want = [Report::Recovered(before.clone()), Report::Dropped(span(5, 5))];
        assert_eq!(attempt.reports(), want);
        assert!(!transcript.is_used().unwrap());
        attempt.print("x");
        assert!(transcript.is_used().unwrap());
        assert_eq!(transcript.printed().unwrap(), span(5, 6));
        // Transcripts of earlier attempts stay in the lists until the supervisor removes them.
        let earlier = attempt.dir.path().join("3");
        fs::create_dir(&earlier).unwrap();
        fs::write(earlier.join("stdout"), "").unwrap();
        transcript.restored(&list(&before)).unwrap();
        assert_eq!(transcript.printed().unwrap(), [before, span(6, 6)].concat());
        fs::remove_dir_all(&earlier).unwrap();
        assert_eq!(transcript.printed().unwrap(), span(6, 6));
        attempt.reports();
        transcript.close();
        let second = attempt.begin();
        second.restored(&list(&span(5, 6))).unwrap();
        let all = [span(5, 6), span(0, 6)].concat();
        assert_eq!(attempt.reports()[0], Report::Recovered(all));
        attempt.print("y");
        second.restored(&list(&span(6, 6))).unwrap();
        assert_eq!(attempt.reports()[0], Report::Recovered(span(6, 6)));
        // A checkpoint of another build or pool names no transcript.
        second.restored(&vec![(0, Vec::new())]).unwrap();
        assert_eq!(attempt.reports()[0], Report::Recovered(Vec::new()));
        drop(attempt.dir);
    }

    #[test]
    fn a_guest_reports_its_restore_once_it_saves() {
        let mut attempt = Attempt::new();
        fs::write(attempt.owner().0, "1").unwrap();
        let guest = attempt.begin();
        attempt.print("begin");
        guest.restored(&list(&span(1, 2))).unwrap();
        guest.close();
        assert_eq!(attempt.reports(), []);
        assert_eq!(attempt.owner().before(), Before::Runs);
        assert_eq!(guest.printed().unwrap(), [span(1, 2), span(5, 5)].concat());
        let want = [Report::Recovered(span(1, 2)), Report::Dropped(span(5, 5))];
        assert_eq!(attempt.reports(), want);
        guest.close();
        assert_eq!(attempt.owner().before(), Before::Ended);
    }
}
