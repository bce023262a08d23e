//! A frozen child: a copy of this process's memory that only sleeps, and is read.
//!
//! The kernel copies page tables, not pages; it copies a page when the program first writes it. So
//! the image is of one moment. That costs 20 to 28 ms per GiB of 4 KiB pages, or 0.6 ms per GiB of
//! huge ones. It also costs 2 to 5 µs for each page that the program writes while the child lives.
//! The child does not get memory that the image does not need, so that costs nothing.

mod apart;
mod mappings;
mod room;
mod sys;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use mappings::{Filled, KeptFrom, Mappings};
pub(crate) use room::available_bytes;

use crate::track::Refusal;
use apart::CloneGuard;
use outlive_io::AlignedBuf;
use outlive_types::{BLOCK_BYTES, Error, PAGE_BYTES, Result, SharedChild};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use std::fs::File;
use std::hint::black_box;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// All memory of this process as it was at one moment; but see [`Mappings::is_frozen`].
///
/// A holder thread has forked the child and waits beside it. The child dies with that thread
/// (`PR_SET_PDEATHSIG` refers to the thread that forked). The thread ends with this value, with the
/// process however it ends, or with its `exec`.
///
/// A shared child lives on without this process, for the holders of its lifeline. It leaves the
/// group of this process, and shares no descriptors, so it keeps none open.
#[derive(Debug)]
pub(crate) struct ForkImage {
    child: Arc<Child>,
    /// The child's `/proc/PID/mem`: bound to the memory and not to the number, so it never becomes
    /// another process's. A read of it borrows the page. (`process_vm_readv` pins the page. Since
    /// Linux 5.19 the kernel then gives the child a copy of its own: all pages read would exist
    /// twice.)
    memory: Arc<File>,
    /// A pipe of which the child holds the other end; `None` unless the child is shared.
    lifeline: Option<Arc<OwnedFd>>,
    /// Ends the holder when it is dropped.
    end: Option<Sender<()>>,
    holder: Option<JoinHandle<()>>,
    /// A process that the program forked from this one has neither holder nor child.
    process_id: u32,
}

#[derive(Debug)]
struct Child {
    pid: i32,
    pidfd: Arc<OwnedFd>,
}

/// Number of freezes without a fork after a child was lost. The cause (mostly a lack of memory) may
/// recur, and the save must not fail forever.
const PAUSE_FREEZES: u32 = 8;
/// Freezes left of that pause.
static PAUSE: AtomicU32 = AtomicU32::new(0);

const NOT_READABLE: &str = "the child may not be read: it needs the right to trace one's own child \
                            (ptrace_scope, a program that is not dumpable, seccomp)";

/// Stack of the holder, which does next to nothing.
const HOLDER_STACK_BYTES: usize = 64 << 10;
/// Distance from a frame within which its stack and the variables of a program's threads lie.
const AROUND_STACK_BYTES: usize = 8 << 20;

impl ForkImage {
    /// Forks. The child lacks `kept_from` where possible: whole blocks, disjoint. If `is_shared`,
    /// it ends with the last holder of its lifeline, and not with this process.
    ///
    /// # Errors
    /// A sentence that says why a fork is not possible here or now.
    pub fn take(
        kept_from: Vec<Range<usize>>,
        is_shared: bool,
    ) -> std::result::Result<ForkImage, Refusal> {
        let paused = |left: u32| left.checked_sub(1);
        if PAUSE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, paused).is_ok() {
            return refuse("an earlier child was killed, so none is forked for some saves");
        }
        // Proof that the child keeps the old content: it is changed after the fork.
        let mut proof = AlignedBuf::zeroed(PAGE_BYTES);
        black_box(&mut proof)[..8].copy_from_slice(b"as then\0");
        let proof_at = proof.as_ptr().addr();
        let kept_from = without_range(kept_from, proof_at..proof_at + PAGE_BYTES);
        let ends = is_shared.then(|| pipe_with(PipeFlags::CLOEXEC)).transpose();
        let ends = ends.map_err(|error| Refusal(format!("a pipe could not be made: {error}")))?;
        let (other_end, lifeline) = ends.unzip();
        let (tell, told) = sync_channel(1);
        let (end, ended) = channel();
        let holder = std::thread::Builder::new()
            .name("outlive-fork".to_owned())
            .stack_size(HOLDER_STACK_BYTES)
            .spawn(move || hold(kept_from, other_end, &tell, &ended))
            .map_err(|error| Refusal(format!("no thread could be started: {error}")))?;
        let forked = told.recv().unwrap_or(Err(Errno::NOTRECOVERABLE));
        let child = match forked {
            Ok(child) => child,
            Err(errno) => {
                let _ = holder.join();
                return refuse(match errno {
                    Errno::AGAIN => {
                        "the limit of processes is reached (RLIMIT_NPROC, or that of the cgroup)"
                    }
                    Errno::NOMEM => "the system has no memory for another process",
                    Errno::NOSYS | Errno::PERM => "the system forbids it (clone: seccomp, perhaps)",
                    Errno::INVAL => "the kernel is too old (clone with a pidfd: Linux 5.2)",
                    _ => "clone failed",
                });
            }
        };
        let path = format!("/proc/{}/mem", child.pid);
        let memory = match File::open(path) {
            Ok(memory) => Arc::new(memory),
            Err(error) => {
                drop(end);
                let _ = holder.join();
                return Err(Refusal(format!("{NOT_READABLE} (/proc/PID/mem: {error})")));
            }
        };
        let process_id = std::process::id();
        let lifeline = lifeline.map(Arc::new);
        let (end, holder) = (Some(end), Some(holder));
        let image = ForkImage { child, memory, lifeline, end, holder, process_id };
        black_box(&mut proof)[..8].copy_from_slice(b"changed\0");
        let mut seen = [0; 8];
        match image.copy(proof.as_ptr().addr(), &mut seen) {
            Ok(()) if &seen == b"as then\0" => Ok(image),
            Ok(()) => refuse("a forked process does not keep memory as it was, on this system"),
            Err(error) => Err(Refusal(format!("{NOT_READABLE} ({error})"))),
        }
    }

    /// Fills `into` with the memory at `address` as it was at the fork.
    ///
    /// # Errors
    /// `Retry` if the child is gone.
    pub fn read(&self, address: usize, into: &mut [u8]) -> Result<()> {
        self.copy(address, into).map_err(|error| self.lost(&error))
    }

    fn copy(&self, address: usize, into: &mut [u8]) -> std::io::Result<()> {
        self.memory.read_exact_at(into, address as u64)
    }

    /// Returns the child for other processes, if it is shared.
    pub fn shared(&self) -> Option<SharedChild> {
        let lifeline = self.lifeline.clone()?;
        let pidfd = self.child.pidfd.clone();
        Some(SharedChild { memory: self.memory.clone(), lifeline, pidfd })
    }

    fn lost(&self, error: &std::io::Error) -> Error {
        let pid = self.child.pid;
        let end = self.child.end();
        if end != End::None {
            PAUSE.store(PAUSE_FREEZES, Ordering::Relaxed);
        }
        let how = match end {
            End::Signal(libc::SIGKILL) => {
                "was killed (signal 9): by the kernel for want of memory, most likely".to_owned()
            }
            End::Signal(signal) => format!("was ended by signal {signal}"),
            End::Unknown => "has ended".to_owned(),
            End::None => format!("cannot be read any more ({error})"),
        };
        Error::retry(format!(
            "process {pid}, a fork of this one that held the image, {how}; nothing of this save counts, \
             the checkpoint before it stays. Save again; freeze = \"copy\" forks nothing"
        ))
    }

    /// Process id of the child.
    #[cfg(test)]
    pub fn pid(&self) -> i32 {
        self.child.pid
    }
}

/// Fills `into` with memory of this process at `address`. The kernel makes the copy, so other
/// threads may write or unmap the memory meanwhile.
///
/// # Errors
/// EFAULT if the memory is not mapped.
pub(crate) fn read_own(address: usize, into: &mut [u8]) -> std::result::Result<(), Errno> {
    let mut done = 0;
    while done < into.len() {
        match sys::read_own(address + done, &mut into[done..]) {
            Ok(read) => done += read,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// State of a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// The child lives.
    None,
    Signal(i32),
    /// Another thread has waited for it.
    Unknown,
}

/// Time after which a child that cannot be read counts as alive.
const END_WAIT: Duration = Duration::from_secs(2);

impl Child {
    /// Returns how the child ended. If it is about to end, waits for that.
    fn end(&self) -> End {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT | ALL;
        let started = Instant::now();
        loop {
            match waitid(WaitId::PidFd(self.pidfd.as_fd()), options) {
                Ok(Some(status)) => {
                    return status.terminating_signal().map_or(End::Unknown, End::Signal);
                }
                Err(Errno::CHILD) => return End::Unknown,
                _ if started.elapsed() > END_WAIT => return End::None,
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

/// `__WALL`: also children that end without a signal. rustix has no name for it.
const ALL: WaitIdOptions = WaitIdOptions::from_bits_retain(libc::__WALL as u32);

/// Returns the whole blocks of these ranges that do not touch `other`.
fn without_range(ranges: Vec<Range<usize>>, other: Range<usize>) -> Vec<Range<usize>> {
    let end = other.start / BLOCK_BYTES * BLOCK_BYTES;
    let start = other.end.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(usize::MAX);
    let parts =
        |range: Range<usize>| [range.start..range.end.min(end), range.start.max(start)..range.end];
    ranges.into_iter().flat_map(parts).filter(|part| part.start < part.end).collect()
}

/// Main function of the holder: forks, waits for the end of the image, kills the child and reaps
/// it.
fn hold(
    kept_from: Vec<Range<usize>>,
    lifeline: Option<OwnedFd>,
    tell: &SyncSender<std::result::Result<Arc<Child>, Errno>>,
    ended: &Receiver<()>,
) {
    sys::block_signals();
    // The child uses a copy of this thread's stack, which libc may have put into such memory. The
    // thread's own variables, to which the kernel writes, lie behind it.
    let here = (&raw const tell).addr();
    let stack = here.saturating_sub(AROUND_STACK_BYTES)..here.saturating_add(AROUND_STACK_BYTES);
    let kept_from = without_range(kept_from, stack);
    let turn = CloneGuard::wait();
    let cloned = match turn.hold_forks() {
        Some(_held) => sys::without(&kept_from, || sys::clone_sleeper(lifeline.as_ref())),
        None => sys::clone_sleeper(lifeline.as_ref()),
    };
    drop((turn, lifeline));
    let (pid, pidfd) = match cloned {
        Ok(cloned) => cloned,
        Err(errno) => {
            let _ = tell.send(Err(errno));
            return;
        }
    };
    let child = Arc::new(Child { pid, pidfd: Arc::new(pidfd) });
    if tell.send(Ok(Arc::clone(&child))).is_ok() {
        // If memory runs out, the kernel kills the child before the program. This has no effect
        // where it is not allowed.
        let _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), "1000");
        // No message ever arrives: this waits until the sender is dropped.
        let _ = ended.recv();
    }
    let _ = pidfd_send_signal(&child.pidfd, Signal::KILL);
    // An error means that another thread has reaped it already.
    let id = || WaitId::PidFd(child.pidfd.as_fd());
    while matches!(waitid(id(), WaitIdOptions::EXITED | ALL), Err(Errno::INTR)) {}
}

impl Drop for ForkImage {
    fn drop(&mut self) {
        self.end = None;
        if let Some(holder) = self.holder.take()
            && self.process_id == std::process::id()
        {
            let _ = holder.join();
        }
    }
}

fn refuse<T>(why: &str) -> std::result::Result<T, Refusal> {
    Err(Refusal(why.to_owned()))
}
