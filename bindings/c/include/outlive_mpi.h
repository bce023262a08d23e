/* Jobs of the ranks of an MPI program. The program compiles this header with its own MPI, so
   outlive's library works with each. docs/c.md is the manual. */
#ifndef OUTLIVE_MPI_H
#define OUTLIVE_MPI_H

#include <limits.h>
#include <mpi.h>
#include <outlive.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct outlive_mpi_group {
    MPI_Comm comm; /* a duplicate: outlive's messages never mix with the program's */
    int rank, size;
} outlive_mpi_group;

static inline int outlive_mpi_gather(void *user, const void *mine, size_t bytes, void *all)
{
    outlive_mpi_group *group = (outlive_mpi_group *)user;
    if (bytes > INT_MAX)
        return MPI_ERR_COUNT;
    return MPI_Gather((void *)mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, 0, group->comm);
}

static inline int outlive_mpi_gatherv(void *user, const void *mine, size_t bytes, void *all,
                                      const size_t *lengths)
{
    outlive_mpi_group *group = (outlive_mpi_group *)user;
    int *counts = NULL, *places = NULL, rank, status, fits = bytes <= INT_MAX;
    size_t place = 0;
    if (group->rank == 0) {
        counts = (int *)malloc(2 * (size_t)group->size * sizeof *counts);
        places = counts != NULL ? counts + group->size : NULL;
        for (rank = 0; rank < group->size && counts != NULL; rank++) {
            fits = fits && lengths[rank] <= INT_MAX && place <= INT_MAX;
            counts[rank] = (int)lengths[rank];
            places[rank] = (int)place;
            place += lengths[rank];
        }
        fits = fits && counts != NULL;
    }
    /* If a length exceeds MPI's integers, no rank sends. */
    status = MPI_Bcast(&fits, 1, MPI_INT, 0, group->comm);
    if (status == MPI_SUCCESS)
        status = fits ? MPI_Gatherv((void *)mine, (int)bytes, MPI_BYTE, all, counts, places, MPI_BYTE,
                                    0, group->comm)
                      : MPI_ERR_COUNT;
    free(counts);
    return status;
}

static inline int outlive_mpi_broadcast(void *user, void *buffer, size_t bytes)
{
    outlive_mpi_group *group = (outlive_mpi_group *)user;
    char *next = (char *)buffer;
    while (bytes > 0) {
        int part = bytes > INT_MAX ? INT_MAX : (int)bytes;
        int status = MPI_Bcast(next, part, MPI_BYTE, 0, group->comm);
        if (status != MPI_SUCCESS)
            return status;
        next += part;
        bytes -= (size_t)part;
    }
    return MPI_SUCCESS;
}

static inline void outlive_mpi_release(void *user)
{
    outlive_mpi_group *group = (outlive_mpi_group *)user;
    int is_over = 0;
    MPI_Finalized(&is_over);
    if (!is_over)
        MPI_Comm_free(&group->comm);
    free(group);
}

/* Makes the functions of a group whose communicator is a duplicate of the program's. */
static inline void outlive_mpi_functions(outlive_mpi_group *group, outlive_comm *functions)
{
    MPI_Comm_set_errhandler(group->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(group->comm, &group->rank);
    MPI_Comm_size(group->comm, &group->size);
    memset(functions, 0, sizeof *functions);
    functions->rank = group->rank;
    functions->size = group->size;
    functions->gather = outlive_mpi_gather;
    functions->gatherv = outlive_mpi_gatherv;
    functions->broadcast = outlive_mpi_broadcast;
    functions->release = outlive_mpi_release;
    functions->user = group;
}

/* MPI_Finalize calls this first, while MPI still works. It closes a job that the program has left
   open: other ranks may be in a save, which waits for this one. */
static inline int outlive_mpi_at_finalize(MPI_Comm self, int key, void *value, void *extra)
{
    outlive_job **job = (outlive_job **)value;
    (void)self, (void)key, (void)extra;
    /* outlive_clear() refuses a handle that the program has closed. */
    if (outlive_clear(*job) == OUTLIVE_OK && outlive_job_close(*job) != OUTLIVE_OK)
        fprintf(stderr, "outlive: error: MPI_Finalize has closed a job: %s\n", outlive_error_message());
    free(job);
    return MPI_SUCCESS;
}

static inline void outlive_mpi_watch(outlive_job *job)
{
    int key, status;
    outlive_job **kept = (outlive_job **)malloc(sizeof *kept);
    if (kept == NULL)
        return;
    *kept = job;
    status = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, outlive_mpi_at_finalize, &key, NULL);
    if (status == MPI_SUCCESS) {
        status = MPI_Comm_set_attr(MPI_COMM_SELF, key, kept);
        MPI_Comm_free_keyval(&key);
    }
    if (status != MPI_SUCCESS)
        free(kept);
}

/* Opens a job of all ranks of `comm`: every rank calls it, and saves and restores become
   collective. Call it after MPI_Init, and outlive_job_close before MPI_Finalize; both are
   collective. MPI_Finalize closes a job that is still open. `patience_s` and `schedule` as for
   outlive_job_open_group(); 0 and NULL mean the defaults. MPI_THREAD_SINGLE is enough: outlive
   calls MPI only on the thread that calls outlive. */
static inline outlive_status outlive_job_open_mpi(outlive_pool *pool, const char *name, double every_s,
                                                  MPI_Comm comm, double patience_s,
                                                  const char *schedule, outlive_job **job)
{
    outlive_mpi_group *group;
    outlive_comm functions;
    outlive_status opened;
    int is_ready = 0, is_over = 0, worst;

    if (job != NULL)
        *job = NULL;
    MPI_Initialized(&is_ready);
    MPI_Finalized(&is_over);
    if (!is_ready || is_over)
        return outlive_refuse(is_over ? "MPI has been finalized: open the job before MPI_Finalize"
                                      : "MPI is not initialised: call MPI_Init before the job is opened");
    if (comm == MPI_COMM_NULL)
        return outlive_refuse("the communicator is MPI_COMM_NULL: give that of the ranks of the job");
    group = (outlive_mpi_group *)malloc(sizeof *group);
    if (group == NULL)
        return outlive_refuse("there is no memory for a communicator");
    if (MPI_Comm_dup(comm, &group->comm) != MPI_SUCCESS) {
        free(group);
        return outlive_refuse("MPI_Comm_dup has failed");
    }
    outlive_mpi_functions(group, &functions);
    opened = outlive_job_open_group(pool, name, every_s, &functions, patience_s, schedule, job);
    /* If one rank could not open the job, no rank keeps it. */
    if (MPI_Allreduce(&opened, &worst, 1, MPI_INT, MPI_MAX, group->comm) != MPI_SUCCESS)
        worst = opened;
    if (worst == OUTLIVE_OK) {
        outlive_mpi_watch(*job);
        return OUTLIVE_OK;
    }
    if (opened == OUTLIVE_OK) {
        outlive_job_leave(*job); /* releases the communicator */
        *job = NULL;
        outlive_refuse("another rank could not open the job: see what it was told");
        return worst;
    }
    outlive_mpi_release(group);
    return opened;
}

#ifdef __cplusplus
}
#endif

#endif
