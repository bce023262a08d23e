//! `outlive key`: makes and changes the keys of encrypted pools.

use crate::args::{KeyChangeArgs, KeyCommand, KeyNewArgs};
use crate::output::{Answer, Reporter, shown};
use crate::{exit_code, pool};
use outlive_pool::PoolKey;
use outlive_types::{Error, ErrorKind, Result};
use serde_json::json;
use std::fmt::Write as _;
use std::sync::Arc;

/// `outlive key`.
pub fn key(command: &KeyCommand, reporter: &Arc<Reporter>) -> Result<Answer> {
    match command {
        KeyCommand::New(args) => new(args),
        KeyCommand::Change(args) => change(args, reporter),
    }
}

fn new(args: &KeyNewArgs) -> Result<Answer> {
    PoolKey::write_new(&args.file)?;
    let path = args.file.display().to_string();
    let text = format!(
        "Wrote a new key to {}. Keep a copy of it elsewhere: without it, a pool that it encrypts is lost.\n",
        shown(&path)
    );
    Ok(Answer::new(text, json!({ "file": path })))
}

fn change(args: &KeyChangeArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let (path, file) = (args.pool.display().to_string(), args.file.display().to_string());
    let key = PoolKey::from_file(&args.file)?;
    let pool = pool::open(&args.pool, reporter).map_err(|error| match error.kind() {
        // An earlier command may have been killed behind the change.
        ErrorKind::Invalid if error.message().contains("is not the key of this pool") => {
            Error::invalid(format!(
                "{}. If an earlier `outlive key change` took effect, the key is that of {} by now: name it \
                 in OUTLIVE_KEY_FILE, and give the command again",
                error.message(),
                shown(&file)
            ))
        }
        _ => error,
    })?;
    let old = pool.change_key(&key)?;
    reporter.finish();
    let mut text = format!(
        "The pool {} has the key of {} now. Copies of pool.toml on other hosts need the new \
         [encryption]; with the former table, the former key still opens it.\n",
        shown(&path),
        shown(&file)
    );
    let mut code = 0;
    for (target, why) in &old {
        code = exit_code(why.kind());
        let _ = writeln!(
            text,
            "{} still has a copy for the former key: {}; give the command again when it can be written",
            shown(target),
            shown(why.message())
        );
    }
    let old: Vec<&String> = old.iter().map(|(target, _)| target).collect();
    Ok(Answer { text, json: json!({ "pool": path, "file": file, "unchanged": old }), code })
}
