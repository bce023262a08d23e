/* Processes that share only the pool are the ranks of one program: POOL RUN SIZE EPOCH, the epoch
   that they find. */
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

#define CELLS 60000

static double cells[CELLS];

static void be_rank(char **argv, int rank, int size, uint64_t found)
{
    size_t begin = (size_t)(CELLS * rank / size), end = (size_t)(CELLS * (rank + 1) / size), at;
    size_t whole[1] = {CELLS}, shape[1], offset[1];
    outlive_pool *pool;
    outlive_job *job;
    uint64_t epoch = 0;
    int64_t step = 0;

    shape[0] = end - begin;
    offset[0] = begin;
    OK(outlive_open(argv[1], &pool));
    INVALID(outlive_job_open_ranks(pool, "job", 0, size, size, argv[2], 0, NULL, &job), "ranks are counted from 0");
    INVALID(outlive_job_open_ranks(pool, "job", 0, -1, size, argv[2], 0, NULL, &job), "ranks are counted from 0");
    INVALID(outlive_job_open_ranks(pool, "job", 0, rank, size, "", 0, NULL, &job), "new for every start");
    INVALID(outlive_job_open_ranks(pool, "job", 0, rank, size, NULL, 0, NULL, &job), "the name of the run");
    OK(outlive_job_open_ranks(pool, "job", 0, rank, size, argv[2], 300, "staggered", &job));
    OK(outlive_protect_sharded(job, "cells", cells, OUTLIVE_FLOAT64, 1, shape, whole, offset));
    OK(outlive_protect_replicated(job, "step", &step, OUTLIVE_INT64, 0, NULL));
    if (found > 0) {
        OK(outlive_restore(job, 0, &epoch));
        CHECK(epoch == found && step == (int64_t)found);
        for (at = begin; at < end; at++)
            CHECK(cells[at - begin] == (double)at * (double)found);
    }
    step = (int64_t)found + 1;
    for (at = begin; at < end; at++)
        cells[at - begin] = (double)at * (double)step;
    OK(outlive_save(job, OUTLIVE_FORCE | OUTLIVE_WAIT, NULL));
    OK(outlive_job_close(job));
    OK(outlive_close(pool));
    exit(0);
}

/* One process without a group restores any part of an array that ranks have saved. */
static void look(const char *place, int size, uint64_t saved)
{
    size_t whole[1] = {CELLS}, shape[1] = {CELLS - 10}, offset[1] = {5}, at;
    outlive_pool *pool;
    outlive_job *job;
    outlive_checkpoint *checkpoint;
    uint64_t epoch = 0;
    int64_t step = 0;

    OK(outlive_open(place, &pool));
    OK(outlive_job_open(pool, "job", 0, &job));
    OK(outlive_checkpoint_open(job, 0, &checkpoint));
    OK(outlive_checkpoint_about(checkpoint, &epoch, NULL, NULL));
    CHECK(epoch == saved);
    OK(outlive_checkpoint_close(checkpoint));
    INVALID(outlive_copy_region(job, 0, "cells", cells, CELLS / (size_t)size * sizeof *cells, NULL),
            "ranks have saved parts of \"cells\"");
    OK(outlive_protect_sharded(job, "cells", cells, OUTLIVE_FLOAT64, 1, shape, whole, offset));
    OK(outlive_protect_replicated(job, "step", &step, OUTLIVE_INT64, 0, NULL));
    OK(outlive_restore(job, 0, &epoch));
    CHECK(epoch == saved && step == (int64_t)saved);
    for (at = 0; at < shape[0]; at++)
        CHECK(cells[at] == (double)(at + 5) * (double)saved);
    OK(outlive_job_close(job));
    OK(outlive_close(pool));
}

int main(int argc, char **argv)
{
    int rank, size, status, failed = 0;

    CHECK(argc == 5);
    size = atoi(argv[3]);
    for (rank = 0; rank < size; rank++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0)
            be_rank(argv, rank, size, (uint64_t)atoi(argv[4]));
    }
    for (rank = 0; rank < size; rank++) {
        CHECK(wait(&status) > 0);
        failed |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    CHECK(!failed);
    look(argv[1], size, (uint64_t)atoi(argv[4]) + 1);
    puts("done");
    return 0;
}
