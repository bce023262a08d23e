//! `outlive pool move-log`.

use crate::args::MoveLogArgs;
use crate::output::{Answer, Reporter, shown};
use crate::{exit_code, pool};
use outlive_types::Result;
use serde_json::json;
use std::fmt::Write as _;
use std::sync::Arc;

pub fn move_log(args: &MoveLogArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = pool::open(&args.pool, reporter)?;
    let moved = pool.move_log(&args.log)?;
    reporter.finish();
    let names: Vec<String> = moved.replicas.iter().map(|(replica, _)| shown(replica)).collect();
    let names = names.join(", ");
    let mut text = match moved.was_there {
        true => format!("The log is in {names}.\n"),
        false => format!(
            "The log was moved to {names}. Programs that are open follow it.\n\
             Copies of pool.toml on other hosts need the same [log]. Until they have it, keep log/.pool.toml in \
             the old replicas.\n"
        ),
    };
    let mut code = 0;
    for (replica, why) in &moved.replicas {
        if let Some(why) = why {
            code = exit_code(why.kind());
            let _ = writeln!(
                text,
                "{} does not take part: {}; give the command again when it can",
                shown(replica),
                shown(why.message())
            );
        }
    }
    let json = json!({
        "pool": args.pool.display().to_string(),
        "log_replicas": moved.replicas.iter().map(pool::replica_json).collect::<Vec<_>>(),
        "was_there": moved.was_there,
    });
    Ok(Answer { text, json, code })
}
