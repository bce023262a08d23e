/* Subscriptions: each gets the fate of every checkpoint once, in the order of the saves. */
#define _POSIX_C_SOURCE 200809L
#include "full_disk.h"
#include <math.h>
#include <pthread.h>
#include <signal.h>

#define SAVES 20
#define SUBSCRIPTIONS 1000

static double u[100000];
static int64_t step;

static outlive_job *open_job(outlive_pool *pool)
{
    const size_t shape[] = {100000};
    outlive_job *job;
    OK(outlive_job_open(pool, "job", 0, &job));
    OK(outlive_protect(job, "u", u, OUTLIVE_FLOAT64, 1, shape));
    OK(outlive_protect(job, "step", &step, OUTLIVE_INT64, 0, NULL));
    return job;
}

static void save(outlive_job *job)
{
    step++;
    u[step] = (double)step;
    OK(outlive_save(job, OUTLIVE_FORCE, NULL));
}

static void next_is(outlive_events *events, uint64_t epoch, outlive_status status)
{
    outlive_event event;
    OK(outlive_events_next(events, 60, &event));
    CHECK(event.epoch == epoch && event.status == status);
}

/* Takes events until none will come; after a close in another thread the handle may be refused. */
static void *take_all(void *events)
{
    static char nothing;
    outlive_event event;
    uint64_t last = 0;
    outlive_status status;
    while ((status = outlive_events_next(events, INFINITY, &event)) == OUTLIVE_OK) {
        CHECK(event.status == OUTLIVE_OK && event.epoch > last);
        last = event.epoch;
    }
    CHECK(status == OUTLIVE_NOTHING || status == OUTLIVE_INVALID);
    return status == OUTLIVE_NOTHING ? &nothing : NULL;
}

int main(int argc, char **argv)
{
    outlive_pool *pool, *reader;
    outlive_job *job, *other, *looks;
    outlive_events *first, *second, *third;
    outlive_event event;
    pthread_t thread;
    void *nothing;
    uint64_t epoch;
    int i;

    CHECK(argc == 2);
    signal(SIGXFSZ, SIG_IGN);
    OK(outlive_open(argv[1], &pool));
    job = open_job(pool);
    INVALID(outlive_events_open(job, NULL), "NULL");
    INVALID(outlive_events_open(NULL, &first), "NULL");
    CHECK(first == NULL);
    OK(outlive_events_open(job, &first));
    OK(outlive_events_open(job, &second));
    INVALID(outlive_events_next(first, 0, NULL), "NULL");
    INVALID(outlive_events_next(first, NAN, &event), "not a number");
    INVALID(outlive_events_next((outlive_events *)(void *)job, 0, &event), "is no subscription");
    FAILS(outlive_events_next(first, 0, &event), OUTLIVE_RETRY, "within 0 s");
    CHECK(event.epoch == 0);
    FAILS(outlive_events_next(first, -1, &event), OUTLIVE_RETRY, "");
    FAILS(outlive_events_next(first, 0.01, &event), OUTLIVE_RETRY, "within 0.01 s");

    /* At an event, another handle of the pool shows the checkpoint. */
    OK(outlive_open(argv[1], &reader));
    for (i = 1; i <= SAVES; i++)
        save(job);
    for (i = 1; i <= SAVES; i++) {
        next_is(first, (uint64_t)i, OUTLIVE_OK);
        OK(outlive_job_open(reader, "job", 0, &looks));
        OK(outlive_newest(looks, &epoch));
        CHECK(epoch >= (uint64_t)i);
        OK(outlive_job_close(looks));
    }
    FAILS(outlive_events_next(first, 0, &event), OUTLIVE_RETRY, "");

    /* A failed save, and then a save by another handle of the job. */
    OK(outlive_job_on_failure(job, OUTLIVE_WARN, 3600));
    set_room(5000);
    save(job);
    OK(outlive_events_next(first, 60, &event));
    CHECK(event.epoch == SAVES + 1 && event.status == OUTLIVE_FULL);
    CHECK(strlen(outlive_error_message()) > 10);
    CHECK(outlive_job_wait(job) == OUTLIVE_FULL);
    set_room(RLIM_INFINITY);
    other = open_job(pool);
    save(other);
    next_is(first, SAVES + 1, OUTLIVE_OK);
    for (i = 1; i <= SAVES; i++)
        next_is(second, (uint64_t)i, OUTLIVE_OK);
    next_is(second, SAVES + 1, OUTLIVE_FULL);
    CHECK(strlen(outlive_error_message()) > 10);

    /* A close ends it, although an event is left and a thread waits. */
    OK(outlive_events_close(second));
    INVALID(outlive_events_next(second, 0, &event), "closed already");
    INVALID(outlive_events_close(second), "closed already");
    OK(outlive_events_close(NULL));
    OK(outlive_events_open(job, &second));
    CHECK(pthread_create(&thread, NULL, take_all, second) == 0);
    save(job);
    next_is(first, SAVES + 2, OUTLIVE_OK);
    OK(outlive_events_close(second));
    CHECK(pthread_join(thread, NULL) == 0);

    /* The end of the job ends it once all events are taken, and wakes a thread that waits. */
    OK(outlive_events_open(other, &second));
    OK(outlive_events_open(job, &third));
    CHECK(pthread_create(&thread, NULL, take_all, third) == 0);
    for (i = 0; i < SUBSCRIPTIONS; i++) {
        outlive_events *dropped;
        OK(outlive_events_open(job, &dropped));
        OK(outlive_events_close(dropped));
    }
    save(job);
    OK(outlive_job_close(job));
    CHECK(pthread_join(thread, &nothing) == 0 && nothing != NULL);
    OK(outlive_events_close(third));
    next_is(first, SAVES + 3, OUTLIVE_OK);
    FAILS(outlive_events_next(first, INFINITY, &event), OUTLIVE_NOTHING, "closed");
    OK(outlive_events_close(first));
    save(other);
    next_is(second, SAVES + 3, OUTLIVE_OK);
    next_is(second, SAVES + 4, OUTLIVE_OK);
    OK(outlive_events_open(other, &first));
    CHECK(pthread_create(&thread, NULL, take_all, first) == 0);
    OK(outlive_job_leave(other));
    CHECK(pthread_join(thread, &nothing) == 0 && nothing != NULL);
    OK(outlive_close(reader));
    OK(outlive_close(pool));
    printf("done\n");
    return 0; /* with two subscriptions open */
}
