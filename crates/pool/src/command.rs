//! Commands that messages advise, ready to be run.

/// Returns a command of `outlive`, with quotes around words that a shell would split.
pub(crate) fn command(verb: &str, location: Option<&str>, words: &[&str]) -> String {
    let mut line = format!("outlive {verb} {}", location.map_or("POOL".to_owned(), quoted));
    for word in words {
        line.push(' ');
        line.push_str(&quoted(word));
    }
    line
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:@%+=".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    if !word.chars().any(char::is_control) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    let mut out = String::from("$'");
    for c in word.chars() {
        match c {
            '\'' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    out.push_str(&format!("\\x{byte:02x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('\'');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_takes_words_as_they_are() {
        for (word, text) in
            [("a/b-1.x", "a/b-1.x"), ("", "''"), ("a b", "'a b'"), ("it's", r"'it'\''s'")]
        {
            assert_eq!(quoted(word), text);
        }
        assert_eq!(quoted("a\u{1b}'\n"), r"$'a\x1b\'\x0a'");
        assert_eq!(command("gc", Some("/a b"), &["--fence", "x"]), "outlive gc '/a b' --fence x");
        assert_eq!(command("gc", None, &[]), "outlive gc POOL");
    }
}
