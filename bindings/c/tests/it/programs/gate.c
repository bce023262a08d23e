/* A program with outputs behind a gate; the test kills it again and again.
 * usage: gate POOL LINES RECEIVED [LAST] */
#include "check.h"
#include <fcntl.h>
#include <math.h>
#include <unistd.h>

static double u[4096];
static int64_t step;
static int failures;

/* Appends "KEY OUTPUT" to a file; the test ignores keys that it knows. */
static outlive_status receive(void *context, const char *key, const void *output, size_t bytes)
{
    char line[200];
    const int file = open(context, O_WRONLY | O_CREAT | O_APPEND, 0666);
    const int length = snprintf(line, sizeof line, "%s %.*s\n", key, (int)bytes,
                                (const char *)output);
    if (failures > 0) {
        failures--;
        close(file);
        return OUTLIVE_RETRY;
    }
    CHECK(write(file, line, (size_t)length) == length);
    close(file);
    return OUTLIVE_OK;
}

static void give(outlive_job *job, const char *lines)
{
    char text[40];
    const int length = snprintf(text, sizeof text, "%lld\n", (long long)step);
    OK(outlive_gate_append(job, lines, text, (size_t)length));
    OK(outlive_gate_give(job, "receiver", text, (size_t)length - 1));
}

static void bad_input(outlive_job *job)
{
    uint64_t held;
    INVALID(outlive_gate_append(job, "x", "x", 1), "call outlive_gate_open() first");
    INVALID(outlive_gate_held(job, &held), "call outlive_gate_open() first");
    OK(outlive_gate_open(job, 0));
    INVALID(outlive_gate_append(job, NULL, "x", 1), "NULL");
    INVALID(outlive_gate_append(job, "x", NULL, 1), "the output");
    INVALID(outlive_gate_append(job, "/dev/null", "x", 1), "no regular file");
    INVALID(outlive_gate_publish(job, "/no/such/file", "/no/such/other"), "");
    INVALID(outlive_gate_sink(job, "receiver", NULL, NULL), "NULL");
    INVALID(outlive_gate_sink(job, "publish", receive, NULL), "the gate's own");
    INVALID(outlive_gate_give(job, "file:/tmp/x", "x", 1), "the gate's own");
    INVALID(outlive_gate_flush(job, NAN), "not a number");
    INVALID(outlive_gate_held(job, NULL), "NULL");
}

int main(int argc, char **argv)
{
    const size_t shape[] = {4096};
    const int64_t last = argc > 4 ? atoll(argv[4]) : INT64_MAX;
    outlive_pool *pool;
    outlive_job *job;
    outlive_status status;
    uint64_t held;

    CHECK(argc >= 4);
    OK(outlive_open(argv[1], &pool));
    OK(outlive_job_open(pool, "job", 0, &job));
    OK(outlive_protect(job, "u", u, OUTLIVE_FLOAT64, 1, shape));
    OK(outlive_protect(job, "step", &step, OUTLIVE_INT64, 0, NULL));
    status = outlive_restore(job, 0, NULL);
    CHECK(status == OUTLIVE_OK || status == OUTLIVE_NOTHING);
    if (last == INT64_MAX)
        OK(outlive_gate_open(job, 0));
    else
        bad_input(job);
    OK(outlive_gate_sink(job, "receiver", receive, argv[3]));
    /* Opens the file: a run that appends nothing releases what the last one has left. */
    OK(outlive_gate_append(job, argv[2], "", 0));
    while (step < last) {
        step++;
        u[step % 4096] = (double)step;
        give(job, argv[2]);
        OK(outlive_save(job, OUTLIVE_FORCE, NULL));
    }
    OK(outlive_save(job, OUTLIVE_FORCE | OUTLIVE_WAIT, NULL));
    OK(outlive_gate_flush(job, INFINITY));

    /* An output that no save covers, and one that its receiver puts off. */
    step++;
    give(job, argv[2]);
    OK(outlive_gate_held(job, &held));
    CHECK(held == 2);
    INVALID(outlive_gate_flush(job, 0), "no save covers 2 outputs");
    failures = 1;
    OK(outlive_save(job, OUTLIVE_FORCE | OUTLIVE_WAIT, NULL));
    OK(outlive_gate_flush(job, 60));
    OK(outlive_gate_held(job, &held));
    CHECK(held == 0 && failures == 0);
    OK(outlive_job_close(job));
    OK(outlive_close(pool));
    printf("%lld\n", (long long)step);
    return 0;
}
