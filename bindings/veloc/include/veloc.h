/* The names of VELOC, for programs that were written for VELOC; docs/veloc.md describes them.

   Each function returns VELOC_SUCCESS or VELOC_FAILURE, unless its comment names another result,
   and writes its error to standard error. */
#ifndef OUTLIVE_VELOC_H
#define OUTLIVE_VELOC_H

#include <stddef.h>
#include <string.h>
#if !defined(MPI_VERSION) && defined(__has_include)
#if __has_include(<mpi.h>)
#include <mpi.h>
#endif
#endif

#define VELOC_SUCCESS (0)
#define VELOC_FAILURE (-1)

/* Bytes that VELOC_Route_file may write. */
#define VELOC_MAX_NAME (1024)

/* Selects protected regions: all, those in the list, or all others. */
#define VELOC_CKPT_ALL (0)
#define VELOC_CKPT_SOME (1)
#define VELOC_CKPT_REST (2)
#define VELOC_RECOVER_ALL (0)
#define VELOC_RECOVER_SOME (1)
#define VELOC_RECOVER_REST (2)

#ifdef __cplusplus
extern "C" {
#endif

/* Begins and ends a session. `id` differs for each process. Without a file, or with "", the
   configuration is in variables of the environment, such as VELOC_SCRATCH. Programs see VELOC_Init
   if their compiler finds <mpi.h>. */
#ifdef MPI_VERSION
int VELOC_Init(MPI_Comm comm, const char *config);
#endif
int VELOC_Init_single(unsigned int id, const char *config);
int VELOC_Finalize(int drain);

/* Protects memory: `count` elements of `size` bytes, by number; for all checkpoints, or for those
   of one name. */
int VELOC_Mem_protect(int id, void *memory, size_t count, size_t size);
int VELOC_Region_protect(int id, void *memory, size_t count, size_t size, const char *name);
int VELOC_Mem_unprotect(int id);
int VELOC_Region_unprotect(int id, const char *name);
int VELOC_Mem_clear(void);
int VELOC_Region_clear(const char *name);

/* Between a begin and an end: sets `routed` to the path at which the program writes or reads the
   file of the checkpoint. It depends only on the checkpoint's name, version and process: `original`
   is not read, and may be `routed` itself. */
int VELOC_Route_file(const char *original, char *routed);

/* Removes the files of a name's checkpoints from scratch. */
int VELOC_Cleanup(const char *name);

int VELOC_Checkpoint_begin(const char *name, int version);
int VELOC_Checkpoint_selective(int mode, int *ids, int count);
int VELOC_Checkpoint_mem(void);
/* Saves the checkpoint, and reads the memory until it returns. `success` 0 drops the checkpoint:
   all ranks get VELOC_FAILURE. */
int VELOC_Checkpoint_end(int success);
int VELOC_Checkpoint_wait(void);
int VELOC_Checkpoint_finished(void);
/* Wait, begin, mem and end. */
int VELOC_Checkpoint(const char *name, int version);

/* Returns the highest version up to this one, or of all if it is 0; -1 if there is none. */
int VELOC_Restart_test(const char *name, int version);
int VELOC_Restart_begin(const char *name, int version);
int VELOC_Recover_selective(int mode, int *ids, int count);
int VELOC_Recover_mem(void);
/* Returns the length of a region in the checkpoint; 0 if it has no such region. */
int VELOC_Recover_size(int id);
int VELOC_Restart_end(int success);
/* Begin, mem and end. */
int VELOC_Restart(const char *name, int version);

#ifdef __cplusplus
}
#endif

#endif
