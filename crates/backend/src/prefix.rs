//! Prefixes of the keys in a bucket or a cluster.

/// Characters besides letters and digits: those that all servers treat alike.
const OTHERS: &str = "-_.=+@,";
/// Longest prefix. A key of S3 has at most 1024 bytes, and our names add less than half of that.
const BYTES_MAX: usize = 512;

/// Reads the prefix at the end of a URL, which may end with a slash.
///
/// # Errors
/// A description of the fault.
pub fn parse(text: &str) -> Result<String, String> {
    let prefix = text.strip_suffix('/').filter(|it| !it.is_empty()).unwrap_or(text);
    if prefix.is_empty() {
        return Ok(String::new());
    }
    if prefix.len() > BYTES_MAX {
        return Err(format!("the prefix is longer than {BYTES_MAX} bytes"));
    }
    for part in prefix.split('/') {
        if matches!(part, "" | "." | "..") {
            return Err(format!("the prefix has the part {part:?}"));
        }
        let fits = |c: &char| c.is_ascii_alphanumeric() || OTHERS.contains(*c);
        if let Some(c) = part.chars().find(|c| !fits(c)) {
            return Err(format!(
                "the prefix has the character {c:?}, and may have only letters, digits and {OTHERS}"
            ));
        }
    }
    Ok(prefix.to_owned())
}

/// Returns a prefix below another one, which may be empty.
///
/// # Errors
/// As [`parse`].
pub fn child(prefix: &str, name: &str) -> Result<String, String> {
    if prefix.is_empty() { parse(name) } else { parse(&format!("{prefix}/{name}")) }
}

/// Returns this prefix and those that contain it, from the longest to the empty one. Each has the
/// part of `prefix` that follows there; `prefix` itself has none.
pub fn around(prefix: &str) -> Vec<(String, Option<String>)> {
    let parts: Vec<&str> = prefix.split('/').filter(|part| !part.is_empty()).collect();
    let above = |length: usize| {
        (parts[..length].join("/"), parts.get(length).map(|part| (*part).to_owned()))
    };
    (0..=parts.len()).rev().map(above).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_in_others() {
        let around: Vec<String> = around("x/y")
            .iter()
            .map(|(prefix, below)| format!("{prefix} {}", below.as_deref().unwrap_or("-")))
            .collect();
        assert_eq!(around, ["x/y -", "x y", " x"]);
        assert_eq!(child("", "log-2").unwrap(), "log-2");
        assert_eq!(child("a/b", "log-2").unwrap(), "a/b/log-2");
    }

    #[test]
    fn a_prefix_has_parts_of_plain_characters() {
        for (text, is) in [("", ""), ("a/b=2/c_D,+@.x", "a/b=2/c_D,+@.x"), ("ckpt/", "ckpt")] {
            assert_eq!(parse(text).unwrap(), is);
        }
        for (text, wrong) in [
            ("a//b", "the part \"\""),
            ("/", "the part \"\""),
            ("a/../b", "the part \"..\""),
            ("b%20c", "'%'"),
            ("ü", "'ü'"),
        ] {
            assert!(parse(text).unwrap_err().contains(wrong), "{text}");
        }
        assert!(parse(&"x".repeat(513)).unwrap_err().contains("512 bytes"));
    }
}
