// outlive for C++17: header only, on top of outlive.h, which describes each call in full. docs/c.md
// has examples.
//
// Pools, jobs, saves and subscriptions close themselves. Errors are exceptions, one class for each
// thing that the caller can do next.

#ifndef OUTLIVE_HPP
#define OUTLIVE_HPP

#include <outlive.h>

#include <array>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <initializer_list>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace outlive {

// Base class of all errors of outlive.
class Error : public std::runtime_error {
public:
    Error(outlive_status status, const std::string &text)
        : std::runtime_error(text), status_(status) {}
    outlive_status status() const noexcept { return status_; }

private:
    outlive_status status_;
};

#define OUTLIVE_ERROR_CLASS(Name)                                                                  \
    class Name : public Error {                                                                    \
    public:                                                                                        \
        using Error::Error;                                                                        \
    }

// A temporary failure: the same call may succeed later.
OUTLIVE_ERROR_CLASS(RetryError);
// The request is not possible: correct it.
OUTLIVE_ERROR_CLASS(InvalidError);
// Stored bytes are missing or wrong: take an older checkpoint, or repair the pool.
OUTLIVE_ERROR_CLASS(DamagedError);
// No room: free some.
OUTLIVE_ERROR_CLASS(FullError);
// Another process has taken over this job.
OUTLIVE_ERROR_CLASS(FencedError);
// outlive contradicts itself: please report it.
OUTLIVE_ERROR_CLASS(BugError);
// The requested thing does not exist.
OUTLIVE_ERROR_CLASS(NothingError);
#undef OUTLIVE_ERROR_CLASS

// Throws the exception for a status that is not OUTLIVE_OK.
inline void check(outlive_status status) {
    if (status == OUTLIVE_OK) return;
    const std::string text = outlive_error_message();
    switch (status) {
        case OUTLIVE_RETRY: throw RetryError(status, text);
        case OUTLIVE_INVALID: throw InvalidError(status, text);
        case OUTLIVE_DAMAGED: throw DamagedError(status, text);
        case OUTLIVE_FULL: throw FullError(status, text);
        case OUTLIVE_FENCED: throw FencedError(status, text);
        case OUTLIVE_NOTHING: throw NothingError(status, text);
        default: throw BugError(status, text);
    }
}

// Returns the dtype of a C++ type, in NumPy's notation. Trivially copyable structures are bytes:
// "V24".
template <typename T> std::string dtype() {
    static_assert(std::is_trivially_copyable_v<T>, "its bytes are not all there is to it");
    static_assert(!std::is_pointer_v<T> && !std::is_member_pointer_v<T>,
                  "an address means nothing in another process");
    const std::string size = std::to_string(sizeof(T));
    if constexpr (std::is_same_v<T, bool>) {
        return "b1";
    } else if constexpr (std::is_enum_v<T>) {
        return dtype<std::underlying_type_t<T>>();
    } else if constexpr (std::is_floating_point_v<T>) {
        return "f" + size;
    } else if constexpr (std::is_integral_v<T>) {
        return (std::is_signed_v<T> ? "i" : "u") + size;
    } else if constexpr (std::is_same_v<T, std::complex<float>> ||
                         std::is_same_v<T, std::complex<double>> ||
                         std::is_same_v<T, std::complex<long double>>) {
        return "c" + size;
    } else {
        return "V" + size;
    }
}

// An array in memory that it does not own: the first element, and the extents, the slowest first.
template <typename T> struct View {
    T *data;
    std::vector<std::size_t> shape;
};

// An array at `data`, such as view(p, {rows, columns}).
template <typename T> View<T> view(T *data, std::initializer_list<std::size_t> shape) {
    return {data, std::vector<std::size_t>(shape)};
}

// A view of a vector's elements, valid until the vector is resized or moved from.
template <typename T> View<T> view(std::vector<T> &vector) {
    static_assert(!std::is_same_v<T, bool>, "std::vector<bool> has no elements in memory");
    return {vector.data(), {vector.size()}};
}

template <typename T, std::size_t N> View<T> view(std::array<T, N> &array) {
    return {array.data(), {N}};
}

namespace detail {
template <typename T> T *first(T &element) { return &element; }
template <typename T, std::size_t N> auto *first(T (&array)[N]) { return first(array[0]); }
template <typename T> void extents(T &, std::vector<std::size_t> &) {}
template <typename T, std::size_t N> void extents(T (&array)[N], std::vector<std::size_t> &shape) {
    shape.push_back(N);
    extents(array[0], shape);
}
}  // namespace detail

// A C array of any number of dimensions.
template <typename T, std::size_t N> auto view(T (&array)[N]) {
    std::vector<std::size_t> shape;
    detail::extents(array, shape);
    return View<std::remove_all_extents_t<T>>{detail::first(array), std::move(shape)};
}

// A single value.
template <typename T, typename = std::enable_if_t<std::is_trivially_copyable_v<T> &&
                                                  !std::is_pointer_v<T> && !std::is_array_v<T>>>
View<T> view(T &value) {
    return {&value, {}};
}

// A save that is under way or over. It is false if none was due.
class Save {
public:
    Save() = default;
    explicit Save(outlive_saving *saving) : saving_(saving) {}
    Save(Save &&other) noexcept : saving_(std::exchange(other.saving_, nullptr)) {}
    // Frees the handle that it overwrites.
    Save &operator=(Save &&other) noexcept {
        Save taken(std::move(other));
        std::swap(saving_, taken.saving_);
        return *this;
    }
    ~Save() { outlive_save_free(saving_); }

    explicit operator bool() const noexcept { return saving_ != nullptr; }
    // Waits until the checkpoint is committed.
    void wait() const { check(outlive_wait(saving_)); }
    // Whether it is over.
    bool done() const {
        int done = 0;
        check(outlive_test(saving_, &done));
        return done != 0;
    }
    std::uint64_t epoch() const {
        std::uint64_t epoch = 0;
        check(outlive_save_epoch(saving_, &epoch));
        return epoch;
    }
    // Waits until the checkpoint is committed.
    outlive_figures figures() const {
        outlive_figures figures{};
        check(outlive_save_figures(saving_, &figures));
        return figures;
    }

private:
    outlive_saving *saving_ = nullptr;
};

// The fate of one checkpoint: `status` is OUTLIVE_OK if it is committed. Otherwise its save failed,
// and `message` is the reason: see outlive_event.
struct Event {
    std::uint64_t epoch;
    outlive_status status;
    std::string message;

    bool is_committed() const noexcept { return status == OUTLIVE_OK; }
};

// A subscription to the events of a job, from Job::events(). It keeps every event until next()
// takes it.
class Events {
public:
    explicit Events(outlive_events *events) : events_(events) {}
    Events(Events &&other) noexcept : events_(std::exchange(other.events_, nullptr)) {}
    // Closes the subscription that it overwrites.
    Events &operator=(Events &&other) noexcept {
        Events taken(std::move(other));
        std::swap(events_, taken.events_);
        return *this;
    }
    ~Events() { outlive_events_close(events_); }

    // Takes the next event; nothing once the job is closed and all its events are taken. Waits
    // without limit.
    std::optional<Event> next() {
        return taken(std::numeric_limits<double>::infinity(), OUTLIVE_NOTHING);
    }
    // Waits for at most `timeout_s` seconds; nothing if no event came in time. Throws a NothingError
    // once no event will come.
    std::optional<Event> next(double timeout_s) { return taken(timeout_s, OUTLIVE_RETRY); }
    // Ends the subscription. No other thread may use this object at the same time.
    void close() { check(outlive_events_close(std::exchange(events_, nullptr))); }
    outlive_events *get() const noexcept { return events_; }

private:
    std::optional<Event> taken(double timeout_s, outlive_status none) {
        outlive_event event{};
        const outlive_status status = outlive_events_next(events_, timeout_s, &event);
        if (status == none) return std::nullopt;
        check(status);
        const bool is_committed = event.status == OUTLIVE_OK;
        return Event{event.epoch, event.status, is_committed ? "" : outlive_error_message()};
    }

    outlive_events *events_;
};

// A region of a checkpoint.
struct RegionInfo {
    std::string name;
    std::string dtype;
    std::vector<std::size_t> shape;
    std::size_t bytes;
    // OUTLIVE_LOCAL, OUTLIVE_SHARDED, OUTLIVE_REPLICATED or OUTLIVE_CYCLIC.
    int distribution;
    // For a part of a global array: the array's extents, and the part's offset. Else empty.
    std::vector<std::size_t> global_shape, offset;
    // For a part in blocks: see outlive_protect_cyclic(). Else empty.
    std::vector<std::size_t> block, stride;
};

// A checkpoint's contents.
struct Checkpoint {
    std::uint64_t epoch;
    std::string label;
    std::vector<RegionInfo> regions;

    // Returns the region of that name; nullptr if there is none.
    const RegionInfo *find(const std::string &name) const {
        for (const RegionInfo &region : regions)
            if (region.name == name) return &region;
        return nullptr;
    }
};

inline constexpr unsigned due = OUTLIVE_DUE;
inline constexpr unsigned force = OUTLIVE_FORCE;
inline constexpr unsigned wait = OUTLIVE_WAIT;

// Lets SIGTERM, SIGUSR1 and SIGUSR2 ask the program to stop: see outlive_on_preempt().
inline void on_preempt(double grace_s = 30.0) { check(outlive_on_preempt(grace_s)); }

// A job: a named series of checkpoints, and the memory that the program protects.
class Job {
public:
    explicit Job(outlive_job *job) : job_(job) {}
    Job(Job &&other) noexcept : job_(std::exchange(other.job_, nullptr)) {}
    // Closes the job that it overwrites.
    Job &operator=(Job &&other) noexcept {
        Job taken(std::move(other));
        std::swap(job_, taken.job_);
        return *this;
    }
    // Waits for the last save. Call close() before to get its failure as an exception. While an
    // exception is thrown, a rank of a group waits for no other one.
    ~Job() {
        if (job_ == nullptr) return;
        const outlive_status status =
            std::uncaught_exceptions() > 0 ? outlive_job_leave(job_) : outlive_job_close(job_);
        if (status != OUTLIVE_OK)
            std::fprintf(stderr, "outlive: error: the job was not closed well: %s\n",
                         outlive_error_message());
    }
    void close() { check(outlive_job_close(std::exchange(job_, nullptr))); }
    outlive_job *get() const noexcept { return job_; }

    // Protects an array or a value: a vector, an array, a view(), or a single value.
    template <typename T> void protect(const std::string &name, View<T> memory) {
        using Value = std::remove_cv_t<T>;
        static_assert(!std::is_const_v<T>, "what is protected must be writable for a restore");
        check(outlive_protect(job_, name.c_str(), memory.data, dtype<Value>().c_str(),
                              memory.shape.size(), memory.shape.data()));
    }
    template <typename T> void protect(const std::string &name, T &memory) {
        protect(name, view(memory));
    }
    // Protects a part of a global array that begins at `offset` in it: memory as for protect().
    template <typename T>
    void protect_sharded(const std::string &name, T &memory,
                         const std::vector<std::size_t> &global_shape,
                         const std::vector<std::size_t> &offset) {
        protect_sharded(name, view(memory), global_shape, offset);
    }
    template <typename T>
    void protect_sharded(const std::string &name, View<T> memory,
                         const std::vector<std::size_t> &global_shape,
                         const std::vector<std::size_t> &offset) {
        if (global_shape.size() != memory.shape.size() || offset.size() != memory.shape.size())
            check(outlive_refuse("the shape, the global shape and the offset differ in dimensions"));
        check(outlive_protect_sharded(job_, name.c_str(), memory.data, dtype<T>().c_str(),
                                      memory.shape.size(), memory.shape.data(),
                                      global_shape.data(), offset.data()));
    }
    // Protects a part of a global array in blocks, as in ScaLAPACK: see outlive_protect_cyclic().
    template <typename T>
    void protect_cyclic(const std::string &name, T &memory,
                        const std::vector<std::size_t> &global_shape,
                        const std::vector<std::size_t> &offset,
                        const std::vector<std::size_t> &block,
                        const std::vector<std::size_t> &stride) {
        protect_cyclic(name, view(memory), global_shape, offset, block, stride);
    }
    template <typename T>
    void protect_cyclic(const std::string &name, View<T> memory,
                        const std::vector<std::size_t> &global_shape,
                        const std::vector<std::size_t> &offset,
                        const std::vector<std::size_t> &block,
                        const std::vector<std::size_t> &stride) {
        for (const auto *list : {&global_shape, &offset, &block, &stride})
            if (list->size() != memory.shape.size())
                check(outlive_refuse("the shape, the global shape, the offset, the block and the "
                                     "stride differ in dimensions"));
        check(outlive_protect_cyclic(job_, name.c_str(), memory.data, dtype<T>().c_str(),
                                     memory.shape.size(), memory.shape.data(), global_shape.data(),
                                     offset.data(), block.data(), stride.data()));
    }
    // Protects an array or a value of which every rank has the same bytes.
    template <typename T> void protect_replicated(const std::string &name, T &memory) {
        protect_replicated(name, view(memory));
    }
    template <typename T> void protect_replicated(const std::string &name, View<T> memory) {
        check(outlive_protect_replicated(job_, name.c_str(), memory.data, dtype<T>().c_str(),
                                         memory.shape.size(), memory.shape.data()));
    }
    void unprotect(const std::string &name) { check(outlive_unprotect(job_, name.c_str())); }
    void clear() { check(outlive_clear(job_)); }

    // Saves all protected regions.
    Save save(unsigned flags = OUTLIVE_DUE) {
        outlive_saving *saving = nullptr;
        check(outlive_save(job_, flags, &saving));
        return Save(saving);
    }
    // Saves the protected regions with these names.
    Save save_some(const std::vector<std::string> &names, unsigned flags = OUTLIVE_DUE) {
        outlive_saving *saving = nullptr;
        const std::vector<const char *> texts = pointers(names);
        check(outlive_save_some(job_, texts.data(), texts.size(), flags, &saving));
        return Save(saving);
    }
    // Whether the program is to save once more and to end: see outlive_should_stop().
    bool should_stop() const {
        int stops = 0;
        check(outlive_should_stop(job_, &stops));
        return stops != 0;
    }

    bool is_due() const {
        int due = 0;
        check(outlive_due(job_, &due));
        return due != 0;
    }
    void wait() { check(outlive_job_wait(job_)); }
    // Subscribes to the fate of each checkpoint from now on: see outlive_events_open().
    Events events() {
        outlive_events *events = nullptr;
        check(outlive_events_open(job_, &events));
        return Events(events);
    }
    void take_over() { check(outlive_job_take_over(job_)); }

    // The output gate: see outlive_gate_open() and docs/gate.md.
    void gate_open(std::uint64_t bytes_max = 0) { check(outlive_gate_open(job_, bytes_max)); }
    void gate_append(const std::string &file, const std::string &output) {
        check(outlive_gate_append(job_, file.c_str(), output.data(), output.size()));
    }
    void gate_publish(const std::string &temporary, const std::string &last) {
        check(outlive_gate_publish(job_, temporary.c_str(), last.c_str()));
    }
    void gate_sink(const std::string &name, outlive_release release, void *context = nullptr) {
        check(outlive_gate_sink(job_, name.c_str(), release, context));
    }
    void gate_give(const std::string &name, const std::string &output) {
        check(outlive_gate_give(job_, name.c_str(), output.data(), output.size()));
    }
    void gate_flush(double timeout_s = std::numeric_limits<double>::infinity()) {
        check(outlive_gate_flush(job_, timeout_s));
    }
    std::uint64_t gate_held() const {
        std::uint64_t outputs = 0;
        check(outlive_gate_held(job_, &outputs));
        return outputs;
    }

    void next_label(const std::string &label) { check(outlive_next_label(job_, label.c_str())); }
    void next_pin() { check(outlive_next_pin(job_)); }
    void next_tag(const std::string &tag) { check(outlive_next_tag(job_, tag.c_str())); }
    void tag(uint64_t epoch, const std::string &tag, bool add = true) {
        check(outlive_tag(job_, epoch, tag.c_str(), add ? 1 : 0));
    }
    void next_metric(const std::string &name, double value) {
        check(outlive_next_metric(job_, name.c_str(), value));
    }

    // Fills all protected regions; returns the epoch, or nothing if there is no checkpoint.
    std::optional<std::uint64_t> restore(std::uint64_t epoch = 0) {
        std::uint64_t restored = 0;
        return taken(outlive_restore(job_, epoch, &restored), restored);
    }
    std::optional<std::uint64_t> restore_some(const std::vector<std::string> &names,
                                              std::uint64_t epoch = 0) {
        std::uint64_t restored = 0;
        const std::vector<const char *> texts = pointers(names);
        return taken(
            outlive_restore_some(job_, epoch, texts.data(), texts.size(), &restored), restored);
    }

    std::optional<std::uint64_t> newest() const {
        std::uint64_t epoch = 0;
        return taken(outlive_newest(job_, &epoch), epoch);
    }
    std::vector<std::uint64_t> epochs() const {
        std::size_t count = 0;
        check(outlive_epochs(job_, nullptr, 0, &count));
        std::vector<std::uint64_t> epochs(count);
        check(outlive_epochs(job_, epochs.data(), epochs.size(), &count));
        if (count < epochs.size()) epochs.resize(count);
        return epochs;
    }
    // Returns a checkpoint's contents, to allocate memory before a restore; nothing if there is
    // none.
    std::optional<Checkpoint> look(std::uint64_t epoch = 0) const {
        outlive_checkpoint *handle = nullptr;
        const outlive_status status = outlive_checkpoint_open(job_, epoch, &handle);
        if (status == OUTLIVE_NOTHING) return std::nullopt;
        check(status);
        struct Closed {
            outlive_checkpoint *handle;
            ~Closed() { outlive_checkpoint_close(handle); }
        } closed{handle};
        Checkpoint found{};
        std::size_t count = 0;
        const char *label = "";
        check(outlive_checkpoint_about(handle, &found.epoch, &count, &label));
        found.label = label;
        for (std::size_t at = 0; at < count; at++) {
            outlive_region_info info{};
            check(outlive_checkpoint_region(handle, at, &info));
            const auto list = [&info](const std::size_t *first) {
                return first == nullptr ? std::vector<std::size_t>()
                                        : std::vector<std::size_t>(first, first + info.ndim);
            };
            const std::size_t *block = nullptr, *stride = nullptr;
            if (info.distribution == OUTLIVE_CYCLIC)
                check(outlive_checkpoint_blocks(handle, info.name, &block, &stride));
            found.regions.push_back({info.name, info.dtype, list(info.shape), info.bytes,
                                     info.distribution, list(info.global_shape), list(info.offset),
                                     list(block), list(stride)});
        }
        return found;
    }

    // Drops, after each commit from the next save on, the checkpoints that no rule keeps: see
    // outlive_job_keep().
    void keep(const std::string &rules) { check(outlive_job_keep(job_, rules.c_str())); }

    // Sets the interval between saves: "auto", "continuous" or a time such as "30s". See outlive_job_every().
    void every(const std::string &what, double slowdown_max = 0) {
        check(outlive_job_every(job_, what.c_str(), slowdown_max));
    }
    // Sets the policy for saves that fail: OUTLIVE_RAISE or OUTLIVE_WARN. See outlive_job_on_failure().
    void on_failure(int what, double fail_after_s = 3600) {
        check(outlive_job_on_failure(job_, what, fail_after_s));
    }
    // Returns figures of its saves, in this process.
    outlive_health health() const {
        outlive_health health{};
        check(outlive_job_health(job_, &health));
        return health;
    }

    // Returns the number of dropped checkpoints.
    std::uint64_t prune(std::uint64_t keep_last) {
        std::uint64_t dropped = 0;
        check(outlive_prune(job_, keep_last, &dropped));
        return dropped;
    }
    std::uint64_t prune(const std::string &rules) {
        std::uint64_t dropped = 0;
        check(outlive_prune_rules(job_, rules.c_str(), &dropped));
        return dropped;
    }

private:
    static std::vector<const char *> pointers(const std::vector<std::string> &names) {
        std::vector<const char *> texts;
        for (const std::string &name : names) texts.push_back(name.c_str());
        return texts;
    }
    static std::optional<std::uint64_t> taken(outlive_status status, const std::uint64_t &epoch) {
        if (status == OUTLIVE_NOTHING) return std::nullopt;
        check(status);
        return epoch;
    }

    outlive_job *job_;
};

// A pool: a directory, its pool.toml, or s3://BUCKET/PREFIX. Created if it does not exist.
class Pool {
public:
    explicit Pool(const std::string &location) { check(outlive_open(location.c_str(), &pool_)); }
    Pool(Pool &&other) noexcept : pool_(std::exchange(other.pool_, nullptr)) {}
    // Closes the pool that it overwrites.
    Pool &operator=(Pool &&other) noexcept {
        Pool taken(std::move(other));
        std::swap(pool_, taken.pool_);
        return *this;
    }
    ~Pool() { outlive_close(pool_); }

    // Opens a job; saves are due once every `every_s` seconds.
    Job job(const std::string &name, double every_s = 0) const {
        outlive_job *job = nullptr;
        check(outlive_job_open(pool_, name.c_str(), every_s, &job));
        return Job(job);
    }
    // Opens a job of processes that share only the pool: see outlive_job_open_ranks(). For ranks of
    // MPI, see outlive_mpi.hpp.
    Job job_of_ranks(const std::string &name, int rank, int size, const std::string &run,
                     double every_s = 0, double patience_s = 0,
                     const std::string &schedule = "coordinated") const {
        outlive_job *job = nullptr;
        check(outlive_job_open_ranks(pool_, name.c_str(), every_s, rank, size, run.c_str(),
                                     patience_s, schedule.c_str(), &job));
        return Job(job);
    }
    outlive_pool *get() const noexcept { return pool_; }

private:
    outlive_pool *pool_ = nullptr;
};

}  // namespace outlive

#endif  // OUTLIVE_HPP
