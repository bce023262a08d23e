/* A rank closes the job, or ends, while the others save: all get an error, and none waits. */
#include <outlive_mpi.h>
#include <stdio.h>

static int rank, ranks;

static void expect(int line, outlive_status got, outlive_status wanted, const char *words)
{
    if (got == wanted && (got == OUTLIVE_OK || strstr(outlive_error_message(), words) != NULL))
        return;
    fprintf(stderr, "rank %d, line %d: %s: %s\n", rank, line, outlive_status_name(got), outlive_error_message());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

#define EXPECT(call, wanted, words) expect(__LINE__, (call), (wanted), (words))

int main(int argc, char **argv)
{
    outlive_pool *pool;
    outlive_job *job;
    int64_t step = 1;
    int leaver, closes;
    char named[60];

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    leaver = atoi(argv[2]);
    closes = strcmp(argv[3], "close") == 0;
    EXPECT(outlive_open(argv[1], &pool), OUTLIVE_OK, "");
    EXPECT(outlive_job_open_mpi(pool, "job", 0, MPI_COMM_WORLD, 0, NULL, &job), OUTLIVE_OK, "");
    EXPECT(outlive_protect(job, "step", &step, OUTLIVE_INT64, 0, NULL), OUTLIVE_OK, "");
    EXPECT(outlive_save(job, OUTLIVE_WAIT, NULL), OUTLIVE_OK, "");
    snprintf(named, sizeof named, leaver == 0 ? "rank %d call" : "rank %d makes call", leaver);
    if (rank == leaver) {
        if (closes)
            EXPECT(outlive_job_close(job), OUTLIVE_INVALID, "the close of the job");
    } else {
        outlive_status told = outlive_save(job, OUTLIVE_FORCE, NULL);
        EXPECT(told, OUTLIVE_INVALID, "the close of the job");
        EXPECT(told, OUTLIVE_INVALID, named);
    }
    MPI_Finalize();
    if (rank == (leaver == 0 ? 1 : 0))
        puts("done");
    return 0;
}
