//! Traces: recipes of several versions in a text file, to compare planners on.
//!
//! ```text
//! outlive-trace 1                     first line
//! container_bytes 4194304
//! version django-4.0                  begins a version; its items follow in the stream's order:
//! 17 8192 6001                        container, offset in it, length; all decimal
//! * 3                                 the next 3 items directly follow the last one: lengths
//! 5000                                one a line
//! 9123
//! 4096
//! ```
//!
//! Empty lines and comments after `#` are skipped.

use super::Item;
use outlive_types::{Error, Result};
use std::fmt::Write as _;

/// One version's recipe.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Version {
    /// Name of the version.
    pub name: String,
    /// Chunks in the stream's order.
    pub recipe: Vec<Item>,
}

/// Versions that share containers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// Length of a container.
    pub container_bytes: u64,
    /// The versions, oldest first.
    pub versions: Vec<Version>,
}

const HEAD: &str = "outlive-trace 1";

impl Trace {
    /// Returns the trace as text.
    pub fn to_text(&self) -> String {
        let mut text = format!("{HEAD}\ncontainer_bytes {}\n", self.container_bytes);
        for version in &self.versions {
            let _ = writeln!(text, "version {}", version.name);
            let mut rest = &version.recipe[..];
            while let [first, later @ ..] = rest {
                let behind = |pair: &[Item]| {
                    pair[0].container == pair[1].container
                        && pair[0].offset + pair[0].length == pair[1].offset
                };
                let run = rest.windows(2).take_while(|pair| behind(pair)).count();
                let _ = writeln!(text, "{} {} {}", first.container, first.offset, first.length);
                if run > 0 {
                    let _ = writeln!(text, "* {run}");
                    for item in &later[..run] {
                        let _ = writeln!(text, "{}", item.length);
                    }
                }
                rest = &later[run..];
            }
        }
        text
    }

    /// Parses a trace.
    ///
    /// # Errors
    /// `Invalid`, with the line, for anything else.
    pub fn parse(text: &str) -> Result<Trace> {
        let mut trace = Trace { container_bytes: 0, versions: Vec::new() };
        let mut run = 0u64;
        let mut begun = false;
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let wrong = |what: &str| {
                Err(Error::invalid(format!("line {} of the trace: {what}: {line:?}", number + 1)))
            };
            if !begun {
                if line != HEAD {
                    return wrong(&format!("it must begin with {HEAD:?}"));
                }
                begun = true;
                continue;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            let parsed: Vec<Option<u32>> = words.iter().map(|word| word.parse().ok()).collect();
            let last = trace.versions.last_mut();
            match (&words[..], &parsed[..], last) {
                ([length], [Some(length_bytes)], Some(version)) if run > 0 => {
                    let Some(before) = version.recipe.last() else {
                        return wrong("nothing is before it");
                    };
                    let Some(offset) = before.offset.checked_add(before.length) else {
                        return wrong("it lies beyond 4 GiB");
                    };
                    let _ = length;
                    let item = Item { offset, length: *length_bytes, ..*before };
                    version.recipe.push(item);
                    run -= 1;
                }
                _ if run > 0 => return wrong("a length was expected"),
                (["container_bytes", bytes], _, _) => match bytes.parse() {
                    Ok(bytes) if bytes > 0 => trace.container_bytes = bytes,
                    _ => return wrong("that is no length"),
                },
                (["version", ..], _, _) => {
                    let name = line["version".len()..].trim().to_owned();
                    trace.versions.push(Version { name, recipe: Vec::new() });
                }
                (["*", _], [_, Some(count)], Some(_)) => run = u64::from(*count),
                (_, [Some(container), Some(offset), Some(length)], Some(version)) => {
                    let (container, offset, length) = (*container, *offset, *length);
                    version.recipe.push(Item { container, offset, length });
                }
                (_, [Some(_), Some(_), Some(_)], None) => return wrong("no version has begun"),
                _ => return wrong("this says nothing"),
            }
            let end = trace.versions.last().and_then(|v| v.recipe.last());
            if let Some(item) = end
                && (item.length == 0
                    || u64::from(item.offset) + u64::from(item.length) > trace.container_bytes)
            {
                return wrong("a chunk must have a length, and lie within its container");
            }
        }
        if run > 0 || trace.container_bytes == 0 || trace.versions.is_empty() {
            return Err(Error::invalid(
                "the trace ends too early, has no version, or does not say container_bytes",
            ));
        }
        Ok(trace)
    }
}
