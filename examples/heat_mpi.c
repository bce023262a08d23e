/* Heat spreads over a plate that is divided among the ranks of MPI, in blocks of rows. If you kill
   the program at any moment and start it again, on any number of ranks, it continues where it was;
   its result is the same, bit for bit.

       make install PREFIX=$HOME/.local
       export PKG_CONFIG_PATH=$HOME/.local/lib/pkgconfig LD_LIBRARY_PATH=$HOME/.local/lib
       mpicc -std=c99 -O2 examples/heat_mpi.c -o heat_mpi $(pkg-config --cflags --libs outlive)
       mpirun -n 4 ./heat_mpi ckpt 2000

   The calls for outlive: outlive_job_open_mpi, outlive_protect_sharded, outlive_restore and
   outlive_save. */
#include <outlive_mpi.h>
#include <stdio.h>

enum { ROWS = 600, COLUMNS = 800 };

typedef struct {
    int rank, ranks;
    size_t first, rows;  /* of this rank */
    double *now, *next;  /* (rows + 2) x COLUMNS each: with a row of each neighbour */
    int64_t step;
} plate;

static void stop_if(outlive_status status)
{
    if (status != OUTLIVE_OK) {
        fprintf(stderr, "heat: %s: %s\n", outlive_status_name(status), outlive_error_message());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* Fills the rows above and below the own ones: from neighbours, or with the cold of the edge. */
static void exchange(plate *p)
{
    int above = p->rank > 0 ? p->rank - 1 : MPI_PROC_NULL;
    int below = p->rank + 1 < p->ranks ? p->rank + 1 : MPI_PROC_NULL;
    double *first = p->now + COLUMNS, *last = p->now + p->rows * COLUMNS;
    MPI_Sendrecv(first, COLUMNS, MPI_DOUBLE, above, 0, last + COLUMNS, COLUMNS, MPI_DOUBLE, below, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(last, COLUMNS, MPI_DOUBLE, below, 1, first - COLUMNS, COLUMNS, MPI_DOUBLE, above, 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void advance(plate *p)
{
    size_t row, column;
    double *was;
    exchange(p);
    for (row = 1; row <= p->rows; row++) {
        for (column = 0; column < COLUMNS; column++) {
            const double *at = p->now + row * COLUMNS + column;
            double left = column > 0 ? at[-1] : 0;
            double right = column + 1 < COLUMNS ? at[1] : 0;
            p->next[row * COLUMNS + column] =
                *at + 0.2 * (left + right + at[-COLUMNS] + at[COLUMNS] - 4 * *at);
        }
    }
    was = p->now;
    p->now = p->next;
    p->next = was;
    p->step++;
}

/* The two grids change places at each step, so the current one is named before each save. */
static void protect(outlive_job *job, plate *p)
{
    size_t shape[2], whole[2] = {ROWS, COLUMNS}, offset[2];
    shape[0] = p->rows;
    shape[1] = COLUMNS;
    offset[0] = p->first;
    offset[1] = 0;
    stop_if(outlive_protect_sharded(job, "plate", p->now + COLUMNS, OUTLIVE_FLOAT64, 2, shape, whole, offset));
    stop_if(outlive_protect_replicated(job, "step", &p->step, OUTLIVE_INT64, 0, NULL));
}

/* Returns a sum that does not depend on the division of the plate: by cell, in whole numbers. */
static unsigned long long digest(const plate *p)
{
    unsigned long long mine = 0, all = 0, bits;
    size_t at;
    for (at = 0; at < p->rows * COLUMNS; at++) {
        memcpy(&bits, p->now + COLUMNS + at, sizeof bits);
        mine += bits * (2 * (p->first * COLUMNS + at) + 1);
    }
    MPI_Reduce(&mine, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    return all;
}

int main(int argc, char **argv)
{
    plate p;
    outlive_pool *pool;
    outlive_job *job;
    outlive_status status;
    uint64_t epoch;
    unsigned long long sum;
    int64_t last = argc > 2 ? atoll(argv[2]) : 1000;
    double every_s = argc > 3 ? atof(argv[3]) : 1.0;
    const char *schedule = argc > 4 ? argv[4] : NULL;

    MPI_Init(&argc, &argv);
    memset(&p, 0, sizeof p);
    MPI_Comm_rank(MPI_COMM_WORLD, &p.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &p.ranks);
    p.first = (size_t)ROWS * (size_t)p.rank / (size_t)p.ranks;
    p.rows = (size_t)ROWS * ((size_t)p.rank + 1) / (size_t)p.ranks - p.first;
    p.now = (double *)calloc((p.rows + 2) * COLUMNS, sizeof *p.now);
    p.next = (double *)calloc((p.rows + 2) * COLUMNS, sizeof *p.next);
    if (p.now == NULL || p.next == NULL)
        MPI_Abort(MPI_COMM_WORLD, 1);

    stop_if(outlive_open(argc > 1 ? argv[1] : "ckpt", &pool));
    stop_if(outlive_job_open_mpi(pool, "heat", every_s, MPI_COMM_WORLD, 30, schedule, &job));
    protect(job, &p);
    status = outlive_restore(job, 0, &epoch); /* the newest checkpoint that every rank can restore */
    if (status != OUTLIVE_NOTHING)
        stop_if(status);
    else if (p.first <= ROWS / 2 && ROWS / 2 < p.first + p.rows)
        p.now[(1 + ROWS / 2 - p.first) * COLUMNS + COLUMNS / 2] = 1e6; /* the program begins */
    if (p.rank == 0)
        printf("heat: %d ranks from step %lld\n", p.ranks, (long long)p.step);

    while (p.step < last) {
        advance(&p);
        protect(job, &p);
        stop_if(outlive_save(job, OUTLIVE_DUE, NULL)); /* all ranks together; goes on while it is written */
    }
    stop_if(outlive_save(job, OUTLIVE_FORCE, NULL));
    stop_if(outlive_job_close(job));
    stop_if(outlive_close(pool));

    sum = digest(&p);
    if (p.rank == 0)
        printf("heat: step %lld, %016llx\n", (long long)p.step, sum);
    free(p.now);
    free(p.next);
    MPI_Finalize();
    return 0;
}
