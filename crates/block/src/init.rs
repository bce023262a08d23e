//! Laying out a device, if nothing on it would be lost.

use crate::device::{BlockDevice, Device};
use crate::layout::Layout;
use outlive_types::{Error, Result, Rng, SystemRng};
use rustix::fs::OFlags;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

/// Lays out a device, unless it has a layout.
///
/// # Errors
/// `Invalid` if the device is mounted or in use, or if it carries something that `overwrite` does
/// not name; errors of the device.
pub(crate) fn lay_out(path: &Path, overwrite: Option<&str>) -> Result<()> {
    if Layout::read(&BlockDevice::open_to_read(path)?)?.is_some() {
        return Ok(());
    }
    // The kernel refuses this for a mounted device, and for one that another driver uses.
    let exclusive = i32::try_from(OFlags::EXCL.bits()).expect("flags of open(2) fit an int");
    let claim = OpenOptions::new().read(true).write(true).custom_flags(exclusive).open(path);
    let _claim = claim.map_err(|error| match error.raw_os_error() {
        Some(code) if code == rustix::io::Errno::BUSY.raw_os_error() => Error::invalid(format!(
            "{} is mounted or in use: unmount it, or name another device",
            path.display()
        )),
        _ => Error::io("opening the device alone", path, &error),
    })?;
    // Another process may have laid it out before this one claimed it.
    let device = BlockDevice::open(path)?;
    if Layout::read(&device)?.is_some() {
        return Ok(());
    }
    if let Some(found) = content(path)?
        && overwrite != Some(found.as_str())
    {
        return Err(Error::invalid(format!(
            "{0} carries {found:?}, which would be lost. If nothing on it is needed, write \
             block://{0}?overwrite={found}",
            path.display()
        )));
    }
    if overwrite.is_some() {
        wipe(path)?;
    }
    let mut id = [0; 16];
    SystemRng.fill(&mut id);
    Layout::new(id, device.bytes())?.write(&device)
}

/// Returns the name of a file system, partition table or other known content of a device.
///
/// # Errors
/// `Retry` if the program that finds out cannot be run.
fn content(path: &Path) -> Result<Option<String>> {
    // Without its cache, and also where the device holds several.
    let words = ["-p", "-o", "export", "-s", "TYPE", "-s", "PTTYPE"];
    let mut blkid = Command::new("blkid");
    let run = run_in_sbin(blkid.args(words).arg(path).env("LC_ALL", "C")).map_err(|error| {
        Error::retry(format!(
            "cannot find out whether {} carries something: the program blkid of util-linux does not \
             run ({error})",
            path.display()
        ))
    })?;
    let text = String::from_utf8_lossy(&run.stdout);
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.map(str::to_owned)
    };
    match run.status.code() {
        // It found nothing.
        Some(2) => Ok(None),
        Some(0) => Ok(value("TYPE").or_else(|| value("PTTYPE")).or(Some("unknown".to_owned()))),
        // Signs of several.
        Some(8) => Ok(Some("several".to_owned())),
        _ => Err(Error::retry(format!(
            "cannot find out whether {} carries something: blkid ended with {}",
            path.display(),
            run.status
        ))),
    }
}

/// Erases the signatures of what a device carries, wherever they are. Otherwise other programs would
/// still take it for that, and mount it.
///
/// # Errors
/// `Retry` if the program that does so cannot be run, or fails.
fn wipe(path: &Path) -> Result<()> {
    // --force: this process has claimed the device.
    let mut wipefs = Command::new("wipefs");
    let run = run_in_sbin(wipefs.args(["--all", "--force"]).arg(path).env("LC_ALL", "C"));
    let failed = |why: String| {
        Error::retry(format!(
            "cannot erase what {} carries with the program wipefs of util-linux ({why})",
            path.display()
        ))
    };
    let run = run.map_err(|error| failed(error.to_string()))?;
    match run.status.success() {
        true => Ok(()),
        false => Err(failed(String::from_utf8_lossy(&run.stderr).trim().to_owned())),
    }
}

/// Runs a program that may lie where only root looks for programs.
fn run_in_sbin(command: &mut Command) -> std::io::Result<std::process::Output> {
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).output()
}
