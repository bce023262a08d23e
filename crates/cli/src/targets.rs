//! `outlive pool add`, `drain`, `remove` and `replace`.

use crate::args::{AddArgs, DrainArgs, RemoveArgs, ReplaceArgs, StatusArgs};
use crate::output::{Answer, Reporter, shown};
use crate::repair::{done_text, ends_with};
use crate::{exit_code, pool};
use outlive_pool::{Pool, TargetChange, Tier};
use outlive_store::Uses;
use outlive_types::Result;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::Arc;

/// `outlive pool add`.
pub fn add(args: &AddArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = pool::open(&args.pool, reporter)?;
    let host = args.host.as_deref();
    let id = match args.volatile {
        true => pool.add_volatile(&args.location, host)?,
        false => pool.add_target(&args.location, host, args.tier)?,
    };
    let path = args.pool.display().to_string();
    let mut text = format!("Target {id} is {}.\n", shown(&args.location));
    match args.tier {
        Tier::Fast => {
            text.push_str("Programs that save use it from their next checkpoint on.\n");
        }
        Tier::Slow => {
            let fill = pool.command("pool fill", &[]);
            let _ = writeln!(text, "`{fill}` copies to it what is on the fast ones.");
        }
    }
    let tier = args.tier.name();
    Ok(Answer::new(
        text,
        json!({ "pool": path, "id": id, "location": args.location, "tier": tier }),
    ))
}

/// `outlive pool drain`.
pub fn drain(args: &DrainArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = pool::open(&args.pool, reporter)?;
    let change = pool.drain_target(args.id, args.rate, &Uses)?;
    reporter.finish();
    let mut text = done_text(&pool, &change.repair);
    if change.why.is_none() {
        let remove = pool.command("pool remove", &[&args.id.to_string()]);
        let _ = writeln!(text, "Target {} is empty; `{remove}` takes it out of the pool.", args.id);
    }
    Ok(Answer { text, json: json_of(&pool, args, &change), code: code_of(&change) })
}

/// `outlive pool remove`.
pub fn remove(args: &RemoveArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = pool::open(&args.drain.pool, reporter)?;
    let id = args.drain.id;
    let change = pool.remove_target(id, args.lost, args.drain.rate, &Uses)?;
    reporter.finish();
    let mut text = done_text(&pool, &change.repair);
    text.push_str(&left_text(&pool, id, &change));
    if args.lost {
        text.push_str(&lost_hint(&pool));
    }
    Ok(Answer { text, json: json_of(&pool, &args.drain, &change), code: code_of(&change) })
}

/// `outlive pool release`.
pub fn release(args: &StatusArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = pool::open(&args.pool, reporter)?;
    let path = args.pool.display().to_string();
    let holder = pool.release_targets()?;
    let text = match &holder {
        Some(holder) => format!("{} does not move shards any more.\n", shown(holder)),
        None => "No command moves shards of this pool.\n".to_owned(),
    };
    Ok(Answer::new(text, json!({ "pool": path, "released": holder })))
}

/// `outlive pool replace`.
pub fn replace(args: &ReplaceArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = pool::open(&args.drain.pool, reporter)?;
    let id = args.drain.id;
    let (new, was_there, change) =
        pool.replace_target(id, &args.location, args.lost, args.drain.rate, &Uses)?;
    reporter.finish();
    let mut text = done_text(&pool, &change.repair);
    let _ =
        writeln!(text, "Target {new}, {}, takes the place of target {id}.", shown(&args.location));
    if !was_there {
        text.push_str(&left_text(&pool, id, &change));
        text.push_str(&lost_hint(&pool));
    }
    let mut json = json_of(&pool, &args.drain, &change);
    json["new_id"] = json!(new);
    Ok(Answer { text, json, code: code_of(&change) })
}

/// Returns the exit code of a command that has changed the targets: 0 only if everything that it
/// began is complete.
fn code_of(change: &TargetChange) -> i32 {
    match &change.why {
        Some(why) if change.repair.lost.is_empty() => exit_code(why.kind()),
        _ => ends_with(&change.repair),
    }
}

/// Describes whether a target has left the pool, or is given up and leaves it after a later repair.
fn left_text(pool: &Pool, id: u32, change: &TargetChange) -> String {
    match &change.why {
        None => format!("Target {id} is no part of the pool any more.\n"),
        Some(why) => format!(
            "Target {id} is given up. `{}` does the rest, which is not possible yet: {}\n",
            pool.command("pool repair", &[]),
            shown(why.message())
        ),
    }
}

/// Returns advice for a target that was given up.
fn lost_hint(pool: &Pool) -> String {
    let add = pool.command("pool add", &["LOCATION"]);
    match pool.has_redundancy() {
        true => format!("Should it come back with what it had: `{add}` takes it in again.\n"),
        false => format!(
            "Its data is lost: `{}` says which checkpoints needed it. Should it come back: `{add}`.\n",
            pool.command("scrub", &[])
        ),
    }
}

fn json_of(pool: &Pool, args: &DrainArgs, change: &TargetChange) -> Value {
    let TargetChange { repair, left, why, .. } = change;
    json!({
        "pool": args.pool.display().to_string(),
        "id": args.id,
        "shards_moved": repair.moved,
        "moved_bytes": repair.moved_bytes,
        "shards_written": repair.shards,
        "written_bytes": repair.written_bytes,
        "shards_missing": repair.missing,
        "shards_left": left,
        "why": why.as_ref().map(|why| why.message()),
        "survives": pool.config().redundancy.survives(),
    })
}
