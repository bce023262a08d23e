//! Rewrites `pool.toml`, and keeps a person's edits.

use crate::descriptor::config::{FormatConfig, PoolConfig, Tuning};
use crate::descriptor::encryption::{ENCRYPTION, newest_key};
use crate::descriptor::log_configuration::LogConfiguration;
use crate::descriptor::paths::{COPY, DESCRIPTOR, PoolPaths};
use crate::log::open::check_log;
use crate::opening::marker_check::read_text;
use outlive_backend::{Location, SmallFiles};
use outlive_types::{Error, Result};

/// Writes after which a rewrite gives up, since other processes rewrite the file all the time.
const ATTEMPTS: usize = 16;

/// Rewrites `pool.toml`. `change` gets the file's values and returns the new ones; it may be called
/// several times. Lines outside of `[log]`, `[encryption]` and `[[target]]` stay as they are if only
/// these tables and values of `[tuning]` change. This function sets `[log]` and `[encryption]`, not `change`: to the newest
/// configuration and key that this process can find, and never to older ones. Returns the
/// configuration that the file names in the end, which another process may have written.
///
/// Other processes may rewrite the file at the same moment, and no medium replaces a file only if
/// it is unchanged. So this function reads the file, the seals of the log and the copy of the key,
/// writes, and reads again, until nothing is left to write. The last writer also reads last. A
/// mover moves the log before it writes, and a new key is copied before. So the last writer finds
/// the newest ones. One case remains: a process that is killed between its write and its next read
/// may leave older ones. The seals lead on from there, and the next rewrite corrects the file.
///
/// # Errors
/// `Invalid` if the file is no descriptor; `Retry` if the log cannot say where it is, or if other
/// processes rewrite the file all the time; errors of the location.
pub(crate) fn rewrite(
    paths: &PoolPaths,
    format: &FormatConfig,
    change: &dyn Fn(PoolConfig) -> Result<PoolConfig>,
) -> Result<LogConfiguration> {
    for _ in 0..ATTEMPTS {
        let text = read_text(&paths.root)?;
        let there = PoolConfig::parse(&text, &paths.descriptor())?;
        let named = LogConfiguration::of(&paths.root, there.log.as_ref())?;
        // If the file names a newer configuration than ours, our replicas may be gone.
        if named.number <= paths.log().number {
            check_log(paths, format)?;
        }
        let newest = paths.log();
        let log = match named.number < newest.number {
            true => Some(newest.config()),
            false => there.log.clone(),
        };
        let encryption = newest_key(&paths.root, &format.pool_id, there.encryption.clone());
        let wanted = PoolConfig { log, encryption, ..change(there.clone())? };
        if wanted == there {
            // An older copy will do: the seals lead on from it, and the log has the targets.
            let _ = keep_copy(&paths.root);
            return Ok(named);
        }
        paths.root.write(DESCRIPTOR, edited(&text, &there, &wanted)?.as_bytes())?;
    }
    Err(Error::retry(format!(
        "other processes keep rewriting {}: look at it, and give the command again if something is missing there",
        paths.descriptor()
    )))
}

/// First line of a copy of a descriptor.
const TITLE: &str = "# A copy of pool.toml, made by outlive in case that file is lost.\n";

/// Brings the copy beside the descriptor up to date.
///
/// # Errors
/// Errors of the location.
pub(crate) fn keep_copy(root: &Location) -> Result<()> {
    let text = read_text(root)?;
    // A descriptor that was lost, and put back from the copy, has the title already.
    let copy = format!("{TITLE}{}", text.strip_prefix(TITLE).unwrap_or(&text));
    match root.read(COPY)?.is_some_and(|there| there == copy.as_bytes()) {
        true => Ok(()),
        false => root.write(COPY, copy.as_bytes()),
    }
}

/// Makes that copy if the log's marker is elsewhere: nothing else here would show a lost
/// descriptor.
///
/// # Errors
/// Errors of the location.
pub(crate) fn make_copy(paths: &PoolPaths) -> Result<()> {
    if paths.is_log_elsewhere() && !paths.root.has(COPY)? { keep_copy(&paths.root) } else { Ok(()) }
}

/// Returns the text of a descriptor, changed from `there` to `wanted`.
fn edited(text: &str, there: &PoolConfig, wanted: &PoolConfig) -> Result<String> {
    let whole = wanted.to_text()?;
    let mut edited = text.to_owned();
    if wanted.tuning != there.tuning {
        edited = with_keys(&edited, TUNING, &changed_keys(&there.tuning, &wanted.tuning)?);
    }
    if wanted.log != there.log {
        let log = wanted.log.as_ref().map(toml::to_string).transpose();
        let log = log.map_err(|e| Error::bug(format!("[log] cannot be written: {e}")))?;
        let tables = log.map_or_else(String::new, |log| format!("[log]\n{log}"));
        edited = with_tables(&edited, "[log]", &tables);
    }
    if wanted.encryption != there.encryption {
        let table = wanted.encryption.as_ref().map(toml::to_string).transpose();
        let table =
            table.map_err(|e| Error::bug(format!("{ENCRYPTION} cannot be written: {e}")))?;
        let table = table.map_or_else(String::new, |table| format!("{ENCRYPTION}\n{table}"));
        edited = with_tables(&edited, ENCRYPTION, &table);
    }
    if wanted.target != there.target {
        let tables = whole.find("[[target]]").map_or("", |at| &whole[at..]);
        edited = with_tables(&edited, "[[target]]", tables);
    }
    Ok(match PoolConfig::parse(&edited, DESCRIPTOR) {
        Ok(config) if config == *wanted => edited,
        _ => whole,
    })
}

/// Name of the table that tunes, in `pool.toml`.
const TUNING: &str = "[tuning]";

/// Returns the keys whose values differ, each with its new line.
fn changed_keys(there: &Tuning, wanted: &Tuning) -> Result<Vec<(String, String)>> {
    let table = |tuning: &Tuning| {
        let table = toml::Table::try_from(tuning);
        table.map_err(|e| Error::bug(format!("{TUNING} cannot be written: {e}")))
    };
    let there = table(there)?;
    let wanted = table(wanted)?.into_iter().filter(|(key, value)| there.get(key) != Some(value));
    Ok(wanted.map(|(key, value)| (key.clone(), format!("{key} = {value}"))).collect())
}

/// Returns the text with other values of keys in the table with this `header`. Comments stay. Keys
/// that are not there follow the header; without a header the text stays as it is.
fn with_keys(text: &str, header: &str, changed: &[(String, String)]) -> String {
    let key_of = |line: &str| line.split_once('=').map(|(key, _)| key.trim().to_owned());
    let lines: Vec<&str> = text.lines().collect();
    let Some(start) = lines.iter().position(|line| line.trim() == header) else {
        return text.to_owned();
    };
    let is_header = |line: &&str| line.trim_start().starts_with('[');
    let end = lines[start + 1..].iter().position(is_header).map_or(lines.len(), |n| start + 1 + n);
    let inside = start + 1..end;
    let is_there =
        |key: &String| lines[inside.clone()].iter().any(|it| key_of(it).as_ref() == Some(key));
    let mut edited = String::new();
    for (number, line) in lines.iter().enumerate() {
        let key = key_of(line).filter(|_| inside.contains(&number));
        match changed.iter().find(|(changed, _)| Some(changed) == key.as_ref()) {
            None => edited.push_str(line),
            Some((_, new)) => {
                edited.push_str(new);
                // A `#` may also stand inside a value.
                let is_comment =
                    |(value, _): &(&str, &str)| toml::from_str::<toml::Table>(value).is_ok();
                if let Some((_, comment)) = line.split_once('#').filter(is_comment) {
                    edited.push_str(" #");
                    edited.push_str(comment);
                }
            }
        }
        edited.push('\n');
        if number == start {
            for (_, new) in changed.iter().filter(|(key, _)| !is_there(key)) {
                edited.push_str(new);
                edited.push('\n');
            }
        }
    }
    edited
}

/// Returns the text with `tables` in place of those with this `header`, or before the tables of
/// targets, which are the last. Comments right before the next header belong to it, and stay.
fn with_tables(text: &str, header: &str, tables: &str) -> String {
    let mut tables = Some(format!("{}\n\n", tables.trim())).filter(|tables| tables != "\n\n");
    let (mut edited, mut comments, mut is_replaced) = (String::new(), String::new(), false);
    for line in text.lines() {
        let start = line.trim_start();
        if start.starts_with('[') {
            edited.push_str(&std::mem::take(&mut comments));
            is_replaced = start.starts_with(header);
            if is_replaced || start.starts_with("[[") {
                edited.push_str(&tables.take().unwrap_or_default());
            }
        }
        let to = match is_replaced {
            false => &mut edited,
            true if start.starts_with('#') => &mut comments,
            true if start.is_empty() => continue,
            true => {
                comments.clear();
                continue;
            }
        };
        to.push_str(line);
        to.push('\n');
    }
    edited.push_str(&comments);
    let tables = tables.unwrap_or_default();
    format!("{}\n\n{tables}", edited.trim_end()).trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests;
