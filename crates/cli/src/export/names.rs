//! File names for regions, and patterns that select regions.

use outlive_format::fingerprint;

/// Longest name before the extension; file systems allow 255 bytes in all.
const STEM_BYTES_MAX: usize = 180;

/// Returns a file name for a region: letters, digits, `.`, `_`, `-` and a few harmless signs stand
/// for themselves (a leading dot does not). Every other byte becomes `%XX`. A name that is too long
/// is cut and ends in `~` and its hash. Different names give different files, and none leaves the
/// directory.
pub fn file_name(region: &str, extension: &str) -> String {
    let mut stem = String::with_capacity(region.len());
    let mut cut = 0;
    for (at, byte) in region.bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric()
            || matches!(byte, b'_' | b'-' | b',' | b'=' | b'+' | b'[' | b']')
            || (byte == b'.' && at > 0);
        if plain {
            stem.push(byte as char);
        } else {
            stem.push_str(&format!("%{byte:02X}"));
        }
        if stem.len() <= STEM_BYTES_MAX - 17 {
            cut = stem.len();
        }
    }
    if stem.len() > STEM_BYTES_MAX {
        let hash = fingerprint(region.as_bytes()).prefix();
        stem.truncate(cut);
        stem.push_str(&format!("~{hash:016x}"));
    }
    format!("{stem}.{extension}")
}

/// Returns true if all of `name` matches `pattern`, in which `*` stands for any text and `?` for
/// any one character.
pub fn matches(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut p, mut n) = (0, 0);
    // Position to continue from if the text after the last star does not match: the star takes one
    // more character.
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                retry = Some((p + 1, n));
                p += 1;
            }
            Some(wanted) if *wanted == '?' || *wanted == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match &mut retry {
                Some((after, taken)) => {
                    *taken += 1;
                    (p, n) = (*after, *taken);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|rest| *rest == '*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_stay_in_the_directory_and_apart() {
        let long = "x".repeat(60_000);
        let longer = format!("{long}y");
        let names = [
            "u",
            "state/u",
            "../../etc/passwd",
            "..",
            ".",
            "/abs",
            "a\0b",
            "a\nb",
            "ü",
            "%2F",
            "/",
            "layers[0],w=1",
            &long,
            &longer,
        ];
        let files: HashSet<String> = names.iter().map(|name| file_name(name, "npy")).collect();
        assert_eq!(files.len(), names.len());
        for file in &files {
            assert!(!file.contains(['/', '\0', '\n']) && !file.starts_with('.'), "{file}");
            assert!(file.len() <= 190, "{file}");
        }
        assert_eq!(file_name("state/u.v", "bin"), "state%2Fu.v.bin");
        // Cut between escapes, never inside one.
        let cut = file_name(&"/".repeat(100), "npy");
        assert!(cut.split_once('~').unwrap().0.len().is_multiple_of(3), "{cut}");
    }

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, fits) in [
            ("u", "u", true),
            ("u", "uv", false),
            ("*", "", true),
            ("u*", "uv", true),
            ("*/w?", "layer/1/w2", true),
            ("*/w?", "layer/1/w", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("?", "ü", true),
            ("**", "x", true),
            ("", "x", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }
}
