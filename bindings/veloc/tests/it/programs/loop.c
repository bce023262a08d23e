/* The loop of a program that was written for VELOC; it prints its result. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <veloc.h>

enum { WORDS = 100000, LAST = 40 };

static uint64_t words[WORDS];
static int step;

static void check(int status)
{
    if (status != VELOC_SUCCESS)
        exit(1);
}

int main(int argc, char **argv)
{
    int version, at;
    uint64_t sum = 0;
    check(argc == 2 ? VELOC_Init_single(0, argv[1]) : VELOC_FAILURE);
    check(VELOC_Mem_protect(0, &step, 1, sizeof step));
    check(VELOC_Mem_protect(1, words, WORDS, sizeof *words));
    version = VELOC_Restart_test("loop", 0);
    if (version >= 0)
        check(VELOC_Restart("loop", version));
    printf("from %d\n", step);
    fflush(stdout);
    while (step < LAST) {
        for (at = step % 3; at < WORDS; at += 3)
            words[at] = words[at] * 6364136223846793005u + (uint64_t)(step + at);
        step++;
        check(VELOC_Checkpoint("loop", step));
        printf("at %d\n", step);
        fflush(stdout);
    }
    check(VELOC_Finalize(1));
    for (at = 0; at < WORDS; at++)
        sum = sum * 31 + words[at];
    printf("sum %llu\n", (unsigned long long)sum);
    return 0;
}
