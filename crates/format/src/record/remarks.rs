//! Remarks on a checkpoint: pin, label, tags, and judgements of its state.

use crate::codec::{Check, Reader, Writer, demand};
use outlive_types::{Error, Result};

/// Longest label or metric's name, in bytes.
pub const LABEL_BYTES_MAX: usize = u16::MAX as usize;
/// Longest tag, in bytes.
pub const TAG_BYTES_MAX: usize = u8::MAX as usize;
/// Largest number of tags of a checkpoint.
pub const TAGS_MAX: usize = u8::MAX as usize;

/// A user's or supervisor's judgement of the state in a checkpoint, whose bytes are whole either
/// way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mark {
    /// Nothing is known.
    #[default]
    None,
    /// A user says that programs may go on from it.
    Good,
    /// Restores of the newest checkpoint pass over it: a program that goes on from it fails.
    Bad,
}

impl Mark {
    /// All marks.
    pub const ALL: [Mark; 3] = [Mark::None, Mark::Good, Mark::Bad];

    /// Reads a name.
    ///
    /// # Errors
    /// `Invalid` for another word.
    pub fn parse(word: &str) -> Result<Mark> {
        let found = Mark::ALL.into_iter().find(|mark| mark.name() == word);
        found.ok_or_else(|| {
            Error::invalid(format!("{word:?} is no mark of a checkpoint: give good, bad or none"))
        })
    }

    /// Returns the name in commands and statistics.
    pub fn name(self) -> &'static str {
        match self {
            Mark::None => "none",
            Mark::Good => "good",
            Mark::Bad => "bad",
        }
    }
}

/// Remarks on a checkpoint, by its user or by a restore.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Remarks {
    /// True if every prune keeps it, whatever its rules.
    pub pinned: bool,
    /// True if a restore or verification found damage in it. Lazy restores skip it until a
    /// verification or scrub finds that it is whole.
    pub suspect: bool,
    /// The judgement of its state.
    pub mark: Mark,
    /// The user's label; may be empty. At most [`LABEL_BYTES_MAX`].
    pub label: String,
    /// The user's tags, sorted, each once: at most [`TAGS_MAX`], of 1 to [`TAG_BYTES_MAX`] bytes.
    pub tags: Vec<String>,
}

impl Remarks {
    pub(super) fn check(&self) -> Check {
        demand!(self.label.len() <= LABEL_BYTES_MAX, "the label is too long");
        demand!(self.tags.len() <= TAGS_MAX, "it has too many tags");
        for tag in &self.tags {
            demand!((1..=TAG_BYTES_MAX).contains(&tag.len()), "the tag {tag:?} has a wrong length");
        }
        let sorted = self.tags.is_sorted_by(|a, b| a < b);
        demand!(sorted, "its tags are out of order, or one is there twice");
        Ok(())
    }

    pub(super) fn flags(&self) -> u8 {
        let mark = match self.mark {
            Mark::None => 0,
            Mark::Good => 1,
            Mark::Bad => 2,
        };
        u8::from(self.pinned) | u8::from(self.suspect) << 1 | mark << 2
    }

    /// Returns the length of label and tags.
    pub(super) fn encoded_len(&self) -> usize {
        self.label.len() + self.tags.iter().map(|tag| 1 + tag.len()).sum::<usize>()
    }

    /// Writes label and tags, whose lengths and number stand elsewhere.
    pub(super) fn write(&self, out: &mut Writer) {
        out.bytes(self.label.as_bytes());
        for tag in &self.tags {
            out.u8(tag.len() as u8);
            out.bytes(tag.as_bytes());
        }
    }

    /// Reads remarks; label and tags come next in `from`.
    pub(super) fn read(
        flags: u8,
        label_bytes: u16,
        tag_count: u8,
        from: &mut Reader<'_>,
    ) -> Result<Remarks> {
        let mark = match flags >> 2 {
            0 => Mark::None,
            1 => Mark::Good,
            2 => Mark::Bad,
            _ => return Err(from.damaged(format!("its remarks have flags {flags}"))),
        };
        let label = from.text(label_bytes.into())?.to_owned();
        let mut tags = Vec::with_capacity(from.count(tag_count.into(), 2)?);
        for _ in 0..tag_count {
            let bytes = from.u8()?;
            tags.push(from.text(bytes.into())?.to_owned());
        }
        Ok(Remarks { pinned: flags & 1 != 0, suspect: flags & 2 != 0, mark, label, tags })
    }
}

/// Checks a tag: commands take lists of tags with commas between them, and rules have `|`.
///
/// # Errors
/// `Invalid` for an impossible tag.
pub fn check_tag(tag: &str) -> Result<()> {
    let is_plain =
        |c: char| !c.is_control() && !c.is_whitespace() && !matches!(c, ',' | '|' | '"' | '\'');
    match (1..=TAG_BYTES_MAX).contains(&tag.len()) && tag.chars().all(is_plain) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "{tag:?} cannot be a tag: give 1 to {TAG_BYTES_MAX} bytes without blanks, commas, \
             quotes and bars, such as best-of-run"
        ))),
    }
}
