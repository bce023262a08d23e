//! Patterns that choose paths of a checkpoint: `*` and `?` stand for parts of a name, `**` for any
//! number of directories, `[ab]` for one of these characters.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use outlive_types::{Error, Result, shown_path};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Patterns for whole paths.
#[derive(Clone, Debug, Default)]
pub struct Globs {
    set: GlobSet,
}

impl Globs {
    /// Returns whether a text has characters of a pattern.
    pub fn is_glob(text: &[u8]) -> bool {
        text.iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
    }

    /// Reads patterns.
    ///
    /// # Errors
    /// `Invalid`, with the faulty pattern.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a [u8]>) -> Result<Globs> {
        let mut globs = GlobSetBuilder::new();
        for pattern in patterns {
            let refuse = |why: &dyn std::fmt::Display| {
                let shown = shown_path(pattern);
                Error::invalid(format!("the pattern \"{shown}\" cannot be used: {why}"))
            };
            let text = str::from_utf8(pattern).map_err(|_| refuse(&"it is not UTF-8"))?;
            // Alternatives in braces are left to the shell.
            let text = text.replace('{', "[{]").replace('}', "[}]");
            let mut glob = GlobBuilder::new(&text);
            let glob = glob.literal_separator(true).backslash_escape(true).build();
            globs.add(glob.map_err(|error| refuse(error.kind()))?);
        }
        let set = globs.build().map_err(|e| Error::invalid(format!("the patterns: {e}")))?;
        Ok(Globs { set })
    }

    /// Returns the numbers of the patterns that match all of a path.
    pub fn matching(&self, path: &[u8]) -> Vec<usize> {
        self.set.matches(Path::new(OsStr::from_bytes(path)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_paths() {
        let matches = |pattern: &str, path: &str| {
            !Globs::new([pattern.as_bytes()]).unwrap().matching(path.as_bytes()).is_empty()
        };
        for (pattern, path, does) in [
            ("*.tex", "a.tex", true),
            ("*.tex", "b/a.tex", false),
            ("b/*.tex", "b/a.tex", true),
            ("**/*.tex", "a.tex", true),
            ("**/*.tex", "b/c/a.tex", true),
            ("b/**", "b/c/a.tex", true),
            ("b/**", "b", false),
            ("a?c", "abc", true),
            ("a?c", "a/c", false),
            ("[ab]", "b", true),
            ("{a,b}", "a", false),
            ("{a,b}", "{a,b}", true),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
        ] {
            assert_eq!(matches(pattern, path), does, "{pattern} {path}");
        }
        assert!(Globs::new([&b"*\xFF"[..]]).is_err() && Globs::new([&b"a["[..]]).is_err());
        let two = Globs::new([&b"*"[..], b"a*"]).unwrap();
        assert_eq!(two.matching(b"ab"), [0, 1]);
        assert_eq!(two.matching(b"\xFF"), [0]);
        assert!(Globs::is_glob(b"a[") && Globs::is_glob(b"?") && !Globs::is_glob(b"a{b}\\"));
    }
}
