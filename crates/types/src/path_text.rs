//! Paths as text: names are bytes, and people see them escaped.

/// Returns a path that a terminal can show: unprintable characters and backslashes are escaped,
/// bytes that are not UTF-8 become `\xNN`.
pub fn shown_path(path: &[u8]) -> String {
    let mut out = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                // Harmless and frequent.
                '"' | '\'' => out.push(c),
                _ => out.extend(c.escape_debug()),
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

/// Returns the path from which [`shown_path`] made `text`; `None` for any other text.
pub fn path_of(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'\\' {
            out.push(*byte);
            continue;
        }
        let (letter, after) = rest.split_first()?;
        rest = after;
        match letter {
            b'\\' | b'"' | b'\'' => out.push(*letter),
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            b'0' => out.push(0),
            b'x' => {
                let (digits, after) = rest.split_at_checked(2)?;
                out.push(u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?);
                rest = after;
            }
            b'u' => {
                let inner = rest.strip_prefix(b"{")?;
                let end = inner.iter().position(|byte| *byte == b'}')?;
                let digits = str::from_utf8(&inner[..end]).ok()?;
                let c = char::from_u32(u32::from_str_radix(digits, 16).ok()?)?;
                out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                rest = &inner[end + 1..];
            }
            _ => return None,
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_path_leads_back_to_the_path() {
        for (path, text) in [
            (&b"model/w.bin"[..], "model/w.bin"),
            (b"na\xefve \xff", r"na\xefve \xff"),
            (b"a\\xff \"b\" 'c'", r#"a\\xff "b" 'c'"#),
            ("grün\u{301}\u{1b}[2J\n".as_bytes(), "grün\\u{301}\\u{1b}[2J\\n"),
        ] {
            assert_eq!(shown_path(path), text);
            assert_eq!(path_of(text.as_bytes()).as_deref(), Some(path));
        }
        for text in [r"a\", r"\x", r"\x4", r"\xgg", r"\q", r"\u{110000}", r"\u{1", r"\u1"] {
            assert_eq!(path_of(text.as_bytes()), None, "{text}");
        }
    }
}
