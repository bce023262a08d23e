//! A case: the programs that meet, and the possible failures. All follow from a family and a seed.

use crate::chance::{Chances, Lie};
use crate::group::RANKS;
use crate::roles::{A, B, G, Group, R, Role};
use crate::scheduler::{Moment, Suspension, Until};
use crate::space::Space;
use crate::world::LogKind;
use outlive_store::group::Schedule;
use outlive_types::{Error, Rank, Result, SeededRng};
use std::fmt;
use std::str::FromStr;

/// A kind of meeting.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Family {
    /// Gcs and prunes overlap, and programs save beside them.
    Collect,
    /// Several writers of one job.
    Fence,
    /// One program saves in one thread and restores old checkpoints in another.
    Twin,
    /// Programs go back to an old checkpoint, beside others that go on.
    Return,
    /// Memory is filled while checkpoints are dropped.
    Lazy,
    /// One pool is copied into another, and both are collected.
    Copy,
    /// Scrubs beside gcs.
    Scrub,
    /// A collector stands still twice while others come and go, on a log without locks.
    Overtake,
    /// Bits flip, and records cannot be read.
    Damage,
    /// One program stands still at one moment while all others come and go.
    Suspend,
    /// Programs of any kind.
    Crowd,
    /// Programs of several ranks, beside collectors and beside each other.
    Group,
    /// Operators change the targets while programs save.
    Members,
    /// Targets are damaged and fail, as far as redundancy makes up for it.
    Disks,
    /// Programs with a gate, one after the other and beside each other.
    Emit,
    /// Programs that are killed, and their helpers.
    Helper,
    /// Jobs are deleted and renamed while programs save, restore and collect.
    Jobs,
    /// Targets answer too late, and do then what they were asked.
    Slow,
}

impl Family {
    /// All families.
    pub const ALL: [Family; 18] = [
        Family::Collect,
        Family::Fence,
        Family::Twin,
        Family::Return,
        Family::Lazy,
        Family::Copy,
        Family::Scrub,
        Family::Overtake,
        Family::Damage,
        Family::Suspend,
        Family::Crowd,
        Family::Group,
        Family::Members,
        Family::Disks,
        Family::Emit,
        Family::Helper,
        Family::Jobs,
        Family::Slow,
    ];

    /// Returns the name for command lines.
    pub fn name(self) -> &'static str {
        match self {
            Family::Collect => "collect",
            Family::Fence => "fence",
            Family::Twin => "twin",
            Family::Return => "return",
            Family::Lazy => "lazy",
            Family::Copy => "copy",
            Family::Scrub => "scrub",
            Family::Overtake => "overtake",
            Family::Damage => "damage",
            Family::Suspend => "suspend",
            Family::Crowd => "crowd",
            Family::Group => "group",
            Family::Members => "members",
            Family::Disks => "disks",
            Family::Emit => "emit",
            Family::Helper => "helper",
            Family::Jobs => "jobs",
            Family::Slow => "slow",
        }
    }

    /// Returns the family of a name.
    pub fn from_name(name: &str) -> Option<Family> {
        Family::ALL.into_iter().find(|family| family.name() == name)
    }
}

/// The name of a schedule: the same name is the same schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    /// The kind of meeting.
    pub family: Family,
    /// The seed of everything else.
    pub seed: u64,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.family.name(), self.seed)
    }
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Name> {
        let parsed = text.split_once(':').and_then(|(family, seed)| {
            Some(Name { family: Family::from_name(family)?, seed: seed.parse().ok()? })
        });
        parsed.ok_or_else(|| {
            let families = Family::ALL.map(Family::name).join(", ");
            Error::invalid(format!(
                "{text:?} names no schedule: write FAMILY:SEED, such as collect:17; the families are \
                 {families}"
            ))
        })
    }
}

/// The ingredients of a schedule.
#[derive(Clone, Debug)]
pub struct Case {
    /// Name of the schedule.
    pub name: Name,
    /// The programs that meet.
    pub roles: Vec<Role>,
    /// The kind of the pools' logs.
    pub log: LogKind,
    /// The targets of each pool.
    pub space: Space,
    /// The suspensions, one after the other.
    pub suspensions: Vec<Suspension>,
    /// Programs that begin late: the program, and the number of suspensions that must have begun.
    pub late: Vec<(usize, usize)>,
    /// The chances of failures.
    pub chances: Chances,
    /// Some packs have damaged headers: nothing is lost, but a scrub has work.
    pub scratched: bool,
    /// A false behaviour of the log.
    pub lie: Option<Lie>,
}

/// Decisions of a program among which one is chosen.
const MOMENTS: u64 = 120;
/// Steps of a kind among which one is chosen.
const STEPS: u64 = 6;
/// Kinds of steps before which an event may matter to savers and collectors. The last ones exist
/// only for a log in a directory.
const KINDS: [&str; 16] = [
    "append record",
    "list records of",
    "read record",
    "newest record of",
    "sync the log",
    "remove records",
    "create",
    "finish",
    "delete",
    "list",
    "freeze",
    "frozen",
    "give the record its number",
    "the record has its number",
    "look behind the record",
    "remove a record",
];
/// Number of these kinds that every log has.
const KINDS_OF_ALL: u64 = 12;
/// The same for programs that restore.
const KINDS_OF_RESTORES: [&str; 5] =
    ["prepare a", "end a restore", "restored", "read", "append record"];
/// The same for steps of several ranks together.
const KINDS_OF_RANKS: [&str; 3] = ["gather", "broadcast", "prepare a"];
/// Names of programs.
const NUMBERS: [&str; 8] = ["0", "1", "2", "3", "4", "5", "6", "7"];
/// The same for a saver whose targets leave.
const KINDS_OF_SAVERS: [&str; 5] =
    ["create", "finish", "make the shard durable", "append record", "newest record of targets"];
/// Steps before which a program stands still that deletes or renames a job.
const KINDS_OF_CHANGES: [&str; 7] = [
    "append record",
    "list records of",
    "read record",
    "newest record of",
    "sync the log",
    "finish",
    "append record",
];
/// Steps before which an overtaken collector stands still.
const KINDS_OF_COLLECTORS: [&str; 4] = ["append record", "list records of", "finish", "delete"];

impl Case {
    /// Returns the case of a name.
    pub fn of(name: Name) -> Case {
        let rng = SeededRng::new(name.seed ^ (name.family as u64) << 56);
        if matches!(name.family, Family::Members | Family::Disks | Family::Slow) {
            return about_targets(name, &rng);
        }
        let mut roles = roles(name.family, &rng);
        let mut chances = chances(&rng);
        if name.family == Family::Group && rng.below(8) == 0 {
            chances.flip_record = 1 << 10;
            chances.flip_shard = 1 << 10;
        }
        if name.family == Family::Damage {
            let chance = |rng: &SeededRng| [0, 1 << 10, 1 << 13][rng.below(3) as usize];
            chances.flip_record = chance(&rng);
            chances.flip_shard = chance(&rng);
            chances.unreadable = chance(&rng) / 4;
            chances.flip_session = [0, 1 << 13, 1 << 15][rng.below(3) as usize];
            chances.hide_session = [0, 0, 1 << 14, 1 << 16][rng.below(4) as usize];
        }
        let kinds = [LogKind::Plain, LogKind::Locks, LogKind::Locks, LogKind::Directory];
        let mut log = kinds[rng.below(4) as usize];
        if name.family == Family::Suspend && either(&rng) {
            log = LogKind::Directory;
        }
        if name.family == Family::Overtake
            || chances.flips_records()
            || roles.contains(&Role::Rollback { job: A })
        {
            // Other tests damage records in files.
            log = LogKind::Plain;
        }
        // Not drawn, so that older cases stay the same.
        if log != LogKind::Plain && name.seed % 5 == 2 {
            log = LogKind::Places;
        }
        let mut suspensions = suspensions(name.family, roles.first(), log, &rng);
        // Not drawn either. The first rank commits for all: it stands still while it writes, so that a
        // gc comes between.
        if name.family == Family::Group && name.seed % 4 == 3 {
            let kind = ["create", "finish"][(name.seed / 4 % 2) as usize];
            suspensions = vec![Suspension::of("0/rank0", Moment::Before(kind, 1))];
        }
        if chances.hide_session > 0 {
            // The first program is about to append a checkpoint when the second opens a session.
            // Before the second has saved, a record without session data follows.
            roles[2] = Role::Prune { job: A, keep_last: 1, collects: either(&rng) };
            let append = |number| Moment::Before("append record", number);
            let (begun, until) = (append(1 + rng.below(2)), Until::Ended(1));
            suspensions.push(Suspension { who: "0", at: begun, until });
            suspensions.push(Suspension { who: "1", at: append(1), until: Until::Ended(2) });
        }
        // A program begins whenever the first one stands still; in `twin`, a look back is a
        // suspension, too.
        let mut late = Vec::new();
        if !suspensions.is_empty() && rng.below(4) > 0 {
            let number = |program: usize| match name.family {
                Family::Twin => 2 * program - 1,
                _ => program,
            };
            let begin = |program| (program, number(program).min(suspensions.len()));
            late.extend((1..roles.len()).map(begin));
        }
        let mut scratched = name.family == Family::Overtake && roles[0] == Role::Scrub;
        // Not drawn, so that cases of one target stay the same.
        let mut space = Space::of(name.seed);
        // Messages of ranks report a lost session like any other fence.
        space.leases &= name.family != Family::Group;
        if space.volatile {
            let is_free = !chances.flips_records() && !roles.contains(&Role::Rollback { job: A });
            match log {
                // Without locks that end with their holder, an operator must help.
                LogKind::Plain if is_free && name.family != Family::Overtake => {
                    log = LogKind::Locks
                }
                LogKind::Plain | LogKind::Places => space.volatile = false,
                LogKind::Locks | LogKind::Directory => {}
            }
            space.volatile &= chances.flip_shard == 0 && chances.unreadable == 0;
        }
        if space.volatile {
            scratched = false;
            roles.push(Role::Wiper { rounds: 1 + name.seed / 21 % 2 });
            if space.survives() > 0 {
                roles.push(Role::Repair { rounds: 2 });
            }
        } else if space.survives() > 0 {
            // These come on top: the other programs stay the same as in other cases.
            roles.push(Role::Repair { rounds: 2 });
            roles.push(match (space.moves, space.degrades()) {
                (true, _) => Role::Mover,
                (false, true) => Role::Absence,
                (false, false) => Role::Loser,
            });
            // A shard with a damaged header counts as lost.
            scratched &= roles.last() != Some(&Role::Loser);
        } else if space.moves {
            roles.push(Role::Mover);
        }
        if space.slow {
            roles.push(Role::Filler { rounds: 2 });
            roles.push(Role::Auditor { rounds: 12 });
            if space.keeps > 0 && matches!(log, LogKind::Locks | LogKind::Directory) {
                roles.push(Role::Trimmer { rounds: 2 });
            }
        }
        if log == LogKind::Places && (name.seed / 5).is_multiple_of(2) {
            roles.push(Role::ReplicaAway);
        }
        if log == LogKind::Places && name.seed / 5 % 4 >= 2 {
            roles.push(Role::LogMover);
            if name.seed / 20 % 4 == 3 {
                roles.push(Role::LogMover);
            }
        }
        Case { name, roles, log, space, suspensions, late, chances, scratched, lie: None }
    }
}

/// Returns a case about single targets: they come and go, or they fail.
fn about_targets(name: Name, rng: &SeededRng) -> Case {
    let operated = match name.family {
        Family::Slow => either(rng),
        family => family == Family::Members,
    };
    let space = Space::of_targets(operated, rng);
    let mut roles = vec![saver(rng, A)];
    let others = [
        saver(rng, B),
        collector(rng),
        Role::Scrub,
        Role::Repair { rounds: 1 + rng.below(2) },
        Role::Reader { job: A },
        Role::Verifier { job: A },
    ];
    let some = others.into_iter().filter(|_| rng.below(3) == 0);
    roles.extend(some);
    if operated {
        let (commands, is_alone) = (2 + rng.below(4), rng.below(3) > 0);
        roles.push(Role::Operator { commands, is_alone });
        if !is_alone {
            roles.push(Role::Operator { commands: 1 + rng.below(3), is_alone });
        }
    } else {
        roles.push(Role::Repair { rounds: 2 });
        roles.push(Role::Scrub);
    }
    // In some schedules nothing is harmed, so no harm excuses a failure.
    if !operated || rng.below(3) == 0 {
        roles.push(Role::Flipper { rounds: 2 + rng.below(6) });
    }
    if space.survives() > 0 && rng.below(3) == 0 {
        roles.push(Role::Disks { rounds: 2 + rng.below(6) });
    }
    if name.family == Family::Slow {
        roles.push(collector(rng));
        roles.push(Role::Sluggard { rounds: 2 + rng.below(6) });
    }
    if space.slow {
        roles.push(Role::Filler { rounds: 2 });
        roles.push(Role::Auditor { rounds: 6 });
        if space.keeps > 0 {
            roles.push(Role::Trimmer { rounds: 2 });
        }
    }
    roles.push(Role::Doubter { rounds: 6 });
    let kinds = [LogKind::Plain, LogKind::Locks, LogKind::Locks, LogKind::Directory];
    let log = kinds[rng.below(4) as usize];
    let chances = chances(rng);
    // The saver stands still while targets come and go.
    let suspensions = match rng.below(5) {
        0 | 1 => {
            let at = match rng.below(3) {
                0 => Moment::Decision(rng.below(MOMENTS)),
                _ => one_of(&KINDS_OF_SAVERS, rng),
            };
            vec![Suspension::of("0", at)]
        }
        // The saver writes to a target that an operator is about to drop.
        2 if operated => {
            let finishes = Moment::Before("finish", rng.below(3));
            let operator = roles.iter().position(|role| matches!(role, Role::Operator { .. }));
            let who = NUMBERS[operator.unwrap_or(0).min(NUMBERS.len() - 1)];
            let drops = Moment::Before("append record", rng.below(6));
            vec![
                Suspension { who: "0", at: finishes, until: Until::Stood(2) },
                Suspension::of(who, drops),
            ]
        }
        _ => Vec::new(),
    };
    let (late, scratched) = (Vec::new(), false);
    Case { name, roles, log, space, suspensions, late, chances, scratched, lie: None }
}

/// Returns the suspensions of a case.
fn suspensions(
    family: Family,
    first: Option<&Role>,
    log: LogKind,
    rng: &SeededRng,
) -> Vec<Suspension> {
    match family {
        // A rank or all ranks stand still, while others collect, take over, or miss them.
        Family::Group if either(rng) => {
            let who = ["0", "0/rank0", "0/rank1", "0/rank2"][rng.below(4) as usize];
            let at = match rng.below(4) {
                0 => Moment::Decision(rng.below(MOMENTS)),
                1 => one_of(&KINDS_OF_RANKS, rng),
                _ => one_of(&KINDS[..KINDS_OF_ALL as usize], rng),
            };
            vec![Suspension::of(who, at)]
        }
        Family::Suspend => {
            let count = if log == LogKind::Directory { KINDS.len() as u64 } else { KINDS_OF_ALL };
            let restores = matches!(first, Some(Role::Lazy { .. } | Role::Returner { .. }));
            let at = match rng.below(4) {
                0 | 1 => Moment::Decision(rng.below(MOMENTS)),
                2 if restores => one_of(&KINDS_OF_RESTORES, rng),
                _ => one_of(&KINDS[..count as usize], rng),
            };
            vec![Suspension::of("0", at)]
        }
        // Another program makes the collector read a job again, and then a second collector comes.
        Family::Overtake => overtaken(rng),
        // A program that has saved and then drops the job stands still between two steps, or one
        // that saves does.
        Family::Jobs if rng.below(4) > 0 => {
            let (kind, number) = (KINDS_OF_CHANGES[rng.below(7) as usize], rng.below(12));
            vec![Suspension::of("0", Moment::Before(kind, number))]
        }
        // The thread that restores stands still, while the other one goes on.
        Family::Twin if either(rng) => twin_stands(rng),
        _ => Vec::new(),
    }
}

/// Returns a moment before a step of one of these kinds.
fn one_of(kinds: &[&'static str], rng: &SeededRng) -> Moment {
    Moment::Before(kinds[rng.below(kinds.len() as u64) as usize], rng.below(STEPS))
}

/// Makes the first collector stand still, and go on while a second one runs.
fn overtaken(rng: &SeededRng) -> Vec<Suspension> {
    let number = || [1, 1, 2, 0][rng.below(4) as usize];
    let append = Moment::Before("append record", number());
    let first = Suspension { who: "0", at: append, until: Until::Ended(1) };
    match rng.below(4) {
        0 => vec![first, Suspension::of("0", one_of(&KINDS_OF_COLLECTORS, rng))],
        1 => {
            let lists = Moment::Before("list records of", number());
            vec![first, Suspension::of("0", lists)]
        }
        // It reads the job only when the later collector has reported to it, and has not deleted
        // anything yet.
        2 => {
            let (append, lists) =
                (Moment::Before("append record", 1), Moment::Before("list records of", 1));
            let first = Suspension { at: append, ..first };
            let deletes = Moment::Before("sync the log", 0);
            vec![
                first,
                Suspension { who: "0", at: lists, until: Until::Stood(3) },
                Suspension { who: "2", at: deletes, until: Until::Ended(2) },
            ]
        }
        // It has an unfinished pack when the later collector looks, and finishes it before that one
        // reports.
        _ => {
            let at = Moment::Before("finish", rng.below(2));
            let tells = Moment::Before("append record", 1);
            vec![
                first,
                Suspension { who: "0", at, until: Until::Stood(3) },
                Suspension { who: "2", at: tells, until: Until::Ended(2) },
            ]
        }
    }
}

/// Makes the thread that restores stand still, and then the one that saves.
fn twin_stands(rng: &SeededRng) -> Vec<Suspension> {
    let at = match either(rng) {
        true => Moment::Before(KINDS_OF_RESTORES[rng.below(3) as usize], 0),
        false => Moment::Decision(rng.below(MOMENTS / 4)),
    };
    let looks = Suspension::of("0/look", at);
    // The saver waits until another program has ended, saves, and waits for the next.
    let next = Moment::Decision(rng.below(STEPS));
    let then = Moment::Before("freeze", rng.below(STEPS / 2));
    vec![
        looks,
        Suspension { who: "0", at: next, until: Until::Ended(1) },
        Suspension { who: "0", at: then, until: Until::Ended(2) },
    ]
}

fn either(rng: &SeededRng) -> bool {
    rng.below(2) == 0
}

fn job(rng: &SeededRng) -> &'static str {
    [A, A, B][rng.below(3) as usize]
}

fn saver(rng: &SeededRng, job: &'static str) -> Role {
    Role::Saver { job, saves: 1 + rng.below(4), restores: either(rng), waits: either(rng) }
}

/// Returns a program of several ranks.
pub fn group(rng: &SeededRng) -> Role {
    let schedule = match rng.below(4) {
        0 => Schedule::Staggered,
        1 => Schedule::Striped(2),
        2 => Schedule::Adaptive,
        _ => Schedule::Coordinated,
    };
    let rank = rng.below(u64::from(RANKS)) as Rank;
    let kill = (rng.below(3) == 0).then(|| (rank, 1 + rng.below(MOMENTS)));
    Role::Group(Group {
        job: G,
        saves: 1 + rng.below(4),
        restores: either(rng),
        waits: rng.below(3) > 0,
        schedule,
        is_patient: either(rng),
        kill,
        restarts: rng.below(3),
        waits_for_all: either(rng),
        meets_in_log: rng.below(3) == 0,
    })
}

fn prune(rng: &SeededRng) -> Role {
    Role::Prune { job: job(rng), keep_last: 1 + rng.below(2), collects: true }
}

fn gc(rng: &SeededRng) -> Role {
    Role::Gc { rounds: 1 + rng.below(2), forgets: false, rewrites: rng.below(4) > 0 }
}

fn collector(rng: &SeededRng) -> Role {
    match rng.below(3) {
        0 => prune(rng),
        _ => gc(rng),
    }
}

fn roles(family: Family, rng: &SeededRng) -> Vec<Role> {
    let mut roles = match family {
        Family::Collect => {
            let mut roles = vec![collector(rng), collector(rng), saver(rng, A)];
            if either(rng) {
                roles.push(saver(rng, B));
            }
            roles
        }
        Family::Fence => {
            let mut roles = vec![saver(rng, A), saver(rng, A)];
            if rng.below(4) == 0 {
                roles.push(Role::Rollback { job: A });
                return roles;
            }
            roles
        }
        Family::Twin => {
            let mut roles = vec![Role::Twin { job: A }];
            if either(rng) {
                roles.push(Role::Prune { job: A, keep_last: 1 + rng.below(2), collects: true });
                roles.push(gc(rng));
            }
            roles
        }
        Family::Return => vec![Role::Returner { job: A }, saver(rng, A)],
        Family::Lazy => {
            vec![Role::Lazy { job: A, prunes: rng.below(4) == 0 }, collector(rng), prune(rng)]
        }
        Family::Copy => vec![Role::Copy, saver(rng, A), collector(rng), Role::GcThere],
        Family::Scrub => vec![Role::Scrub, collector(rng), saver(rng, A)],
        Family::Overtake => return overtaking(rng),
        Family::Damage => {
            let third = match either(rng) {
                true => Role::Reader { job: A },
                false => Role::Gc { rounds: 1, forgets: true, rewrites: true },
            };
            vec![saver(rng, A), saver(rng, A), third]
        }
        Family::Emit => {
            let emitter = || Role::Emitter { saves: 1 + rng.below(4) };
            let mut roles = vec![emitter(), emitter(), emitter()];
            if either(rng) {
                roles.push(gc(rng));
            }
            roles
        }
        Family::Helper => {
            let killed = || Role::Killed { job: A, saves: 1 + rng.below(3) };
            let mut roles = vec![killed(), killed()];
            match rng.below(4) {
                0 => roles.push(saver(rng, A)),
                1 => roles.push(collector(rng)),
                2 => roles.push(killed()),
                _ => roles.push(prune(rng)),
            }
            roles
        }
        Family::Jobs => changing(rng),
        Family::Suspend => suspended(rng),
        Family::Crowd => Vec::new(),
        Family::Group => return grouped(rng),
        Family::Members | Family::Disks | Family::Slow => return Vec::new(), // `about_targets` has its own
    };
    let most = match family {
        Family::Crowd => 7,
        Family::Jobs => 0,
        _ => 2,
    };
    for _ in 0..rng.below(most) {
        roles.push(any_role(rng));
    }
    if roles.is_empty() {
        roles.extend([saver(rng, A), saver(rng, A)]);
    }
    roles
}

/// Returns a collector, a program that comes between, and another collector.
fn overtaking(rng: &SeededRng) -> Vec<Role> {
    let collects = || match rng.below(3) {
        0 => Role::Scrub,
        _ => Role::Gc { rounds: 1 + rng.below(2), forgets: false, rewrites: true },
    };
    let first = collects();
    let between = match rng.below(4) {
        0 => Role::Prune { job: A, keep_last: 1 + rng.below(2), collects: true },
        _ => saver(rng, A),
    };
    // The copies of the earlier collector are garbage to the later one. Their originals are not,
    // unless the later one rewrites them, too.
    let later = match either(rng) {
        true => collects(),
        false => Role::Gc { rounds: 1, forgets: false, rewrites: false },
    };
    vec![first, between, later]
}

/// Returns a program that drops a job, others that save it, and perhaps another that drops it.
fn changing(rng: &SeededRng) -> Vec<Role> {
    let changes = || match rng.below(3) {
        0 => Role::Delete { job: A },
        _ => Role::Rename { from: A, to: R },
    };
    let mut roles = match rng.below(3) {
        0 => vec![saver(rng, A), changes()],
        _ => vec![changes(), saver(rng, A)],
    };
    match rng.below(5) {
        0 => roles.push(changes()),
        1 => roles.push(saver(rng, A)),
        2 => roles.push(saver(rng, R)),
        3 => roles.push(Role::Reader { job: A }),
        _ => {}
    }
    if either(rng) {
        roles.push(gc(rng));
    }
    roles
}

/// Returns a program that stands still, and others that come and go meanwhile.
fn suspended(rng: &SeededRng) -> Vec<Role> {
    let first = match rng.below(6) {
        0..=2 => saver(rng, A),
        3 => collector(rng),
        4 => Role::Lazy { job: A, prunes: false },
        _ => Role::Returner { job: A },
    };
    let prunes = |keep_last| Role::Prune { job: A, keep_last, collects: true };
    match either(rng) {
        true => vec![first, prunes(2), prunes(1)],
        false => vec![first, collector(rng), saver(rng, A), collector(rng)],
    }
}

/// Returns a group, collectors beside it, and one more program.
fn grouped(rng: &SeededRng) -> Vec<Role> {
    let prunes = |keep_last| Role::Prune { job: G, keep_last, collects: true };
    let mut roles = vec![group(rng), collector(rng), prunes(1 + rng.below(2))];
    match rng.below(6) {
        0 | 1 => roles.push(group(rng)),
        2 => roles.push(saver(rng, A)),
        3 => roles.push(Role::Scrub),
        4 => roles.extend([Role::Copy, Role::GcThere]),
        _ => roles.push(Role::Verifier { job: G }),
    }
    // If two runs meet in the log at once, each may take some ranks from the other. The rest wait
    // as long as they have patience.
    let are_several = roles.iter().filter(|role| matches!(role, Role::Group(_))).count() > 1;
    for role in &mut roles {
        if let Role::Group(group) = role
            && group.meets_in_log
        {
            group.is_patient &= !are_several && group.restarts == 0;
        }
    }
    roles
}

fn any_role(rng: &SeededRng) -> Role {
    let job = job(rng);
    match rng.below(12) {
        0..=2 => saver(rng, job),
        3 => Role::Returner { job },
        4 => Role::Twin { job },
        5 => Role::Reader { job },
        6 => Role::Lazy { job, prunes: false },
        7 => Role::Verifier { job },
        8 => Role::Scrub,
        9 => Role::Copy,
        _ => collector(rng),
    }
}

fn chances(rng: &SeededRng) -> Chances {
    let mut chances = Chances::default();
    // Half of all schedules have nothing but their interleaving.
    if either(rng) {
        return chances;
    }
    let chance = |usual: u64| match rng.below(3) {
        0 => usual,
        _ => 0,
    };
    chances.kill = chance(200);
    chances.power_cut = chance(60);
    chances.error = chance(200);
    chances.lost_reply = chance(200);
    chances.hold = chance(600);
    chances
}
