/* VELOC_Init for programs of one process, which have no MPI. It ignores the communicator. */
#include <stdio.h>

int VELOC_Init(void *comm, const char *config);

int VELOC_Init(void *comm, const char *config)
{
    (void)comm;
    (void)config;
    fputs("outlive: error: VELOC_Init: this libveloc-client.so is for programs of one process, which call "
          "VELOC_Init_single: use the one that was built for your MPI (docs/veloc.md)\n",
          stderr);
    return -1;
}
