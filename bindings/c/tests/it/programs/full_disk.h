/* A disk that seems to be full. */
#ifndef FULL_DISK_H
#define FULL_DISK_H

#include "check.h"
#include <sys/resource.h>

/* Limits the length of files. */
static void set_room(rlim_t bytes)
{
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

#endif
