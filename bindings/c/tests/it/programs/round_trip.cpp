// All calls of a program in C++.
#include <outlive.hpp>

#include <cstdlib>
#include <iostream>
#include <numeric>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::cerr << __LINE__ << ": " #condition "\n";                                         \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (0)

struct Particle {
    double x, y;
    int id;
};

enum class Phase : short { warm, cold };

struct State {
    std::vector<double> field = std::vector<double>(100000);
    std::array<float, 7> weights{};
    std::vector<std::complex<double>> waves = std::vector<std::complex<double>>(10);
    std::vector<Particle> particles = std::vector<Particle>(5);
    int grid[3][4][5] = {};
    std::int64_t step = 0;
    bool flag = false;
    Phase phase = Phase::warm;
    std::vector<float> empty;

    void protect(outlive::Job &job) {
        job.protect("field", field);
        job.protect("weights", weights);
        job.protect("waves", waves);
        job.protect("particles", particles);
        job.protect("grid", grid);
        job.protect("step", step);
        job.protect("flag", flag);
        job.protect("phase", phase);
        job.protect("empty", empty);
        job.protect("rows", outlive::view(field.data(), {1000, 100}));
    }
};

int main(int argc, char **argv) {
    State state, other;
    if (argc > 2) {
        outlive::Pool pool(argv[1]);
        outlive::Job rival = pool.job("cpp");
        rival.protect("step", other.step);
        CHECK(rival.save(outlive::wait));
        return 0;
    }
    {
        outlive::Pool pool(argv[1]);
        outlive::Job job = pool.job("cpp");
        state.protect(job);
        CHECK(!job.restore() && !job.newest() && !job.look() && job.epochs().empty());
        std::iota(state.field.begin(), state.field.end(), 0.5);
        state.weights[3] = 2.5f;
        state.waves[2] = {1, -1};
        state.particles[4] = {1, 2, 3};
        state.grid[2][3][4] = 9;
        state.step = 12;
        state.flag = true;
        state.phase = Phase::cold;
        job.next_label("first");
        job.next_tag("cpp");
        job.next_metric("loss", 0.5);
        outlive::on_preempt();
        CHECK(!job.should_stop());
        outlive::Save save = job.save();
        CHECK(save && save.epoch() == 1);
        save.wait();
        CHECK(save.done() && save.figures().epoch == 1);
        job.tag(1, "later");
        job.tag(1, "cpp", false);
        job.close();
    }
    outlive::Pool pool(argv[1]);
    outlive::Job job = pool.job("cpp", 3600);
    const std::optional<outlive::Checkpoint> found = job.look();
    CHECK(found && found->epoch == 1 && found->label == "first" && found->regions.size() == 10);
    const outlive::RegionInfo *grid = found->find("grid");
    CHECK(grid != nullptr && grid->dtype == "<i4" && (grid->shape == std::vector<std::size_t>{3, 4, 5}));
    CHECK(found->find("waves")->dtype == "<c16" && found->find("particles")->dtype == "|V24");
    CHECK(found->find("flag")->dtype == "|b1" && found->find("phase")->dtype == "<i2");
    CHECK(found->find("nothing") == nullptr);
    other.protect(job);
    CHECK(job.restore() == 1u);
    CHECK(other.field == state.field && other.weights == state.weights && other.waves == state.waves);
    CHECK(other.particles[4].id == 3 && other.grid[2][3][4] == 9 && other.step == 12 && other.flag);
    CHECK(other.phase == Phase::cold);
    CHECK(job.save() && !job.save() && job.save(outlive::force | outlive::wait));
    other.step = 0;
    CHECK(job.restore_some({"step"}) == 3u && other.step == 12);
    CHECK(job.save_some({"step", "flag"}, outlive::force));
    job.wait();
    CHECK((job.epochs() == std::vector<std::uint64_t>{1, 2, 3, 4}));
    CHECK(job.prune(1) == 2 && job.prune("last 5") == 0);
    const auto throws = [](auto *kind, const std::string &part, auto work) {
        try {
            work();
        } catch (const std::remove_pointer_t<decltype(kind)> &error) {
            return std::string(error.what()).find(part) != std::string::npos;
        }
        return false;
    };
    CHECK(throws(static_cast<outlive::InvalidError *>(nullptr), "no checkpoint 77",
                 [&] { job.restore(77); }));
    CHECK(throws(static_cast<outlive::NothingError *>(nullptr), "no region \"x\" is protected",
                 [&] { job.unprotect("x"); }));
    CHECK(throws(static_cast<outlive::Error *>(nullptr), "/dev/null",
                 [&] { outlive::Pool nowhere("/dev/null"); }));
    CHECK(throws(static_cast<outlive::InvalidError *>(nullptr), "differ in dimensions", [&] {
        job.protect_sharded("s", outlive::view(other.field), {1, 2}, {0});
    }));
    CHECK(throws(static_cast<outlive::InvalidError *>(nullptr), "differ in dimensions", [&] {
        job.protect_cyclic("s", outlive::view(other.field), {1}, {0}, {1, 2}, {1});
    }));
    CHECK(throws(static_cast<outlive::InvalidError *>(nullptr), "blocks of 3 elements, every 2", [&] {
        job.protect_cyclic("s", outlive::view(other.field), {other.field.size()}, {0}, {3}, {2});
    }));
    {
        // Parts and values as protect() takes them, and their description in look().
        outlive::Job parts = pool.job("parts");
        std::vector<double> part(6), blocks(4);
        int count = 3;
        parts.protect_sharded("part", part, {9}, {3});
        parts.protect_cyclic("blocks", blocks, {8}, {2}, {2}, {4});
        parts.protect_replicated("count", count);
        parts.protect("own", count);
        parts.keep("last 1");
        CHECK(parts.save(outlive::wait) && parts.save(outlive::wait));
        const auto there = parts.look();
        using Sizes = std::vector<std::size_t>;
        const outlive::RegionInfo *info = there->find("part");
        CHECK(info->distribution == OUTLIVE_SHARDED && info->global_shape == Sizes{9} &&
              info->offset == Sizes{3} && info->block.empty());
        info = there->find("blocks");
        CHECK(info->distribution == OUTLIVE_CYCLIC && info->offset == Sizes{2} &&
              info->block == Sizes{2} && info->stride == Sizes{4});
        CHECK(there->find("count")->distribution == OUTLIVE_REPLICATED);
        CHECK(there->find("own")->distribution == OUTLIVE_LOCAL && there->find("own")->offset.empty());
        // An assignment closes the object that it overwrites.
        outlive_job *const raw = parts.get();
        parts = pool.job("others");
        CHECK(parts.get() != nullptr && outlive_job_wait(raw) == OUTLIVE_INVALID);
        CHECK(pool.job("parts").epochs() == std::vector<std::uint64_t>{2});
        outlive::Save saves = job.save(outlive::force), next = job.save(outlive::force);
        next.wait();
        saves = std::move(next);
        CHECK(saves && !next && saves.done());
        outlive::Pool second(argv[1]);
        outlive_pool *const overwritten = second.get();
        second = outlive::Pool(argv[1]);
        outlive_job *none = nullptr;
        CHECK(outlive_job_open(overwritten, "x", 0, &none) == OUTLIVE_INVALID);
        outlive::Job alone = second.job_of_ranks("alone", 0, 1, "a run");
        alone.protect_replicated("count", count);
        CHECK(alone.save(outlive::wait) && alone.restore() == 1u);
    }
    {
        // The fate of each checkpoint, in order.
        outlive::Job told = pool.job("told");
        int count = 1;
        told.protect("count", count);
        outlive::Events events = told.events(), closed = told.events();
        CHECK(!events.next(0));
        CHECK(told.save(outlive::force) && told.save(outlive::force | outlive::wait));
        std::optional<outlive::Event> event = events.next(60);
        CHECK(event && event->epoch == 1 && event->is_committed() && event->message.empty());
        closed.close();
        closed = told.events();
        told.close();
        event = events.next();
        CHECK(event && event->epoch == 2 && event->status == OUTLIVE_OK);
        CHECK(!events.next() && !closed.next());
        CHECK(throws(static_cast<outlive::NothingError *>(nullptr), "none will come",
                     [&] { events.next(0); }));
    }
    // Within a process all jobs of a name are one writer.
    outlive::Job same = pool.job("cpp");
    same.protect("step", other.step);
    CHECK(same.save(outlive::wait));
    CHECK(job.save(outlive::force | outlive::wait));
    // Another program takes the job over.
    CHECK(std::system((std::string(argv[0]) + " " + argv[1] + " rival").c_str()) == 0);
    CHECK(throws(static_cast<outlive::FencedError *>(nullptr), "",
                 [&] { job.save(outlive::force | outlive::wait); }));
    std::cout << "done\n";
}
