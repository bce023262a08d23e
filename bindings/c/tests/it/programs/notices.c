/* Notices go to the program's callback, which may not call outlive. */
#include "check.h"

static char texts[100][500];
static int levels[100], count;
static outlive_job *job;

static void listen(int level, const char *text, void *user)
{
    CHECK(*(int *)user == 42);
    CHECK(outlive_save(job, OUTLIVE_FORCE, NULL) == OUTLIVE_INVALID);
    CHECK(strstr(outlive_error_message(), "log callback") != NULL);
    if (count < 100) {
        levels[count] = level;
        snprintf(texts[count++], sizeof texts[0], "%s", text);
    }
}

int main(int argc, char **argv)
{
    static unsigned char state[300000];
    int user = 42, at, told = 0;
    outlive_pool *pool;
    uint64_t epoch;

    CHECK(argc == 3);
    if (strcmp(argv[2], "listen") == 0)
        OK(outlive_set_log(listen, &user));
    OK(outlive_open(argv[1], &pool));
    OK(outlive_job_open(pool, "job", 0, &job));
    OK(outlive_protect_bytes(job, "state", state, sizeof state));
    if (strcmp(argv[2], "save") == 0) {
        for (at = 1; at <= 2; at++) {
            fill(state, sizeof state, (uint64_t)at);
            OK(outlive_save(job, OUTLIVE_WAIT, NULL));
        }
        OK(outlive_job_close(job));
        return 0;
    }
    /* The newest checkpoint is damaged by now. */
    OK(outlive_restore(job, 0, &epoch));
    for (at = 0; at < count; at++)
        told += levels[at] == OUTLIVE_LOG_WARNING && strstr(texts[at], "passed over") != NULL;
    FAILS(outlive_restore(job, 2, NULL), OUTLIVE_DAMAGED, "checkpoint 2 of job job is damaged");
    OK(outlive_job_close(job));
    OK(outlive_set_log(NULL, NULL));
    printf("epoch %d told %d\n", (int)epoch, told);
    return 0;
}
