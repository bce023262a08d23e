/* VELOC_Init for one implementation of MPI: the only function of VELOC's that uses MPI. Compile it
   with that implementation's mpicc, into the library with the others, as scripts/install does. */
#include <outlive_mpi.h>

int VELOC_Init(MPI_Comm comm, const char *config);
int outlive_veloc_init_group(const outlive_comm *comm, const char *config);

int VELOC_Init(MPI_Comm comm, const char *config)
{
    static const char text[] = "outlive: error: VELOC_Init: call MPI_Init before, and give the ranks' communicator\n";
    outlive_mpi_group *group;
    outlive_comm functions;
    int is_ready = 0, status, worst;

    MPI_Initialized(&is_ready);
    group = is_ready && comm != MPI_COMM_NULL ? (outlive_mpi_group *)malloc(sizeof *group) : NULL;
    if (group == NULL || MPI_Comm_dup(comm, &group->comm) != MPI_SUCCESS) {
        fputs(text, stderr);
        free(group);
        return -1;
    }
    outlive_mpi_functions(group, &functions);
    status = outlive_veloc_init_group(&functions, config);
    /* If one rank could not begin, no rank begins. */
    if (MPI_Allreduce(&status, &worst, 1, MPI_INT, MPI_MIN, group->comm) != MPI_SUCCESS)
        worst = status;
    if (worst != 0 && status == 0)
        outlive_veloc_init_group(NULL, NULL); /* ends it, and releases the communicator */
    else if (status != 0)
        outlive_mpi_release(group);
    return worst;
}
