// outlive saves the state of a running program, and restores it after a crash. docs/c.md describes how.
//
// Every function may be called from any thread. It returns OUTLIVE_OK (0) or why it did nothing; then
// outlive_error_message() says more. Errors never end the program. Texts are UTF-8 and end with a zero;
// they are copied. Handles are checked: one that is NULL, closed, or of a process that this one was
// forked from, gives OUTLIVE_INVALID. No function may be called from a signal handler.
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

// Something that a person should know, such as a damaged checkpoint that was passed over.
#define OUTLIVE_LOG_WARNING 2

// The next save, wait or close returns the failure of a save: how a job begins.
#define OUTLIVE_RAISE 0

// The program goes on after a failed save; see outlive_job_on_failure().
#define OUTLIVE_WARN 1

// Save if it is due; see outlive_job_open().
#define OUTLIVE_DUE 0

// Save now, whether it is due or not.
#define OUTLIVE_FORCE 1

// Return only when the checkpoint is committed, or has failed.
#define OUTLIVE_WAIT 2

// It belongs to its rank alone.
#define OUTLIVE_LOCAL 0

// It is a part of a global array: see outlive_protect_sharded().
#define OUTLIVE_SHARDED 1

// Every rank has the same bytes: see outlive_protect_replicated().
#define OUTLIVE_REPLICATED 2

// It is a part of a global array in blocks: see outlive_protect_cyclic() and outlive_checkpoint_blocks().
#define OUTLIVE_CYCLIC 3

// A checkpoint that was looked up.
typedef struct outlive_checkpoint outlive_checkpoint;

// An open job: a named series of checkpoints, and the memory that the program protects.
typedef struct outlive_job outlive_job;

// An open pool.
typedef struct outlive_pool outlive_pool;

// A save under way, or over.
typedef struct outlive_saving outlive_saving;

// What a function returns: OUTLIVE_OK, or what the caller can do about the error. The text of the
// error is in outlive_error_message().
typedef int outlive_status;

// Takes a notice: its level, its text, and what was given to outlive_set_log().
typedef void (*outlive_log)(int level, const char *text, void *user);

// How the saves of a job did, in this process.
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

// Connects the ranks of a program. The functions are collective: every rank calls them, in the same order.
// outlive calls them only inside of its own functions, on the thread that has called, and never two of one
// group at once. They return 0, or something else if they have failed.
typedef struct outlive_comm {
    // Number of this rank, from 0 on.
    int rank;
    // Number of ranks.
    int size;
    // Puts `bytes` bytes of each rank one behind the other into `all` of rank 0, by rank.
    int (*gather)(void *user, const void *mine, size_t bytes, void *all);
    // The same for lengths that differ: rank 0 knows those of all ranks as `lengths`, which is NULL
    // elsewhere.
    int (*gatherv)(void *user, const void *mine, size_t bytes, void *all, const size_t *lengths);
    // Puts what `buffer` of rank 0 holds into that of every rank.
    int (*broadcast)(void *user, void *buffer, size_t bytes);
    // Called once when the job is closed, by the thread that closes it; may be NULL. Not called if the
    // job is never closed.
    void (*release)(void *user);
    // Given to each function.
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
    // Bytes of pages of zeros among them, which take no space.
    uint64_t zero_bytes;
    // Bytes that the pool had already.
    uint64_t known_bytes;
    // Bytes of the new chunks before compression.
    uint64_t raw_bytes;
    // Bytes written, all in all.
    uint64_t new_bytes;
    // Seconds for which the program stood still.
    double stall_s;
    // Seconds from the call to the commit.
    double total_s;
} outlive_figures;

// A region of a checkpoint. The texts and lists belong to the checkpoint's handle, and stay until it is
// closed.
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
    // Extents of the global array that it is a part of; NULL if it is none.
    const size_t *global_shape;
    // Where it begins in the global array; NULL if it is no part of one.
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

// No room for it: free some. Nothing that was committed is lost.
#define OUTLIVE_FULL 4

// Another process has taken over this job: stop saving, or restore again.
#define OUTLIVE_FENCED 5

// outlive contradicts itself: please report it.
#define OUTLIVE_BUG 6

// There is nothing of that kind: no checkpoint yet, or no region of that name.
#define OUTLIVE_NOTHING 7

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The name of a status, such as "OUTLIVE_FENCED". Never NULL.
const char *outlive_status_name(outlive_status status);

// The version of the library, such as "0.1.0".
const char *outlive_version(void);

// The text of the calling thread's last error; empty if no call of this thread has failed. It stays
// until the next call of this thread that fails. Never NULL.
const char *outlive_error_message(void);

// For front doors that stand on this one, such as the Fortran module: makes `text` the calling
// thread's last error, and returns OUTLIVE_INVALID.
outlive_status outlive_refuse(const char *text);

// Sends all notices of all pools to `log`. NULL sends warnings to standard error again, and drops the
// others; it is so at the start.
//
// `log` is called by any thread, also by threads of outlive, but never by two at once. It must return
// soon, must not wait for another thread, and must not call outlive: such calls return OUTLIVE_INVALID.
// Once this function has returned, what was set before is not called any more. When the program ends,
// notices go to standard error.
outlive_status outlive_set_log(outlive_log log,
                               void *user);

// Opens a pool: a directory, its pool.toml, or s3://BUCKET/PREFIX. A pool that does not exist is made.
//
// `*pool` is the pool, or NULL after an error. Close it with outlive_close().
outlive_status outlive_open(const char *location,
                            struct outlive_pool **pool);

// Opens a pool that exists; otherwise as outlive_open().
outlive_status outlive_open_existing(const char *location, struct outlive_pool **pool);

// Closes a pool. Its jobs stay open. NULL is allowed.
outlive_status outlive_close(struct outlive_pool *pool);

// Opens a job of a pool. Nothing is read or written yet. Within a process, all handles of a job of one process are
// one writer: they share its session.
//
// `every_s`: saves are due once so many seconds have passed since the last one began; 0: always.
// `*job` is the job, or NULL after an error. Close it with outlive_job_close().
outlive_status outlive_job_open(struct outlive_pool *pool,
                                const char *name,
                                double every_s,
                                struct outlive_job **job);

// Waits until the last save is committed, and the slow tier of the pool has what pool.toml asks for;
// then closes the job. The handle is not valid any more, whatever is returned. Handles of its saves
// stay. NULL is allowed. In a group every rank calls it, after the same saves.
//
// Returns the failure of the last save if no call has returned it yet. After OUTLIVE_WARN that is a warning, unless
// nothing was committed for `fail_after_s`, or at all. OUTLIVE_INVALID: another rank saves or restores instead; the
// text names it.
outlive_status outlive_job_close(struct outlive_job *job);

// The same for a rank that ends early, as after an error of the program: it waits for no other rank. Ranks of
// outlive_job_open_ranks() are told at once; others as far as what connects them notices.
outlive_status outlive_job_leave(struct outlive_job *job);

// Sets the policy for saves that fail. OUTLIVE_RAISE: the next save, outlive_due(), outlive_restore() or
// outlive_job_close() returns its failure. OUTLIVE_WARN: the program goes on with a warning, and the next save
// stores what the failed one could not; only after `fail_after_s` seconds without a commit a failure is returned.
// They count from the last commit, or from this call. Only failures of storage pass: OUTLIVE_FENCED, OUTLIVE_BUG and
// mistakes of the program are returned in any case. outlive_wait() returns the failure of its save in any case.
//
// `fail_after_s` is longer than the job's `every_s`; it is ignored with OUTLIVE_RAISE. What was said last holds for all
// handles of the job in this process. Every rank of a group says the same; the time of rank 0 counts.
outlive_status outlive_job_on_failure(struct outlive_job *job,
                                      int on_failure,
                                      double fail_after_s);

// How the saves of a job did, in this process. Never waits.
outlive_status outlive_job_health(struct outlive_job *job, struct outlive_health *health);

// Waits until no save of the job is under way.
//
// Returns the failure of the last save if nobody was told of it yet.
outlive_status outlive_job_wait(struct outlive_job *job);

// Lets the next save go on from this program's state, although another program has saved the job since
// this one restored. Otherwise that save returns OUTLIVE_FENCED. The other program's checkpoints stay,
// as older epochs, and its next save returns OUTLIVE_FENCED.
outlive_status outlive_job_take_over(struct outlive_job *job);

// Sets `*due` to 1 if a save is due, else to 0.
//
// Returns the failure of an earlier save if nobody was told of it yet.
outlive_status outlive_due(struct outlive_job *job, int *due);

// Opens a job of a group of ranks: every rank opens it, and saves and restores become collective. One
// checkpoint then holds what all ranks protect. With MPI, use outlive_job_open_mpi() of outlive_mpi.h.
//
// `every_s` as for outlive_job_open(); the clock of rank 0 decides. `comm` is copied. `patience_s`: seconds
// without a word of a rank after which a save fails, at least 1; 0 for 120. `schedule`: when ranks write: NULL or
// "coordinated", "staggered", "striped(WIDTH)", "adaptive" (docs/groups.md). `*job` is the job, or NULL
// after an error; then `release` was not called.
outlive_status outlive_job_open_group(struct outlive_pool *pool,
                                      const char *name,
                                      double every_s,
                                      const struct outlive_comm *comm,
                                      double patience_s,
                                      const char *schedule,
                                      struct outlive_job **job);

// Opens a job of a group of processes that have only the pool in common: otherwise as
// outlive_job_open_group(). Their calls go through the pool's log, so a call of all ranks takes some
// milliseconds, and a rank that does not come to one within `patience_s` is given up.
//
// `rank`: this process, from 0 on. `size`: how many there are. `run`: text that is the same for all of them,
// and new for every start of the program, such as the id of its batch job and the number of its restarts; a
// job that a run opens twice needs two.
outlive_status outlive_job_open_ranks(struct outlive_pool *pool,
                                      const char *name,
                                      double every_s,
                                      int rank,
                                      int size,
                                      const char *run,
                                      double patience_s,
                                      const char *schedule,
                                      struct outlive_job **job);

// Protects an array: from now on it is saved by outlive_save(), and filled by outlive_restore().
//
// `name` is the region's name in the checkpoint. If it is protected already, this takes its place.
// `dtype` is the type of an element, such as OUTLIVE_FLOAT64 or "V24". `shape` has `ndim` extents,
// the slowest first, as in C; a scalar has none. The array is contiguous. Nothing is read yet. The
// memory must stay until it is unprotected, or the job is closed; see outlive_save() and
// outlive_restore() for when it is used. It may be NULL if it has no bytes.
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

// Protects a part of a global array that is dealt out to the ranks in blocks, along each dimension for
// itself, as ScaLAPACK and MPI_Type_create_darray() do; otherwise as outlive_protect_sharded().
//
// Along each dimension, a block has `block` elements, and from the begin of one block to the begin of the
// next there are `stride` elements of the global array. So element l of the part is element
// `offset + l / block * stride + l % block` of the array. The last block may have fewer. In a grid of `p`
// ranks along a dimension, number `r` has `offset` = r * block and `stride` = p * block. A dimension that is
// not dealt out has `offset` 0, and its extent as `block` and `stride`, or 1 if that is 0.
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

// Protects a region no more; then its memory may go. What was saved of it stays.
//
// Returns OUTLIVE_NOTHING if no region of that name is protected.
outlive_status outlive_unprotect(struct outlive_job *job, const char *name);

// Protects nothing any more; then all memory may go.
outlive_status outlive_clear(struct outlive_job *job);

// Saves all protected regions, if a save is due. Returns when the program may change its memory again;
// the checkpoint is written in the background, and only what has changed since the last save. If
// another save of the job is under way, this first waits for it.
//
// Until it returns, no thread may change the protected memory.
//
// `flags`: OUTLIVE_DUE, or OUTLIVE_FORCE and OUTLIVE_WAIT, joined by |. `*saving` is the handle of the
// save, to be freed with outlive_save_free(), or NULL if nothing was saved. `saving` may be NULL.
//
// Returns the failure of an earlier save if nobody was told of it yet; then no save was begun.
// OUTLIVE_FENCED: see outlive_job_take_over().
outlive_status outlive_save(struct outlive_job *job,
                            unsigned int flags,
                            struct outlive_saving **saving);

// Saves the protected regions with these `count` names, and no others; otherwise as outlive_save().
// The checkpoint has only these.
outlive_status outlive_save_some(struct outlive_job *job,
                                 const char *const *names,
                                 size_t count,
                                 unsigned int flags,
                                 struct outlive_saving **saving);

// Waits until a save is committed. Returns its failure if it fails, also at later calls. NULL is a save
// that was not due.
outlive_status outlive_wait(struct outlive_saving *saving);

// The same for at most `timeout_s` seconds. `*done` is 1 if the save is over, else 0.
outlive_status outlive_wait_for(struct outlive_saving *saving, double timeout_s, int *done);

// Sets `*done` to 1 if a save is over, else to 0. Never waits. Returns the failure of a save that has
// failed. NULL is a save that was not due.
outlive_status outlive_test(struct outlive_saving *saving,
                            int *done);

// The epoch that a save's checkpoint has once it is committed.
outlive_status outlive_save_epoch(struct outlive_saving *saving, uint64_t *epoch);

// Waits until a save is committed, and gives its figures.
outlive_status outlive_save_figures(struct outlive_saving *saving, struct outlive_figures *figures);

// Frees the handle of a save. A save under way goes on; if it fails, the job's next save or its close
// says so. NULL is allowed.
outlive_status outlive_save_free(struct outlive_saving *saving);

// Begins a checkpoint of regions that are named one by one with outlive_region(), whatever is
// protected. outlive_end() saves it. `label` is a label for it, or NULL; see outlive_next_label().
//
// One checkpoint of a job can be put together at a time.
outlive_status outlive_begin(struct outlive_job *job, const char *label);

// Adds an array to the checkpoint that outlive_begin() began. The arguments are those of
// outlive_protect(). The memory must stay, and is read, until outlive_end() returns.
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

// Saves the checkpoint that outlive_begin() began, as outlive_save() does. It is over then, whatever is
// returned. Until this returns, no thread may change the memory of its regions.
outlive_status outlive_end(struct outlive_job *job,
                           unsigned int flags,
                           struct outlive_saving **saving);

// Drops the checkpoint that outlive_begin() began, and the notes for it. Without one, nothing happens.
outlive_status outlive_cancel(struct outlive_job *job);

// Gives the next checkpoint of the job a label. That makes the next save due, and keeps prunings from
// dropping the checkpoint.
outlive_status outlive_next_label(struct outlive_job *job,
                                  const char *label);

// Pins the next checkpoint of the job: it does the same as a label, without one.
outlive_status outlive_next_pin(struct outlive_job *job);

// Keeps a figure with the next checkpoint of the job, such as "loss", for prunings that keep the best.
// It does not make a save due.
outlive_status outlive_next_metric(struct outlive_job *job,
                                   const char *name,
                                   double value);

// Changes what is said about a checkpoint. `label`: its new label; "" removes it, NULL leaves it.
// `pin`: 1 pins it, 0 unpins it, -1 leaves that as it is. First waits for a save under way.
outlive_status outlive_note(struct outlive_job *job, uint64_t epoch, const char *label, int pin);

// The epoch of the newest checkpoint that a restore would try first.
//
// Returns OUTLIVE_NOTHING if the job has none.
outlive_status outlive_newest(struct outlive_job *job, uint64_t *epoch);

// The epochs of the committed checkpoints of memory, oldest first. `*count` is how many there are. If
// these are more than `capacity`, the newest `capacity` of them are written to `epochs`, which may be
// NULL if `capacity` is 0.
outlive_status outlive_epochs(struct outlive_job *job,
                              uint64_t *epochs,
                              size_t capacity,
                              size_t *count);

// Looks up a checkpoint: the newest that can be opened (`epoch` 0), or this one. Only its catalog is
// read; of several ranks that of this one's number. `*checkpoint` is its handle, to be closed with
// outlive_checkpoint_close().
//
// Returns OUTLIVE_NOTHING if the job has no checkpoint.
outlive_status outlive_checkpoint_open(struct outlive_job *job,
                                       uint64_t epoch,
                                       struct outlive_checkpoint **checkpoint);

// Closes the handle of a checkpoint; what it gave is gone then. NULL is allowed.
outlive_status outlive_checkpoint_close(struct outlive_checkpoint *checkpoint);

// A checkpoint's epoch, the number of its regions, and its label. Each place may be NULL.
outlive_status outlive_checkpoint_about(struct outlive_checkpoint *checkpoint,
                                        uint64_t *epoch,
                                        size_t *regions,
                                        const char **label);

// Region number `index` of a checkpoint, from 0, in the order in which they were saved.
//
// Returns OUTLIVE_NOTHING if it has no such region.
outlive_status outlive_checkpoint_region(struct outlive_checkpoint *checkpoint,
                                         size_t index,
                                         struct outlive_region_info *info);

// The region of that name.
//
// Returns OUTLIVE_NOTHING if the checkpoint has none.
outlive_status outlive_checkpoint_find(struct outlive_checkpoint *checkpoint,
                                       const char *name,
                                       struct outlive_region_info *info);

// The block and the stride, along each dimension, of a region whose distribution is OUTLIVE_CYCLIC: see
// outlive_protect_cyclic(). The lists belong to the checkpoint's handle, and stay until it is closed.
//
// Returns OUTLIVE_NOTHING if the checkpoint has no region of that name, or if it is not in blocks.
outlive_status outlive_checkpoint_blocks(struct outlive_checkpoint *checkpoint,
                                         const char *name,
                                         const size_t **block,
                                         const size_t **stride);

// A metric of a checkpoint: see outlive_next_metric().
//
// Returns OUTLIVE_NOTHING if it has none of that name.
outlive_status outlive_checkpoint_metric(struct outlive_checkpoint *checkpoint,
                                         const char *name,
                                         double *value);

// Fills all protected regions from the newest checkpoint that is whole (`epoch` 0), or from this one.
// Every byte is verified. Program and checkpoint must have the same regions, with the same dtypes and
// shapes; otherwise OUTLIVE_INVALID is returned and nothing was written. `*restored` is the epoch that
// was taken, and may be NULL.
//
// A damaged checkpoint is passed over, and the next older one taken; a warning tells it. An epoch that
// was asked for is not replaced by another. Memory is filled while it is read, so after an error, such
// as OUTLIVE_DAMAGED, it may hold parts of a checkpoint. Until this returns, no thread may use the
// protected memory.
//
// Returns OUTLIVE_NOTHING if the job has no checkpoint: the program begins anew.
outlive_status outlive_restore(struct outlive_job *job,
                               uint64_t epoch,
                               uint64_t *restored);

// Fills the protected regions with these `count` names, and leaves the others as they are; otherwise as
// outlive_restore(). The checkpoint may have other regions besides.
outlive_status outlive_restore_some(struct outlive_job *job,
                                    uint64_t epoch,
                                    const char *const *names,
                                    size_t count,
                                    uint64_t *restored);

// Copies one region of a checkpoint, whatever is protected, into a buffer of exactly `bytes` bytes.
// `epoch` and `*restored` are those of outlive_restore().
//
// Returns OUTLIVE_NOTHING if the job has no checkpoint, or the checkpoint no such region.
outlive_status outlive_copy_region(struct outlive_job *job,
                                   uint64_t epoch,
                                   const char *name,
                                   void *buffer,
                                   size_t bytes,
                                   uint64_t *restored);

// Keeps the `keep_last` newest whole checkpoints, at least one, and those with a label or a pin; drops the
// others and frees their space. First waits for a save under way. `*dropped` is how many went, and may
// be NULL.
outlive_status outlive_prune(struct outlive_job *job,
                             uint64_t keep_last,
                             uint64_t *dropped);

// The same with rules in one text, such as "last 10 | every 100 | newer than 7d | best loss:min:3". A
// checkpoint stays if any rule keeps it. "" means the rules of `keep` in pool.toml.
outlive_status outlive_prune_rules(struct outlive_job *job,
                                   const char *rules,
                                   uint64_t *dropped);

// Keeps only what these rules keep, from the next save on: behind each commit a thread drops the other checkpoints and
// frees their space. `rules` as for outlive_prune_rules(), such as "last 10 | every 100", but at least one. The newest
// whole checkpoint, labels and pins stay. In a group the rules of rank 0 count; other ranks may call it too.
outlive_status outlive_job_keep(struct outlive_job *job,
                                const char *rules);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* OUTLIVE_H */
