//! `outlive node local`: the node of a host that takes a seat of a pool, for as long as a job runs.

use crate::args::NodeLocalArgs;
use crate::node_options::node_options;
use crate::output::{Answer, Reporter, count, shown};
use crate::seats::{Local, State};
use crate::{exit_code, pool, print};
use outlive_node_server::{NodeOptions, NodeServer};
use outlive_pool::{Environment, host_name};
use outlive_supervise::{Interrupt, Interrupts, check_command};
use outlive_types::{Error, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A signal within this time belongs to the first one.
const SECOND: Duration = Duration::from_secs(1);
/// Time between two looks at the command and at the state of the pool.
const LOOK: Duration = Duration::from_millis(100);

/// `outlive node local`.
pub fn local(args: NodeLocalArgs, json: bool, reporter: &Arc<Reporter>) -> Result<Answer> {
    if !args.command.is_empty() {
        check_command(&args.command)?;
    }
    pool::say_which(&args.pool, reporter);
    let env = Environment::observed(reporter.clone());
    let pool = outlive_pool::open_to_take_a_seat(&args.pool, env)?;
    let dir = outlive_registry::parse(&args.data.to_string_lossy())?.absolute();
    let Some(data) = dir.as_directory().map(Path::to_owned) else {
        return Err(Error::invalid(format!("{dir} is not a directory of this host")));
    };
    let mut signals = Interrupts::begin()?;
    fs::create_dir_all(&data).map_err(|error| Error::io("making", &data, &error))?;
    let how = node_options(vec![dir], args.listen, &args.how)?;
    // Standard error is the command's.
    let logs_events = args.command.is_empty() || reporter.is_verbose();
    let log = how.log.clone().filter(|_| logs_events);
    let server = NodeServer::start(NodeOptions { log, ..how })?;
    let url = own_url(&args, &server);
    // Standard output is the command's, if there is one, or has the JSON.
    let prints = args.command.is_empty() && !json;
    let tell = |line: &str| match prints {
        true => drop(print(&format!("{line}\n"))),
        false => reporter.inform(line),
    };
    tell(&format!("The node {url} serves {} until Ctrl-C.", shown(&server.data())));
    let local = Local::start(pool, url, data, args.give_up)?;
    let ended = run(&local, &args, &mut signals, &tell);
    let left = leave(local, &mut signals, reporter);
    server.stop().stop();
    server.wait()?;
    match &left {
        Ok(line) => tell(line),
        Err(error) => reporter.say(error.message()),
    }
    let code = match (ended?, &left) {
        (0, Err(error)) => exit_code(error.kind()),
        (code, _) => code,
    };
    Ok(Answer { text: String::new(), json: json!({ "left": left.is_ok() }), code })
}

/// Returns the location under which other hosts reach the node.
fn own_url(args: &NodeLocalArgs, server: &NodeServer) -> String {
    let scheme = if args.how.tls_cert.is_some() { "nodes" } else { "node" };
    let address = server.address();
    match &args.address {
        Some(host) => format!("{scheme}://{host}:{}", address.port()),
        None if address.ip().is_unspecified() => {
            format!("{scheme}://{}:{}", host_name(), address.port())
        }
        None => format!("{scheme}://{address}"),
    }
}

/// Waits until a signal asks for the end, or until the command has ended. Returns the exit code.
fn run(
    local: &Local,
    args: &NodeLocalArgs,
    signals: &mut Interrupts,
    tell: &dyn Fn(&str),
) -> Result<i32> {
    let late = Instant::now() + args.wait;
    let mut told = None;
    let mut child: Option<Child> = None;
    loop {
        signals.wait(LOOK);
        let state = local.state();
        for signal in signals.take() {
            let signal = match signal {
                Interrupt::Stop(signal) | Interrupt::Forward(signal) => signal,
            };
            match &child {
                Some(child) => send(child, signal),
                None if is_end(signal) && args.command.is_empty() => return Ok(0),
                // The command never ran.
                None if is_end(signal) => return Ok(128 + signal),
                None => {}
            }
        }
        if told.as_ref() != Some(&state) {
            if let Some(line) = line(local, &state) {
                tell(&line);
            }
            told = Some(state.clone());
        }
        match &mut child {
            Some(child) => {
                let ended = child.try_wait();
                let ended = ended
                    .map_err(|e| Error::retry(format!("the command cannot be waited for: {e}")))?;
                if let Some(ended) = ended {
                    return Ok(ended.code().unwrap_or_else(|| 128 + ended.signal().unwrap_or(0)));
                }
            }
            None if args.command.is_empty() => {}
            None if state.is_ready => child = Some(start(&args.command)?),
            None if Instant::now() > late => {
                tell(&format!(
                    "After {} s the pool is still not ready: the command starts all the same.",
                    args.wait.as_secs()
                ));
                child = Some(start(&args.command)?);
            }
            None => {}
        }
    }
}

/// Describes a new state.
fn line(local: &Local, state: &State) -> Option<String> {
    let State { taken, vacant, away, .. } = state;
    let Some(seat) = state.own else {
        return (state.is_known && *vacant == 0).then(|| {
            format!("{} hosts have all seats: this one waits for a vacant one.", taken + away)
        });
    };
    let what = match (state.is_ready, *away) {
        (true, _) => "The pool is ready".to_owned(),
        (false, 0) => "The pool waits for more hosts".to_owned(),
        (false, 1) => "The pool waits for a host that does not answer".to_owned(),
        (false, away) => format!("The pool waits for {away} hosts that do not answer"),
    };
    Some(format!(
        "{} has seat {seat}. {what}: {} taken, {vacant} vacant.",
        local.location(),
        count(*taken, "seat")
    ))
}

fn is_end(signal: i32) -> bool {
    [Signal::INT, Signal::TERM, Signal::HUP].iter().any(|end| end.as_raw() == signal)
}

fn start(command: &[OsString]) -> Result<Child> {
    let started = Command::new(&command[0]).args(&command[1..]).spawn();
    started.map_err(|error| {
        Error::invalid(format!(
            "{} cannot be started: {error}",
            shown(&command[0].to_string_lossy())
        ))
    })
}

fn send(child: &Child, signal: i32) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some((pid, signal)) = pid.zip(Signal::from_named_raw(signal)) {
        let _ = kill_process(pid, signal);
    }
}

/// Gives the seat back. A second signal ends the wait for that.
fn leave(local: Local, signals: &mut Interrupts, reporter: &Arc<Reporter>) -> Result<String> {
    let leaving = local.leave(reporter.clone());
    let began = Instant::now();
    while !leaving.is_finished() {
        signals.wait(LOOK);
        let asked = signals.take();
        let is_end = |signal: &Interrupt| match signal {
            Interrupt::Stop(signal) | Interrupt::Forward(signal) => is_end(*signal),
        };
        // Schedulers send several signals at once.
        if asked.iter().any(is_end) && began.elapsed() > SECOND {
            return Err(Error::retry(
                "A second signal came before the seat was given back, so it and its data may still be there. \
                 Start this node again with the same --data.",
            ));
        }
    }
    leaving
        .join()
        .unwrap_or_else(|_| Err(Error::bug("the thread that gives the seat back panicked")))
}
