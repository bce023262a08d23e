//! `outlive pool move-log`.

use crate::args::MoveLogArgs;
use crate::output::{Answer, Teller, shown};
use crate::{exit_code, pool};
use outlive_types::{Error, Result};
use serde_json::json;
use std::fmt::Write as _;
use std::sync::Arc;

pub fn move_log(args: &MoveLogArgs, teller: &Arc<Teller>) -> Result<Answer> {
    let pool = pool::open(&args.pool, teller)?;
    let moved = pool.move_log(&args.log)?;
    teller.finish();
    let names: Vec<String> = moved.places.iter().map(|(place, _)| shown(place)).collect();
    let names = names.join(", ");
    let mut text = match moved.was_there {
        true => format!("The log is in {names}.\n"),
        false => format!(
            "The log was moved to {names}. Programs that are open follow it.\n\
             Copies of pool.toml on other hosts need the same [log]. Until they have it, keep log/.pool.toml in \
             the old places.\n"
        ),
    };
    let mut code = 0;
    for (place, why) in &moved.places {
        if let Some(why) = why {
            code = exit_code(why.kind());
            let _ = writeln!(
                text,
                "{} does not take part: {}; give the command again when it can",
                shown(place),
                shown(why.message())
            );
        }
    }
    let places = moved
        .places
        .iter()
        .map(|(place, why)| json!({ "place": place, "away": why.as_ref().map(Error::message) }));
    let json = json!({
        "pool": args.pool.display().to_string(),
        "log_places": places.collect::<Vec<_>>(),
        "was_there": moved.was_there,
    });
    Ok(Answer { text, json, code })
}
