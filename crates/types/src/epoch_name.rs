//! The names that users give checkpoints: a number, or a position counted from the newest.

use crate::Epoch;
use std::fmt;
use std::str::FromStr;

/// Name of one checkpoint of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EpochName {
    /// The checkpoint with this number: `7`.
    Number(Epoch),
    /// The newest is 1 (`latest` or `-1`), the one before it 2 (`-2`).
    FromNewest(u64),
}

impl EpochName {
    /// The newest checkpoint.
    pub const LATEST: EpochName = EpochName::FromNewest(1);

    /// Splits `JOB@EPOCH`; returns `None` if the text after the last `@` names no epoch.
    pub fn split(text: &str) -> Option<(&str, EpochName)> {
        let (job, epoch) = text.rsplit_once('@')?;
        Some((job, epoch.parse().ok()?))
    }
}

impl From<Epoch> for EpochName {
    fn from(epoch: Epoch) -> EpochName {
        EpochName::Number(epoch)
    }
}

/// The forms of an epoch's text, for messages.
pub const EPOCH_FORMS: &str = "give its number, such as 7, or `latest`, or -1 for the newest, -2 for the \
                               one before, and so on";

impl FromStr for EpochName {
    type Err = String;

    fn from_str(text: &str) -> Result<EpochName, String> {
        let number = |digits: &str| {
            let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse::<u64>().ok().filter(|_| is_plain)
        };
        let found = match text.strip_prefix('-') {
            _ if text == "latest" => Some(EpochName::LATEST),
            Some(digits) => number(digits).filter(|back| *back > 0).map(EpochName::FromNewest),
            None => number(text).map(EpochName::Number),
        };
        found.ok_or_else(|| format!("that names no epoch: {EPOCH_FORMS}"))
    }
}

impl fmt::Display for EpochName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EpochName::Number(epoch) => epoch.fmt(f),
            EpochName::FromNewest(back) => write!(f, "-{back}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_have_numbers_or_are_counted_from_the_newest() {
        for (text, name) in [
            ("7", EpochName::Number(7)),
            ("0", EpochName::Number(0)),
            ("latest", EpochName::FromNewest(1)),
            ("-1", EpochName::FromNewest(1)),
            ("-12", EpochName::FromNewest(12)),
        ] {
            assert_eq!(text.parse(), Ok(name), "{text}");
        }
        for text in [
            "",
            "-",
            "+1",
            "-0",
            "--1",
            "-+1",
            "1.0",
            "newest",
            "Latest",
            "1 ",
            "99999999999999999999",
        ] {
            assert!(text.parse::<EpochName>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_last_at_sign_counts() {
        assert_eq!(EpochName::split("a@7"), Some(("a", EpochName::Number(7))));
        assert_eq!(EpochName::split("a@7@latest"), Some(("a@7", EpochName::LATEST)));
        assert_eq!(EpochName::split("me@host@-2"), Some(("me@host", EpochName::FromNewest(2))));
        for text in ["a", "me@host", "a@", "a@x", "a@7@x"] {
            assert_eq!(EpochName::split(text), None, "{text}");
        }
    }
}
