//! The paths of a checkpoint that the words of a `get` mean.

use outlive_files::Globs;
use outlive_store::FilesImage;
use outlive_types::{Error, Result, path_of, shown_path};

/// A word that may be more than a plain path.
struct Word {
    /// Its place among the words.
    at: usize,
    /// The path of which it is the shown form.
    unescaped: Option<Vec<u8>>,
    is_glob: bool,
    is_there: bool,
    unescaped_is_there: bool,
    /// Paths that the pattern matches, without those below another one.
    matched: Vec<Vec<u8>>,
}

/// Returns the paths in the checkpoint. A slash at the start is its root. A word that is not there
/// as it stands may be escaped, as in listings, or a pattern.
///
/// # Errors
/// `Invalid` for a pattern that cannot be read, or that matches nothing; `Damaged` if the listing is
/// damaged.
pub fn meant(checkpoint: &FilesImage, words: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
    let mut paths: Vec<Vec<u8>> = words.into_iter().map(from_root).collect();
    let special = |(at, path): (usize, &Vec<u8>)| {
        let unescaped = path.contains(&b'\\').then(|| path_of(path)).flatten();
        let is_glob = Globs::is_glob(path);
        (unescaped.is_some() || is_glob).then_some(Word {
            at,
            unescaped,
            is_glob,
            is_there: false,
            unescaped_is_there: false,
            matched: Vec::new(),
        })
    };
    let mut special: Vec<Word> = paths.iter().enumerate().filter_map(special).collect();
    if special.is_empty() {
        return Ok(paths);
    }
    let patterns: Vec<usize> =
        (0..special.len()).filter(|number| special[*number].is_glob).collect();
    // A faulty pattern is no error if a file has that name.
    let globs: Vec<Result<Globs>> =
        patterns.iter().map(|number| Globs::new([&paths[special[*number].at][..]])).collect();
    let mut items = checkpoint.items();
    while let Some(item) = items.next_item()? {
        for word in &mut special {
            word.is_there |= paths[word.at] == item.path;
            word.unescaped_is_there |= word.unescaped.as_ref() == Some(&item.path);
        }
        for (number, glob) in patterns.iter().zip(&globs) {
            let matched = &mut special[*number].matched;
            // The contents of a directory follow it, and come with it.
            let is_inside = matched.last().is_some_and(|last| is_below(&item.path, last));
            let matches = |glob: &Globs| !glob.matching(&item.path).is_empty();
            if !is_inside && glob.as_ref().is_ok_and(matches) {
                matched.push(item.path.clone());
            }
        }
    }
    let mut globs = globs.into_iter();
    let mut further = Vec::new();
    let mut expanded = Vec::new();
    for word in special {
        let glob = if word.is_glob { globs.next() } else { None };
        if word.is_there {
            continue;
        }
        if let Some(path) = word.unescaped.filter(|_| word.unescaped_is_there || !word.is_glob) {
            paths[word.at] = path;
            continue;
        }
        if let Some(Err(error)) = glob {
            return Err(error);
        }
        if word.is_glob && word.matched.is_empty() {
            return Err(nothing(checkpoint, &paths[word.at]));
        }
        expanded.push(word.at);
        further.extend(word.matched);
    }
    let kept = paths.into_iter().enumerate().filter(|(at, _)| !expanded.contains(at));
    Ok(kept.map(|(_, path)| path).chain(further).collect())
}

/// Returns a word as a path from the root of the checkpoint.
fn from_root(mut word: Vec<u8>) -> Vec<u8> {
    if word.starts_with(b"/") {
        let start = word.iter().position(|byte| *byte != b'/').unwrap_or(word.len());
        word.drain(..start);
        if word.is_empty() {
            return b".".to_vec();
        }
    }
    while let Some(rest) = word.strip_prefix(b"./").filter(|rest| !rest.is_empty()) {
        word = rest.to_vec();
    }
    while word.len() > 1 && word.ends_with(b"/") {
        word.pop();
    }
    word
}

fn is_below(path: &[u8], directory: &[u8]) -> bool {
    directory == b"." || path.strip_prefix(directory).is_some_and(|rest| rest.starts_with(b"/"))
}

fn nothing(checkpoint: &FilesImage, pattern: &[u8]) -> Error {
    let name = format!("{}@{}", checkpoint.job().as_str(), checkpoint.epoch());
    Error::invalid(format!(
        "it has nothing that matches \"{}\"; `{}` lists what it has",
        shown_path(pattern),
        checkpoint.pool().command("show", &[&name])
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_at_the_start_is_the_root_of_the_checkpoint() {
        for (word, path) in [
            ("/a/b", "a/b"),
            ("//a", "a"),
            ("/", "."),
            ("./a/", "a"),
            ("././a", "a"),
            ("./", "."),
            ("", ""),
            ("../a", "../a"),
        ] {
            let meant = from_root(word.as_bytes().to_vec());
            assert_eq!(String::from_utf8(meant).unwrap(), path, "{word}");
        }
    }
}
