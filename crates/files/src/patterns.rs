//! Patterns of paths to omit, in the syntax of `.gitignore`.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use outlive_types::{Error, Result};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A list of patterns. The last that matches a path decides.
#[derive(Clone, Debug, Default)]
pub struct Patterns {
    set: GlobSet,
    rules: Vec<Rule>,
}

#[derive(Clone, Copy, Debug)]
struct Rule {
    /// True if it includes again what an earlier pattern has excluded.
    keeps: bool,
    /// True if it matches only directories.
    directories: bool,
}

impl Patterns {
    /// Parses patterns, one each.
    ///
    /// # Errors
    /// `Invalid`, with the faulty pattern.
    pub fn new<'a>(lines: impl IntoIterator<Item = &'a [u8]>) -> Result<Patterns> {
        let mut globs = GlobSetBuilder::new();
        let mut rules = Vec::new();
        for line in lines {
            let Some((rule, glob)) = parse(line) else { continue };
            let refuse = |why: &dyn std::fmt::Display| {
                let line = String::from_utf8_lossy(line).escape_debug().to_string();
                Error::invalid(format!("the ignore pattern \"{line}\" cannot be used: {why}"))
            };
            let text = std::str::from_utf8(&glob).map_err(|_| refuse(&"it is not UTF-8"))?;
            let mut glob = GlobBuilder::new(text);
            let glob = glob.literal_separator(true).backslash_escape(true).build();
            globs.add(glob.map_err(|error| refuse(error.kind()))?);
            rules.push(rule);
        }
        let set = globs.build().map_err(|e| Error::invalid(format!("ignore patterns: {e}")))?;
        Ok(Patterns { set, rules })
    }

    /// Parses the lines of a file of patterns.
    ///
    /// # Errors
    /// As [`Patterns::new`].
    pub fn from_text(text: &[u8]) -> Result<Patterns> {
        let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
        Patterns::new(text.split(|byte| *byte == b'\n'))
    }

    /// Returns whether a path is excluded (`Some(true)`), included, or matched by no pattern.
    pub fn decide(&self, path: &[u8], is_directory: bool) -> Option<bool> {
        if self.rules.is_empty() {
            return None;
        }
        let found = self.set.matches(Path::new(OsStr::from_bytes(path)));
        let rules = found.into_iter().rev().map(|at| self.rules[at]);
        rules.into_iter().find(|rule| is_directory || !rule.directories).map(|rule| !rule.keeps)
    }
}

/// Returns a line's rule and its glob; `None` for an empty line or a comment.
fn parse(line: &[u8]) -> Option<(Rule, Vec<u8>)> {
    let mut text = line.strip_suffix(b"\r").unwrap_or(line);
    while let Some(shorter) = text.strip_suffix(b" ") {
        // A blank after a backslash belongs to the name.
        if shorter.ends_with(b"\\") {
            break;
        }
        text = shorter;
    }
    if text.is_empty() || text.starts_with(b"#") {
        return None;
    }
    let keeps = text.starts_with(b"!");
    if keeps {
        text = &text[1..];
    }
    let directories = text.ends_with(b"/");
    if directories {
        text = &text[..text.len() - 1];
    }
    if text.is_empty() {
        return None;
    }
    let anchored = text.contains(&b'/');
    let text = text.strip_prefix(b"/").unwrap_or(text);
    let mut glob = if anchored { Vec::new() } else { b"**/".to_vec() };
    braces_escaped(text, &mut glob);
    Some((Rule { keeps, directories }, glob))
}

/// Escapes braces, which are literal in `.gitignore`, and alternatives in a glob.
fn braces_escaped(text: &[u8], glob: &mut Vec<u8>) {
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        if matches!(byte, b'{' | b'}') {
            glob.push(b'\\');
        }
        glob.push(byte);
        match byte {
            b'\\' => glob.extend(bytes.next()),
            b'[' => {
                // In a class they are literal already, and so is a bracket at its beginning.
                let mut at = 0;
                for inside in bytes.by_ref() {
                    glob.push(inside);
                    let is_first = at == 0;
                    at += usize::from(!(is_first && matches!(inside, b'!' | b'^')));
                    if inside == b']' && !is_first {
                        break;
                    }
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_gitignore() {
        let text =
            b"# comment\n\n*.tmp\n/top\nsub/*.o\nbuild/\n!keep.tmp\n**/deep/x\ntail\\ \n\\#hash\n\
                     [ab]?.log\nall/**\n\
                     {a,b}.txt\nx{y\nc[]}]\nd\\{\n";
        let patterns = Patterns::from_text(text).unwrap();
        for (path, is_directory, decided) in [
            ("a.tmp", false, Some(true)),
            ("x/y/a.tmp", false, Some(true)),
            ("x/keep.tmp", false, Some(false)),
            ("top", false, Some(true)),
            ("x/top", false, None),
            ("sub/a.o", false, Some(true)),
            ("x/sub/a.o", false, None),
            ("sub/deeper/a.o", false, None),
            ("x/build", true, Some(true)),
            ("x/build", false, None),
            ("deep/x", false, Some(true)),
            ("a/b/deep/x", false, Some(true)),
            ("tail ", false, Some(true)),
            ("#hash", false, Some(true)),
            ("b1.log", false, Some(true)),
            ("b12.log", false, None),
            ("all/of/it", false, Some(true)),
            ("all", true, None),
            ("comment", false, None),
            ("{a,b}.txt", false, Some(true)),
            ("a.txt", false, None),
            ("x{y", false, Some(true)),
            ("c}", false, Some(true)),
            ("d{", false, Some(true)),
        ] {
            assert_eq!(patterns.decide(path.as_bytes(), is_directory), decided, "{path}");
        }
        assert_eq!(patterns.decide(b"\xFF\xFE.tmp", false), Some(true), "not UTF-8");
        assert!(Patterns::from_text(b"a[").unwrap_err().message().contains("a["));
    }
}
