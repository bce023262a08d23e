//! A case: which programs meet, and what may go wrong. All of it follows from a family and a seed.

use crate::programs::Role;
use crate::world::Chances;
use outlive_types::{Error, Result, SeededRng};
use std::fmt;
use std::str::FromStr;

/// Which kind of meeting it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Family {
    /// Gcs and prunes overlap, and programs save beside them.
    Collect,
    /// Several writers of one job.
    Fence,
    /// One program saves and looks at old checkpoints.
    Twin,
    /// Programs that go back, beside others that go on.
    Return,
    /// Memory is filled while checkpoints are dropped.
    Lazy,
    /// One pool is copied into another, and both are collected.
    Copy,
    /// Scrubs beside gcs.
    Scrub,
    /// Bits flip, and records cannot be read.
    Damage,
    /// One program stands still at one moment while all others come and go.
    Suspend,
    /// Anybody.
    Crowd,
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 10] = [
        Family::Collect,
        Family::Fence,
        Family::Twin,
        Family::Return,
        Family::Lazy,
        Family::Copy,
        Family::Scrub,
        Family::Damage,
        Family::Suspend,
        Family::Crowd,
    ];

    /// Its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Family::Collect => "collect",
            Family::Fence => "fence",
            Family::Twin => "twin",
            Family::Return => "return",
            Family::Lazy => "lazy",
            Family::Copy => "copy",
            Family::Scrub => "scrub",
            Family::Damage => "damage",
            Family::Suspend => "suspend",
            Family::Crowd => "crowd",
        }
    }

    /// The one of that name.
    pub fn from_name(name: &str) -> Option<Family> {
        Family::ALL.into_iter().find(|family| family.name() == name)
    }
}

/// Names a schedule: the same name is the same schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    /// The kind of meeting.
    pub family: Family,
    /// Everything else.
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

/// What keeps the records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogKind {
    /// Memory, without locks.
    Plain,
    /// Memory, with locks that end with their holder.
    Locks,
    /// A directory: the steps of an append are moments at which others may come first, too.
    Directory,
}

/// What a schedule is made of.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name.
    pub name: Name,
    /// Who meets.
    pub roles: Vec<Role>,
    /// What keeps the pools' logs.
    pub log: LogKind,
    /// The first program is held up at this decision of its own, until nobody else can go on.
    pub suspended_at: Option<u64>,
    /// What may go wrong.
    pub chances: Chances,
}

/// Decisions of a program among which one is chosen.
const MOMENTS: u64 = 120;

/// The jobs of all schedules.
pub const A: &str = "a";
/// The other one.
pub const B: &str = "b";

impl Case {
    /// The case of a name.
    pub fn of(name: Name) -> Case {
        let rng = SeededRng::new(name.seed ^ (name.family as u64) << 56);
        let roles = roles(name.family, &rng);
        let mut chances = chances(&rng);
        if name.family == Family::Damage {
            let chance = |rng: &SeededRng| [0, 1 << 10, 1 << 13][rng.below(3) as usize];
            chances.flip_record = chance(&rng);
            chances.flip_shard = chance(&rng);
            chances.unreadable = chance(&rng) / 4;
        }
        let kinds = [LogKind::Plain, LogKind::Locks, LogKind::Locks, LogKind::Directory];
        let mut log = kinds[rng.below(4) as usize];
        if chances.flip_record > 0 || roles.contains(&Role::Rollback { job: A }) {
            // Records in files are damaged by other tests.
            log = LogKind::Plain;
        }
        let suspended_at = (name.family == Family::Suspend).then(|| {
            if either(&rng) {
                log = LogKind::Directory;
            }
            rng.below(MOMENTS)
        });
        Case { name, roles, log, suspended_at, chances }
    }
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

fn prune(rng: &SeededRng) -> Role {
    Role::Prune { job: job(rng), keep_last: 1 + rng.below(2) }
}

fn collector(rng: &SeededRng) -> Role {
    match rng.below(3) {
        0 => prune(rng),
        _ => Role::Gc { rounds: 1 + rng.below(2) },
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
        Family::Twin => vec![Role::Twin { job: A }],
        Family::Return => vec![Role::Returner { job: A }, saver(rng, A)],
        Family::Lazy => {
            vec![Role::Lazy { job: A, prunes: rng.below(4) == 0 }, collector(rng), prune(rng)]
        }
        Family::Copy => vec![Role::Copy, saver(rng, A), collector(rng), Role::GcThere],
        Family::Scrub => vec![Role::Scrub, collector(rng), saver(rng, A)],
        Family::Damage => vec![saver(rng, A), saver(rng, A), Role::Reader { job: A }],
        Family::Suspend => {
            let first = match rng.below(6) {
                0..=2 => saver(rng, A),
                3 => collector(rng),
                4 => Role::Lazy { job: A, prunes: false },
                _ => Role::Returner { job: A },
            };
            let prunes = |keep_last| Role::Prune { job: A, keep_last };
            match either(rng) {
                true => vec![first, prunes(2), prunes(1)],
                false => vec![first, collector(rng), saver(rng, A), collector(rng)],
            }
        }
        Family::Crowd => Vec::new(),
    };
    let most = if family == Family::Crowd { 7 } else { 2 };
    for _ in 0..rng.below(most) {
        let job = job(rng);
        roles.push(match rng.below(12) {
            0..=2 => saver(rng, job),
            3 => Role::Returner { job },
            4 => Role::Twin { job },
            5 => Role::Reader { job },
            6 => Role::Lazy { job, prunes: false },
            7 => Role::Verifier { job },
            8 => Role::Scrub,
            9 => Role::Copy,
            _ => collector(rng),
        });
    }
    roles
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
