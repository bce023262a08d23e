//! The output gate: holds outputs of a program until the checkpoint that covers them is committed.
#![allow(unsafe_code)]

use crate::arguments::{Out, list, path, text};
use crate::call::{CallResult, Failure, call, invalid};
use crate::core::{Core, JOBS, outlive_job};
use crate::status::{OUTLIVE_OK, OUTLIVE_RETRY, outlive_status};
use outlive_gate::{Answer, FileMode, Gate, OutputKey, Sink};
use outlive_types::{Error, counted};
use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of outputs from which on a save is due, unless the program says otherwise.
const BYTES_MAX: u64 = 4 << 20;
/// Longest single wait.
const A_WHILE: Duration = Duration::from_secs(3600);

/// Releases an output: a function of the program, which one thread of outlive's calls at a time.
/// `key` is text that is the same at each attempt, and never that of another output. It returns
/// OUTLIVE_OK once the output is released, now or before; OUTLIVE_RETRY to be called again later;
/// any other status if that will never succeed. It must not call outlive for the same job.
pub type outlive_release = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        key: *const c_char,
        output: *const c_void,
        bytes: usize,
    ) -> outlive_status,
>;

/// Opens the output gate of a job (docs/gate.md). Each output that the program gives to it waits
/// until the checkpoint of a later outlive_save() is committed. The checkpoint contains the output,
/// so the next run releases it if this one is killed before. Call it before or after
/// outlive_restore(), in each run.
///
/// Once the outputs have more than `bytes_max` bytes, a save is due, and waits until there are
/// fewer; 0 means 4 MiB. A group of ranks has no such limit. outlive_job_close() closes the gate: it
/// waits up to 10 s for what is covered.
///
/// OUTLIVE_FENCED: another process has taken over the job.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_gate_open(job: *mut outlive_job, bytes_max: u64) -> outlive_status {
    call(|| {
        let core = JOBS.get(job)?;
        let _turn = core.turn()?;
        let bytes_max = if bytes_max == 0 { BYTES_MAX } else { bytes_max };
        core.client.open_gate(bytes_max)?;
        Ok(())
    })
}

/// The gate of a job, which must be open.
fn gate(core: &Core) -> Result<Gate, Failure> {
    core.client.gate().ok_or_else(|| invalid("the gate is closed: call outlive_gate_open() first"))
}

/// Appends bytes to a file once a checkpoint covers them. The file then has each byte once, in
/// order, even if the program is killed and started again. A restore of an older checkpoint cuts it
/// to the length that it had there. No other program must write the file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_gate_append(
    job: *mut outlive_job,
    file: *const c_char,
    output: *const c_void,
    bytes: usize,
) -> outlive_status {
    call(|| {
        let core = JOBS.get(job)?;
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        let file = unsafe { path(file, "the file")? };
        // SAFETY: the caller gives `bytes` bytes.
        let output = unsafe { list(output.cast::<u8>(), bytes, "the output")? };
        let gate = gate(&core)?;
        let name = gate.open_file(file, FileMode::Append)?;
        gate.write_file(&name, output)?;
        Ok(())
    })
}

/// Lets a finished file appear as `last` once a checkpoint covers it. `temporary` is on the same
/// file system. It is moved away at once, so the program may write it again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_gate_publish(
    job: *mut outlive_job,
    temporary: *const c_char,
    last: *const c_char,
) -> outlive_status {
    call(|| {
        let core = JOBS.get(job)?;
        // SAFETY: the caller gives NULL, or texts that end with a zero.
        let (temporary, last) =
            unsafe { (path(temporary, "the temporary file")?, path(last, "the last name")?) };
        gate(&core)?.publish(temporary, last)?;
        Ok(())
    })
}

/// Refuses the names of the gate's own sinks.
fn refuse_reserved(name: &str) -> CallResult {
    match name.contains(':') || name == "publish" {
        true => Err(invalid(format!("the sink {name:?} is the gate's own: choose another name"))),
        false => Ok(()),
    }
}

/// Opens a sink of the program's own. `name` must be the same in each run: outputs of an earlier run
/// wait for it. `release` gets each output of outlive_gate_give() after its checkpoint is committed,
/// in order, and `context` with it. Both must stay until outlive_job_close() returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_gate_sink(
    job: *mut outlive_job,
    name: *const c_char,
    release: outlive_release,
    context: *mut c_void,
) -> outlive_status {
    call(|| {
        let core = JOBS.get(job)?;
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        let name = unsafe { text(name, "the sink's name")? };
        let Some(release) = release else {
            return Err(invalid("the function that releases outputs is NULL"));
        };
        if name.starts_with("file:") || name == "publish" {
            return Err(invalid(format!(
                "the sink {name:?} is the gate's own: choose another name"
            )));
        }
        gate(&core)?.open_sink(
            name,
            Arc::new(CallSink { release, context: context.expose_provenance() }),
        )?;
        Ok(())
    })
}

/// Gives an output to a sink that outlive_gate_sink() has opened. outlive copies the bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_gate_give(
    job: *mut outlive_job,
    name: *const c_char,
    output: *const c_void,
    bytes: usize,
) -> outlive_status {
    call(|| {
        let core = JOBS.get(job)?;
        // SAFETY: the caller gives NULL, or a text that ends with a zero.
        let name = unsafe { text(name, "the sink's name")? };
        // SAFETY: the caller gives `bytes` bytes.
        let output = unsafe { list(output.cast::<u8>(), bytes, "the output")? };
        refuse_reserved(name)?;
        gate(&core)?.give(name, output.to_vec())?;
        Ok(())
    })
}

/// Waits until every output is released, at most `timeout_s` seconds; INFINITY waits without limit.
/// Save before, so that a checkpoint covers them.
///
/// OUTLIVE_INVALID: no save covers some outputs. OUTLIVE_RETRY: some are not released; the text says
/// why. They stay in the checkpoint, and the next run releases them.
#[unsafe(no_mangle)]
pub extern "C" fn outlive_gate_flush(job: *mut outlive_job, timeout_s: f64) -> outlive_status {
    call(|| {
        let core = JOBS.get(job)?;
        if timeout_s.is_nan() {
            return Err(invalid("timeout_s is not a number: give seconds, from 0"));
        }
        let gate = gate(&core)?;
        let uncovered = gate.report().uncovered;
        if uncovered > 0 {
            return Err(invalid(format!(
                "no save covers {}: save first",
                counted(uncovered as u64, "output")
            )));
        }
        // A time beyond the range of a duration means forever.
        let limit = Duration::try_from_secs_f64(timeout_s.max(0.0)).ok();
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let left = || deadline.map(|it| it.saturating_duration_since(Instant::now()));
        while !gate.wait(left().unwrap_or(A_WHILE)) && left().is_none_or(|left| !left.is_zero()) {}
        let report = gate.report();
        if report.outputs == 0 {
            return Ok(());
        }
        let mut why = String::new();
        for sink in report.sinks.iter().filter(|sink| sink.outputs > 0) {
            let trouble = match (&sink.trouble, sink.is_open) {
                (Some(trouble), _) => trouble,
                (None, true) => "it waits",
                (None, false) => "the program has not opened it",
            };
            why += &format!("; {} to {} ({trouble})", sink.outputs, sink.name);
        }
        Err(Failure::Error(Error::retry(format!("outputs are not released{why}"))))
    })
}

/// Sets `*outputs` to the number of outputs that are not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlive_gate_held(
    job: *mut outlive_job,
    outputs: *mut u64,
) -> outlive_status {
    call(|| -> CallResult {
        // SAFETY: the caller gives NULL, or a writable address.
        let out = unsafe { Out::new(outputs, "the number")? };
        out.set(0);
        out.set(gate(&*JOBS.get(job)?)?.report().outputs as u64);
        Ok(())
    })
}

/// A function of the program, with its context.
struct CallSink {
    release:
        unsafe extern "C" fn(*mut c_void, *const c_char, *const c_void, usize) -> outlive_status,
    /// An address that only the program uses.
    context: usize,
}

impl Sink for CallSink {
    fn release(&self, key: &OutputKey, token: &[u8]) -> Answer {
        let Ok(key) = CString::new(key.to_string()) else {
            return Answer::Failed("the key has a zero".to_owned());
        };
        let context = std::ptr::with_exposed_provenance_mut(self.context);
        // SAFETY: the program gave the function and the context, and keeps both until the job is
        // closed, which ends this thread first. Key and output are there during the call.
        let status =
            unsafe { (self.release)(context, key.as_ptr(), token.as_ptr().cast(), token.len()) };
        match status {
            OUTLIVE_OK => Answer::Released,
            OUTLIVE_RETRY => Answer::Later("its function says OUTLIVE_RETRY".to_owned()),
            other => Answer::Failed(format!("its function has returned status {other:?}")),
        }
    }
}
