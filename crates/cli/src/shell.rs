//! `outlive completions` and `outlive man`: the command line, described for shells and manuals.

use crate::args::{Args, CompletionsArgs, ManArgs};
use crate::export::publish_bytes;
use crate::output::{Answer, count, shown};
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use outlive_types::{Error, Result};
use serde_json::json;
use std::fs;
use std::io;

/// `outlive completions`.
pub fn completions(args: &CompletionsArgs) -> Answer {
    let mut command = Args::command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    let text = String::from_utf8_lossy(&script).into_owned();
    let json = json!({ "shell": args.shell.to_string(), "script": text });
    Answer::new(text, json)
}

/// `outlive man`.
pub fn man(args: &ManArgs) -> Result<Answer> {
    let to = &args.to;
    outlive_pool::check_outside(to)?;
    fs::create_dir_all(to).map_err(|error| Error::io_named("making", to, &error))?;
    let mut command = Args::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    render(&command, &mut pages)
        .map_err(|error| Error::bug(format!("a manual page cannot be rendered: {error}")))?;
    for (name, page) in &pages {
        publish_bytes(to, name, page, true)?;
    }
    let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
    let path = to.display().to_string();
    Ok(Answer::new(
        format!("Wrote {} to {}.\n", count(names.len() as u64, "manual page"), shown(&path)),
        json!({ "to": path, "pages": names }),
    ))
}

/// Adds the pages of a command and, before it, of its subcommands, by their file names.
fn render(command: &Command, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        render(inner, pages)?;
    }
    let source = format!("outlive {}", env!("CARGO_PKG_VERSION"));
    let page = Man::new(command.clone()).manual("outlive").source(source);
    let mut bytes = Vec::new();
    page.render(&mut bytes)?;
    pages.push((page.get_filename(), bytes));
    Ok(())
}
