/* Shared by the test programs: checks that print the line of a failure. */
#ifndef CHECK_H
#define CHECK_H

#include <outlive.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "%s:%d: %s\n  last error: %s\n", __FILE__, __LINE__, #condition,   \
                    outlive_error_message());                                                  \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

#define OK(call) CHECK((call) == OUTLIVE_OK)

/* Checks that the call returns this status, and that the error's text has this part. */
#define FAILS(call, status, part)                                                              \
    do {                                                                                       \
        CHECK((call) == (status));                                                             \
        if (strstr(outlive_error_message(), (part)) == NULL) {                                 \
            fprintf(stderr, "%s:%d: \"%s\" does not say \"%s\"\n", __FILE__, __LINE__,         \
                    outlive_error_message(), (part));                                          \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

#define INVALID(call, part) FAILS(call, OUTLIVE_INVALID, part)

/* Fills memory with pseudorandom numbers from a seed. */
static inline void fill(void *memory, size_t bytes, uint64_t seed)
{
    unsigned char *at = memory;
    uint64_t state = seed * 2654435761u + 88172645463325252u;
    size_t i;
    for (i = 0; i < bytes; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        at[i] = (unsigned char)(state >> 24);
    }
}

static inline uint64_t sum(const void *memory, size_t bytes)
{
    const unsigned char *at = memory;
    uint64_t hash = 1469598103934665603u;
    size_t i;
    for (i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * 1099511628211u;
    return hash;
}

#endif
