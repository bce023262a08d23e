/* Ends in one of several ways while a save is under way. */
#include "check.h"
#include <unistd.h>

enum { BYTES = 48 << 20 };

static outlive_pool *pool;
static outlive_job *job;
static unsigned char *state;

static void save_late(void)
{
    fill(state, BYTES, 2);
    OK(outlive_save(job, OUTLIVE_FORCE, NULL));
}

/* A library that was loaded before outlive, and ends after it. */
static void register_early(void)
{
    CHECK(atexit(save_late) == 0);
}

static void log_and_call(int level, const char *text, void *user)
{
    (void)level, (void)text, (void)user;
    exit(3);
}

int main(int argc, char **argv)
{
    const char *how;
    CHECK(argc == 3);
    how = argv[2];
    if (strcmp(how, "late") == 0)
        register_early();
    state = malloc(BYTES);
    fill(state, BYTES, 1);
    OK(outlive_open(argv[1], &pool));
    OK(outlive_job_open(pool, "job", 0, &job));
    OK(outlive_protect_bytes(job, "state", state, BYTES));
    if (strcmp(how, "check") == 0) {
        unsigned char *then = malloc(BYTES);
        uint64_t epoch;
        fill(then, BYTES, 2);
        OK(outlive_restore(job, 0, &epoch));
        printf("%d %s\n", (int)epoch, memcmp(state, then, BYTES) == 0 ? "late" : "early");
        return 0;
    }
    if (strcmp(how, "log") == 0)
        OK(outlive_set_log(log_and_call, NULL));
    OK(outlive_save(job, OUTLIVE_FORCE, NULL));
    if (strcmp(how, "exit") == 0)
        exit(0);
    if (strcmp(how, "_exit") == 0)
        _exit(0);
    if (strcmp(how, "close") == 0)
        OK(outlive_job_close(job));
    return 0;
}
