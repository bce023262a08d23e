//! The communicator of a group as functions that a program in C brings, for the C binding and for
//! VELOC's names. `outlive_mpi.h` makes such functions of an MPI communicator, so that no library
//! of outlive depends on MPI.
#![allow(unsafe_code)]
#![allow(non_camel_case_types)] // C's names

use outlive_types::{Coordinator, Error, Rank, Result};
use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr::{null, null_mut};

/// Longest message of one rank: a length that no rank of this build sends is reported as such.
const MESSAGE_BYTES_MAX: usize = 1 << 40;

/// Connects the ranks of a program. The functions are collective: every rank calls them, in the
/// same order. The library calls them only inside of its own functions, on the calling thread, and
/// never two of one group at once. They return 0, or another number after a failure.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct outlive_comm {
    /// Number of this rank, from 0 on.
    pub rank: c_int,
    /// Number of ranks.
    pub size: c_int,
    /// Collects `bytes` bytes of each rank into `all` of rank 0, in the order of the ranks.
    pub gather: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            mine: *const c_void,
            bytes: usize,
            all: *mut c_void,
        ) -> c_int,
    >,
    /// Collects messages of different lengths: `lengths` has those of all ranks on rank 0, and is
    /// NULL elsewhere.
    pub gatherv: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            mine: *const c_void,
            bytes: usize,
            all: *mut c_void,
            lengths: *const usize,
        ) -> c_int,
    >,
    /// Copies the buffer of rank 0 into the buffer of every rank.
    pub broadcast:
        Option<unsafe extern "C" fn(user: *mut c_void, buffer: *mut c_void, bytes: usize) -> c_int>,
    /// Called once when the job is closed, by the thread that closes it; may be NULL. Not called if
    /// the job is never closed.
    pub release: Option<unsafe extern "C" fn(user: *mut c_void)>,
    /// Argument of each function.
    pub user: *mut c_void,
}

/// A communicator that the engine can call.
#[derive(Clone, Copy)]
pub struct Functions {
    comm: outlive_comm,
    rank: Rank,
    size: u32,
}

// SAFETY: `new` requires that any thread that calls outlive may call the functions, one at a time;
// the engine keeps to that.
unsafe impl Send for Functions {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Functions {}

impl Functions {
    /// Takes a communicator of the program.
    ///
    /// # Errors
    /// `Invalid` for a missing function, or an impossible rank or size.
    ///
    /// # Safety
    /// The functions behave as [`outlive_comm`] describes while the result is used, and any thread
    /// that calls outlive may call them.
    pub unsafe fn new(comm: outlive_comm) -> Result<Functions> {
        let outlive_comm { rank, size, gather, gatherv, broadcast, .. } = comm;
        if gather.is_none() || gatherv.is_none() || broadcast.is_none() {
            return Err(Error::invalid(
                "the communicator lacks a function: give gather, gatherv and broadcast",
            ));
        }
        match (Rank::try_from(rank), u32::try_from(size)) {
            (Ok(rank), Ok(size)) if rank < size => Ok(Functions { comm, rank, size }),
            _ => Err(Error::invalid(format!(
                "rank {rank} of a group of {size}: ranks are counted from 0, and there is at least one"
            ))),
        }
    }

    fn check(what: &str, answer: c_int) -> Result<()> {
        match answer {
            0 => Ok(()),
            answer => Err(Error::retry(format!(
                "the communicator of the group has failed: {what} has returned {answer}"
            ))),
        }
    }

    fn bytes_of_length(length: u64) -> Result<Vec<u8>> {
        let length = usize::try_from(length).ok().filter(|length| *length <= MESSAGE_BYTES_MAX);
        let length = length.ok_or_else(|| {
            Error::bug("a rank has sent no length: let nothing else use the group's communicator")
        })?;
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(length)
            .map_err(|_| Error::no_memory("messages of the ranks", length))?;
        bytes.resize(length, 0);
        Ok(bytes)
    }
}

impl Coordinator for Functions {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (user, size) = (self.comm.user, self.size as usize);
        let (Some(gather), Some(gatherv)) = (self.comm.gather, self.comm.gatherv) else {
            return Err(Error::bug("a communicator without functions"));
        };
        let is_first = self.rank == 0;
        let mine = (bytes.len() as u64).to_ne_bytes();
        let mut lengths = vec![0u8; if is_first { 8 * size } else { 0 }];
        let into = if is_first { lengths.as_mut_ptr().cast() } else { null_mut() };
        // SAFETY: `mine` has 8 bytes, and on rank 0 `into` has room for those of all ranks.
        Functions::check("gather", unsafe { gather(user, mine.as_ptr().cast(), 8, into) })?;
        let (lengths, _) = lengths.as_chunks::<8>();
        let lengths: Vec<u64> = lengths.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect();
        let total = lengths.iter().try_fold(0u64, |all, length| all.checked_add(*length));
        let mut all = Functions::bytes_of_length(total.unwrap_or(u64::MAX))?;
        let lengths: Vec<usize> = lengths.iter().map(|length| *length as usize).collect();
        let of_all = if is_first { lengths.as_ptr() } else { null() };
        let into = if is_first { all.as_mut_ptr().cast() } else { null_mut() };
        let from = bytes.as_ptr().cast();
        // SAFETY: `from` has `bytes.len()` bytes; on rank 0 there is a length for each rank, and
        // `into` has room for all of them together.
        let answer = unsafe { gatherv(user, from, bytes.len(), into, of_all) };
        Functions::check("gatherv", answer)?;
        let mut rest = all.as_slice();
        let mut take = |length: &usize| {
            let (first, later) = rest.split_at(*length);
            rest = later;
            first.to_vec()
        };
        Ok(lengths.iter().map(&mut take).collect())
    }

    fn broadcast(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        let user = self.comm.user;
        let Some(broadcast) = self.comm.broadcast else {
            return Err(Error::bug("a communicator without functions"));
        };
        let mut length = (bytes.len() as u64).to_ne_bytes();
        // SAFETY: the buffer has 8 bytes.
        let answer = unsafe { broadcast(user, length.as_mut_ptr().cast(), 8) };
        Functions::check("broadcast", answer)?;
        let mut all = Functions::bytes_of_length(u64::from_ne_bytes(length))?;
        if self.rank == 0 {
            all.copy_from_slice(bytes);
        }
        // SAFETY: the buffer has as many bytes as rank 0 announced.
        let answer = unsafe { broadcast(user, all.as_mut_ptr().cast(), all.len()) };
        Functions::check("broadcast", answer).map(|()| all)
    }
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Functions").field("rank", &self.rank).field("size", &self.size).finish()
    }
}

impl Functions {
    /// Releases the communicator; call it once, after all other calls.
    pub fn release(self) {
        if let Some(release) = self.comm.release {
            // SAFETY: it is called once, with the argument that came with it.
            unsafe { release(self.comm.user) }
        }
    }
}
