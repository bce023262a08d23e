//! `outlive pool probe`: measures the targets of a pool and proposes its tuning, or tests this machine.

mod figures;
mod machine;
mod page;

use crate::args::ProbeArgs;
use crate::export::publish_bytes;
use crate::output::{Answer, Reporter, Table, bytes, count, shown};
use crate::plot::{axes, picture};
use crate::web::{check_replaceable, place_of};
use crate::{exit_code, interrupt, pool};
use outlive_pool::{Pool, Tier, Tuning};
use outlive_probe::{
    Measurement, Options, Present, Processor, Proposal, Setting, knee, lasting, measure, proposals,
};
use outlive_types::{Error, Result};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A target with its figures.
pub struct Probed {
    /// Its number.
    pub id: u32,
    /// Kind and location.
    pub place: String,
    /// Its tier.
    pub tier: Tier,
    /// Its figures, or the reason why there are none.
    pub found: Result<Measurement>,
}

/// Result of a probe, for text, JSON and the page.
pub struct Outcome {
    /// Name of the pool.
    pub pool: String,
    /// The targets.
    pub targets: Vec<Probed>,
    /// Speed of this machine.
    pub processor: Processor,
    /// The settings.
    pub proposals: Vec<Proposal>,
}

/// `outlive pool probe`.
pub fn probe(args: &ProbeArgs, reporter: &Arc<Reporter>) -> Result<Answer> {
    let Some(name) = &args.pool else { return machine::machine() };
    let files = args.to.as_deref().map(Files::of).transpose()?;
    let opened = pool::open(name, reporter)?;
    let outcome = run(args, &opened, &name.display().to_string(), reporter)?;
    reporter.finish();
    let mut text = text_of(&outcome);
    let applied = match args.apply {
        true => Some(apply(&opened, &outcome, &mut text)?),
        false => None,
    };
    if let Some(files) = &files {
        files.write(&outcome)?;
        let _ = writeln!(
            text,
            "The report is in {}, and the figures beside it.",
            shown(&files.page.display().to_string())
        );
    }
    let failed = outcome.targets.iter().find_map(|target| target.found.as_ref().err());
    let code = failed.map_or(0, |error| exit_code(error.kind()));
    Ok(Answer { text, json: json_of(&outcome, applied.as_deref(), files.as_ref()), code })
}

/// Measures the processor and each target.
fn run(args: &ProbeArgs, pool: &Pool, name: &str, reporter: &Reporter) -> Result<Outcome> {
    let stop = interrupt::flag();
    let config = pool.config();
    let geometry = config.geometry();
    let limits = if args.thorough { Options::thorough() } else { Options::default() };
    let fragment_bytes = geometry.fragment_bytes(geometry.container_bytes);
    let options = Options { fragment_bytes, ..limits };
    let probing = pool.begin_probe()?;
    reporter.busy("measuring the processor");
    let processor =
        Processor::measure(config.tuning.threads(), config.tuning.compression_level as i32);
    let mut targets = Vec::new();
    for target in &probing.targets {
        let found = match &target.unusable {
            Some(error) => Err(error.clone()),
            None => {
                measure(&*target.target, &options, &|| stop.load(Ordering::Relaxed), &|phase| {
                    reporter.step("probe", &format!("target {}: {phase}", target.id))
                })
            }
        };
        if interrupt::was_asked() {
            return Err(found.err().unwrap_or_else(|| Error::retry("the probe was interrupted")));
        }
        let place = target.target.describe();
        targets.push(Probed { id: target.id, place, tier: target.tier, found });
    }
    let present = Present {
        container_bytes: config.format.container_bytes,
        data_fragments: u64::from(geometry.k),
        fragments: u64::from(geometry.k) + u64::from(geometry.m),
        staging_bytes: config.tuning.staging_bytes,
        read_gap_bytes: config.tuning.read_gap_bytes,
        compression: config.tuning.compression.clone(),
    };
    // Saves and restores use the fast tier.
    let fast = targets.iter().filter(|target| target.tier == Tier::Fast);
    let fast: Vec<Measurement> = fast.filter_map(|it| it.found.clone().ok()).collect();
    let proposals = proposals(&fast, &processor, &present);
    Ok(Outcome { pool: name.to_owned(), targets, processor, proposals })
}

/// Writes the proposals to `pool.toml`. Returns the keys that changed.
fn apply(pool: &Pool, outcome: &Outcome, text: &mut String) -> Result<Vec<&'static str>> {
    let is_missing = |target: &&Probed| target.tier == Tier::Fast && target.found.is_err();
    if let Some(missing) = outcome.targets.iter().find(is_missing) {
        let _ = writeln!(
            text,
            "Nothing is applied: target {} has no figures, and might need other settings.",
            missing.id
        );
        return Ok(Vec::new());
    }
    let wanted: Vec<&Proposal> =
        outcome.proposals.iter().filter(|it| it.is_change() && !it.is_fixed).collect();
    let change = |there: Tuning| {
        let mut tuning = there;
        for proposal in &wanted {
            match (proposal.key, &proposal.proposed) {
                ("staging_bytes", Setting::Bytes(bytes)) => tuning.staging_bytes = *bytes,
                ("read_gap_bytes", Setting::Bytes(bytes)) => tuning.read_gap_bytes = *bytes,
                ("compression", Setting::Word(word)) => tuning.compression = word.clone(),
                _ => {}
            }
        }
        tuning
    };
    if wanted.is_empty() || !pool.change_tuning(&change)? {
        text.push_str("Nothing is applied: pool.toml has these values already.\n");
        return Ok(Vec::new());
    }
    for proposal in &wanted {
        let _ = writeln!(
            text,
            "Changed in pool.toml: {} = {} (it was {})",
            proposal.key,
            value_text(&proposal.proposed),
            value_text(&proposal.present)
        );
    }
    text.push_str("Programs use it when they open the pool next.\n");
    Ok(wanted.iter().map(|proposal| proposal.key).collect())
}

/// Returns a setting for people.
pub fn value_text(setting: &Setting) -> String {
    match setting {
        Setting::Bytes(number) => bytes(*number),
        Setting::Word(word) => word.clone(),
    }
}

/// Returns a throughput for people.
pub fn mb_per_s(bytes_per_s: f64) -> String {
    match bytes_per_s / 1e6 {
        mb if mb >= 100.0 => format!("{mb:.0} MB/s"),
        mb if mb >= 1.0 => format!("{mb:.1} MB/s"),
        mb => format!("{mb:.3} MB/s"),
    }
}

/// Returns the columns of the table of targets, and its rows; a target without figures has its reason.
pub fn rows_of(outcome: &Outcome) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let headings = vec![
        "TARGET",
        ">WRITE",
        ">READ",
        ">WRITE UNIT",
        ">QUEUE DEPTH",
        ">REQUEST",
        ">SHARD",
        "LOCATION",
    ];
    let speed = |points: &[_]| lasting(points).map_or_else(String::new, mb_per_s);
    let rows = outcome.targets.iter().map(|target| {
        let place = shown(&target.place);
        match &target.found {
            Err(error) => {
                let mut row = vec![target.id.to_string()];
                row.resize(headings.len() - 1, String::new());
                row.push(format!("{place}: NOT MEASURED: {}", shown(error.message())));
                row
            }
            Ok(found) => vec![
                target.id.to_string(),
                speed(&found.write_positions_queued),
                speed(&found.read_positions_queued),
                knee(&found.write_sizes_random).map_or_else(String::new, |it| it.to_string()),
                found.depth.to_string(),
                format!("{:.0} µs", found.request_s * 1e6),
                format!("{:.1} ms", found.shard_s * 1e3),
                format!("{place}{}", if found.is_cut { " (time was short)" } else { "" }),
            ],
        }
    });
    (headings.clone(), rows.collect())
}

fn text_of(outcome: &Outcome) -> String {
    let (headings, rows) = rows_of(outcome);
    let mut table = Table::new(&headings);
    rows.into_iter().for_each(|row| table.row(row));
    let mut text = table.text();
    if outcome.proposals.is_empty() {
        text.push_str("\nNo fast target was measured, so there are no proposals.\n");
        return text;
    }
    let mut table = Table::new(&["SETTING", ">NOW", ">PROPOSED", "REASON"]);
    for proposal in &outcome.proposals {
        let proposed = match proposal.is_change() {
            true => value_text(&proposal.proposed),
            false => "keep".to_owned(),
        };
        let now = value_text(&proposal.present);
        table.row(vec![proposal.key.to_owned(), now, proposed, proposal.reason.clone()]);
    }
    let _ = write!(text, "\n{}", table.text());
    for proposal in outcome.proposals.iter().filter(|it| it.is_fixed && it.is_change()) {
        let _ = writeln!(
            text,
            "{} is fixed when a pool is made: `outlive pool init --container-bytes` sets it for a new one.",
            proposal.key
        );
    }
    let changes = outcome.proposals.iter().filter(|it| it.is_change() && !it.is_fixed).count();
    if changes > 0 {
        let _ = writeln!(
            text,
            "{} to apply: --apply writes to pool.toml.",
            count(changes as u64, "setting")
        );
    }
    text
}

fn json_of(outcome: &Outcome, applied: Option<&[&str]>, files: Option<&Files>) -> Value {
    let targets = outcome.targets.iter().map(|target| {
        json!({
            "id": target.id,
            "target": target.place,
            "tier": target.tier.name(),
            "error": target.found.as_ref().err().map(Error::message),
            "write_unit": target.found.as_ref().ok().and_then(|it| knee(&it.write_sizes_random)),
            "measured": target.found.as_ref().ok(),
        })
    });
    json!({
        "pool": outcome.pool,
        "targets": targets.collect::<Vec<_>>(),
        "processor": outcome.processor,
        "proposals": outcome.proposals.iter().map(|proposal| json!({
            "key": proposal.key,
            "present": proposal.present,
            "proposed": proposal.proposed,
            "is_change": proposal.is_change(),
            "is_fixed": proposal.is_fixed,
            "reason": proposal.reason,
        })).collect::<Vec<_>>(),
        "applied": applied,
        "report": files.map(|files| files.page.display().to_string()),
        "figures": files.map(|files| {
            files.all().map(|path| path.display().to_string()).collect::<Vec<_>>()
        }),
    })
}

/// Files of a report.
struct Files {
    page: PathBuf,
    dir: PathBuf,
    /// Name of the page without its extension.
    stem: String,
}

impl Files {
    /// Returns the files of the report at `page`.
    ///
    /// # Errors
    /// `Invalid` if one of them is there, and is not of an earlier report.
    fn of(page: &Path) -> Result<Files> {
        outlive_pool::check_outside(page)?;
        check_replaceable(page)?;
        let (dir, _) = place_of(page)?;
        let stem = page.file_stem().and_then(OsStr::to_str).ok_or_else(|| {
            Error::invalid(format!("{} is no text: give --to another name", page.display()))
        })?;
        let files = Files { page: page.to_owned(), dir: dir.to_owned(), stem: stem.to_owned() };
        let there = files.all().find(|figure| figure.exists() && !page.exists());
        match there {
            None => Ok(files),
            Some(there) => Err(Error::invalid(format!(
                "{} is there, but no report {}: name another file",
                there.display(),
                page.display()
            ))),
        }
    }

    fn all(&self) -> impl Iterator<Item = PathBuf> + '_ {
        let name = |number, end| self.dir.join(format!("{}-figure{number}.{end}", self.stem));
        (1..=6).flat_map(move |number| ["svg", "png"].map(|end| name(number, end)))
    }

    fn write(&self, outcome: &Outcome) -> Result<()> {
        let figures: Vec<String> =
            figures::figures(&outcome.targets).iter().map(axes::figure).collect();
        let page = page::page(outcome, &figures);
        check_replaceable(&self.page)?;
        // The page first: it makes the figures ours.
        let name = self.page.file_name().unwrap_or_default();
        publish_bytes(&self.dir, name, page.as_bytes(), true)?;
        let pictures =
            figures.iter().map(|svg| Ok([axes::for_file(svg).into_bytes(), picture::png(svg)?]));
        let pictures: Vec<[Vec<u8>; 2]> = pictures.collect::<Result<_>>()?;
        for (path, content) in self.all().zip(pictures.iter().flatten()) {
            let name = path.file_name().unwrap_or_default();
            publish_bytes(&self.dir, name, content, true)?;
        }
        Ok(())
    }
}
