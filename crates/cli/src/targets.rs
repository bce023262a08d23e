//! `outlive pool add`, `drain`, `remove` and `replace`.

use crate::args::{AddArgs, DrainArgs, RemoveArgs, ReplaceArgs, StatusArgs};
use crate::output::{Answer, Teller, bytes, count, shown};
use crate::{exit_code, pool};
use outlive_pool::{DrainReport, Pool, Tier};
use outlive_types::Result;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::Arc;

/// `outlive pool add`.
pub fn add(args: &AddArgs, teller: &Arc<Teller>) -> Result<Answer> {
    let pool = pool::open(&args.pool, teller)?;
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
pub fn drain(args: &DrainArgs, teller: &Arc<Teller>) -> Result<Answer> {
    let pool = pool::open(&args.pool, teller)?;
    let report = pool.drain_target(args.id, args.rate)?;
    teller.finish();
    let mut text = moved(&report);
    let code = match &report.why {
        None => {
            let remove = pool.command("pool remove", &[&args.id.to_string()]);
            let _ =
                writeln!(text, "Target {} is empty; `{remove}` takes it out of the pool.", args.id);
            0
        }
        Some(why) => {
            let left = count(report.left, "shard");
            let _ = writeln!(text, "{left} still on it: {}", shown(why.message()));
            exit_code(why.kind())
        }
    };
    Ok(Answer { text, json: json_of(&pool, args, &report), code })
}

/// `outlive pool remove`.
pub fn remove(args: &RemoveArgs, teller: &Arc<Teller>) -> Result<Answer> {
    let pool = pool::open(&args.drain.pool, teller)?;
    let id = args.drain.id;
    let report = pool.remove_target(id, args.lost, args.drain.rate)?;
    teller.finish();
    let mut text = moved(&report);
    let _ = writeln!(text, "Target {id} is no part of the pool any more.");
    if args.lost {
        text.push_str(&repair_hint(&pool));
    }
    Ok(Answer::new(text, json_of(&pool, &args.drain, &report)))
}

/// `outlive pool release`.
pub fn release(args: &StatusArgs, teller: &Arc<Teller>) -> Result<Answer> {
    let pool = pool::open(&args.pool, teller)?;
    let path = args.pool.display().to_string();
    let holder = pool.release_targets()?;
    let text = match &holder {
        Some(holder) => format!("{} does not change the targets any more.\n", shown(holder)),
        None => "Nobody changes the targets of this pool.\n".to_owned(),
    };
    Ok(Answer::new(text, json!({ "pool": path, "released": holder })))
}

/// `outlive pool replace`.
pub fn replace(args: &ReplaceArgs, teller: &Arc<Teller>) -> Result<Answer> {
    let pool = pool::open(&args.drain.pool, teller)?;
    let id = args.drain.id;
    let (new, was_there, report) = pool.replace_target(id, &args.location, args.drain.rate)?;
    teller.finish();
    let mut text = moved(&report);
    let _ =
        writeln!(text, "Target {new}, {}, takes the place of target {id}.", shown(&args.location));
    if !was_there {
        text.push_str(&repair_hint(&pool));
    }
    let mut json = json_of(&pool, &args.drain, &report);
    json["new_id"] = json!(new);
    Ok(Answer::new(text, json))
}

fn repair_hint(pool: &Pool) -> String {
    match pool.has_redundancy() {
        true => format!(
            "What was on it is missing now: `{}` writes it anew.\n",
            pool.command("pool repair", &[])
        ),
        false => format!(
            "What was on it is lost: `{}` says which checkpoints needed it.\n",
            pool.command("scrub", &[])
        ),
    }
}

fn moved(report: &DrainReport) -> String {
    match report.shards {
        0 => String::new(),
        shards => {
            format!(
                "{} of {} moved to other targets.\n",
                count(shards, "shard"),
                bytes(report.moved_bytes)
            )
        }
    }
}

fn json_of(pool: &Pool, args: &DrainArgs, report: &DrainReport) -> Value {
    json!({
        "pool": args.pool.display().to_string(),
        "id": args.id,
        "shards_moved": report.shards,
        "moved_bytes": report.moved_bytes,
        "shards_left": report.left,
        "why": report.why.as_ref().map(|why| why.message()),
        "survives": pool.config().redundancy.survives(),
    })
}
