/* The interval between saves is a rule, and nonsense is refused. */
#include "check.h"
#include <stdio.h>

int main(int argc, char **argv)
{
    outlive_pool *pool;
    outlive_job *job;
    outlive_saving *saving;
    int64_t step = 0;
    int due;

    CHECK(argc == 2);
    OK(outlive_open(argv[1], &pool));
    OK(outlive_job_open(pool, "job", 0, &job));
    OK(outlive_protect(job, "step", &step, OUTLIVE_INT64, 0, NULL));
    INVALID(outlive_job_every(job, "often", 0), "is no interval");
    INVALID(outlive_job_every(job, NULL, 0), "the interval is NULL");
    INVALID(outlive_job_every(job, "continuous", 1.5), "slowdown_max = 1.5");
    INVALID(outlive_job_every(job, "continuous", -0.1), "slowdown_max = -0.1");

    /* After the first save the rule decides. */
    OK(outlive_job_every(job, "1h", 0));
    OK(outlive_due(job, &due));
    CHECK(due == 1);
    OK(outlive_save(job, OUTLIVE_WAIT, NULL));
    OK(outlive_due(job, &due));
    CHECK(due == 0);
    OK(outlive_save(job, OUTLIVE_DUE, &saving));
    CHECK(saving == NULL);

    /* Another rule begins without a save. */
    OK(outlive_job_every(job, "auto", 0));
    OK(outlive_due(job, &due));
    CHECK(due == 1);
    OK(outlive_job_every(job, "continuous", 0.1));
    OK(outlive_due(job, &due));
    CHECK(due == 1);
    OK(outlive_job_close(job));
    OK(outlive_close(pool));
    puts("done");
    return 0;
}
