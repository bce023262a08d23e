//! The key of a pool, as its user has it: 64 hexadecimal digits in a file, from a command, or in
//! the environment.

use crate::secret::{Secret, fill_random};
use outlive_types::{Error, Result};
use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::hint::black_box;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// Names a file with the key.
pub const KEY_FILE: &str = "OUTLIVE_KEY_FILE";
/// A command of the shell that prints the key.
pub const KEY_COMMAND: &str = "OUTLIVE_KEY_COMMAND";
/// The key itself. Other programs of this user can read it, and core files hold it.
pub const KEY_VARIABLE: &str = "OUTLIVE_KEY";

/// Length of a key.
const KEY_BYTES: usize = 32;

/// The key that wraps the data keys of pools.
pub struct PoolKey {
    bytes: Secret<[u8; KEY_BYTES]>,
    /// Where it is from, for messages.
    source: String,
}

impl PoolKey {
    /// Returns whether the environment of this process names a key.
    pub fn is_named() -> bool {
        let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
        [KEY_FILE, KEY_COMMAND, KEY_VARIABLE].into_iter().any(is_set)
    }

    /// Returns the key that the environment of this process names.
    ///
    /// # Errors
    /// `Invalid` if it names none, or more than one; if the file or the command gives no key.
    pub fn from_environment() -> Result<PoolKey> {
        let set = |name: &'static str| {
            let value = env::var_os(name).filter(|value| !value.is_empty());
            value.map(|value| (name, value))
        };
        let mut named: Vec<(&str, OsString)> =
            [KEY_FILE, KEY_COMMAND, KEY_VARIABLE].into_iter().filter_map(set).collect();
        match (named.pop(), named.pop()) {
            (None, _) => Err(Error::invalid(format!(
                "no key is given: set {KEY_FILE} to a file with the key (or {KEY_COMMAND} to a command that \
                 prints it, or {KEY_VARIABLE} to the key)"
            ))),
            (Some((one, _)), Some((other, _))) => Err(Error::invalid(format!(
                "both {one} and {other} are set: leave one of them out"
            ))),
            (Some((KEY_FILE, path)), None) => PoolKey::from_file(Path::new(&path)),
            (Some((KEY_COMMAND, command)), None) => PoolKey::from_command(&command),
            (Some((name, text)), None) => {
                PoolKey::parse(text.into_encoded_bytes(), format!("the variable {name}"))
            }
        }
    }

    /// Reads a key from a file.
    ///
    /// # Errors
    /// `Invalid` if it cannot be read, or holds no key.
    pub fn from_file(path: &Path) -> Result<PoolKey> {
        let source = format!("the file {}", path.display());
        match fs::read(path) {
            Ok(text) => PoolKey::parse(text, source),
            Err(error) => {
                Err(Error::invalid(format!("{source} has no key that can be read: {error}")))
            }
        }
    }

    fn from_command(command: &OsString) -> Result<PoolKey> {
        let source = format!("the command of {KEY_COMMAND}");
        let mut shell = Command::new("/bin/sh");
        let run = shell.arg("-c").arg(command).stdin(Stdio::null()).stderr(Stdio::inherit());
        match run.output() {
            Ok(done) if done.status.success() => PoolKey::parse(done.stdout, source),
            Ok(done) => {
                Err(Error::invalid(format!("{source} gave no key: it ended with {}", done.status)))
            }
            Err(error) => Err(Error::invalid(format!("{source} cannot be run: {error}"))),
        }
    }

    /// Reads a key from its digits, and clears the text. Messages never show it.
    fn parse(text: Vec<u8>, source: String) -> Result<PoolKey> {
        let mut bytes = Secret::new(|| [0; KEY_BYTES])?;
        let is_key = digits(&text, bytes.get_mut()).is_some();
        clear(text);
        match is_key {
            true => Ok(PoolKey { bytes, source }),
            false => Err(Error::invalid(format!(
                "{source} holds no key: a key is {} hexadecimal digits (`outlive key new FILE` makes one)",
                2 * KEY_BYTES
            ))),
        }
    }

    /// Writes a new random key to a file that only this user may read.
    ///
    /// # Errors
    /// `Invalid` if the file exists; errors of the system.
    pub fn write_new(path: &Path) -> Result<()> {
        use std::io::Write as _;
        use std::os::unix::fs::OpenOptionsExt as _;
        let failed = |error| Error::io_named("making", path, &error);
        let mut key = Secret::new(|| [0; KEY_BYTES])?;
        fill_random(key.get_mut())?;
        let text = Secret::new(|| hex(&key))?;
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let mut file = file.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Error::invalid(format!(
                "{} exists, and may be the key of a pool: give the new key another name",
                path.display()
            )),
            _ => failed(error),
        })?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let sync_folder = || fs::File::open(folder.unwrap_or(Path::new(".")))?.sync_all();
        let written =
            file.write_all(&*text).and_then(|()| file.sync_all()).and_then(|()| sync_folder());
        written.map_err(|error| {
            // Half of a key is none.
            let _ = fs::remove_file(path);
            failed(error)
        })
    }

    pub(crate) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.bytes
    }
}

/// Reads the digits of a key; `None` if the text is no key.
fn digits(text: &[u8], key: &mut [u8; KEY_BYTES]) -> Option<()> {
    let text = text.trim_ascii();
    let digit = |digit: u8| char::from(digit).to_digit(16);
    for (byte, pair) in key.iter_mut().zip(text.chunks(2)) {
        let [high, low] = pair else { return None };
        *byte = (digit(*high)? << 4 | digit(*low)?) as u8;
    }
    (text.len() == 2 * KEY_BYTES).then_some(())
}

fn clear(mut text: Vec<u8>) {
    text.fill(0);
    // The compiler must take these bytes for used.
    black_box(&mut text);
}

/// Returns the digits of a key, and the end of the line.
fn hex(key: &[u8; KEY_BYTES]) -> [u8; 2 * KEY_BYTES + 1] {
    let digit = |value: u8| b"0123456789abcdef"[usize::from(value)];
    let mut text = [b'\n'; 2 * KEY_BYTES + 1];
    for (at, byte) in key.iter().enumerate() {
        text[2 * at] = digit(byte >> 4);
        text[2 * at + 1] = digit(byte & 15);
    }
    text
}

impl fmt::Display for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the key of {}", self.source)
    }
}

impl fmt::Debug for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolKey of {}", self.source)
    }
}
