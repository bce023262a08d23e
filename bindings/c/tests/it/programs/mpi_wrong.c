/* Mistakes of one rank under MPI: every rank gets an error, nothing hangs, and the next save works.
   */
#include <outlive_mpi.h>
#include <stdio.h>

static int rank, ranks;
static outlive_job *job;
static double cells[5000];
static int64_t step = 1, other = 2;

#define EXPECT(call, wanted, words)                                                                       \
    do {                                                                                                 \
        outlive_status got = (call);                                                                     \
        if (got != (wanted) || (got != OUTLIVE_OK && strstr(outlive_error_message(), words) == NULL)) {  \
            fprintf(stderr, "rank %d, line %d: %s: %s\n", rank, __LINE__, outlive_status_name(got),      \
                    outlive_error_message());                                                            \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                \
        }                                                                                                \
    } while (0)

static void protect_all(void)
{
    size_t shape[1] = {5000}, whole[1], offset[1];
    whole[0] = 5000 * (size_t)ranks;
    offset[0] = 5000 * (size_t)rank;
    EXPECT(outlive_clear(job), OUTLIVE_OK, "");
    EXPECT(outlive_protect_sharded(job, "cells", cells, OUTLIVE_FLOAT64, 1, shape, whole, offset), OUTLIVE_OK, "");
    EXPECT(outlive_protect_replicated(job, "step", &step, OUTLIVE_INT64, 0, NULL), OUTLIVE_OK, "");
}

int main(int argc, char **argv)
{
    outlive_pool *pool;
    const char *none[1] = {NULL}, *some[1];
    double part[100];
    size_t shape[1] = {10}, whole[1] = {20}, offset[1] = {15};
    uint64_t epoch;
    int at;

    EXPECT(outlive_open(argv[1], &pool), OUTLIVE_OK, "");
    EXPECT(outlive_job_open_mpi(pool, "job", 0, MPI_COMM_WORLD, 0, NULL, &job), OUTLIVE_INVALID, "call MPI_Init");
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    EXPECT(outlive_job_open_mpi(pool, "job", 0, MPI_COMM_NULL, 0, NULL, &job), OUTLIVE_INVALID, "MPI_COMM_NULL");
    EXPECT(outlive_job_open_mpi(pool, "job", 0, MPI_COMM_WORLD, 1e-9, NULL, &job), OUTLIVE_INVALID,
           "1 second or more");
    EXPECT(outlive_job_open_mpi(pool, rank == 1 ? "" : "job", 0, MPI_COMM_WORLD, 0, NULL, &job), OUTLIVE_INVALID,
           rank == 1 ? "empty" : "another rank");
    EXPECT(outlive_job_open_mpi(pool, "job", 0, MPI_COMM_WORLD, 0, rank == 0 ? "sometimes" : NULL, &job),
           OUTLIVE_INVALID, rank == 0 ? "striped(WIDTH)" : "another rank");
    EXPECT(outlive_job_open_mpi(pool, "job", 0, MPI_COMM_WORLD, 0, "striped(2)", &job), OUTLIVE_OK, "");

    for (at = 0; at < 5000; at++)
        cells[at] = rank * 5000 + at;
    EXPECT(outlive_save(job, OUTLIVE_WAIT, NULL), OUTLIVE_INVALID, "nothing to save");
    protect_all();
    EXPECT(outlive_restore(job, 0, &epoch), OUTLIVE_NOTHING, "no checkpoint");
    EXPECT(outlive_save(job, OUTLIVE_WAIT, NULL), OUTLIVE_OK, "");

    /* One rank protects another region, or fewer, or gives impossible arguments. */
    if (rank == 1)
        EXPECT(outlive_protect(job, "mine", &other, OUTLIVE_INT64, 0, NULL), OUTLIVE_OK, "");
    EXPECT(outlive_save(job, OUTLIVE_WAIT, NULL), OUTLIVE_INVALID, "rank 1 has region \"mine\"");
    protect_all();
    if (rank == 0)
        EXPECT(outlive_unprotect(job, "cells"), OUTLIVE_OK, "");
    EXPECT(outlive_save(job, OUTLIVE_WAIT, NULL), OUTLIVE_INVALID, "rank 1 has region \"cells\"");
    protect_all();
    EXPECT(outlive_save_some(job, none, rank == 1 ? 1 : 0, OUTLIVE_WAIT, NULL), OUTLIVE_INVALID,
           rank == 1 ? "NULL" : "nothing to save");
    EXPECT(outlive_save(job, rank == 1 ? 64u : OUTLIVE_WAIT, NULL), OUTLIVE_INVALID, "flags");
    EXPECT(outlive_end(job, OUTLIVE_WAIT, NULL), OUTLIVE_INVALID, "outlive_begin first");
    EXPECT(outlive_protect_sharded(job, "cells", cells, OUTLIVE_FLOAT64, 1, shape, whole, offset), OUTLIVE_INVALID,
           "begins at 15");

    /* One rank, or all, restore more than was saved. */
    if (rank == 1)
        EXPECT(outlive_protect(job, "more", &other, OUTLIVE_INT64, 0, NULL), OUTLIVE_OK, "");
    EXPECT(outlive_restore(job, 0, &epoch), OUTLIVE_INVALID, "more");
    protect_all();
    EXPECT(outlive_restore(job, rank == 1 ? 7 : 7, &epoch), OUTLIVE_INVALID, "has no checkpoint 7");

    /* Then a restore succeeds. */
    memset(cells, 0, sizeof cells);
    step = 0;
    EXPECT(outlive_restore(job, 0, &epoch), OUTLIVE_OK, "");
    if (epoch != 1 || step != 1 || cells[4999] != rank * 5000 + 4999)
        MPI_Abort(MPI_COMM_WORLD, 2);
    some[0] = "cells";
    shape[0] = 100;
    whole[0] = 5000 * (size_t)ranks;
    offset[0] = 5000 * (size_t)ranks - 100 * ((size_t)rank + 1); /* other parts than were saved */
    EXPECT(outlive_protect_sharded(job, "cells", part, OUTLIVE_FLOAT64, 1, shape, whole, offset), OUTLIVE_OK, "");
    EXPECT(outlive_restore_some(job, 0, some, 1, &epoch), OUTLIVE_OK, "");
    if (epoch != 1 || part[0] != (double)offset[0] || part[99] != (double)offset[0] + 99)
        MPI_Abort(MPI_COMM_WORLD, 3);
    protect_all();
    cells[0] = -1;
    EXPECT(outlive_save(job, OUTLIVE_FORCE | OUTLIVE_WAIT, NULL), OUTLIVE_OK, "");

    /* Rank 1 skips a save, and the others another: a save between would mix two steps. */
    for (step = 2; step <= 6; step++) {
        int differs = step > 3 || (rank != 1 && step == 3);
        if (step == (rank == 1 ? 3 : 6))
            continue;
        EXPECT(outlive_save(job, OUTLIVE_FORCE | OUTLIVE_WAIT, NULL), differs ? OUTLIVE_INVALID : OUTLIVE_OK,
               "rank 1 has \"step\" = ");
    }
    EXPECT(outlive_restore(job, 0, &epoch), OUTLIVE_OK, "");
    if (step != 2)
        MPI_Abort(MPI_COMM_WORLD, 4);
    EXPECT(outlive_job_close(job), OUTLIVE_OK, "");
    EXPECT(outlive_close(pool), OUTLIVE_OK, "");
    if (rank == 0)
        printf("done\n");
    MPI_Finalize();
    return 0;
}
