//! Programs with a gate, and the receiver of their outputs. In every schedule the receiver gets each
//! output of the committed checkpoints, in order, under one key, and nothing else.

use crate::actor::{Actor, Done};
use crate::hold::{Looking, Saving, Source, also};
use crate::oracle::Pending;
use crate::roles::O;
use crate::state::State;
use crate::world::PoolWorld;
use outlive_backend::FaultProcess;
use outlive_capture::MemorySource;
use outlive_format::Outputs;
use outlive_gate::{Answer, Confirmations, Gate, GateOptions, OutputKey, Sink};
use outlive_pool::Pool;
use outlive_store::{Job, JobOptions, MemoryImage, SaveHandle, Select};
use outlive_types::sync::pause;
use outlive_types::{Rank, Result, SeededRng};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two looks of the gate. After the shorter one it counts on its last proof that no
/// other program has taken over, and waits if a release failed. After the longer one it proves that
/// again, and tries again.
const BETWEEN_LOOKS: [Duration; 2] = [Duration::from_millis(15), Duration::from_millis(60)];
const SINK: &str = "receiver";

/// The receiver, as one program has it.
struct Outlet {
    pool_world: PoolWorld,
    process: FaultProcess,
    number: usize,
    rng: SeededRng,
}

impl Outlet {
    fn is_dead(&self) -> bool {
        self.process.is_killed() || self.pool_world.world.crashed()
    }
}

impl Sink for Outlet {
    fn release(&self, key: &OutputKey, token: &[u8]) -> Answer {
        pause("release an output");
        if self.is_dead() {
            return Answer::Later("the program is dead".to_owned());
        }
        if self.rng.below(6) == 0 {
            return Answer::Later("the receiver is away".to_owned());
        }
        let (emissions, oracle) = (&self.pool_world.emissions, &self.pool_world.oracle);
        let content = String::from_utf8_lossy(token).into_owned();
        // After damage beyond redundancy a program may go back.
        let is_judged = !oracle.is_damaged() && !oracle.is_rolled_back() && !oracle.is_wiped();
        let fault = emissions.lock().receive(key, &content, oracle);
        if let Some(fault) = fault.filter(|_| is_judged) {
            oracle.violate(format!("program {}: {fault}", self.number));
        }
        self.pool_world.dice.achieved("release");
        // A kill here leaves the release uncertain.
        pause("an output is released");
        Answer::Released
    }
}

/// The record of releases, which may be lost.
struct Notes(Outlet);

impl Confirmations for Notes {
    fn load(&self, _: Rank) -> Result<Option<Vec<u8>>> {
        Ok(self.0.pool_world.emissions.lock().notes.clone())
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        pause("note a release");
        if !self.0.is_dead() && self.0.rng.below(3) > 0 {
            self.0.pool_world.emissions.lock().notes = Some(bytes.to_vec());
        }
        Ok(())
    }
}

impl Actor {
    fn outlet(&self) -> Outlet {
        Outlet {
            pool_world: self.pool_world.clone(),
            process: self.process.clone(),
            number: self.number,
            rng: SeededRng::new(self.rng.below(u64::MAX)),
        }
    }

    /// Continues the job from its newest checkpoint, and gives outputs between its saves.
    pub(crate) fn emitter(&self, saves: u64) -> Done {
        let saving = self.open(O);
        let name = saving.job.name().clone();
        let gate = Gate::new(GateOptions {
            pool: 1,
            job: name.clone(),
            rank: None,
            confirmations: Some(Box::new(Notes(self.outlet()))),
            tell: Box::new(|_| ()),
            check_writer: {
                let weak = saving.job.downgrade();
                Box::new(move || weak.begin_session())
            },
        });
        gate.open(u64::MAX, self.rng.below(u64::MAX));
        // The time between two looks is the schedule's, not this machine's.
        let mut now = Instant::now();
        let mut pass = || {
            gate.pass(now);
            now += BETWEEN_LOOKS[self.rng.below(2) as usize];
        };
        let mut listed = Vec::new();
        let looking = Looking { actor: self, job: &saving.job };
        let restored = looking.look(Select::Newest, &mut |image: &MemoryImage, _| {
            listed = image.outputs().to_vec();
        })?;
        let mut state = State::random(&self.rng, 6);
        let mut history = Vec::new();
        if let Some((epoch, there)) = restored {
            state = there;
            let emissions = self.pool_world.emissions.lock();
            let program = self.oracle.committed(&name).get(&epoch).map(|it| it.program);
            let of = program.and_then(|program| {
                let exact = emissions.histories.get(&(program, epoch));
                exact.or_else(|| emissions.begun.get(&program)).cloned()
            });
            history = of.unwrap_or_default();
            drop(emissions);
            self.met("a list of outputs", &name, gate.restored(epoch, &[(0, listed)]), &[])?;
        }
        self.met("a session", &name, saving.job.begin_session(), &also(self, &name))?;
        gate.may_release();
        self.met("a sink", &name, gate.open_sink(SINK, Arc::new(self.outlet())), &[])?;
        pass();
        let mut last: Option<SaveHandle> = None;
        for save in 0..saves {
            for part in 0..self.rng.below(3) {
                let content = format!("{}:{save}.{part}", self.number);
                history.push(content.clone());
                let given = gate.give(SINK, content.into_bytes());
                self.met("an output", &name, given, &[])?;
            }
            state.change(&self.rng);
            let handle = self.save_outputs(&saving, &gate, &state, &history)?;
            if self.rng.below(2) == 0 {
                saving.wait(&handle)?;
            }
            pass();
            last = Some(handle);
        }
        if let Some(handle) = last {
            saving.wait(&handle)?;
        }
        pass();
        saving.end()
    }

    fn save_outputs(
        &self,
        saving: &Saving<'_>,
        gate: &Gate,
        state: &State,
        history: &[String],
    ) -> Done<SaveHandle> {
        let name = saving.job.name();
        let emissions = &self.pool_world.emissions;
        let saved = gate.cover(|outputs| {
            let mut inner =
                MemorySource::new(saving.tracker.clone(), state.regions(), Vec::new(), 1);
            inner.set_outputs(outputs);
            let asked = || {
                emissions.lock().begun.insert(self.number, history.to_vec());
                self.oracle.will_commit(self.number, name, Pending::State(state.clone()));
            };
            saving.job.save(&mut Source { inner, asked })
        });
        let handle = self.met("a save", name, saved, &also(self, name))?;
        emissions.lock().histories.insert((self.number, handle.epoch()), history.to_vec());
        Ok(handle)
    }
}

/// Checks at the end that a restart would release every output that the newest checkpoint covers
/// and that was not received, and only these.
pub(crate) fn check(pool: &Pool, pool_world: &PoolWorld) -> std::result::Result<(), String> {
    let oracle = &pool_world.oracle;
    if oracle.is_rolled_back() || oracle.is_wiped() || oracle.is_damaged() {
        return Ok(());
    }
    let emissions = pool_world.emissions.lock();
    // A pool that only got a copy has no programs of its own.
    if emissions.begun.is_empty() {
        return Ok(());
    }
    let covered = emissions.committed(oracle);
    let job = Job::open(pool, O, JobOptions::default()).map_err(|error| error.to_string())?;
    let Some(newest) = job.epochs().map_err(|error| error.to_string())?.pop() else {
        return Ok(());
    };
    let image = MemoryImage::open(pool, job.name(), newest.manifest).map_err(|e| e.to_string())?;
    let listed = Outputs::of_catalog(image.outputs()).map_err(|error| error.to_string())?;
    for (number, content) in covered.iter().enumerate() {
        let is_received = emissions.received.contains_key(&(number as u64));
        let listed = listed.outputs.iter().find(|output| output.number == number as u64);
        match listed {
            Some(output) if output.token != content.as_bytes() => {
                return Err(format!(
                    "output {number} is {output:?} in the list, and was {content}"
                ));
            }
            None if !is_received => {
                return Err(format!("output {number} ({content}) is lost: {:?}", newest.epoch));
            }
            _ => {}
        }
    }
    if listed.next != covered.len() as u64 {
        return Err(format!("{} outputs were given, the list has {}", covered.len(), listed.next));
    }
    pool_world.dice.came_about("all outputs are accounted for");
    Ok(())
}
