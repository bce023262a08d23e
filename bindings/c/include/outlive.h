// outlive saves the state of a running program, and restores it after a crash. docs/c.md is the
// manual.
//
// Any thread may call every function. It returns OUTLIVE_OK (0), or the kind of error after which
// it did nothing; outlive_error_message() returns the text. Errors never end the program. Texts are
// UTF-8 and end with a zero; outlive copies them. Handles are checked: one that is NULL, closed, or
// of a process that this one was forked from, gives OUTLIVE_INVALID. No signal handler may call a
// function.
//
// This file is generated from bindings/c/src.


#ifndef OUTLIVE_H
#define OUTLIVE_H

#include <stddef.h>
#include <stdint.h>
// Types of elements, for outlive_protect(): NumPy's notation, in the machine's byte order.
#define OUTLIVE_BOOL "b1"
#define OUTLIVE_INT8 "i1"
#define OUTLIVE_INT16 "i2"
#define OUTLIVE_INT32 "i4"
#define OUTLIVE_INT64 "i8"
#define OUTLIVE_UINT8 "u1"
#define OUTLIVE_UINT16 "u2"
#define OUTLIVE_UINT32 "u4"
#define OUTLIVE_UINT64 "u8"
#define OUTLIVE_FLOAT16 "f2"
#define OUTLIVE_BFLOAT16 "ext:bfloat16"
#define OUTLIVE_FLOAT32 "f4"
#define OUTLIVE_FLOAT64 "f8"
#define OUTLIVE_LONG_DOUBLE "f16"
#define OUTLIVE_COMPLEX64 "c8"
#define OUTLIVE_COMPLEX128 "c16"


// A normal step.
#define OUTLIVE_LOG_INFO 1

// A warning for a person, such as a damaged checkpoint that a restore skipped.
#define OUTLIVE_LOG_WARNING 2

// The next save, wait or close returns the failure of a save. This is the default.
#define OUTLIVE_RAISE 0

// The program goes on after a failed save; see outlive_job_on_failure().
#define OUTLIVE_WARN 1

// Save if it is due; see outlive_job_open().
#define OUTLIVE_DUE 0

// Save now, whether it is due or not.
#define OUTLIVE_FORCE 1

// Return only when the checkpoint is committed, or has failed.
#define OUTLIVE_WAIT 2

// The region belongs to its rank alone.
#define OUTLIVE_LOCAL 0

// The region is a part of a global array: see outlive_protect_sharded().
#define OUTLIVE_SHARDED 1

// Every rank has the same bytes: see outlive_protect_replicated().
#define OUTLIVE_REPLICATED 2

// The region is a part of a global array in blocks: see outlive_protect_cyclic() and
// outlive_checkpoint_blocks().
#define OUTLIVE_CYCLIC 3

// A checkpoint that a program inspects.
typedef struct outlive_checkpoint outlive_checkpoint;

// A subscription to the events of a job: the fate of each checkpoint, in the order of the saves.
typedef struct outlive_events outlive_events;

// An open job: a named series of checkpoints, and the memory that the program protects.
typedef struct outlive_job outlive_job;

// An open pool.
typedef struct outlive_pool outlive_pool;

// A save that is under way or over.
typedef struct outlive_saving outlive_saving;

// Result of a call: OUTLIVE_OK, or a kind of error, which names what the caller can do.
// outlive_error_message() returns its text.
typedef int outlive_status;

// Takes a notice: its level, its text, and the `user` that was given to outlive_set_log().
typedef void (*outlive_log)(int level, const char *text, void *user);

// Figures of the saves of a job, in this process.
typedef struct outlive_health {
    // Saves that have failed since the last commit.
    uint64_t failed_in_a_row;
    // All saves that have failed.
    uint64_t failed;
    // Saves that were committed.
    uint64_t committed;
    // Seconds since the last commit; below 0 if nothing was committed.
    double since_commit_s;
    // The status of the save that failed last, or OUTLIVE_OK.
    outlive_status last_failure;
} outlive_health;

// Connects the ranks of a program. The functions are collective: every rank calls them, in the
// same order. The library calls them only inside of its own functions, on the calling thread, and
// never two of one group at once. They return 0, or another number after a failure.
typedef struct outlive_comm {
    // Number of this rank, from 0 on.
    int rank;
    // Number of ranks.
    int size;
    // Collects `bytes` bytes of each rank into `all` of rank 0, in the order of the ranks.
    int (*gather)(void *user, const void *mine, size_t bytes, void *all);
    // Collects messages of different lengths: `lengths` has those of all ranks on rank 0, and is
    // NULL elsewhere.
    int (*gatherv)(void *user, const void *mine, size_t bytes, void *all, const size_t *lengths);
    // Copies the buffer of rank 0 into the buffer of every rank.
    int (*broadcast)(void *user, void *buffer, size_t bytes);
    // Called once when the job is closed, by the thread that closes it; may be NULL. Not called if
    // the job is never closed.
    void (*release)(void *user);
    // Argument of each function.
    void *user;
} outlive_comm;

// Figures of a committed save. Bytes are exact.
typedef struct outlive_figures {
    // The epoch of the checkpoint.
    uint64_t epoch;
    // All bytes of its regions.
    uint64_t state_bytes;
    // Bytes of the pages that have changed since the last save.
    uint64_t changed_bytes;
    // Bytes of zero pages among them, which take no space.
    uint64_t zero_bytes;
    // Bytes that the pool had already.
    uint64_t known_bytes;
    // Bytes of the new chunks before compression.
    uint64_t raw_bytes;
    // All bytes written.
    uint64_t new_bytes;
    // Seconds for which the program stood still.
    double stall_s;
    // Seconds from the call to the commit.
    double total_s;
} outlive_figures;

// The fate of one checkpoint.
typedef struct outlive_event {
    // The epoch of the checkpoint. If the save failed, the next checkpoint may get the same epoch.
    uint64_t epoch;
    // OUTLIVE_OK: the checkpoint is committed, and survives a crash. Otherwise the save failed for
    // a reason of this kind, and the checkpoint is not known to exist.
    outlive_status status;
} outlive_event;

// Releases an output: a function of the program, which one thread of outlive's calls at a time.
// `key` is text that is the same at each attempt, and never that of another output. It returns
// OUTLIVE_OK once the output is released, now or before; OUTLIVE_RETRY to be called again later;
// any other status if that will never succeed. It must not call outlive for the same job.
typedef outlive_status (*outlive_release)(void *context,
                                          const char *key,
                                          const void *output,
                                          size_t bytes);

// A region of a checkpoint. The texts and lists belong to the checkpoint's handle, and stay valid
// until it is closed.
typedef struct outlive_region_info {
    // Its name.
    const char *name;
    // Type of its elements, with the byte order, such as "<f8".
    const char *dtype;
    // Number of dimensions.
    size_t ndim;
    // Its extents, the slowest first.
    const size_t *shape;
    // Its length in bytes.
    size_t bytes;
    // OUTLIVE_LOCAL, OUTLIVE_SHARDED, OUTLIVE_REPLICATED or OUTLIVE_CYCLIC.
    int distribution;
    // Extents of the global array that it is a part of; NULL if it is no part of one.
    const size_t *global_shape;
    // Its offset in the global array; NULL if it is no part of one.
    const size_t *offset;
} outlive_region_info;

// Done.
#define OUTLIVE_OK 0

// A temporary failure: the same call may succeed later.
#define OUTLIVE_RETRY 1

// The request is not possible: correct it.
#define OUTLIVE_INVALID 2

// Stored bytes are missing or wrong: take an older checkpoint, or repair the pool.
#define OUTLIVE_DAMAGED 3

// No room: free some. Nothing that was committed is lost.
#define OUTLIVE_FULL 4

// Another process has taken over this job: stop saving, or restore again.
#define OUTLIVE_FENCED 5

// outlive contradicts itself: please report it.
#define OUTLIVE_BUG 6

// The requested thing does not exist: no checkpoint yet, or no region of that name.
#define OUTLIVE_NOTHING 7

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the name of a status, such as "OUTLIVE_FENCED". Never NULL.
const char *outlive_status_name(outlive_status status);

// Returns the version of the library, such as "0.1.0".
const char *outlive_version(void);

// Returns the text of the calling thread's last error, or of the failed save in the last event
// that it took; empty if there was none. It stays valid until the next error or failed save of
// this thread. Never NULL.
const char *outlive_error_message(void);

// For bindings on top of this one, such as the Fortran module: makes `text` the calling thread's
// last error, and returns OUTLIVE_INVALID.
outlive_status outlive_refuse(const char *text);

// Sends all notices of all pools to `log`. NULL, as at the start, sends warnings to standard error
// and drops the others.
//
// Any thread may call `log`, also threads of outlive, but never two at once. It must return soon,
// must not wait for another thread, and must not call outlive: such calls return OUTLIVE_INVALID.
// Once this function has returned, the previous callback is not called any more. When the program
// ends, notices go to standard error.
outlive_status outlive_set_log(outlive_log log, void *user);

// Opens a pool: a directory, its pool.toml, or s3://BUCKET/PREFIX. Creates a pool that does not
// exist.
//
// `*pool` is the pool, or NULL after an error. Close it with outlive_close().
outlive_status outlive_open(const char *location, struct outlive_pool **pool);

// Opens an existing pool; otherwise as outlive_open().
outlive_status outlive_open_existing(const char *location, struct outlive_pool **pool);

// Closes a pool. Its jobs stay open. NULL is allowed.
outlive_status outlive_close(struct outlive_pool *pool);

// Opens a job of a pool. Reads and writes nothing yet. All handles of a job in one process are one
// writer: they share its session.
//
// `every_s`: a save is due once this many seconds have passed since the last one began; 0: always.
// `*job` is the job, or NULL after an error. Close it with outlive_job_close().
outlive_status outlive_job_open(struct outlive_pool *pool,
                                const char *name,
                                double every_s,
                                struct outlive_job **job);

// Waits until the last save is committed, and the slow tier of the pool has the copies that
// pool.toml asks for; then closes the job. The handle is invalid afterwards, whatever this
// returns. Handles of its saves stay valid. NULL is allowed. In a group every rank calls it, after
// the same saves.
//
// Returns the failure of the last save if no call has returned it yet. After OUTLIVE_WARN that is
// only a warning, unless nothing was committed for `fail_after_s` seconds, or nothing at all.
// OUTLIVE_INVALID: another rank saves or restores instead; the text names it.
outlive_status outlive_job_close(struct outlive_job *job);

// Closes the job for a rank that ends early, as after an error of the program: it waits for no
// other rank. Other ranks of outlive_job_open_ranks() see it at once; others when their
// communicator notices.
outlive_status outlive_job_leave(struct outlive_job *job);

// Sets the policy for saves that fail. OUTLIVE_RAISE: the next save, outlive_due(),
// outlive_restore() or outlive_job_close() returns the failure. OUTLIVE_WARN: the program goes on
// with a warning, and the next save stores the data that the failed one could not store. Only
// after `fail_after_s` seconds without a commit a call returns a failure. They count from the last
// commit, or from this call. The policy covers only failures of storage: OUTLIVE_FENCED,
// OUTLIVE_BUG and mistakes of the program are returned in any case. outlive_wait() returns the
// failure of its save in any case.
//
// `fail_after_s` is longer than the job's `every_s`; OUTLIVE_RAISE ignores it. The last call
// counts for all handles of the job in this process. Every rank of a group gives the same policy;
// the time of rank 0 counts.
outlive_status outlive_job_on_failure(struct outlive_job *job, int on_failure, double fail_after_s);

// Sets the interval between saves, in place of the job's `every_s`. "auto": outlive learns it from
// the costs of saves and from the failures of the job. "continuous": the next save is due as soon
// as the last one is durable, while saves take at most `slowdown_max` of the time (0: the default,
// 0.03). A time such as "30s" or "10m": as `every_s`. `outlive run --every` overrides it.
//
// Call it before the first save: it forgets the costs that outlive has learned. Every rank of a group gives the same interval.
outlive_status outlive_job_every(struct outlive_job *job,
                                 const char *every,
                                 double slowdown_max);

// Returns figures of the saves of a job, in this process. Never waits.
outlive_status outlive_job_health(struct outlive_job *job, struct outlive_health *health);

// Waits until no save of the job is under way.
//
// Returns the failure of the last save if no call has returned it yet.
outlive_status outlive_job_wait(struct outlive_job *job);

// Lets the next save continue from this program's state, although another program has saved the
// job since this one restored. Without this call, that save returns OUTLIVE_FENCED. The other
// program's checkpoints stay, as older epochs, and its next save returns OUTLIVE_FENCED.
outlive_status outlive_job_take_over(struct outlive_job *job);

// Lets SIGTERM, SIGUSR1 and SIGUSR2 ask this process to save and to end. A handler only sets a
// flag: see outlive_should_stop(). A SIGTERM that comes a second or more after the first one ends
// the process. Handlers that were there before are called, too.
//
// `grace_s` is the number of seconds between the signal and the end, as the scheduler gives them.
// If the last save took longer, a warning says so when the signal comes.
outlive_status outlive_on_preempt(double grace_s);

// Sets `*stops` to 1 if the program is to save once more and to end, else to 0. It is to do so
// after a signal (see outlive_on_preempt()), or at a request of the commands `outlive run` and
// `outlive stop`. The next outlive_save() is then made whether it is due or not, and returns when
// its checkpoint is committed. Collective in a group: all ranks get 1 as soon as one of them was
// asked.
outlive_status outlive_should_stop(struct outlive_job *job, int *stops);

// Sets `*due` to 1 if a save is due, else to 0.
//
// Returns the failure of an earlier save if no call has returned it yet.
outlive_status outlive_due(struct outlive_job *job, int *due);

// Opens a job of a group of ranks: every rank opens it, and saves and restores become collective.
// One checkpoint then holds the protected regions of all ranks. With MPI, use
// outlive_job_open_mpi() of outlive_mpi.h.
//
// `every_s`: as for outlive_job_open(); the clock of rank 0 decides. `comm` is copied.
// `patience_s`: seconds without a message of a rank after which a save fails, at least 1; 0 for
// 120. `schedule`: when ranks write: NULL or "coordinated", "staggered", "striped(WIDTH)",
// "adaptive" (docs/groups.md). `*job` is the job, or NULL after an error; then `release` was not
// called.
outlive_status outlive_job_open_group(struct outlive_pool *pool,
                                      const char *name,
                                      double every_s,
                                      const struct outlive_comm *comm,
                                      double patience_s,
                                      const char *schedule,
                                      struct outlive_job **job);

// Opens a job of a group of processes that share only the pool; otherwise as
// outlive_job_open_group(). Their calls go through the pool's log, so a call of all ranks takes
// some milliseconds. A rank that does not come to one within `patience_s` is given up.
//
// `rank`: this process, from 0 on. `size`: number of processes. `run`: a text that is the same for
// all of them and new for every start of the program. The id of its batch job and the number of
// its restarts make one. A job that a run opens twice needs two.
outlive_status outlive_job_open_ranks(struct outlive_pool *pool,
                                      const char *name,
                                      double every_s,
                                      int rank,
                                      int size,
                                      const char *run,
                                      double patience_s,
                                      const char *schedule,
                                      struct outlive_job **job);

// Protects an array: from now on outlive_save() saves it, and outlive_restore() fills it.
//
// `name` is the region's name in the checkpoint. A region of that name that is protected already
// is replaced. `dtype` is the type of an element, such as OUTLIVE_FLOAT64 or "V24". `shape` has
// `ndim` extents, the slowest first, as in C; a scalar has none. The array is contiguous. Nothing
// is read yet. The memory must stay until it is unprotected, or the job is closed; outlive_save()
// and outlive_restore() describe when it is used. It may be NULL if it has no bytes.
outlive_status outlive_protect(struct outlive_job *job,
                               const char *name,
                               void *memory,
                               const char *dtype,
                               size_t ndim,
                               const size_t *shape);

// Protects `bytes` bytes, as an array of OUTLIVE_UINT8; otherwise as outlive_protect().
outlive_status outlive_protect_bytes(struct outlive_job *job,
                                     const char *name,
                                     void *memory,
                                     size_t bytes);

// Protects a part of a global array, of which other ranks have other parts; otherwise as
// outlive_protect(). The part of shape `shape` begins at `offset` of the array of shape
// `global_shape`, each with `ndim` extents, at least one.
outlive_status outlive_protect_sharded(struct outlive_job *job,
                                       const char *name,
                                       void *memory,
                                       const char *dtype,
                                       size_t ndim,
                                       const size_t *shape,
                                       const size_t *global_shape,
                                       const size_t *offset);

// Protects a part of a global array that is dealt out to the ranks in blocks, along each dimension
// separately, as ScaLAPACK and MPI_Type_create_darray() do; otherwise as
// outlive_protect_sharded().
//
// Along each dimension, a block has `block` elements, and the next block begins `stride` elements
// of the global array after it began. So element l of the part is element `offset + l / block *
// stride + l % block` of the array. The last block may have fewer elements. In a grid of `p` ranks
// along a dimension, number `r` has `offset` = r * block and `stride` = p * block. A dimension
// that is not dealt out has `offset` 0, and its extent as `block` and `stride`, or 1 if that is 0.
outlive_status outlive_protect_cyclic(struct outlive_job *job,
                                      const char *name,
                                      void *memory,
                                      const char *dtype,
                                      size_t ndim,
                                      const size_t *shape,
                                      const size_t *global_shape,
                                      const size_t *offset,
                                      const size_t *block,
                                      const size_t *stride);

// Protects an array of which every rank holds the same bytes; otherwise as outlive_protect().
outlive_status outlive_protect_replicated(struct outlive_job *job,
                                          const char *name,
                                          void *memory,
                                          const char *dtype,
                                          size_t ndim,
                                          const size_t *shape);

// Ends the protection of a region; then its memory may go. Saved data of it stays.
//
// Returns OUTLIVE_NOTHING if no region of that name is protected.
outlive_status outlive_unprotect(struct outlive_job *job, const char *name);

// Ends the protection of all regions; then all memory may go.
outlive_status outlive_clear(struct outlive_job *job);

// Saves all protected regions, if a save is due. Returns when the program may change its memory
// again. A background thread writes the data that changed since the last save. If another save of
// the job is under way, this first waits for it.
//
// Until it returns, no thread may change the protected memory.
//
// `flags`: OUTLIVE_DUE, or OUTLIVE_FORCE and OUTLIVE_WAIT, joined by |. `*saving` is the handle of
// the save, or NULL if nothing was saved; free it with outlive_save_free(). `saving` may be NULL.
//
// Returns the failure of an earlier save if no call has returned it yet; then no save has begun.
// OUTLIVE_FENCED: see outlive_job_take_over().
outlive_status outlive_save(struct outlive_job *job,
                            unsigned int flags,
                            struct outlive_saving **saving);

// Saves the protected regions with these `count` names, and no others; otherwise as
// outlive_save(). The checkpoint has only these.
outlive_status outlive_save_some(struct outlive_job *job,
                                 const char *const *names,
                                 size_t count,
                                 unsigned int flags,
                                 struct outlive_saving **saving);

// Waits until a save is committed. Returns its failure if it fails, also at later calls. NULL is a
// save that was not due.
outlive_status outlive_wait(struct outlive_saving *saving);

// Waits for a save for at most `timeout_s` seconds. `*done` is 1 if the save is over, else 0.
outlive_status outlive_wait_for(struct outlive_saving *saving, double timeout_s, int *done);

// Sets `*done` to 1 if a save is over, else to 0. Never waits. Returns the failure of a save that
// has failed. NULL is a save that was not due.
outlive_status outlive_test(struct outlive_saving *saving, int *done);

// Returns the epoch that a save's checkpoint has once it is committed.
outlive_status outlive_save_epoch(struct outlive_saving *saving, uint64_t *epoch);

// Waits until a save is committed, and returns its figures.
outlive_status outlive_save_figures(struct outlive_saving *saving, struct outlive_figures *figures);

// Frees the handle of a save. A save under way goes on; if it fails, the job's next save or its
// close returns the failure. NULL is allowed.
outlive_status outlive_save_free(struct outlive_saving *saving);

// Subscribes to the events of a job from now on. `*events` is the subscription, or NULL after an
// error; close it with outlive_events_close().
//
// Each checkpoint that this process saves gives one event, whichever handle of the job saves it. A
// handle without a group gets no events of a group's.
// Every subscription gets every event once, in the order of the saves. In a group, each rank
// subscribes for itself. A save that fails at once gives no event if the call returns its error.
// After OUTLIVE_FENCED, subscribe again with the handle that goes on.
//
// A subscription keeps every event until outlive_events_next() takes it: about 100 bytes, plus
// the texts of the job's name and an error. So take the events, or close the subscription.
outlive_status outlive_events_open(struct outlive_job *job, struct outlive_events **events);

// Takes the next event, and waits for it for at most `timeout_s` seconds; INFINITY waits without
// limit. If the event has another status than OUTLIVE_OK, outlive_error_message() returns the
// reason. Several threads may call this for one subscription: each event goes to one of them.
//
// Returns OUTLIVE_RETRY if no event came in time. Returns OUTLIVE_NOTHING if none will come: the
// job is closed and all its events are taken, or another thread closed the subscription during the
// wait. A call after that returns OUTLIVE_INVALID.
outlive_status outlive_events_next(struct outlive_events *events,
                                   double timeout_s,
                                   struct outlive_event *event);

// Ends a subscription, and drops the events that were not taken. Calls of outlive_events_next()
// that wait in other threads return OUTLIVE_NOTHING. The job stays open. NULL is allowed.
outlive_status outlive_events_close(struct outlive_events *events);

// Opens the output gate of a job (docs/gate.md). Each output that the program gives to it waits
// until the checkpoint of a later outlive_save() is committed. The checkpoint contains the output,
// so the next run releases it if this one is killed before. Call it before or after
// outlive_restore(), in each run.
//
// Once the outputs have more than `bytes_max` bytes, a save is due, and waits until there are
// fewer; 0 means 4 MiB. A group of ranks has no such limit. outlive_job_close() closes the gate: it
// waits up to 10 s for what is covered.
//
// OUTLIVE_FENCED: another process has taken over the job.
outlive_status outlive_gate_open(struct outlive_job *job, uint64_t bytes_max);

// Appends bytes to a file once a checkpoint covers them. The file then has each byte once, in
// order, even if the program is killed and started again. A restore of an older checkpoint cuts it
// to the length that it had there. No other program must write the file.
outlive_status outlive_gate_append(struct outlive_job *job,
                                   const char *file,
                                   const void *output,
                                   size_t bytes);

// Lets a finished file appear as `last` once a checkpoint covers it. `temporary` is on the same
// file system. It is moved away at once, so the program may write it again.
outlive_status outlive_gate_publish(struct outlive_job *job,
                                    const char *temporary,
                                    const char *last);

// Opens a sink of the program's own. `name` must be the same in each run: outputs of an earlier run
// wait for it. `release` gets each output of outlive_gate_give() after its checkpoint is committed,
// in order, and `context` with it. Both must stay until outlive_job_close() returns.
outlive_status outlive_gate_sink(struct outlive_job *job,
                                 const char *name,
                                 outlive_release release,
                                 void *context);

// Gives an output to a sink that outlive_gate_sink() has opened. outlive copies the bytes.
outlive_status outlive_gate_give(struct outlive_job *job,
                                 const char *name,
                                 const void *output,
                                 size_t bytes);

// Waits until every output is released, at most `timeout_s` seconds; INFINITY waits without limit.
// Save before, so that a checkpoint covers them.
//
// OUTLIVE_INVALID: no save covers some outputs. OUTLIVE_RETRY: some are not released; the text says
// why. They stay in the checkpoint, and the next run releases them.
outlive_status outlive_gate_flush(struct outlive_job *job, double timeout_s);

// Sets `*outputs` to the number of outputs that are not released.
outlive_status outlive_gate_held(struct outlive_job *job, uint64_t *outputs);

// Begins a checkpoint of regions that outlive_region() names one by one; the protected regions do
// not matter. outlive_end() saves it. `label` is a label for it, or NULL; see
// outlive_next_label().
//
// A job has at most one such checkpoint at a time.
outlive_status outlive_begin(struct outlive_job *job, const char *label);

// Adds an array to the checkpoint that outlive_begin() began. The arguments are those of
// outlive_protect(). outlive reads the memory until outlive_end() returns, and it must stay until
// then.
outlive_status outlive_region(struct outlive_job *job,
                              const char *name,
                              const void *memory,
                              const char *dtype,
                              size_t ndim,
                              const size_t *shape);

// Adds `bytes` bytes, as an array of OUTLIVE_UINT8; otherwise as outlive_region().
outlive_status outlive_region_bytes(struct outlive_job *job,
                                    const char *name,
                                    const void *memory,
                                    size_t bytes);

// Saves the checkpoint that outlive_begin() began, as outlive_save() does, and closes it even
// after an error. Until this returns, no thread may change the memory of its regions.
outlive_status outlive_end(struct outlive_job *job,
                           unsigned int flags,
                           struct outlive_saving **saving);

// Drops the checkpoint that outlive_begin() began, and the notes for it. Does nothing without one.
outlive_status outlive_cancel(struct outlive_job *job);

// Gives the next checkpoint of the job a label. The next save is due then, and no prune drops the
// checkpoint.
outlive_status outlive_next_label(struct outlive_job *job, const char *label);

// Pins the next checkpoint of the job. This does the same as a label, without one.
outlive_status outlive_next_pin(struct outlive_job *job);

// Gives the next checkpoint of the job a tag, beside those of earlier calls. It does not make a
// save due.
outlive_status outlive_next_tag(struct outlive_job *job, const char *tag);

// Adds a tag to a checkpoint (`add` 1), or removes it (`add` 0). First waits for a save under way.
outlive_status outlive_tag(struct outlive_job *job, uint64_t epoch, const char *tag, int add);

// Stores a number with the next checkpoint of the job, such as "loss", for prunes that keep the
// best. It does not make a save due.
outlive_status outlive_next_metric(struct outlive_job *job, const char *name, double value);

// Changes the remarks of a checkpoint. `label`: its new label; "" removes it, NULL keeps it.
// `pin`: 1 pins it, 0 unpins it, -1 changes nothing. First waits for a save under way.
outlive_status outlive_note(struct outlive_job *job, uint64_t epoch, const char *label, int pin);

// Sets `*epoch` to the epoch of the newest checkpoint, which a restore would try first.
//
// Returns OUTLIVE_NOTHING if the job has none.
outlive_status outlive_newest(struct outlive_job *job, uint64_t *epoch);

// Lists the epochs of the committed checkpoints of memory, oldest first. `*count` is their number.
// If there are more than `capacity`, only the newest `capacity` are written to `epochs`, which may
// be NULL if `capacity` is 0.
outlive_status outlive_epochs(struct outlive_job *job,
                              uint64_t *epochs,
                              size_t capacity,
                              size_t *count);

// Opens a checkpoint for inspection: the newest that can be opened (`epoch` 0), or this one. It
// reads only the catalog; of several ranks, that of this rank's number. `*checkpoint` is the
// handle; close it with outlive_checkpoint_close().
//
// Returns OUTLIVE_NOTHING if the job has no checkpoint.
outlive_status outlive_checkpoint_open(struct outlive_job *job,
                                       uint64_t epoch,
                                       struct outlive_checkpoint **checkpoint);

// Closes the handle of a checkpoint; texts and lists from it are invalid then. NULL is allowed.
outlive_status outlive_checkpoint_close(struct outlive_checkpoint *checkpoint);

// Returns a checkpoint's epoch, the number of its regions, and its label. Each address may be
// NULL.
outlive_status outlive_checkpoint_about(struct outlive_checkpoint *checkpoint,
                                        uint64_t *epoch,
                                        size_t *regions,
                                        const char **label);

// Describes region number `index` of a checkpoint, from 0, in the order in which they were saved.
//
// Returns OUTLIVE_NOTHING if it has no such region.
outlive_status outlive_checkpoint_region(struct outlive_checkpoint *checkpoint,
                                         size_t index,
                                         struct outlive_region_info *info);

// Describes the region of that name.
//
// Returns OUTLIVE_NOTHING if the checkpoint has none.
outlive_status outlive_checkpoint_find(struct outlive_checkpoint *checkpoint,
                                       const char *name,
                                       struct outlive_region_info *info);

// Returns the block and the stride, along each dimension, of a region whose distribution is
// OUTLIVE_CYCLIC: see outlive_protect_cyclic(). The lists belong to the checkpoint's handle, and
// stay valid until it is closed.
//
// Returns OUTLIVE_NOTHING if the checkpoint has no region of that name, or if it is not in blocks.
outlive_status outlive_checkpoint_blocks(struct outlive_checkpoint *checkpoint,
                                         const char *name,
                                         const size_t **block,
                                         const size_t **stride);

// Returns a metric of a checkpoint: see outlive_next_metric().
//
// Returns OUTLIVE_NOTHING if it has none of that name.
outlive_status outlive_checkpoint_metric(struct outlive_checkpoint *checkpoint,
                                         const char *name,
                                         double *value);

// Fills all protected regions from the newest whole checkpoint (`epoch` 0), or from this one.
// Every byte is verified. Program and checkpoint must have the same regions, with the same dtypes
// and shapes; otherwise it returns OUTLIVE_INVALID and writes nothing. `*restored` is the epoch of
// the checkpoint; `restored` may be NULL.
//
// With `epoch` 0, a damaged checkpoint is skipped with a warning, and the next older one taken.
// Any other epoch is never replaced. Memory is filled while the checkpoint is read, so after an
// error, such as OUTLIVE_DAMAGED, it may hold parts of a checkpoint. Until this returns, no thread
// may use the protected memory.
//
// Returns OUTLIVE_NOTHING if the job has no checkpoint: the program begins from its start.
outlive_status outlive_restore(struct outlive_job *job, uint64_t epoch, uint64_t *restored);

// Fills the protected regions with these `count` names, and no others; otherwise as
// outlive_restore(). The checkpoint may have more regions.
outlive_status outlive_restore_some(struct outlive_job *job,
                                    uint64_t epoch,
                                    const char *const *names,
                                    size_t count,
                                    uint64_t *restored);

// Copies one region of a checkpoint, protected or not, into a buffer of exactly `bytes` bytes.
// `epoch` and `*restored` are those of outlive_restore().
//
// Returns OUTLIVE_NOTHING if the job has no checkpoint, or the checkpoint no such region.
outlive_status outlive_copy_region(struct outlive_job *job,
                                   uint64_t epoch,
                                   const char *name,
                                   void *buffer,
                                   size_t bytes,
                                   uint64_t *restored);

// Keeps the `keep_last` newest whole checkpoints, at least one, and those with a label or a pin;
// drops the others and frees their space. First waits for a save under way. `*dropped` is the
// number of dropped checkpoints; `dropped` may be NULL.
outlive_status outlive_prune(struct outlive_job *job, uint64_t keep_last, uint64_t *dropped);

// Prunes as outlive_prune(), with rules in one text, such as "last 10 | every 100 | newer than 7d
// | best loss:min:3". A checkpoint stays if any rule keeps it. "" means the rules of `keep` in
// pool.toml.
outlive_status outlive_prune_rules(struct outlive_job *job, const char *rules, uint64_t *dropped);

// Sets rules by which the job prunes itself from the next save on: after each commit a thread
// drops the checkpoints that no rule keeps, and frees their space. `rules`: as for
// outlive_prune_rules(), such as "last 10 | every 100", but at least one. The newest whole
// checkpoint, labels and pins stay. In a group the rules of rank 0 count; other ranks may call it
// too.
outlive_status outlive_job_keep(struct outlive_job *job, const char *rules);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* OUTLIVE_H */
