/* Heat spreads over a plate. If you kill this program at any moment and start it again, it
   continues where it was; its result is the same, bit for bit.

       make install PREFIX=$HOME/.local
       export PKG_CONFIG_PATH=$HOME/.local/lib/pkgconfig LD_LIBRARY_PATH=$HOME/.local/lib
       cc -std=c99 -O2 examples/heat.c -o heat $(pkg-config --cflags --libs outlive)
       ./heat ckpt 2000

   The plate is `rows` x COLUMNS cells, with a row of neighbours above and below. One process has
   all rows; several would each have some, and exchange those rows with their neighbours in
   `exchange`. */
#include <outlive.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 1000, COLUMNS = 1000 };

typedef struct {
    size_t rows;         /* of this process */
    double *now, *next;  /* (rows + 2) x COLUMNS each */
    int64_t step;
} plate;

static void stop_if(outlive_status status)
{
    if (status != OUTLIVE_OK) {
        fprintf(stderr, "heat: %s: %s\n", outlive_status_name(status), outlive_error_message());
        exit(1);
    }
}

/* Fills the rows above and below the own ones: from neighbours, or with the cold of the edge. */
static void exchange(plate *p)
{
    size_t at;
    for (at = 0; at < COLUMNS; at++) {
        p->now[at] = 0;
        p->now[(p->rows + 1) * COLUMNS + at] = 0;
    }
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
    size_t shape[2];
    shape[0] = p->rows;
    shape[1] = COLUMNS;
    stop_if(outlive_protect(job, "plate", p->now + COLUMNS, OUTLIVE_FLOAT64, 2, shape));
    stop_if(outlive_protect(job, "step", &p->step, OUTLIVE_INT64, 0, NULL));
}

int main(int argc, char **argv)
{
    plate p = {ROWS, NULL, NULL, 0};
    outlive_pool *pool;
    outlive_job *job;
    outlive_status status;
    uint64_t epoch;
    size_t at;
    double total = 0;
    int64_t last = argc > 2 ? atoll(argv[2]) : 1000;

    p.now = calloc((p.rows + 2) * COLUMNS, sizeof *p.now);
    p.next = calloc((p.rows + 2) * COLUMNS, sizeof *p.next);
    if (p.now == NULL || p.next == NULL)
        return 1;
    stop_if(outlive_open(argc > 1 ? argv[1] : "ckpt", &pool));
    stop_if(outlive_job_open(pool, "heat", 1.0, &job)); /* saves at most once a second */

    protect(job, &p);
    status = outlive_restore(job, 0, &epoch); /* the newest checkpoint, if there is one */
    if (status == OUTLIVE_NOTHING)
        p.now[(1 + p.rows / 2) * COLUMNS + COLUMNS / 2] = 1e6; /* the program begins */
    else
        stop_if(status);
    printf("heat: from step %lld\n", (long long)p.step);

    while (p.step < last) {
        advance(&p);
        protect(job, &p);
        stop_if(outlive_save(job, OUTLIVE_DUE, NULL)); /* the program goes on while it is written */
    }
    stop_if(outlive_save(job, OUTLIVE_FORCE, NULL));
    stop_if(outlive_prune(job, 10, NULL));
    stop_if(outlive_job_close(job));
    stop_if(outlive_close(pool));

    for (at = COLUMNS; at < (p.rows + 1) * COLUMNS; at++)
        total += p.now[at] * (double)(at % 7 + 1);
    printf("heat: step %lld, %.17g\n", (long long)p.step, total);
    free(p.now);
    free(p.next);
    return 0;
}
