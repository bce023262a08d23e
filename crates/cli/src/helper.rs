//! `outlive helper`: the process that holds the images of saves, and its workers.

use crate::args::HelperArgs;
use crate::output::{Answer, Reporter};
use outlive_helper::Completed;
use outlive_pool::Environment;
use outlive_types::{Error, Result};
use serde_json::json;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;

/// `outlive helper`.
pub fn helper(args: &HelperArgs, words: &[OsString], reporter: &Arc<Reporter>) -> Result<Answer> {
    if args.complete {
        return Ok(complete(reporter));
    }
    match args.detach {
        true => {
            let command = own_command(words).ok_or_else(|| {
                Error::retry("/proc/self/cmdline does not show how this program was started")
            })?;
            outlive_helper::detach(&command)
                .map_err(|error| Error::retry(format!("the helper does not start: {error}")))?;
        }
        false => outlive_helper::serve()?,
    }
    Ok(Answer::new(String::new(), json!(null)))
}

/// Completes a save; the answer is a sentence for the next program of the job.
fn complete(reporter: &Arc<Reporter>) -> Answer {
    let open =
        |location: &Path| outlive_pool::open(location, Environment::observed(reporter.clone()));
    let text = match outlive_helper::work(std::io::stdin(), &open) {
        Ok(Completed::Committed(epoch)) => {
            format!(
                "a helper has completed checkpoint {epoch}, which a program had saved before its end\n"
            )
        }
        Ok(Completed::There | Completed::Fenced) => String::new(),
        Err(error) => {
            format!("a helper could not complete the save of a program that has ended: {error}\n")
        }
    };
    Answer::new(text, json!(null))
}

/// Returns the command line of this program up to its subcommand: `words` are its own arguments,
/// which may follow those of an interpreter.
pub fn own_command(words: &[OsString]) -> Option<Vec<OsString>> {
    let line = std::fs::read("/proc/self/cmdline").ok()?;
    let mut all: Vec<OsString> = line
        .strip_suffix(b"\0")?
        .split(|byte| *byte == 0)
        .map(|word| OsString::from_vec(word.to_vec()))
        .collect();
    let arguments = words.get(1..)?;
    if !all.ends_with(arguments) {
        return None;
    }
    all.truncate(all.len() - arguments.len());
    // Relative paths count from this directory; the helper starts in another one. (The name of the
    // program itself must stay: an interpreter finds its environment by it.)
    let here = std::env::current_dir().ok()?;
    for word in &mut all {
        let path = here.join(&*word);
        if word.as_encoded_bytes().contains(&b'/') && path.exists() {
            *word = path.into_os_string();
        }
    }
    Some(all)
}
