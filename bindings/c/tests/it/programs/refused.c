/* Saves more and more until the pool refuses; the committed checkpoints are still there. */
#include "check.h"

int main(int argc, char **argv)
{
    enum { BYTES = 4 << 20, SAVES = 40 };
    unsigned char *state = malloc(BYTES), *then = malloc(BYTES);
    outlive_pool *pool;
    outlive_job *job;
    outlive_status status = OUTLIVE_OK;
    uint64_t seed, newest, epoch;

    CHECK(argc == 2);
    status = outlive_open(argv[1], &pool);
    if (status != OUTLIVE_OK) {
        printf("open %s: %s\n", outlive_status_name(status), outlive_error_message());
        return 0;
    }
    OK(outlive_job_open(pool, "job", 0, &job));
    OK(outlive_protect_bytes(job, "state", state, BYTES));
    for (seed = 1; seed <= SAVES && status == OUTLIVE_OK; seed++) {
        outlive_saving *saving;
        fill(state, BYTES, seed);
        status = outlive_save(job, OUTLIVE_FORCE, &saving);
        if (status == OUTLIVE_OK)
            status = outlive_wait(saving);
        OK(outlive_save_free(saving));
    }
    printf("save %s: %s\n", outlive_status_name(status), outlive_error_message());
    if (outlive_newest(job, &newest) == OUTLIVE_OK) {
        OK(outlive_restore(job, 0, &epoch));
        fill(then, BYTES, epoch);
        CHECK(epoch == newest && memcmp(state, then, BYTES) == 0);
        printf("restored %d\n", (int)epoch);
    }
    outlive_job_close(job);
    return 0;
}
