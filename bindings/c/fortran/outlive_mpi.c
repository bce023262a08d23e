/* outlive_job_open_mpi() for the Fortran module: compile it with the program's own mpicc. */
#include <outlive_mpi.h>

/* `comm` is a communicator of Fortran's module `mpi`; of `mpi_f08` give comm%mpi_val. */
outlive_status outlive_job_open_mpi_fortran(outlive_pool *pool, const char *name, double every_s, MPI_Fint comm,
                                            double patience_s, const char *schedule, outlive_job **job);

outlive_status outlive_job_open_mpi_fortran(outlive_pool *pool, const char *name, double every_s, MPI_Fint comm,
                                            double patience_s, const char *schedule, outlive_job **job)
{
    return outlive_job_open_mpi(pool, name, every_s, MPI_Comm_f2c(comm), patience_s, schedule, job);
}
