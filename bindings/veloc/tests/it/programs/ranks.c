/* Ranks that compute and checkpoint by VELOC's names, each with memory and files of its own:

       ranks CONFIG STEPS    continues from the newest version to STEPS steps, and prints a sum */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <veloc.h>

static int rank, ranks;

#define CHECK(call)                                                       \
    do {                                                                  \
        if ((call) != VELOC_SUCCESS) {                                    \
            fprintf(stderr, "rank %d, line %d failed\n", rank, __LINE__); \
            MPI_Abort(MPI_COMM_WORLD, 1);                                 \
        }                                                                 \
    } while (0)

int main(int argc, char **argv)
{
    int step = 0, version, last = argc > 2 ? atoi(argv[2]) : 10;
    size_t count, at;
    double *cells, sum = 0, all = 0, left;
    char routed[VELOC_MAX_NAME], word[32], *bytes;
    FILE *file;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    CHECK(VELOC_Init(MPI_COMM_WORLD, argv[1]));
    count = 20000 + 5000 * (size_t)rank;
    cells = malloc(count * sizeof *cells);
    for (at = 0; at < count; at++)
        cells[at] = (double)at + rank;
    CHECK(VELOC_Mem_protect(0, &step, 1, sizeof step));
    CHECK(VELOC_Mem_protect(1, cells, count, sizeof *cells));
    /* One element, of another size on each rank. */
    bytes = calloc(1, 100 + (size_t)rank);
    CHECK(VELOC_Mem_protect(2, bytes, 1, 100 + (size_t)rank));
    /* The path of a file depends neither on its name nor on the working directory. */
    if (chdir("/") != 0)
        MPI_Abort(MPI_COMM_WORLD, 9);

    version = VELOC_Restart_test("ranks", 0);
    if (version >= 0) {
        CHECK(VELOC_Restart_begin("ranks", version));
        CHECK(VELOC_Recover_mem());
        if (rank % 2 == 0) { /* the others have no file */
            memset(routed, 0xf3, 8);
            routed[8] = 0;
            CHECK(VELOC_Route_file(routed, routed));
            file = fopen(routed, "r");
            if (file == NULL || fscanf(file, "%31s", word) != 1 || atoi(word) != 100 * version + rank)
                MPI_Abort(MPI_COMM_WORLD, 2);
            fclose(file);
        }
        CHECK(VELOC_Restart_end(1));
        if (step != version || bytes[99 + rank] != (char)step)
            MPI_Abort(MPI_COMM_WORLD, 3);
    }
    if (rank == 0)
        printf("from version %d\n", version);

    while (step < last) {
        MPI_Sendrecv(cells + count - 1, 1, MPI_DOUBLE, (rank + 1) % ranks, 0, &left, 1, MPI_DOUBLE,
                     (rank + ranks - 1) % ranks, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (at = 0; at < count; at++) {
            double mine = cells[at];
            cells[at] = mine * 0.75 + left * 0.25 + 1;
            left = mine;
        }
        step++;
        bytes[99 + rank] = (char)step;
        if (step % 7 == 3) { /* one rank gives it up: no rank has it */
            CHECK(VELOC_Checkpoint_begin("ranks", step));
            CHECK(VELOC_Checkpoint_mem());
            if (VELOC_Checkpoint_end(rank != 1) == VELOC_SUCCESS)
                MPI_Abort(MPI_COMM_WORLD, 4);
            continue;
        }
        CHECK(VELOC_Checkpoint_wait());
        CHECK(VELOC_Checkpoint_begin("ranks", step));
        if (rank % 2 == 0) {
            snprintf(word, sizeof word, "word-%d-%d", step, rank);
            CHECK(VELOC_Route_file(word, routed));
            file = fopen(routed, "w");
            if (file == NULL || fprintf(file, "%d\n", 100 * step + rank) < 0 || fclose(file) != 0)
                MPI_Abort(MPI_COMM_WORLD, 5);
        }
        CHECK(VELOC_Checkpoint_mem());
        CHECK(VELOC_Checkpoint_end(1));
    }
    CHECK(VELOC_Checkpoint_wait());
    /* If one rank makes a mistake, all ranks get an error, and none waits. */
    if (VELOC_Checkpoint(rank == 1 ? NULL : "ranks", last) == VELOC_SUCCESS ||
        VELOC_Checkpoint("ranks", rank == 1 ? -1 : last) == VELOC_SUCCESS ||
        VELOC_Checkpoint_end(1) == VELOC_SUCCESS || VELOC_Restart_test(rank == 1 ? NULL : "ranks", 0) >= 0 ||
        VELOC_Restart_begin(rank == 1 ? "a/b" : "ranks", last) == VELOC_SUCCESS ||
        VELOC_Restart(rank == 1 ? NULL : "ranks", last) == VELOC_SUCCESS)
        MPI_Abort(MPI_COMM_WORLD, 8);
    CHECK(VELOC_Finalize(1));
    for (at = 0; at < count; at++)
        sum += cells[at];
    MPI_Reduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("step %d: %.17g\n", step, all);
    free(bytes);
    free(cells);
    MPI_Finalize();
    return 0;
}
