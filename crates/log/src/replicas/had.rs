//! The content of a log when it was moved: the first and the last record of each job.

use crate::medium::LogMedium;
use outlive_types::{Error, JobName, Result};

const TITLE: &str = "outlive: what the log had when it was moved";

/// The records of one job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct JobHad {
    pub job: JobName,
    pub first: u64,
    pub last: u64,
}

/// Returns the content of a log, as far as it answers: `mover` counts only sealed replicas.
pub(super) fn gather(mover: &dyn LogMedium) -> Result<Vec<JobHad>> {
    let mut jobs = mover.jobs()?;
    jobs.extend([JobName::gc(), JobName::targets()]); // media do not list those
    jobs.sort_unstable();
    jobs.dedup();
    let mut had = Vec::new();
    for job in jobs {
        had.extend(had_of(mover, job)?);
    }
    Ok(had)
}

fn had_of(mover: &dyn LogMedium, job: JobName) -> Result<Option<JobHad>> {
    let numbers = mover.list(&job)?;
    let Some(last) = numbers.last().copied() else { return Ok(None) };
    // A record that counts must not vanish at a power cut.
    mover.keep(&job, last)?;
    // The records before a gap were about to be removed.
    let mut first = last;
    while numbers.binary_search(&(first - 1)).is_ok() {
        first -= 1;
    }
    Ok(Some(JobHad { job, first, last }))
}

/// Encodes the content as text.
pub(super) fn encode(had: &[JobHad]) -> Vec<u8> {
    let line = |JobHad { job, first, last }: &JobHad| {
        format!("{first:016x} {last:016x} {}\n", job.escaped())
    };
    format!("{TITLE}\n{}", had.iter().map(line).collect::<String>()).into_bytes()
}

/// Decodes the content from text.
///
/// # Errors
/// `Damaged` if [`encode`] did not write the text.
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<JobHad>> {
    let lines = std::str::from_utf8(bytes).ok().and_then(|text| text.strip_prefix(TITLE));
    let had = lines.and_then(|lines| lines.trim_end().lines().skip(1).map(parse).collect());
    had.ok_or_else(|| Error::damaged("the note of what the log had when it was moved is damaged"))
}

fn parse(line: &str) -> Option<JobHad> {
    let mut words = line.split(' ');
    let mut number = || u64::from_str_radix(words.next()?, 16).ok();
    let (first, last) = (number()?, number()?);
    let name = words.next()?;
    let reserved = [JobName::gc(), JobName::targets()];
    let job = reserved.into_iter().find(|job| job.escaped() == name);
    let job = job.or_else(|| JobName::listed_from_escaped(name))?;
    (1 <= first && first <= last).then_some(JobHad { job, first, last })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_of_a_log_survives_its_text() {
        let job = |name, first, last| JobHad { job: JobName::new(name).unwrap(), first, last };
        let gc = JobHad { job: JobName::gc(), first: 7, last: 7 };
        let of = |job: JobHad, rank| {
            let JobHad { job, first, last } = job;
            [job.mail_of(rank), job.calls_of(rank)].map(|job| JobHad { job, first, last })
        };
        let of_ranks = [of(job("a-1", 2, 4), 0), of(job("a b/ü", 1, 1), 4_000_000_000)].concat();
        for had in [vec![], vec![gc, job("a b/ü", 1, 1 << 40), job("%41", 3, 9)], of_ranks] {
            assert_eq!(decode(&encode(&had)).unwrap(), had);
        }
        for wrong in ["", "x", &format!("{TITLE}\n1 2\n"), &format!("{TITLE}\n2 1 a\n")] {
            assert!(decode(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }
}
