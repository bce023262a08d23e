/* Forks while a save is under way. */
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

static unsigned char bytes[8 << 20];

/* A forked child is refused before it touches a lock, and may open a pool of its own. */
static void forks(outlive_pool *pool, outlive_job *job, outlive_events *events,
                  const char *location)
{
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        outlive_pool *own;
        outlive_job *mine;
        outlive_events *fresh;
        outlive_event event;
        INVALID(outlive_events_next(events, 60, &event), "forked from it");
        INVALID(outlive_events_close(events), "forked from it");
        INVALID(outlive_events_open(job, &fresh), "forked from it");
        CHECK(fresh == NULL);
        INVALID(outlive_save(job, OUTLIVE_FORCE, NULL), "forked from it");
        INVALID(outlive_job_close(job), "forked from it");
        INVALID(outlive_job_open(pool, "child", 0, &mine), "forked from it");
        OK(outlive_open(location, &own));
        OK(outlive_job_open(own, "child", 0, &mine));
        OK(outlive_protect_bytes(mine, "a", bytes, 1000));
        OK(outlive_events_open(mine, &fresh));
        OK(outlive_save(mine, OUTLIVE_FORCE, NULL));
        OK(outlive_events_next(fresh, 60, &event));
        CHECK(event.epoch == 1 && event.status == OUTLIVE_OK);
        exit(0); /* completes its own save, and does not touch the parent's jobs */
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv)
{
    outlive_pool *pool;
    outlive_job *job;
    outlive_events *events;
    outlive_event event;
    uint64_t epoch;

    CHECK(argc == 2);
    OK(outlive_open(argv[1], &pool));
    OK(outlive_job_open(pool, "job", 0, &job));
    OK(outlive_protect_bytes(job, "bytes", bytes, sizeof bytes));
    fill(bytes, sizeof bytes, 1);
    OK(outlive_events_open(job, &events));
    OK(outlive_save(job, OUTLIVE_FORCE, NULL));
    forks(pool, job, events, argv[1]);
    OK(outlive_job_wait(job));
    OK(outlive_events_next(events, 0, &event));
    CHECK(event.epoch == 1 && event.status == OUTLIVE_OK);
    OK(outlive_events_close(events));
    OK(outlive_save(job, OUTLIVE_FORCE | OUTLIVE_WAIT, NULL));
    OK(outlive_job_close(job));
    OK(outlive_job_open(pool, "child", 0, &job));
    OK(outlive_newest(job, &epoch));
    CHECK(epoch == 1);
    OK(outlive_job_close(job));
    OK(outlive_close(pool));
    printf("done\n");
    return 0;
}
