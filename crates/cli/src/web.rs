//! `outlive web` and `outlive report`: a page about a pool.

use crate::args::{ReportArgs, WebArgs};
use crate::export::publish_bytes;
use crate::output::{Answer, Reporter, shown};
use crate::{interrupt, overview, pool_metrics, print, print_json, stdout_error};
use outlive_types::{Error, Result};
use outlive_web::{Content, Part, REPORT_START, Server, report as page};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// `outlive web`. Returns once Ctrl-C or SIGTERM ends it.
pub fn web(args: &WebArgs, json: bool) -> Result<Answer> {
    // Refused now, and not only on the page.
    overview::check(&args.pool)?;
    let stop = interrupt::flag();
    let pool = args.pool.clone();
    let read = move |part| match part {
        Part::Data => overview::data(&pool),
        Part::Space => overview::space(&pool),
    };
    let pool = args.pool.to_path_buf();
    let figures = move || pool_metrics::text_of(&pool);
    let content = Content::page(Box::new(read)).and_metrics(Box::new(figures));
    let server = Server::bind(args.port, content)?;
    let (url, path) = (server.url(), args.pool.display().to_string());
    // At once: the address must be known while the server runs.
    let printed = match json {
        true => print_json(&json!({ "pool": path, "url": url })),
        false => print(&format!("The pool {} is at {url} until Ctrl-C.\n", shown(&path))),
    };
    printed.map_err(|error| stdout_error(&error))?;
    server.serve(&stop)?;
    Ok(Answer::new(String::new(), Value::Null))
}

/// `outlive report`.
pub fn report(args: &ReportArgs, reporter: &Reporter) -> Result<Answer> {
    let to = &args.to;
    outlive_pool::check_outside(to)?;
    check_replaceable(to)?;
    let (dir, name) = place_of(to)?;
    reporter.busy("reading the pool");
    let data = overview::data(&args.pool)?;
    reporter.busy("reading what checkpoints need");
    let space = overview::space(&args.pool)?;
    reporter.finish();
    let text = page(&data, &space)?;
    check_replaceable(to)?;
    publish_bytes(dir, name, text.as_bytes(), true)?;
    let (pool, file) = (args.pool.display().to_string(), to.display().to_string());
    let jobs = data["jobs"].as_array().map_or(0, Vec::len);
    Ok(Answer::new(
        format!("The report of pool {} is in {}.\n", shown(&pool), shown(&file)),
        json!({ "pool": pool, "file": file, "bytes": text.len(), "jobs": jobs }),
    ))
}

/// Returns the directory and the name of a file.
pub fn place_of(path: &Path) -> Result<(&Path, &OsStr)> {
    let is_folder = path.as_os_str().as_encoded_bytes().ends_with(b"/");
    let (Some(name), false) = (path.file_name(), is_folder) else {
        return Err(Error::invalid(format!(
            "{} names no file: give --to a name such as page.html",
            path.display()
        )));
    };
    let dir = path.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
    match dir.is_dir() {
        true => Ok((dir, name)),
        false => Err(Error::invalid(format!("{} is no directory", dir.display()))),
    }
}

/// Refuses a path with anything but a report.
pub fn check_replaceable(path: &Path) -> Result<()> {
    let reading = |error| Error::io_named("reading", path, &error);
    let there = match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        there => there.map_err(reading)?,
    };
    let is_ours = there.is_file() && {
        let mut start = Vec::new();
        let file = File::open(path).map_err(reading)?;
        file.take(REPORT_START.len() as u64).read_to_end(&mut start).map_err(reading)?;
        start == REPORT_START.as_bytes()
    };
    match is_ours {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "{} is there, and is no report of outlive: name another file",
            path.display()
        ))),
    }
}
