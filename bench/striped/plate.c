/* The load of bench/striped: heat on a plate of N x N cells that ranks of MPI divide in blocks of
   rows, as in examples/heat_mpi.c, with a clock around each save and restore. Every step changes
   every cell.

       plate POOL JOB N SCHEDULE SAVES    makes SAVES saves, a step between, and prints a line each
       plate POOL JOB N alone SAVES       the same, but each rank for itself, as a program of one
       plate POOL JOB N restore           restores the newest checkpoint, and prints how long that took

   Rank 0 prints one line for each: seconds until the states of all ranks are durable or restored,
   bytes of state, the longest stall of a rank, and the longest barrier just before. */
#define _POSIX_C_SOURCE 199309L /* nanosleep */
#include <outlive_mpi.h>
#include <stdio.h>
#include <time.h>

typedef struct {
    int rank, ranks;
    size_t side, first, rows;
    double *now, *next; /* (rows + 2) x side each: with a row of each neighbour */
} plate;

static void stop_if(outlive_status status)
{
    if (status != OUTLIVE_OK) {
        fprintf(stderr, "plate: %s: %s\n", outlive_status_name(status), outlive_error_message());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static void exchange(plate *p)
{
    int above = p->rank > 0 ? p->rank - 1 : MPI_PROC_NULL;
    int below = p->rank + 1 < p->ranks ? p->rank + 1 : MPI_PROC_NULL;
    int row = (int)p->side;
    double *first = p->now + p->side, *last = p->now + p->rows * p->side;
    MPI_Sendrecv(first, row, MPI_DOUBLE, above, 0, last + p->side, row, MPI_DOUBLE, below, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(last, row, MPI_DOUBLE, below, 1, first - p->side, row, MPI_DOUBLE, above, 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void advance(plate *p)
{
    size_t row, column, side = p->side;
    double *was = p->now;
    exchange(p);
    for (row = 1; row <= p->rows; row++) {
        for (column = 0; column < side; column++) {
            const double *at = p->now + row * side + column;
            double left = column > 0 ? at[-1] : 0, right = column + 1 < side ? at[1] : 0;
            p->next[row * side + column] =
                *at + 0.2 * (left + right + *(at - side) + at[side] - 4 * *at);
        }
    }
    p->now = p->next;
    p->next = was;
}

static void protect(outlive_job *job, plate *p, int alone)
{
    size_t shape[2], whole[2], offset[2] = {0, 0};
    shape[0] = p->rows;
    shape[1] = whole[0] = whole[1] = p->side;
    offset[0] = p->first;
    if (alone)
        stop_if(outlive_protect(job, "plate", p->now + p->side, OUTLIVE_FLOAT64, 2, shape));
    else
        stop_if(outlive_protect_sharded(job, "plate", p->now + p->side, OUTLIVE_FLOAT64, 2, shape, whole, offset));
}

static double most(double mine)
{
    double all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all;
}

static void tell(const plate *p, double took, double stood, double barrier)
{
    if (p->rank == 0) {
        printf("{\"seconds\": %.6f, \"bytes\": %zu, \"stood_s\": %.6f, \"barrier_s\": %.6f}\n", took,
               p->side * p->side * sizeof(double), stood, barrier);
        fflush(stdout);
    }
}

static void save(outlive_job *job, plate *p)
{
    outlive_saving *saving;
    outlive_figures figures;
    double began, barrier, stood, took;
    /* Pause between checkpoints, so that each finds the devices idle. The kernel lets an idle
       device take some bytes at once, and the last save could use up that credit of a small one. */
    struct timespec pause = {0, 300 * 1000 * 1000};
    nanosleep(&pause, NULL);
    MPI_Barrier(MPI_COMM_WORLD);
    began = MPI_Wtime();
    MPI_Barrier(MPI_COMM_WORLD);
    barrier = MPI_Wtime() - began;
    began = MPI_Wtime();
    stop_if(outlive_save(job, OUTLIVE_FORCE, &saving));
    stood = MPI_Wtime() - began;
    stop_if(outlive_save_figures(saving, &figures)); /* once it is durable */
    took = most(MPI_Wtime() - began);
    stop_if(outlive_save_free(saving));
    stood = most(stood);
    barrier = most(barrier);
    tell(p, took, stood, barrier);
}

int main(int argc, char **argv)
{
    plate p;
    outlive_pool *pool;
    outlive_job *job;
    uint64_t epoch;
    double began;
    size_t at;
    int restores, alone, saves, done;
    char name[256];

    MPI_Init(&argc, &argv);
    if (argc < 5)
        MPI_Abort(MPI_COMM_WORLD, 2);
    memset(&p, 0, sizeof p);
    MPI_Comm_rank(MPI_COMM_WORLD, &p.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &p.ranks);
    p.side = (size_t)atoll(argv[3]);
    restores = strcmp(argv[4], "restore") == 0;
    alone = strcmp(argv[4], "alone") == 0;
    saves = argc > 5 ? atoi(argv[5]) : 1;
    p.first = p.side * (size_t)p.rank / (size_t)p.ranks;
    p.rows = p.side * ((size_t)p.rank + 1) / (size_t)p.ranks - p.first;
    p.now = (double *)calloc((p.rows + 2) * p.side, sizeof *p.now);
    p.next = (double *)calloc((p.rows + 2) * p.side, sizeof *p.next);
    if (p.now == NULL || p.next == NULL)
        MPI_Abort(MPI_COMM_WORLD, 1);
    /* Cells that all differ, in an order that no device can compress. */
    for (at = 0; at < (p.rows + 2) * p.side; at++)
        p.now[at] = (double)(((p.first * p.side + at) * 2654435761u) & 0xFFFFFFFFu) / 7.0;

    MPI_Barrier(MPI_COMM_WORLD);
    began = MPI_Wtime();
    stop_if(outlive_open_existing(argv[1], &pool));
    snprintf(name, sizeof name, "%s-%d", argv[2], p.rank);
    if (alone)
        stop_if(outlive_job_open(pool, name, 0, &job));
    else
        stop_if(outlive_job_open_mpi(pool, argv[2], 0, MPI_COMM_WORLD, 600, restores ? NULL : argv[4], &job));
    protect(job, &p, alone);
    if (restores) {
        double took;
        stop_if(outlive_restore(job, 0, &epoch));
        took = most(MPI_Wtime() - began);
        tell(&p, took, took, 0);
    }
    for (done = 0; !restores && done < saves; done++) {
        advance(&p);
        protect(job, &p, alone);
        save(job, &p);
    }
    stop_if(outlive_job_close(job));
    stop_if(outlive_close(pool));
    free(p.now);
    free(p.next);
    MPI_Finalize();
    return 0;
}
