//! An operator who changes the targets. Each command is a program of its own, which may be killed
//! at any step. Then the operator repeats the command, or a repair goes on with it.

use crate::actor::{Actor, Done, End};
use crate::blows::{Blow, disk_of};
use crate::one_step::in_one_step;
use crate::table::seat;
use outlive_pool::{RepairOptions, Tier};
use outlive_store::{Uses, leave_seat, repair, vacate};
use outlive_types::{ErrorKind, JobName, Result, SeededRng};
use std::collections::BTreeSet;

/// Number of operations among which a command is killed.
const STEPS_MAX: u64 = 40;
/// Most attempts at a command.
const TIMES_MAX: u64 = 3;

/// A command of an operator.
#[derive(Clone, Debug)]
enum Command {
    Add {
        disk: usize,
        host: Option<String>,
        tier: Tier,
    },
    Drain(u32),
    Remove {
        id: u32,
        lost: bool,
    },
    Replace {
        id: u32,
        disk: usize,
        lost: bool,
    },
    /// A node takes a seat.
    Take {
        disk: usize,
    },
    /// A host is given up.
    Vacate(u32),
    /// A node gives its seat back, unless the seat is needed.
    Leave(u32),
    Repair,
    Scrub,
}

/// The result of a command that has not failed.
enum Obeyed {
    Done,
    /// The command was not given: the pool need not survive it.
    Refused,
}

impl Actor {
    /// Gives some commands, one after the other. If it `is_alone`, no other program changes the
    /// table.
    pub(crate) fn operator(&self, commands: u64, is_alone: bool) -> Done {
        for _ in 0..commands {
            self.let_time_pass(50);
            let mut command = self.command();
            for _ in 0..TIMES_MAX {
                if self.pool_world.world.crashed() {
                    return Err(End);
                }
                self.pool_world.release_dead();
                let Some(program) = self.anew() else { return Err(End) };
                if self.rng.below(2) == 0 {
                    self.dice.kill();
                    program.process.kill_after(1 + self.rng.below(STEPS_MAX));
                }
                self.dice.turns().remark(|| format!("the operator's command: {command:?}"));
                if let Command::Remove { .. } | Command::Replace { .. } | Command::Vacate(_) =
                    command
                {
                    self.dice.target_leaves();
                }
                let done = program.obey(&command, is_alone);
                if !program.process.is_killed() {
                    if matches!(done, Ok(Obeyed::Done)) {
                        self.dice.achieved(command.name());
                    }
                    break;
                }
                self.dice.achieved("a command is killed");
                // A repair goes on with the state of the table.
                if self.rng.below(3) == 0 {
                    command = Command::Repair;
                }
            }
            if self.oracle.violation().is_some() {
                return Err(End);
            }
        }
        Ok(())
    }

    /// Starts a new program of the same operator.
    fn anew(&self) -> Option<Actor> {
        let (pool, process) = self.pool_world.pool(self.number, self.rng.next_u64())?;
        let Actor { number, pool_world, oracle, dice, .. } = self;
        let rng = SeededRng::new(self.rng.next_u64());
        let (pool_world, oracle, dice) = (pool_world.clone(), oracle.clone(), dice.clone());
        Some(Actor { number: *number, pool_world, oracle, pool, process, rng, dice })
    }

    fn command(&self) -> Command {
        let space = &self.pool_world.space;
        let rows = self.pool_world.rows();
        let disk = self.rng.below(space.used() as u64) as usize;
        let id = match self.rng.below(12) {
            0 => 1 + self.rng.below(8) as u32,
            _ => {
                let at = self.rng.below(rows.len().max(1) as u64) as usize;
                rows.get(at).and_then(|row| row.id).unwrap_or(1)
            }
        };
        if space.seats {
            return match self.rng.below(10) {
                0..=3 => self
                    .pool_world
                    .new_disk()
                    .map_or(Command::Repair, |disk| Command::Take { disk }),
                4 => Command::Vacate(id),
                5 | 6 => Command::Leave(id),
                7 | 8 => Command::Repair,
                _ => Command::Scrub,
            };
        }
        let slow = space.slow && self.rng.below(4) == 0;
        let tier = if slow { Tier::Slow } else { Tier::Fast };
        match self.rng.below(10) {
            0..=2 => {
                let host = (self.rng.below(3) == 0).then(|| format!("h{}", self.rng.below(3)));
                Command::Add { disk, host, tier }
            }
            3 => Command::Drain(id),
            4 | 5 => Command::Remove { id, lost: self.rng.below(4) == 0 },
            6 | 7 => Command::Replace { id, disk, lost: self.rng.below(6) == 0 },
            8 => Command::Repair,
            _ => Command::Scrub,
        }
    }

    /// Whether a target may be given up now. If so, it counts as lost.
    fn may_give_up(&self, id: u32) -> bool {
        let rows = self.pool_world.rows();
        let disk = rows.iter().find(|row| row.id == Some(id)).and_then(disk_of);
        disk.is_none_or(|disk| self.pool_world.strike(disk, &Blow::GivenUp))
    }

    fn obey(&self, command: &Command, is_alone: bool) -> Done<Obeyed> {
        if let Command::Remove { id, lost: true }
        | Command::Replace { id, lost: true, .. }
        | Command::Vacate(id)
        | Command::Leave(id) = command
            && !self.may_give_up(*id)
        {
            return Ok(Obeyed::Refused);
        }
        match command {
            Command::Add { disk, host, tier } => {
                let added = self.pool.add_target(&disk.to_string(), host.as_deref(), *tier);
                self.judged("a target that comes", added)
            }
            Command::Drain(id) => {
                let drained = self.pool.drain_target(*id, None, &Uses);
                self.judged("a target that is emptied", drained)
            }
            Command::Remove { id, lost } => {
                let removed = self.pool.remove_target(*id, *lost, None, &Uses);
                self.judged("a target that goes", removed)?;
                self.must_be_gone(*id, is_alone)
            }
            Command::Replace { id, disk, lost } => {
                let disk = disk.to_string();
                let replaced = self.pool.replace_target(*id, &disk, *lost, None, &Uses);
                self.judged("a target that is replaced", replaced)?;
                self.must_be_gone(*id, is_alone)
            }
            Command::Take { disk } => {
                let taken = self.pool.take_seat(&seat(*disk), &format!("host {disk}"));
                self.judged("a node that takes a seat", taken)
            }
            Command::Vacate(id) => {
                let vacated = vacate(&self.pool, &BTreeSet::from([*id]));
                let was_a_seat = matches!(vacated, Ok(Some(_)));
                self.judged("a host that is given up", vacated)?;
                if was_a_seat { self.must_be_gone(*id, is_alone) } else { Ok(()) }
            }
            Command::Leave(id) => {
                let left = leave_seat(&self.pool, *id);
                self.judged("a node that leaves", left)
            }
            Command::Repair => {
                let repaired = repair(&self.pool, RepairOptions::default());
                self.judged("an operator's repair", repaired)
            }
            Command::Scrub => self.scrub(),
        }?;
        Ok(Obeyed::Done)
    }

    /// Checks that a target is out of the pool after a successful command. Another operator may
    /// have added it again since.
    fn must_be_gone(&self, id: u32, is_alone: bool) -> Done {
        self.dice.turns().remark(|| format!("target {id} is out of the pool"));
        if !is_alone || self.is_dead() {
            return Ok(());
        }
        let rows = in_one_step(|| self.pool_world.rows());
        match rows.iter().find(|row| row.id == Some(id) && row.state.counts()) {
            Some(row) => Err(self.violate(format!("target {id} was removed, and counts: {row:?}"))),
            None => Ok(()),
        }
    }

    fn judged<T: std::fmt::Debug>(&self, what: &str, outcome: Result<T>) -> Done {
        // The other targets may be too few, or busy, or full.
        let mut also = vec![ErrorKind::Invalid, ErrorKind::Retry, ErrorKind::Full];
        if self.oracle.has_bruises() || self.dice.has_failed() {
            // Leftovers of packs that no checkpoint names.
            also.push(ErrorKind::Damaged);
        }
        let done = self.met(what, &JobName::gc(), outcome, &also)?;
        self.dice.turns().remark(|| format!("{what}: {done:?}"));
        Ok(())
    }
}

impl Command {
    fn name(&self) -> &'static str {
        match self {
            Command::Add { .. } => "the operator adds",
            Command::Drain(_) => "the operator drains",
            Command::Remove { .. } => "the operator removes",
            Command::Replace { .. } => "the operator replaces",
            Command::Take { .. } => "a node takes a seat",
            Command::Vacate(_) => "a host is given up",
            Command::Leave(_) => "a node leaves",
            Command::Repair => "the operator repairs",
            Command::Scrub => "the operator scrubs",
        }
    }
}
