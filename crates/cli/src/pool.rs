//! `outlive pool init` and `outlive pool status`.

use crate::args::{InitArgs, PoolName, StatusArgs, VARIABLE};
use crate::output::{Answer, Reporter, Table, bytes, count, shown};
use crate::tiers::tiers_json;
use outlive_pool::{
    EncryptionConfig, Environment, FormatConfig, LogConfig, Pool, PoolConfig, PoolUsage,
    Redundancy, TargetConfig, TargetState, TargetUsage, Tier, Tuning,
};
use outlive_store::gc::listed_jobs;
use outlive_store::retention::check_keep;
use outlive_store::{CheckpointRedundancy, checkpoint_redundancy, recreate_lost};
use outlive_types::{EPOCH_FORMS, EpochName, Error, JobName, Observer, Result};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Meanings of the keys of `pool.toml`.
const MEANINGS: [(&str, &str); 21] = [
    ("version", "format version of everything stored"),
    ("revision", "draft of that version"),
    ("pool_id", "repeated in every shard"),
    ("container_bytes", "unit of I/O"),
    ("pack_bytes", "total length of a pack's containers"),
    ("chunk_bytes_max", "longest chunk, the unit of deduplication and verification"),
    ("staging_bytes", "memory for containers on their way to or from the target"),
    (
        "freeze_bytes_max",
        "memory for frozen copies; more is held by a fork, or drains while save blocks",
    ),
    (
        "freeze",
        "how dirty pages are held still: copy, fork, precopy, helper, or auto (docs/capture.md)",
    ),
    ("tracker", "how changed pages are found: auto, wp-async or hash"),
    ("index_bytes_max", "memory for the index of known chunks; beyond it, some are stored twice"),
    ("threads", "threads that hash and copy; 0: the machine's cores, at most 4"),
    ("compression", "for new chunks: none, lz4, zstd, or auto (where it makes saves faster)"),
    ("compression_level", "level of Zstandard, 1 to 12; for files at least 5"),
    ("compression_files", "for new chunks of files: none, lz4, zstd, or auto"),
    ("keep", "rules of a prune that is given none, such as last 10 | every 100 | newer than 7d"),
    (
        "rewrite_percent_max",
        "limit for rewriting scattered data, in per cent of a save's new bytes",
    ),
    ("read_gap_bytes", "ranges with smaller gaps between them are read together"),
    ("reads_around", "whether reads of a pool with redundancy go around targets that are late"),
    ("leaf_bytes_max", "longer leaves are not kept in memory, but read again when needed"),
    (
        "freshen_every_s",
        "seconds until a saver touches the files of its checkpoints again; 0: never",
    ),
];

/// Most checkpoints in the list of those with less redundancy than they should have.
const SHOWN_MAX: usize = 20;
/// Longest wait of a command for others that change the targets.
const COMMAND_WAIT: Duration = Duration::from_secs(10);

/// Opens a pool whose warnings and progress go to `reporter`. It opens even if too many targets are
/// away, so that commands do as much as they can.
pub fn open(path: &PoolName, reporter: &Arc<Reporter>) -> Result<Pool> {
    say_which(path, reporter);
    open_observed(path, reporter.clone())
}

/// As [`open`], with any observer, and without a word.
pub fn open_observed(path: &Path, observer: Arc<dyn Observer>) -> Result<Pool> {
    let pool = outlive_pool::open_degraded(path, Environment::observed(observer))?;
    check_keep(&pool).map_err(|e| e.context(path.display()))?;
    Ok(pool)
}

/// Names the pool of OUTLIVE_POOL, so that no command acts on a pool that the user does not see.
pub fn say_which(pool: &PoolName, reporter: &Reporter) {
    if pool.is_from_variable {
        reporter.inform(&format!("pool {} ({VARIABLE})", shown(&pool.display().to_string())));
    }
}

/// Returns the name of an existing job.
///
/// # Errors
/// `Invalid` if it does not exist, with the names of existing jobs.
pub fn known_job(pool: &Pool, name: &str) -> Result<JobName> {
    const NAMED_MAX: usize = 10;
    let wanted = JobName::stored(name)?;
    let jobs = pool.jobs()?;
    if jobs.contains(&wanted) {
        return Ok(wanted);
    }
    let is_job = |name: &str| jobs.iter().any(|job| job.as_str() == name);
    if let Some((job, epoch)) = name.rsplit_once('@').filter(|(job, _)| is_job(job)) {
        return Err(Error::invalid(match epoch.parse::<EpochName>() {
            Ok(_) => {
                format!("{} names a checkpoint, and here a job is meant: write {job}", shown(name))
            }
            Err(_) => format!(
                "\"{}\" is not an epoch of job {job}: {EPOCH_FORMS}; {job} alone is its newest that \
                 is whole",
                shown(epoch)
            ),
        }));
    }
    let jobs = listed_jobs(pool)?;
    let mut there: Vec<String> = jobs.iter().take(NAMED_MAX).map(JobName::to_string).collect();
    if jobs.len() > NAMED_MAX {
        there.push(format!("{} more", jobs.len() - NAMED_MAX));
    }
    let there = match &there[..] {
        [] => "it has no jobs yet".to_owned(),
        there => format!("its jobs: {}", there.join(", ")),
    };
    Err(Error::invalid(format!("the pool has no job {wanted}; {there}")))
}

/// `outlive pool init`.
pub fn init(args: &InitArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    say_which(&args.dir, reporter);
    let env = Environment::observed(reporter.clone());
    let mut id = [0; 16];
    env.rng.fill(&mut id);
    let defaults = FormatConfig::new(id);
    let format = FormatConfig {
        container_bytes: args.container_bytes.unwrap_or(defaults.container_bytes),
        pack_bytes: args.pack_bytes.unwrap_or(defaults.pack_bytes),
        chunk_bytes_max: args.chunk_bytes_max.unwrap_or(defaults.chunk_bytes_max),
        ..defaults
    };
    let own = args.dir.to_string_lossy().into_owned();
    let mut places = if args.target.is_empty() { vec![&own] } else { args.target.iter().collect() };
    places.retain(|place| place.starts_with("s3:"));
    let defaults = if places.is_empty() { Tuning::default() } else { Tuning::of_buckets() };
    let tuning = Tuning {
        staging_bytes: args.staging_bytes.unwrap_or(defaults.staging_bytes),
        freeze_bytes_max: args.freeze_bytes_max.unwrap_or(defaults.freeze_bytes_max),
        index_bytes_max: args.index_bytes_max.unwrap_or(defaults.index_bytes_max),
        threads: args.threads.unwrap_or(defaults.threads),
        ..defaults
    };
    let mut target: Vec<TargetConfig> = args.target.iter().map(TargetConfig::at).collect();
    for place in &args.volatile {
        target.push(TargetConfig::at(place).in_memory()?);
    }
    target.extend((1..=args.seats.unwrap_or(0)).map(TargetConfig::vacant));
    if target.is_empty() && !args.slow.is_empty() {
        target.push(TargetConfig::at(".")); // the pool's own directory
    }
    target.extend(args.slow.iter().map(|at| TargetConfig::at(at).on_tier(Tier::Slow)));
    let log = LogConfig::at(&args.log);
    let redundancy = Redundancy { mirror: args.mirror, erasure: args.erasure, writes: args.writes };
    let encryption = match args.encrypt {
        true => Some(EncryptionConfig::new(&format.pool_id)?),
        false => None,
    };
    let config =
        PoolConfig { target, redundancy, log, encryption, ..PoolConfig::new(format, tuning) };
    let pool = outlive_pool::create(&args.dir, config, env)?;
    let path = args.dir.display().to_string();
    let mut text = format!("Made the pool {} in {}.\n", pool.config().format.pool_id, shown(&path));
    if args.encrypt {
        text.push_str("It is encrypted. Each program that uses it needs the key, and so do you: without the key, \
                       all of it is lost.\n");
    }
    if !args.log.is_empty() {
        let _ = writeln!(text, "It keeps its log in {}.", shown(&pool.log().describe()));
        if let [_, _, ..] = &args.log[..] {
            let _ = writeln!(text, "{} of them may be lost.", args.log.len() / 2);
        }
    }
    let is_told = pool.config().target.len() > 1 && args.seats.is_none();
    if is_told || !args.target.is_empty() || !args.volatile.is_empty() {
        let _ = writeln!(text, "It keeps its packs in {}.", shown(&pool.describe_targets()));
    }
    if !args.slow.is_empty() {
        let fill = pool.command("pool fill", &[]);
        let _ = writeln!(text, "`{fill}` copies packs from the fast targets to the slow ones.");
    }
    if !args.volatile.is_empty() {
        text.push_str(&volatile_text(&pool, args));
    }
    if let Some(seats) = args.seats {
        text.push_str(&seats_text(&pool, args, seats));
    }
    if let many @ 1.. = pool.config().redundancy.survives() {
        let what = if args.slow.is_empty() { "target" } else { "fast target" };
        let _ = writeln!(text, "{} may be lost at a time.", count(many as u64, what));
    }
    Ok(Answer::new(text, json!({ "pool": path, "config": config_json(&pool) })))
}

/// Returns the descriptor, without the wrapped key.
fn config_json(pool: &Pool) -> Value {
    let mut config = json!(pool.config());
    if let Some(encryption) = config["encryption"].as_object_mut() {
        encryption.remove("key");
    }
    config
}

/// Describes how the seats are taken, and what is lost with the hosts.
fn seats_text(pool: &Pool, args: &InitArgs, seats: u32) -> String {
    let local = pool.command("node local --data DIR --pool", &[]);
    let lost = match (args.slow.is_empty(), pool.config().redundancy.survives()) {
        (true, _) => {
            "It has no slow tier, so everything is LOST with the data of the hosts. Add one: --slow."
        }
        (false, 0) => {
            "It has no redundancy: data that is not on the slow targets is LOST with its host."
        }
        (false, _) => {
            "Data that is not on the slow targets is LOST if more hosts are lost than may be."
        }
    };
    let seats = count(seats.into(), "seat");
    format!("It has {seats}. Start `{local}` on each host of a job.\n{lost}\n")
}

/// Describes the loss when the host restarts.
fn volatile_text(pool: &Pool, args: &InitArgs) -> String {
    let host = pool.config().target.iter().find_map(|target| target.host.as_deref());
    let host = shown(host.unwrap_or("this host"));
    let (all, left) = match (args.slow.is_empty(), args.target.is_empty()) {
        (false, _) => (
            "Data that is not on the slow targets by then",
            "The checkpoints that are whole there are left",
        ),
        (true, false) => ("Data there", "Data of the other targets is left"),
        (true, true) => ("Every checkpoint", "Add a slow target, or copy what must not be lost"),
    };
    let left = match pool.is_log_in_memory() {
        false => left,
        // Tests do so, and machines whose disks must not be used.
        true => {
            "The log is in memory, too: then the whole pool is lost. Make it on a disk or in a bucket"
        }
    };
    format!(
        "It is in the memory of {host}, and only programs there can save. {all} is LOST when {host} restarts. {left}.\n"
    )
}

/// Opens a pool for a gc or repair: data lost with memory is recorded first.
pub fn open_to_change(path: &PoolName, dry_run: bool, reporter: &Arc<Reporter>) -> Result<Pool> {
    let pool = open(path, reporter)?;
    if !dry_run {
        recreate_lost(&pool, COMMAND_WAIT)?;
    }
    Ok(pool)
}

/// State of a pool: its targets, its log, and the redundancy of its checkpoints.
pub struct Status {
    /// The targets and what is on them.
    pub usage: PoolUsage,
    /// Number of jobs.
    jobs: u64,
    /// The redundancy of each checkpoint, if the pool has redundancy or a slow tier.
    pub redundancy: Vec<CheckpointRedundancy>,
    /// The log replicas, each with the reason why it is away.
    pub replicas: Vec<(String, Option<Error>)>,
}

impl Status {
    /// Asks log and targets.
    ///
    /// # Errors
    /// Errors of log and targets.
    pub fn read(pool: &Pool) -> Result<Status> {
        let (usage, jobs) = (pool.usage()?, listed_jobs(pool)?.len() as u64);
        let redundancy = match pool.config().redundancy.survives() {
            0 if !pool.has_slow_tier() => Vec::new(),
            _ => checkpoint_redundancy(pool)?,
        };
        Ok(Status { usage, jobs, redundancy, replicas: pool.log_replicas() })
    }

    /// Returns the state as JSON.
    pub fn json(&self, pool: &Pool, path: &str) -> Value {
        let Status { usage, jobs, redundancy, replicas } = self;
        json!({
            "pool": path,
            "config": config_json(pool),
            "meanings": MEANINGS.iter().copied().collect::<std::collections::BTreeMap<_, _>>(),
            "targets": usage.targets.iter().map(target_json).collect::<Vec<_>>(),
            "log": pool.log().describe(),
            "log_replicas": replicas.iter().map(replica_json).collect::<Vec<_>>(),
            "packs": usage.packs,
            "stored_bytes": usage.stored_bytes,
            "jobs": jobs,
            "survives": pool.config().redundancy.survives(),
            "redundancy": redundancy.iter().map(redundancy_json).collect::<Vec<_>>(),
        })
    }
}

/// `outlive pool status`.
pub fn status(args: &StatusArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let pool = open(&args.pool, reporter)?;
    let status = Status::read(&pool)?;
    let path = args.pool.display().to_string();
    let Status { usage, jobs, redundancy, replicas } = &status;

    let mut text = format!("Pool {}\n", shown(&path));
    let _ = writeln!(
        text,
        "{}, {} in {}\n",
        count(*jobs, "job"),
        bytes(usage.stored_bytes),
        count(usage.packs as u64, "pack")
    );
    text.push_str(&targets_text(&usage.targets));
    text.push_str(&redundancy_text(&pool, usage, redundancy));
    if pool.has_slow_tier() {
        text.push_str(&tiers_text(&pool, redundancy));
    }
    text.push_str(&log_text(&pool, replicas));
    if let Some(encryption) = &pool.config().encryption {
        let _ = writeln!(text, "All of it is encrypted ({}).", encryption.cipher);
    }
    let config = json!(pool.config());
    for (section, note) in [("format", "fixed"), ("tuning", "may change at any time")] {
        let _ = writeln!(text, "\n[{section}]  ({note})");
        text.push_str(&section_text(&config[section]));
    }
    Ok(Answer::new(text, status.json(&pool, &path)))
}

/// Returns the location of the log, and the replicas that are away.
fn log_text(pool: &Pool, places: &[(String, Option<Error>)]) -> String {
    if places.len() == 1 {
        return format!("log: {}\n", shown(&pool.log().describe()));
    }
    let many = places.len() / 2;
    let mut text = format!("log: {} replicas, of which {many} may be lost\n", places.len());
    for (number, (place, away)) in (1..).zip(places) {
        let _ = match away {
            None => writeln!(text, "  {number}  {}", shown(place)),
            Some(why) => {
                writeln!(text, "  {number}  {}  AWAY: {}", shown(place), shown(why.message()))
            }
        };
    }
    text
}

/// A log replica, and why it is away, if it is.
pub fn replica_json((replica, away): &(String, Option<Error>)) -> Value {
    json!({ "replica": replica, "away": away.as_ref().map(Error::message) })
}

fn targets_text(targets: &[TargetUsage]) -> String {
    let mut table = Table::new(&[">ID", "TARGET", "TIER", ">PACKS", ">STORED", ">FREE", ">SIZE"]);
    for usage in targets {
        let numbers = match usage.away {
            None => [
                usage.shards.to_string(),
                bytes(usage.stored_bytes),
                room(usage.free_bytes).map_or("no limit".to_owned(), bytes),
                room(usage.total_bytes).map_or(String::new(), bytes),
            ],
            Some(_) => ["AWAY", "", "", ""].map(str::to_owned),
        };
        let mut row =
            vec![usage.id.to_string(), shown(&usage.target), usage.tier.name().to_owned()];
        row.extend(numbers);
        table.row(row);
    }
    let mut text = table.text();
    for usage in targets {
        if usage.state != TargetState::Active {
            let _ = writeln!(text, "{} target {}", usage.state.name().to_uppercase(), usage.id);
        }
        if let Some(away) = &usage.away {
            let _ = writeln!(text, "AWAY {}", shown(away));
        }
    }
    text
}

/// Describes the losses that the pool tolerates, and checkpoints with less redundancy than they
/// should have.
fn redundancy_text(pool: &Pool, usage: &PoolUsage, found: &[CheckpointRedundancy]) -> String {
    let rule = &pool.config().redundancy;
    let survives = rule.survives() as i64;
    if survives == 0 {
        let fast = usage.targets.iter().filter(|target| target.tier == Tier::Fast);
        return match fast.count() {
            1 => String::new(),
            _ => "redundancy: none; what is on a target is lost with it\n".to_owned(),
        };
    }
    let mut text = format!(
        "redundancy: {}; {} may be lost\n",
        rule.describe(),
        count(survives as u64, "target")
    );
    let has = |one: &CheckpointRedundancy| matches!(one.spare, Ok(spare) if spare >= survives);
    let lacks = |one: &&CheckpointRedundancy| one.incomplete || !has(one);
    let lacking: Vec<&CheckpointRedundancy> = found.iter().filter(lacks).collect();
    if lacking.is_empty() {
        let _ = writeln!(text, "all {} have it", count(found.len() as u64, "checkpoint"));
        return text;
    }
    for one in lacking.iter().take(SHOWN_MAX) {
        let what = match &one.spare {
            _ if one.incomplete => "is incomplete: something of it is lost".to_owned(),
            Ok(spare) if *spare < 0 && one.tiers.contains(&Tier::Slow) => {
                "can be read from the slow tier only".to_owned()
            }
            Ok(spare) if *spare < 0 => {
                "CANNOT BE READ without targets that are away or lost".to_owned()
            }
            Ok(0) => "no target more may be lost".to_owned(),
            Ok(spare) => format!("{} may still be lost", count(*spare as u64, "target")),
            Err(error) => format!("DAMAGED {}", shown(error.message())),
        };
        let _ = writeln!(text, "  checkpoint {} of {}: {what}", one.epoch, one.job);
    }
    if lacking.len() > SHOWN_MAX {
        let _ = writeln!(text, "  and {} more", lacking.len() - SHOWN_MAX);
    }
    if lacking.iter().any(|one| !has(one)) {
        let repair = pool.command("pool repair", &[]);
        let _ = writeln!(
            text,
            "`{repair}` gives them what they lack, as far as there are targets for it."
        );
    }
    text
}

/// Describes the checkpoints that are safe on the slow tier, and those that no tier has as a whole.
fn tiers_text(pool: &Pool, found: &[CheckpointRedundancy]) -> String {
    let on_slow = |one: &&CheckpointRedundancy| one.tiers.contains(&Tier::Slow);
    let (filled, total) = (found.iter().filter(on_slow).count(), found.len() as u64);
    let mut text = format!("slow tier: it has {filled} of {}\n", count(total, "checkpoint"));
    let lacking: Vec<&CheckpointRedundancy> = found.iter().filter(|one| !on_slow(one)).collect();
    for one in lacking.iter().take(SHOWN_MAX) {
        let what = match (&one.spare, one.tiers.contains(&Tier::Fast)) {
            _ if one.incomplete => "is incomplete: something of it is lost".to_owned(),
            (Err(error), _) => format!("not known: {}", shown(error.message())),
            (_, true) => "is on the fast tier only".to_owned(),
            (_, false) if one.is_there => "each tier has a part of it".to_owned(),
            (_, false) => "IS WHOLE ON NO TIER of what is there".to_owned(),
        };
        let _ = writeln!(text, "  checkpoint {} of {}: {what}", one.epoch, one.job);
    }
    if lacking.len() > SHOWN_MAX {
        let _ = writeln!(text, "  and {} more", lacking.len() - SHOWN_MAX);
    }
    if lacking.iter().any(|one| !one.incomplete) {
        let fill = pool.command("pool fill", &[]);
        let _ = writeln!(text, "`{fill}` copies those that [tiers] in pool.toml chooses.");
    }
    text
}

fn redundancy_json(one: &CheckpointRedundancy) -> Value {
    let spare = one.spare.as_ref();
    json!({
        "job": one.job.as_str(),
        "epoch": one.epoch,
        "survives": spare.ok(),
        "error": spare.err().map(Error::message),
        "degraded_packs": one.degraded,
        "incomplete": one.incomplete,
        "tiers": tiers_json(Some(&one.tiers)),
    })
}

/// Returns the bytes of a target, unless it has no limit.
pub fn room(bytes: u64) -> Option<u64> {
    Some(bytes).filter(|bytes| *bytes < u64::MAX)
}

fn target_json(usage: &TargetUsage) -> Value {
    json!({
        "id": usage.id,
        "target": usage.target,
        "tier": usage.tier.name(),
        "state": usage.state.name(),
        "away": usage.away,
        "shards": usage.shards,
        "stored_bytes": usage.stored_bytes,
        "free_bytes": room(usage.free_bytes),
        "total_bytes": room(usage.total_bytes),
    })
}

/// Returns the keys of a section, with values and meanings.
fn section_text(section: &Value) -> String {
    let mut table = Table::new(&["KEY", "VALUE", "MEANING"]);
    let keys = section.as_object().into_iter().flatten();
    for (key, value) in keys {
        let in_bytes = key.contains("_bytes").then(|| value.as_u64()).flatten();
        let value = match (in_bytes, value.as_str()) {
            (Some(number), _) => format!("{number} ({})", bytes(number)),
            (None, Some(text)) => text.to_owned(),
            (None, None) => value.to_string(),
        };
        let meaning = MEANINGS.iter().find(|(name, _)| name == key).map_or("", |(_, text)| text);
        table.row(vec![key.clone(), value, meaning.to_owned()]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_meaning_and_none_is_made_up() {
        let config = json!(PoolConfig::new(FormatConfig::new([0; 16]), Tuning::default()));
        let sections = ["format", "tuning"].map(|section| config[section].as_object().unwrap());
        let mut keys: Vec<&str> =
            sections.iter().flat_map(|s| s.keys()).map(String::as_str).collect();
        let mut meant: Vec<&str> = MEANINGS.iter().map(|(key, _)| *key).collect();
        keys.sort_unstable();
        meant.sort_unstable();
        assert_eq!(keys, meant);
    }
}
