//! The scheduler. The programs of a schedule and the threads that the store starts are real
//! threads, but one runs at a time. Before a step that others can notice, the running thread asks
//! here which thread goes on. So the same choices give the same schedule. Where time matters, it
//! passes with the steps; if all threads wait for it, it jumps to the next wake-up.

use crate::policy::Policy;
use outlive_types::sync::plain::{Condvar, Mutex, MutexGuard};
use outlive_types::sync::{Scheduler, scheduled};
use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

/// A schedule with more decisions never ends.
const STEPS_MAX: u64 = 400_000;
/// Time of a step, where time passes.
const STEP_NS: u64 = 5_000;
/// A thread held up until no other can go on stays behind while others let this much time pass.
const IDLE_NS_MAX: u64 = 1_000_000_000;
/// A thread that has not come back after this time waits for an event unknown to the scheduler.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// All threads of one schedule.
#[derive(Clone)]
pub struct SeededScheduler(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    over: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    Ready,
    Waiting(usize),
    /// Until its wake-up time.
    Asleep,
    Ended,
}

struct Task {
    name: String,
    /// The program of the thread.
    program: usize,
    status: Status,
    gate: Arc<Gate>,
    /// The next step of the thread.
    next: String,
    /// The time at which it goes on in any case.
    wakes_ns: Option<u64>,
}

/// A moment of some threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// The decision of this number, from 0.
    Decision(u64),
    /// Before the step of this number, from 0, whose description begins with this text.
    Before(&'static str, u64),
}

/// The suspension of threads from some moment on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Suspension {
    /// Name of a thread, with the threads that it has started: `0` is the whole first program.
    pub who: &'static str,
    /// The beginning.
    pub at: Moment,
    /// The end; it also ends when no other thread can go on.
    pub until: Until,
}

impl Suspension {
    /// Returns a suspension from a moment on, until no other thread can go on.
    pub fn of(who: &'static str, at: Moment) -> Suspension {
        Suspension { who, at, until: Until::Ended(usize::MAX) }
    }
}

/// The end of a hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// At this step.
    Step(u64),
    /// When this many programs have ended.
    Ended(usize),
    /// When this many suspensions have begun.
    Stood(usize),
}

/// Whether a thread has this name, or was started by the one that has it.
fn belongs(task: &str, to: &str) -> bool {
    task.strip_prefix(to).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

struct State {
    tasks: Vec<Task>,
    policy: Policy,
    steps: u64,
    digest: u64,
    /// The steps in order, if a trace was requested.
    trace: Option<Vec<String>>,
    /// Suspensions to come; each begins to count when the one before it has begun.
    suspensions: VecDeque<Suspension>,
    /// Number of suspensions that have begun.
    stood: usize,
    /// Threads that are held up; at the latest until no other can go on.
    held: Vec<(String, Until)>,
    has_held: bool,
    /// The time, if it passes; otherwise waiting takes none.
    now_ns: Option<u64>,
    /// Time that has passed while only held-up threads could go on.
    idle_ns: u64,
    failure: Option<String>,
    over: bool,
}

/// The gate at which a thread waits for its turn.
#[derive(Default)]
struct Gate {
    open: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Gate {
    fn open(&self) {
        self.open.store(true, Ordering::Release);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    fn pass(&self) {
        while !self.open.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}

/// The outcome of a schedule.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Number of decisions.
    pub steps: u64,
    /// Digest of all decisions.
    pub digest: u64,
    /// The steps in order, if a trace was requested.
    pub trace: Vec<String>,
    /// The reason why it did not end: a panic, a deadlock.
    pub failure: Option<String>,
}

/// The start of a program: its name and its work.
pub type Start = (String, Box<dyn FnOnce() + Send>);

impl SeededScheduler {
    /// Returns a scheduler without threads.
    pub fn new(policy: Policy, keep_trace: bool) -> SeededScheduler {
        let state = State {
            tasks: Vec::new(),
            policy,
            steps: 0,
            digest: 0xCBF2_9CE4_8422_2325,
            trace: keep_trace.then(Vec::new),
            suspensions: VecDeque::new(),
            stood: 0,
            held: Vec::new(),
            has_held: false,
            now_ns: None,
            idle_ns: 0,
            failure: None,
            over: false,
        };
        SeededScheduler(Arc::new(Shared { state: Mutex::new(state), over: Condvar::new() }))
    }

    /// Runs the programs until all their threads have ended. After a failure, threads are left that
    /// wait forever.
    pub fn run(&self, programs: Vec<Start>) -> Ran {
        for (program, (name, work)) in programs.into_iter().enumerate() {
            self.0.start(program, name, work).expect("a thread can be started");
        }
        let mut state = self.0.state();
        match state.choose(None) {
            Some(first) => state.tasks[first].gate.open(),
            None => state.over = true,
        }
        let mut seen = 0;
        while !state.over {
            let timed_out;
            (state, timed_out) = self.0.over.wait_timeout(state, STUCK_AFTER);
            if timed_out && !state.over && state.steps == seen {
                let what = "a thread waits for something that the scheduler does not know of";
                state.fail(what.to_owned());
            }
            seen = state.steps;
        }
        Ran {
            steps: state.steps,
            digest: state.digest,
            trace: state.trace.take().unwrap_or_default(),
            failure: state.failure.clone(),
        }
    }

    /// Lets time pass from now on.
    pub fn keep_time(&self) {
        self.0.state().now_ns.get_or_insert(0);
    }

    /// Returns the time; 0 if no time passes.
    pub fn now_ns(&self) -> u64 {
        self.0.state().now_ns.unwrap_or(0)
    }

    /// Suspends threads, one suspension after the other.
    pub fn suspend(&self, suspensions: &[Suspension]) {
        self.0.state().suspensions.extend(suspensions.iter().cloned());
    }

    /// Makes a program begin when `suspensions` suspensions have begun.
    pub fn come_late(&self, program: usize, suspensions: usize) {
        self.0.state().held.push((program.to_string(), Until::Stood(suspensions)));
    }

    /// Holds up a thread, and those that it has started, for `steps` steps, or until no other can
    /// go on.
    pub fn hold(&self, who: &str, steps: u64) {
        let mut state = self.0.state();
        let until = Until::Step(state.steps.saturating_add(steps));
        state.held.push((who.to_owned(), until));
        state.has_held = true;
    }

    /// Whether a thread was suspended or held up.
    pub fn have_held(&self) -> bool {
        self.0.state().has_held
    }

    /// Adds a line to the trace.
    pub fn remark(&self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.0.state().trace {
            trace.push(format!("       -- {}", line()));
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn start(
        self: &Arc<Self>,
        program: usize,
        name: String,
        work: Box<dyn FnOnce() + Send>,
    ) -> io::Result<()> {
        let gate = Arc::new(Gate::default());
        let mut state = self.state();
        let number = state.tasks.len();
        let task = Task {
            name: name.clone(),
            program,
            status: Status::Ready,
            gate: gate.clone(),
            next: "begin".to_owned(),
            wakes_ns: None,
        };
        state.tasks.push(task);
        state.policy.add(number);
        drop(state);
        let turn = Arc::new(ScheduledTurn { shared: self.clone(), number });
        let mine = gate.clone();
        let thread = thread::Builder::new().name(name).spawn(move || {
            mine.pass();
            let shared = turn.shared.clone();
            let ended = catch_unwind(AssertUnwindSafe(|| scheduled(turn, work)));
            shared.end(number, ended.err().map(|panic| words(&*panic)));
        })?;
        let _ = gate.thread.set(thread.thread().clone());
        // It may have got its turn before it could be woken: it checks again.
        thread.thread().unpark();
        Ok(())
    }

    /// Ends a thread.
    fn end(&self, number: usize, panic: Option<String>) {
        let mut state = self.state();
        state.tasks[number].status = Status::Ended;
        if let Some(panic) = panic {
            let name = state.tasks[number].name.clone();
            state.fail(format!("{name} panicked: {panic}"));
        }
        if state.failure.is_none() {
            match state.choose(None) {
                Some(next) => state.tasks[next].gate.open(),
                None if state.tasks.iter().all(|task| task.status == Status::Ended) => {
                    state.over = true;
                }
                None => state.deadlock(),
            }
        }
        if state.over {
            self.over.notify_all();
        }
    }
}

/// Returns the message of a panic.
pub fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}

impl State {
    /// Chooses the thread that goes on, and records it; `None` if none can.
    fn choose(&mut self, but: Option<usize>) -> Option<usize> {
        let steps = self.steps;
        if !self.held.is_empty() {
            let ended = self.ended();
            self.held.retain(|(_, until)| match until {
                Until::Step(until) => *until > steps,
                Until::Ended(programs) => *programs > ended,
                Until::Stood(count) => *count > self.stood,
            });
        }
        self.wake(STEP_NS);
        let ready = |task: &Task| task.status == Status::Ready;
        let numbers = |state: &State, with_held: bool| -> Vec<usize> {
            let tasks = state.tasks.iter().enumerate();
            let is_held = |task: &Task| state.held.iter().any(|(who, _)| belongs(&task.name, who));
            let free = |task: &Task| with_held || !is_held(task);
            tasks
                .filter(|(number, task)| ready(task) && free(task) && Some(*number) != but)
                .map(|(number, _)| number)
                .collect()
        };
        let mut ready = numbers(self, false);
        if ready.is_empty() && self.pass_time() {
            ready = numbers(self, false);
        }
        if ready.is_empty() && !self.held.is_empty() {
            ready = numbers(self, true);
            self.held.clear();
            if ready.is_empty() && self.pass_time() {
                ready = numbers(self, true);
            }
        }
        if ready.is_empty() {
            return but.filter(|but| self.tasks[*but].status == Status::Ready);
        }
        let next = self.policy.choose(steps, &ready);
        self.steps += 1;
        let Task { name, next: what, .. } = &self.tasks[next];
        for byte in next.to_le_bytes().iter().chain(what.as_bytes()) {
            self.digest = (self.digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
        }
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{steps:6} {name}: {what}"));
        }
        if self.steps > STEPS_MAX {
            self.fail(format!("no end after {STEPS_MAX} steps"));
        }
        Some(next)
    }

    /// Lets time pass, and wakes threads.
    fn wake(&mut self, ns: u64) {
        let Some(now) = &mut self.now_ns else { return };
        *now += ns;
        let now = *now;
        for task in &mut self.tasks {
            if task.wakes_ns.is_some_and(|at| at <= now) {
                (task.status, task.wakes_ns) = (Status::Ready, None);
            }
        }
    }

    /// Passes time when no thread can go on: up to the next wake-up of a thread that is not held
    /// up. Returns false if there is none.
    fn pass_time(&mut self) -> bool {
        let is_held = |task: &Task| self.held.iter().any(|(who, _)| belongs(&task.name, who));
        let free = self.tasks.iter().filter(|task| !is_held(task));
        let (Some(now), Some(next)) = (self.now_ns, free.filter_map(|task| task.wakes_ns).min())
        else {
            return false;
        };
        let passes = next.saturating_sub(now);
        match self.held.is_empty() {
            true => self.idle_ns = 0,
            false => self.idle_ns += passes,
        }
        if self.idle_ns > IDLE_NS_MAX {
            self.idle_ns = 0;
            return false;
        }
        self.wake(passes);
        true
    }

    /// Returns how many programs have ended.
    fn ended(&self) -> usize {
        let at_work = self.tasks.iter().filter(|task| task.status != Status::Ended);
        let at_work: BTreeSet<usize> = at_work.map(|task| task.program).collect();
        let all: BTreeSet<usize> = self.tasks.iter().map(|task| task.program).collect();
        all.len() - at_work.len()
    }

    /// Suspends the thread of the next suspension, if this is its moment.
    fn suspend(&mut self, number: usize, what: &str) {
        let Some(next) = self.suspensions.front_mut() else { return };
        if !belongs(&self.tasks[number].name, next.who) {
            return;
        }
        let left = match &mut next.at {
            Moment::Decision(left) => left,
            Moment::Before(step, left) if what.starts_with(*step) => left,
            Moment::Before(..) => return,
        };
        if *left > 0 {
            *left -= 1;
            return;
        }
        let held = (next.who.to_owned(), next.until);
        self.held.push(held);
        self.has_held = true;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("       -- {} stands still from now on", next.who));
        }
        self.suspensions.pop_front();
        self.stood += 1;
    }

    fn fail(&mut self, why: String) {
        self.failure.get_or_insert(why);
        self.over = true;
    }

    fn deadlock(&mut self) {
        let waiting = self.tasks.iter().filter(|task| task.status != Status::Ended);
        let waiting: Vec<String> =
            waiting.map(|task| format!("{} after {}", task.name, task.next)).collect();
        self.fail(format!("deadlock: all threads wait: {}", waiting.join("; ")));
    }
}

thread_local! {
    static NOTICE: RefCell<Option<Notice>> = const { RefCell::new(None) };
}

/// A callback before a step of the thread.
type Notice = (&'static str, Box<dyn FnOnce()>);

/// Does `work`. When this thread is about to do `what` for the first time within it, calls `notice`
/// before any other thread goes on.
pub fn noticing<T>(
    what: &'static str,
    notice: impl FnOnce() + 'static,
    work: impl FnOnce() -> T,
) -> T {
    NOTICE.set(Some((what, Box::new(notice))));
    let done = work();
    NOTICE.take();
    done
}

/// Unwinds the stack of a thread that was killed within a step.
struct Killed;

thread_local! {
    static FATE: RefCell<Option<Fate>> = const { RefCell::new(None) };
}

/// Whether the thread was killed.
type Fate = Box<dyn FnMut() -> bool>;

/// Does `work`, unless `fate` says at one of its pauses that the thread is dead: then it goes no
/// further, and this returns `None`.
pub fn mortal<T>(fate: impl FnMut() -> bool + 'static, work: impl FnOnce() -> T) -> Option<T> {
    FATE.set(Some(Box::new(fate)));
    let done = catch_unwind(AssertUnwindSafe(work));
    FATE.take();
    NOTICE.take();
    match done {
        Ok(done) => Some(done),
        Err(panic) if panic.is::<Killed>() => None,
        Err(panic) => resume_unwind(panic),
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The connection of one thread to the scheduler.
struct ScheduledTurn {
    shared: Arc<Shared>,
    number: usize,
}

impl ScheduledTurn {
    /// Lets others run until that time has passed.
    fn sleep_until(&self, mut state: MutexGuard<'_, State>, status: Status, time: Duration) {
        let until = state.now_ns.unwrap_or(0).saturating_add(nanos(time));
        let task = &mut state.tasks[self.number];
        (task.status, task.wakes_ns) = (status, Some(until));
        self.switch(state, None);
    }

    /// Lets the chosen thread run, and returns when this thread is chosen.
    fn switch(&self, mut state: MutexGuard<'_, State>, but: Option<usize>) {
        let gate = state.tasks[self.number].gate.clone();
        if state.failure.is_none() {
            match state.choose(but) {
                Some(next) if next == self.number && state.failure.is_none() => return,
                Some(next) if state.failure.is_none() => state.tasks[next].gate.open(),
                Some(_) => {}
                None => state.deadlock(),
            }
        }
        if state.over {
            self.shared.over.notify_all();
        }
        drop(state);
        gate.pass();
    }
}

impl Scheduler for ScheduledTurn {
    fn pause(&self, what: &str) {
        let notice =
            NOTICE.with_borrow_mut(|notice| notice.take_if(|(awaited, _)| *awaited == what));
        if let Some((_, notice)) = notice {
            notice();
        }
        let mut state = self.shared.state();
        let next = &mut state.tasks[self.number].next;
        next.clear();
        next.push_str(what);
        state.suspend(self.number, what);
        self.switch(state, None);
        if FATE.with_borrow_mut(|fate| fate.take_if(|fate| fate())).is_some() {
            resume_unwind(Box::new(Killed));
        }
    }

    fn sleep(&self, time: Duration) {
        let mut state = self.shared.state();
        let task = &mut state.tasks[self.number];
        task.next = "slept".to_owned();
        if state.now_ns.is_some() {
            return self.sleep_until(state, Status::Asleep, time);
        }
        state.policy.put_last(self.number);
        self.switch(state, Some(self.number));
    }

    fn wait(&self, key: usize) {
        let mut state = self.shared.state();
        state.tasks[self.number].status = Status::Waiting(key);
        state.tasks[self.number].next = "waited".to_owned();
        self.switch(state, None);
    }

    fn wait_for(&self, key: usize, time: Duration) -> bool {
        let mut state = self.shared.state();
        if state.now_ns.is_none() {
            drop(state);
            self.sleep(time);
            return true;
        }
        state.tasks[self.number].next = "waited".to_owned();
        let until = state.now_ns.unwrap_or(0).saturating_add(nanos(time));
        self.sleep_until(state, Status::Waiting(key), time);
        self.shared.state().now_ns.is_some_and(|now| now >= until)
    }

    fn wake(&self, key: usize) {
        let mut state = self.shared.state();
        for task in &mut state.tasks {
            if task.status == Status::Waiting(key) {
                (task.status, task.wakes_ns) = (Status::Ready, None);
            }
        }
    }

    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let (program, name) = {
            let state = self.shared.state();
            let mine = &state.tasks[self.number];
            (mine.program, format!("{}/{name}", mine.name))
        };
        self.shared.start(program, name, work)
    }
}

#[cfg(test)]
mod tests;
