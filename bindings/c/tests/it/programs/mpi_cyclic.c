/* A matrix in the blocks of ScaLAPACK, saved and restored by changing numbers of ranks: POOL STEP,
   the number of this start. Each start has blocks of its own. */
#include "check.h"
#include <mpi.h>
#include <outlive_mpi.h>

#define ROWS 410
#define COLUMNS 330

/* ScaLAPACK's numroc: number of the `n` rows, in blocks of `block`, that process `at` of `ranks`
   has. */
static size_t numroc(size_t n, size_t block, size_t at, size_t ranks)
{
    size_t rounds = n / (block * ranks), rest = n % (block * ranks);
    size_t more = rest > at * block ? rest - at * block : 0;
    return rounds * block + (more < block ? more : block);
}

int main(int argc, char **argv)
{
    int grid[2] = {0, 0}, place[2], ranks, rank, step;
    size_t whole[2] = {ROWS, COLUMNS}, shape[2], offset[2], block[2], stride[2], row, column, at;
    outlive_pool *pool;
    outlive_job *job;
    uint64_t epoch;
    int64_t saved = 0;
    double *matrix;

    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    CHECK(argc == 3);
    step = atoi(argv[2]);
    MPI_Dims_create(ranks, 2, grid);
    place[0] = rank / grid[1];
    place[1] = rank % grid[1];
    block[0] = 16 + (size_t)step;
    block[1] = 1 + 8 * (size_t)(step % 3);
    for (at = 0; at < 2; at++) {
        shape[at] = numroc(whole[at], block[at], (size_t)place[at], (size_t)grid[at]);
        offset[at] = (size_t)place[at] * block[at];
        stride[at] = (size_t)grid[at] * block[at];
    }
    matrix = malloc(shape[0] * shape[1] * sizeof *matrix + 1);
    OK(outlive_open(argv[1], &pool));
    OK(outlive_job_open_mpi(pool, "matrix", 0, MPI_COMM_WORLD, 0, NULL, &job));
    OK(outlive_protect_cyclic(job, "matrix", matrix, OUTLIVE_FLOAT64, 2, shape, whole, offset, block, stride));
    OK(outlive_protect_replicated(job, "step", &saved, OUTLIVE_INT64, 0, NULL));
    if (step > 1) {
        OK(outlive_restore(job, 0, &epoch));
        CHECK(saved == step - 1);
    }
    saved = step;
    for (row = 0; row < shape[0]; row++)
        for (column = 0; column < shape[1]; column++) {
            size_t of_row = offset[0] + row / block[0] * stride[0] + row % block[0];
            size_t of_column = offset[1] + column / block[1] * stride[1] + column % block[1];
            double *cell = matrix + row * shape[1] + column, value = (double)(of_row * COLUMNS + of_column);
            CHECK(step == 1 || *cell == value * (step - 1));
            *cell = value * step;
        }
    OK(outlive_save(job, OUTLIVE_FORCE | OUTLIVE_WAIT, NULL));
    OK(outlive_job_close(job));
    OK(outlive_close(pool));
    free(matrix);
    if (rank == 0)
        printf("done\n");
    MPI_Finalize();
    return 0;
}
