/* Saves that fail while the program goes on. */
#define _POSIX_C_SOURCE 200809L
#include "full_disk.h"
#include <signal.h>
#include <stdio.h>

static outlive_job *job;
static double u[100000];
static int64_t step;

static void save(unsigned flags, outlive_status of_the_save)
{
    outlive_saving *saving;
    step++;
    u[step] = (double)step;
    OK(outlive_save(job, OUTLIVE_FORCE | flags, &saving));
    CHECK(saving != NULL);
    CHECK(outlive_wait(saving) == of_the_save);
    OK(outlive_save_free(saving));
}

int main(int argc, char **argv)
{
    const size_t shape[] = {100000};
    outlive_pool *pool;
    outlive_job *other;
    outlive_health health;
    uint64_t epoch;

    CHECK(argc == 2);
    signal(SIGXFSZ, SIG_IGN);
    OK(outlive_open(argv[1], &pool));
    OK(outlive_job_open(pool, "job", 60, &job));
    OK(outlive_protect(job, "u", u, OUTLIVE_FLOAT64, 1, shape));
    OK(outlive_protect(job, "step", &step, OUTLIVE_INT64, 0, NULL));
    INVALID(outlive_job_on_failure(job, 2, 3600), "must be OUTLIVE_RAISE or OUTLIVE_WARN");
    INVALID(outlive_job_on_failure(job, OUTLIVE_WARN, -1), "must be a number of seconds above 0");
    INVALID(outlive_job_on_failure(job, OUTLIVE_WARN, 0), "give a longer time");
    INVALID(outlive_job_on_failure(job, OUTLIVE_WARN, 60), "saves are due every 60 s");
    OK(outlive_job_health(job, &health));
    CHECK(health.failed == 0 && health.committed == 0 && health.since_commit_s < 0);
    OK(outlive_job_on_failure(job, OUTLIVE_WARN, 3600));
    save(0, OUTLIVE_OK);

    set_room(5000);
    save(OUTLIVE_WAIT, OUTLIVE_FULL);
    save(0, OUTLIVE_FULL);
    OK(outlive_job_wait(job)); /* the handles have returned all failures */
    OK(outlive_job_health(job, &health));
    CHECK(health.failed == 2 && health.failed_in_a_row == 2 && health.committed == 1);
    CHECK(health.since_commit_s >= 0 && health.last_failure == OUTLIVE_FULL);

    set_room(RLIM_INFINITY);
    save(OUTLIVE_WAIT, OUTLIVE_OK);
    OK(outlive_job_health(job, &health));
    CHECK(health.failed == 2 && health.failed_in_a_row == 0 && health.committed == 2);

    /* Another handle of the job sets another policy: it holds for both. */
    OK(outlive_job_open(pool, "job", 0, &other));
    OK(outlive_job_on_failure(other, OUTLIVE_RAISE, 0));
    set_room(5000);
    u[0] = -1;
    OK(outlive_save(job, OUTLIVE_FORCE, NULL));
    CHECK(outlive_save(job, OUTLIVE_FORCE, NULL) == OUTLIVE_FULL);
    set_room(RLIM_INFINITY);
    save(0, OUTLIVE_OK);
    OK(outlive_job_close(other));
    OK(outlive_job_close(job));

    memset(u, 0, sizeof u);
    step = 0;
    OK(outlive_job_open(pool, "job", 0, &job));
    OK(outlive_protect(job, "u", u, OUTLIVE_FLOAT64, 1, shape));
    OK(outlive_protect(job, "step", &step, OUTLIVE_INT64, 0, NULL));
    OK(outlive_restore(job, 0, &epoch));
    CHECK(epoch == 3 && step == 5 && u[0] == -1 && u[2] == 2 && u[3] == 3 && u[5] == 5);
    OK(outlive_job_leave(job));
    INVALID(outlive_job_leave(job), "");
    OK(outlive_close(pool));
    puts("done");
    return 0;
}
