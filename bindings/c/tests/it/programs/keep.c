/* Retention as part of a job. */
#include "check.h"

static outlive_pool *pool;
static int64_t step;

static outlive_job *job_with(const char *rules)
{
    outlive_job *job;
    OK(outlive_job_open(pool, "job", 0, &job));
    OK(outlive_protect(job, "step", &step, OUTLIVE_INT64, 0, NULL));
    OK(outlive_job_keep(job, rules));
    return job;
}

static void save(outlive_job *job, int count)
{
    for (; count > 0; count--) {
        step++;
        OK(outlive_save(job, OUTLIVE_FORCE | OUTLIVE_WAIT, NULL));
    }
}

/* Checks the existing epochs, each of which restores its step. */
static void check(const uint64_t *wanted, size_t count)
{
    uint64_t there[20], epoch;
    size_t found, at;
    outlive_job *job;
    OK(outlive_job_open(pool, "job", 0, &job));
    OK(outlive_protect(job, "step", &step, OUTLIVE_INT64, 0, NULL));
    OK(outlive_epochs(job, there, 20, &found));
    CHECK(found == count);
    for (at = 0; at < count; at++) {
        CHECK(there[at] == wanted[at]);
        OK(outlive_restore(job, there[at], &epoch));
        CHECK(step == (int64_t)there[at]);
    }
    OK(outlive_job_close(job));
}

int main(int argc, char **argv)
{
    const uint64_t first[] = {4, 8, 9, 10}, second[] = {11, 13};
    outlive_job *job;

    CHECK(argc == 2);
    OK(outlive_open(argv[1], &pool));
    job = job_with("last 3 | every 4");
    INVALID(outlive_job_keep(job, NULL), "the text of rules");
    INVALID(outlive_job_keep(job, ""), "may drop every checkpoint");
    INVALID(outlive_job_keep(job, "last 0"), "");
    INVALID(outlive_job_keep(job, "first 3"), "is not a rule");
    save(job, 10);
    OK(outlive_job_close(job)); /* waits until the dropped checkpoints are deleted */
    check(first, 4);
    INVALID(outlive_job_keep(job, "last 1"), "");

    /* Other rules replace them, also in the same job; a pin stays. */
    job = job_with("last 3");
    OK(outlive_next_pin(job));
    save(job, 1);
    OK(outlive_job_keep(job, "last 1"));
    save(job, 2);
    OK(outlive_job_close(job));
    check(second, 2);
    OK(outlive_close(pool));
    puts("done");
    return 0;
}
