//! Parts of transcripts, as reports and checkpoints name them.
//!
//! A transcript is a file to which a process prints under `outlive run --gate`. Its name is
//! `ATTEMPT/STREAM`, or `ATTEMPT/STREAM.RANK` for a rank of a group. STREAM is `stdout`, `stderr`, or
//! `output` for both.

use serde::{Deserialize, Serialize};

/// The bytes of a transcript from one offset up to another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Span {
    /// Name of the transcript.
    pub file: String,
    /// Offset of the first byte.
    pub from: u64,
    /// Offset behind the last byte.
    pub to: u64,
}

/// Writes parts as text: the name and both offsets of each.
pub fn text_of(spans: &[Span]) -> String {
    let words = spans.iter().map(|Span { file, from, to }| format!("{file} {from} {to}"));
    words.collect::<Vec<_>>().join(" ")
}

/// Reads that text. `None` if it is none: names come from checkpoints, and must lead to no other
/// file.
pub fn list_of(text: &str) -> Option<Vec<Span>> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let (parts, []) = words.as_chunks::<3>() else { return None };
    let span = |[file, from, to]: &[&str; 3]| {
        let (from, to) = (from.parse().ok()?, to.parse().ok()?);
        (is_name(file) && from <= to).then(|| Span { file: (*file).to_owned(), from, to })
    };
    parts.iter().map(span).collect()
}

fn is_name(file: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some((attempt, name)) = file.split_once('/') else { return false };
    let (stream, rank) = name.split_once('.').unwrap_or((name, "0"));
    is_number(attempt) && is_number(rank) && ["stdout", "stderr", "output"].contains(&stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back_and_other_names_are_refused() {
        let span = |file: &str| Span { file: file.to_owned(), from: 3, to: 70 };
        for list in [vec![], vec![span("12/stdout"), span("12/stderr.4")], vec![span("0/output")]] {
            assert_eq!(list_of(&text_of(&list)), Some(list));
        }
        for wrong in [
            "../stdout 0 1",
            "1/../../x 0 1",
            "1/stdout/x 0 1",
            "1/stdin 0 1",
            "/stdout 0 1",
            "1/stdout. 0 1",
            "1/stdout 2 1",
            "1/stdout 0",
            "1/stdout 0 -1",
        ] {
            assert_eq!(list_of(wrong), None, "{wrong}");
        }
    }
}
