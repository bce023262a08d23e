/* A computation that is killed and started again until it reaches its last step; then it prints its
   result. */
#include "check.h"

enum { WORDS = 1 << 18 };

int main(int argc, char **argv)
{
    static uint64_t state[WORDS];
    uint64_t step = 0, last, at;
    outlive_pool *pool;
    outlive_job *job;
    outlive_status status;

    CHECK(argc == 3);
    last = strtoull(argv[2], NULL, 10);
    OK(outlive_open(argv[1], &pool));
    OK(outlive_job_open(pool, "evolve", 0, &job));
    OK(outlive_protect_bytes(job, "state", state, sizeof state));
    OK(outlive_protect(job, "step", &step, OUTLIVE_UINT64, 0, NULL));
    status = outlive_restore(job, 0, NULL);
    CHECK(status == OUTLIVE_OK || status == OUTLIVE_NOTHING);
    if (status == OUTLIVE_NOTHING)
        fill(state, sizeof state, 7);
    printf("from %d\n", (int)step);
    fflush(stdout);
    while (step < last) {
        for (at = step % 7; at < WORDS; at += 7)
            state[at] = state[at] * 6364136223846793005u + state[(at * 31 + step) % WORDS];
        step++;
        OK(outlive_save(job, OUTLIVE_DUE, NULL));
        if (step % 10 == 0)
            OK(outlive_prune(job, 3, NULL));
        printf("at %d\n", (int)step);
        fflush(stdout);
    }
    OK(outlive_job_close(job));
    OK(outlive_close(pool));
    printf("sum %016llx\n", (unsigned long long)sum(state, sizeof state));
    return 0;
}
