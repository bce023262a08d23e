/* A program that prints, and leaves it to the C library when. It is killed after a save.
 * usage: printed POOL */
#include "check.h"
#include <signal.h>
#include <unistd.h>

static int64_t step;

int main(int argc, char **argv)
{
    outlive_pool *pool;
    outlive_job *job;
    uint64_t epoch;
    CHECK(argc == 2);
    OK(outlive_open(argv[1], &pool));
    OK(outlive_job_open(pool, "job", 0.0, &job));
    OK(outlive_protect(job, "step", &step, OUTLIVE_INT64, 0, NULL));
    printf("begin\n");
    fprintf(stderr, "error\n");
    const outlive_status status = outlive_restore(job, 0, &epoch);
    CHECK(status == OUTLIVE_OK || status == OUTLIVE_NOTHING);
    printf("step %lld\n", (long long)++step);
    OK(outlive_save(job, OUTLIVE_FORCE | OUTLIVE_WAIT, NULL));
    printf("uncovered\n");
    fflush(stdout);
    kill(getpid(), SIGKILL);
    return 0;
}
