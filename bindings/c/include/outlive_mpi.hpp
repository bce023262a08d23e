// Jobs of the ranks of an MPI program in C++17: outlive.hpp and outlive_mpi.h together.

#ifndef OUTLIVE_MPI_HPP
#define OUTLIVE_MPI_HPP

#include <outlive.hpp>
#include <outlive_mpi.h>

#include <string>

namespace outlive {

// Opens a job of all ranks of `comm`: see outlive_job_open_mpi(). Collective, and so is its close.
// Close the job, or let it go out of scope, before MPI_Finalize.
inline Job job_of_mpi(const Pool &pool, const std::string &name, MPI_Comm comm, double every_s = 0,
                      double patience_s = 0, const std::string &schedule = "coordinated") {
    outlive_job *job = nullptr;
    check(outlive_job_open_mpi(pool.get(), name.c_str(), every_s, comm, patience_s,
                               schedule.c_str(), &job));
    return Job(job);
}

}  // namespace outlive

#endif  // OUTLIVE_MPI_HPP
