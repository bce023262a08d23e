//! Reads the files of the AWS command line: sections of `key = value` lines.

use outlive_types::{Error, Result};
use std::collections::HashMap;
use std::path::Path;
use std::{fs, io};

/// The sections of one file, by name, each with its values.
#[derive(Debug, Default)]
pub(crate) struct Profiles(HashMap<String, HashMap<String, String>>);

impl Profiles {
    /// Reads a file; a missing file has no sections.
    ///
    /// # Errors
    /// `Invalid` if it cannot be read, or has a line that is neither a section, a value nor a
    /// comment.
    pub(crate) fn read(path: &Path) -> Result<Profiles> {
        match fs::read_to_string(path) {
            Ok(text) => Profiles::parse(&text)
                .map_err(|error| error.context(format!("cannot read {}", path.display()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Profiles::default()),
            Err(error) => Err(Error::invalid(format!(
                "reading {}: {error}: give this user access to it, or name another file in AWS_CONFIG_FILE or \
                 AWS_SHARED_CREDENTIALS_FILE",
                path.display()
            ))),
        }
    }

    /// Parses a file's text. An indented line below `parent =` is the value `parent.key`, such as
    /// the endpoint of a service.
    pub(crate) fn parse(text: &str) -> Result<Profiles> {
        let mut sections: HashMap<String, HashMap<String, String>> = HashMap::new();
        let (mut section, mut parent) = (None, None);
        for (number, line) in (1..).zip(text.lines()) {
            let is_nested = line.starts_with([' ', '\t']);
            let line = without_comment(line.trim());
            if line.is_empty() {
                continue;
            }
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
                sections.entry(name.clone()).or_default();
                (section, parent) = (Some(name), None);
                continue;
            }
            // The line may be a secret, so the message has only its number.
            let not_read = || Error::invalid(format!("line {number} is not `key = value`"));
            let (key, value) = line.split_once('=').ok_or_else(not_read)?;
            let (key, value) = (key.trim().to_ascii_lowercase(), value.trim());
            let values = section.as_ref().and_then(|section| sections.get_mut(section));
            let values = values.ok_or_else(|| {
                Error::invalid(format!("line {number} is not in a section: put [default] above it"))
            })?;
            let name = match &parent {
                Some(parent) if is_nested => format!("{parent}.{key}"),
                _ => key.clone(),
            };
            if !is_nested {
                parent = value.is_empty().then_some(key);
            }
            values.insert(name, value.to_owned());
        }
        Ok(Profiles(sections))
    }

    /// Returns whether the section exists.
    pub(crate) fn has(&self, section: &str) -> bool {
        self.0.contains_key(section)
    }

    /// Returns a value, unless it is missing or empty.
    pub(crate) fn get(&self, section: &str, key: &str) -> Option<&str> {
        let value = self.0.get(section)?.get(key)?;
        (!value.is_empty()).then_some(value)
    }
}

/// Returns a line without its comment, which begins the line or follows a space.
fn without_comment(line: &str) -> &str {
    if line.starts_with(['#', ';']) {
        return "";
    }
    let end = [" #", " ;", "\t#", "\t;"].iter().filter_map(|mark| line.find(mark)).min();
    line[..end.unwrap_or(line.len())].trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_values_comments_and_nested_values_are_read() {
        let text = "# a comment\n[default]\nregion = eu-central-1  ; where\n\
                    aws_secret_access_key=a/b+c=#d\n\n[profile  lab]\ns3 =\n  endpoint_url = \
                    http://lab:9000\n  Max_Concurrent = 4\nregion = x\n[services]\n";
        let profiles = Profiles::parse(text).unwrap();
        assert_eq!(profiles.get("default", "region"), Some("eu-central-1"));
        assert_eq!(profiles.get("default", "aws_secret_access_key"), Some("a/b+c=#d"));
        assert_eq!(profiles.get("profile lab", "s3.endpoint_url"), Some("http://lab:9000"));
        assert_eq!(profiles.get("profile lab", "s3.max_concurrent"), Some("4"));
        assert_eq!(profiles.get("profile lab", "region"), Some("x"));
        assert_eq!(profiles.get("profile lab", "s3"), None);
        assert!(profiles.has("services") && !profiles.has("lab"));
    }

    #[test]
    fn a_line_that_is_not_understood_is_told_by_its_number_alone() {
        for (text, told) in [
            ("[default]\nsecret", "line 2 is not `key = value`"),
            ("region = x", "line 1 is not in a section"),
        ] {
            let error = Profiles::parse(text).unwrap_err();
            assert!(error.message().contains(told), "{error}");
            assert!(!error.message().contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_missing_file_has_no_sections() {
        let profiles = Profiles::read(Path::new("/nowhere/at/all")).unwrap();
        assert!(!profiles.has("default"));
        assert!(Profiles::read(Path::new("/")).is_err());
    }
}
