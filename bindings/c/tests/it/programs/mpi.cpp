// Ranks in C++: POOL STEP, the step that they find.
#include <outlive_mpi.hpp>

#include <cstdlib>
#include <iostream>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::cerr << __LINE__ << ": " #condition "\n";                                         \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                          \
        }                                                                                          \
    } while (0)

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    try {
        int rank = 0, size = 0;
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &size);
        const int found = std::atoi(argv[2]);
        outlive::Pool pool(argv[1]);
        outlive::Job job = outlive::job_of_mpi(pool, "cpp", MPI_COMM_WORLD);
        const auto all = static_cast<std::size_t>(60);
        const std::size_t own = all / static_cast<std::size_t>(size);
        const std::size_t begin = own * static_cast<std::size_t>(rank);
        std::vector<double> part(own);
        int step = 0;
        job.keep("last 2");
        job.protect_sharded("cells", part, {all}, {begin});
        job.protect_replicated("step", step);
        const auto epoch = job.restore();
        CHECK(step == found && (found == 0) == !epoch);
        for (std::size_t at = 0; at < own; at++) {
            CHECK(part[at] == static_cast<double>((begin + at) * static_cast<std::size_t>(found)));
            part[at] = static_cast<double>((begin + at) * static_cast<std::size_t>(found + 1));
        }
        step++;
        job.save(outlive::force | outlive::wait);
        job.close();
        if (rank == 0) {
            const auto there = pool.job("cpp").look();
            CHECK(there && there->find("step")->distribution == OUTLIVE_REPLICATED);
            const outlive::RegionInfo *cells = there->find("cells");
            CHECK(cells->distribution == OUTLIVE_SHARDED && cells->global_shape == std::vector{all});
            CHECK(cells->offset == std::vector<std::size_t>{0} && cells->block.empty());
            CHECK(pool.job("cpp").epochs().size() == std::size_t(found > 0 ? 2 : 1));
            std::cout << "done\n";
        }
    } catch (const outlive::Error &error) {
        std::cerr << error.what() << "\n";
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Finalize();
    return 0;
}
