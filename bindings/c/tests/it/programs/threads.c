/* Threads save jobs of their own, and one job together; other threads list checkpoints. */
#include "check.h"
#include <pthread.h>

enum { WORDS = 200000, ROUNDS = 12, THREADS = 2 };

static outlive_pool *pool;
static outlive_job *shared;
static uint64_t words[THREADS][WORDS];
static uint64_t together[WORDS];
static pthread_mutex_t together_lock = PTHREAD_MUTEX_INITIALIZER;

static void *alone(void *argument)
{
    size_t me = (size_t)argument, round;
    char name[20];
    outlive_job *job;

    snprintf(name, sizeof name, "alone-%u", (unsigned)me);
    OK(outlive_job_open(pool, name, 0, &job));
    OK(outlive_protect_bytes(job, "words", words[me], sizeof words[me]));
    for (round = 1; round <= ROUNDS; round++) {
        fill(words[me], sizeof words[me], me * 1000 + round);
        OK(outlive_save(job, OUTLIVE_FORCE, NULL));
    }
    memset(words[me], 0, sizeof words[me]);
    OK(outlive_restore(job, 0, NULL));
    OK(outlive_job_close(job));
    return NULL;
}

/* The program ensures that one thread at a time changes the memory of a job, and none during a
   save. The calls themselves come from all threads at once. */
static void *all_on_one(void *argument)
{
    size_t me = (size_t)argument, round;
    for (round = 1; round <= ROUNDS; round++) {
        outlive_saving *saving;
        int due;
        CHECK(pthread_mutex_lock(&together_lock) == 0);
        fill(together, sizeof together, me * 1000 + round);
        OK(outlive_save(shared, OUTLIVE_FORCE, &saving));
        CHECK(pthread_mutex_unlock(&together_lock) == 0);
        OK(outlive_due(shared, &due));
        OK(outlive_wait(saving));
        OK(outlive_save_free(saving));
    }
    return NULL;
}

/* Errors are each thread's own. */
static void *wrong(void *argument)
{
    int round;
    (void)argument;
    for (round = 0; round < 1000; round++) {
        char name[40];
        snprintf(name, sizeof name, "nobody-%d", round);
        CHECK(outlive_unprotect(shared, name) == OUTLIVE_NOTHING);
        CHECK(strstr(outlive_error_message(), name) != NULL);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[3 * THREADS];
    void *(*works[])(void *) = {alone, all_on_one, wrong};
    size_t at, count;
    static uint64_t then[WORDS];

    CHECK(argc == 2);
    OK(outlive_open(argv[1], &pool));
    OK(outlive_job_open(pool, "together", 0, &shared));
    OK(outlive_protect_bytes(shared, "words", together, sizeof together));
    for (at = 0; at < 3 * THREADS; at++)
        CHECK(pthread_create(&threads[at], NULL, works[at / THREADS], (void *)(at % THREADS)) == 0);
    for (at = 0; at < 3 * THREADS; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    for (at = 0; at < THREADS; at++) {
        fill(then, sizeof then, at * 1000 + ROUNDS);
        CHECK(memcmp(words[at], then, sizeof then) == 0);
    }
    OK(outlive_epochs(shared, NULL, 0, &count));
    CHECK(count == THREADS * ROUNDS);
    memcpy(then, together, sizeof then);
    memset(together, 0, sizeof together);
    OK(outlive_restore(shared, 0, NULL));
    CHECK(memcmp(together, then, sizeof then) == 0);
    OK(outlive_job_close(shared));
    OK(outlive_close(pool));
    printf("done\n");
    return 0;
}
