/* All calls of a program, without errors. */
#include "check.h"

#include <math.h>

enum { ROWS = 300, COLUMNS = 200 };

static double grid[ROWS][COLUMNS];
static float *field;
static int64_t step;
static unsigned char small[100];

static const size_t grid_shape[] = {ROWS, COLUMNS};
static const size_t field_shape[] = {500000};
static const size_t none_shape[] = {0, 7};

static void protect(outlive_job *job)
{
    OK(outlive_protect(job, "grid", grid, OUTLIVE_FLOAT64, 2, grid_shape));
    OK(outlive_protect(job, "field", field, OUTLIVE_FLOAT32, 1, field_shape));
    OK(outlive_protect(job, "step", &step, OUTLIVE_INT64, 0, NULL));
    OK(outlive_protect_bytes(job, "small", small, sizeof small));
    OK(outlive_protect(job, "none", NULL, "V24", 2, none_shape));
}

static void set(uint64_t seed)
{
    fill(grid, sizeof grid, seed);
    fill(field, 500000 * sizeof *field, seed + 1);
    fill(small, sizeof small, seed + 2);
    step = (int64_t)seed;
}

static void expect(uint64_t seed)
{
    static double grid_then[ROWS][COLUMNS];
    static unsigned char small_then[sizeof small];
    float *field_then = malloc(500000 * sizeof *field);
    fill(grid_then, sizeof grid, seed);
    fill(field_then, 500000 * sizeof *field, seed + 1);
    fill(small_then, sizeof small, seed + 2);
    CHECK(memcmp(grid, grid_then, sizeof grid) == 0);
    CHECK(memcmp(field, field_then, 500000 * sizeof *field) == 0);
    CHECK(memcmp(small, small_then, sizeof small) == 0);
    CHECK(step == (int64_t)seed);
    free(field_then);
}

static void saves_and_restores(outlive_job *job)
{
    outlive_saving *saving;
    outlive_figures figures;
    uint64_t epoch;
    int done;

    FAILS(outlive_restore(job, 0, &epoch), OUTLIVE_NOTHING, "has no checkpoint yet");
    FAILS(outlive_newest(job, &epoch), OUTLIVE_NOTHING, "has no checkpoint yet");
    set(1);
    OK(outlive_save(job, OUTLIVE_DUE, &saving));
    OK(outlive_save_epoch(saving, &epoch));
    CHECK(epoch == 1);
    OK(outlive_wait(saving));
    OK(outlive_test(saving, &done));
    CHECK(done == 1);
    OK(outlive_save_figures(saving, &figures));
    CHECK(figures.epoch == 1 && figures.total_s >= figures.stall_s && figures.stall_s > 0);
    CHECK(figures.state_bytes == sizeof grid + 500000 * sizeof *field + 8 + sizeof small);
    CHECK(figures.changed_bytes >= figures.state_bytes && figures.new_bytes > 0);
    OK(outlive_save_free(saving));
    INVALID(outlive_wait(saving), "was closed already");

    /* The second save writes only the changed pages. */
    ((unsigned char *)field)[280000] ^= 1;
    step = 2;
    OK(outlive_save(job, OUTLIVE_FORCE | OUTLIVE_WAIT, &saving));
    OK(outlive_save_figures(saving, &figures));
    CHECK(figures.epoch == 2);
    CHECK(figures.changed_bytes <= 2 * 4096);
    OK(outlive_wait_for(saving, 0.0, &done));
    CHECK(done == 1);
    OK(outlive_save_free(saving));

    set(99);
    OK(outlive_restore(job, 1, &epoch));
    CHECK(epoch == 1);
    expect(1);
    INVALID(outlive_restore(job, 7, &epoch), "has no checkpoint 7");
    CHECK(epoch == 0);
    OK(outlive_restore(job, 0, NULL));
    CHECK(step == 2);

    /* The first save after a restore writes only the pages that changed since. */
    ((unsigned char *)field)[12] ^= 1;
    OK(outlive_save(job, OUTLIVE_WAIT, &saving));
    OK(outlive_save_figures(saving, &figures));
    CHECK(figures.changed_bytes == 4096);
    OK(outlive_save_free(saving));
}

static void looks_before_it_restores(outlive_job *job)
{
    outlive_checkpoint *checkpoint;
    outlive_region_info info;
    uint64_t epoch, epochs[10];
    size_t count;
    const char *label;
    double value;
    float *copy;

    OK(outlive_newest(job, &epoch));
    CHECK(epoch == 3);
    OK(outlive_epochs(job, epochs, 10, &count));
    CHECK(count == 3 && epochs[0] == 1 && epochs[1] == 2 && epochs[2] == 3);
    OK(outlive_epochs(job, epochs, 1, &count));
    CHECK(count == 3 && epochs[0] == 3);
    OK(outlive_epochs(job, NULL, 0, &count));
    CHECK(count == 3);

    OK(outlive_checkpoint_open(job, 0, &checkpoint));
    OK(outlive_checkpoint_about(checkpoint, &epoch, &count, &label));
    CHECK(epoch == 3 && count == 5 && strcmp(label, "") == 0);
    OK(outlive_checkpoint_about(checkpoint, NULL, NULL, NULL));
    OK(outlive_checkpoint_region(checkpoint, 0, &info));
    CHECK(strcmp(info.name, "grid") == 0 && strcmp(info.dtype, "<f8") == 0);
    CHECK(info.ndim == 2 && info.shape[0] == ROWS && info.shape[1] == COLUMNS);
    CHECK(info.bytes == sizeof grid && info.distribution == OUTLIVE_LOCAL);
    CHECK(info.global_shape == NULL && info.offset == NULL);
    OK(outlive_checkpoint_find(checkpoint, "none", &info));
    CHECK(info.ndim == 2 && info.bytes == 0 && strcmp(info.dtype, "|V24") == 0);
    OK(outlive_checkpoint_find(checkpoint, "step", &info));
    CHECK(info.ndim == 0 && info.bytes == 8);
    FAILS(outlive_checkpoint_region(checkpoint, 5, &info), OUTLIVE_NOTHING, "no number 5");
    FAILS(outlive_checkpoint_find(checkpoint, "x", &info), OUTLIVE_NOTHING, "no region \"x\"");
    FAILS(outlive_checkpoint_metric(checkpoint, "loss", &value), OUTLIVE_NOTHING, "no metric");

    OK(outlive_checkpoint_find(checkpoint, "field", &info));
    copy = malloc(info.bytes);
    OK(outlive_copy_region(job, 3, "field", copy, info.bytes, &epoch));
    CHECK(epoch == 3 && memcmp(copy, field, info.bytes) == 0);
    INVALID(outlive_copy_region(job, 3, "field", copy, info.bytes - 1, NULL), "2000000 bytes, and the buffer 1999999");
    FAILS(outlive_copy_region(job, 0, "x", copy, 1, NULL), OUTLIVE_NOTHING, "no region \"x\"");
    OK(outlive_copy_region(job, 0, "none", NULL, 0, NULL));
    free(copy);
    OK(outlive_checkpoint_close(checkpoint));
}

static void parts(outlive_job *job)
{
    const char *names[] = {"step", "grid"};
    const char *twice[] = {"step", "step"};
    const char *other[] = {"other"};
    uint64_t epoch;
    outlive_checkpoint *checkpoint;
    size_t count;

    OK(outlive_restore(job, 0, NULL));
    set(50);
    OK(outlive_restore_some(job, 1, names, 2, &epoch));
    CHECK(epoch == 1 && step == 1);
    fill(grid, sizeof grid, 50);
    step = 50;
    expect(50);
    INVALID(outlive_restore_some(job, 0, twice, 2, NULL), "named twice");
    INVALID(outlive_restore_some(job, 0, other, 1, NULL), "no region \"other\" is protected");
    INVALID(outlive_restore_some(job, 0, NULL, 0, NULL), "no memory to restore into");

    OK(outlive_save_some(job, names, 2, OUTLIVE_FORCE | OUTLIVE_WAIT, NULL));
    OK(outlive_checkpoint_open(job, 4, &checkpoint));
    OK(outlive_checkpoint_about(checkpoint, NULL, &count, NULL));
    CHECK(count == 2);
    OK(outlive_checkpoint_close(checkpoint));
    INVALID(outlive_restore(job, 4, NULL), "does not have");
    INVALID(outlive_save_some(job, other, 1, OUTLIVE_FORCE, NULL), "no region \"other\"");

    /* Checkpoints of regions that the program names one by one. */
    OK(outlive_begin(job, "by hand"));
    INVALID(outlive_begin(job, NULL), "was begun already");
    OK(outlive_region(job, "a", grid, OUTLIVE_FLOAT64, 2, grid_shape));
    OK(outlive_region_bytes(job, "b", small, sizeof small));
    INVALID(outlive_region_bytes(job, "b", small, 1), "has a region \"b\" already");
    OK(outlive_end(job, OUTLIVE_WAIT, NULL));
    INVALID(outlive_end(job, 0, NULL), "no checkpoint of job");
    INVALID(outlive_region_bytes(job, "b", small, 1), "no checkpoint of job");
    OK(outlive_begin(job, NULL));
    OK(outlive_cancel(job));
    OK(outlive_cancel(job));
    OK(outlive_checkpoint_open(job, 5, &checkpoint));
    {
        const char *label;
        OK(outlive_checkpoint_about(checkpoint, NULL, &count, &label));
        CHECK(count == 2 && strcmp(label, "by hand") == 0);
    }
    OK(outlive_checkpoint_close(checkpoint));
}

static void notes_and_prunings(outlive_job *job)
{
    outlive_checkpoint *checkpoint;
    uint64_t dropped, epochs[10];
    size_t count;
    double value;
    const char *label;

    OK(outlive_next_metric(job, "loss", 0.25));
    OK(outlive_next_metric(job, "loss", 0.125));
    OK(outlive_next_label(job, "best"));
    OK(outlive_next_tag(job, "night"));
    OK(outlive_next_tag(job, "good"));
    OK(outlive_save(job, OUTLIVE_WAIT, NULL));
    OK(outlive_save(job, OUTLIVE_WAIT, NULL));
    OK(outlive_checkpoint_open(job, 6, &checkpoint));
    OK(outlive_checkpoint_about(checkpoint, NULL, NULL, &label));
    OK(outlive_checkpoint_metric(checkpoint, "loss", &value));
    CHECK(strcmp(label, "best") == 0 && value == 0.125);
    OK(outlive_checkpoint_close(checkpoint));
    /* Notes belong to one checkpoint. */
    OK(outlive_checkpoint_open(job, 7, &checkpoint));
    OK(outlive_checkpoint_about(checkpoint, NULL, NULL, &label));
    CHECK(strcmp(label, "") == 0);
    OK(outlive_checkpoint_close(checkpoint));

    OK(outlive_note(job, 6, "", 1));
    OK(outlive_note(job, 5, "", -1));
    OK(outlive_tag(job, 6, "late", 1));
    OK(outlive_tag(job, 6, "good", 0));
    OK(outlive_tag(job, 6, "never", 0));
    INVALID(outlive_tag(job, 77, "x", 1), "no checkpoint 77");
    INVALID(outlive_note(job, 77, "x", -1), "no checkpoint 77");
    OK(outlive_next_pin(job));
    OK(outlive_save(job, OUTLIVE_WAIT, NULL));
    OK(outlive_save(job, OUTLIVE_WAIT, NULL));
    OK(outlive_prune(job, 1, &dropped));
    OK(outlive_epochs(job, epochs, 10, &count));
    CHECK(count == 3 && epochs[0] == 6 && epochs[1] == 8 && epochs[2] == 9);
    CHECK(dropped == 6);
    OK(outlive_prune_rules(job, "last 2 | best loss:min", &dropped));
    CHECK(dropped == 0);
    INVALID(outlive_prune_rules(job, "nonsense", NULL), "nonsense");
    INVALID(outlive_prune(job, 0, NULL), "keep_last = 0");
}

static void distributed(outlive_pool *pool)
{
    outlive_job *job;
    outlive_checkpoint *checkpoint;
    outlive_region_info info;
    const size_t whole[] = {600, 200}, at[] = {300, 0}, outside[] = {301, 0};
    const size_t first[] = {1, 0}, block[] = {7, 200}, stride[] = {14, 200}, none[] = {0, 200}, wide[] = {15, 200};
    const size_t *its_block = whole, *its_stride = whole;

    OK(outlive_job_open(pool, "ranks", 0, &job));
    OK(outlive_protect_sharded(job, "grid", grid, OUTLIVE_FLOAT64, 2, grid_shape, whole, at));
    OK(outlive_protect_replicated(job, "small", small, OUTLIVE_UINT8, 1, &(size_t){100}));
    INVALID(outlive_protect_sharded(job, "g", grid, "f8", 2, grid_shape, whole, outside), "begins at");
    /* 300 rows of 600, seven by seven: 42 whole blocks and one of six rows. */
    OK(outlive_protect_cyclic(job, "rows", grid, OUTLIVE_FLOAT64, 2, grid_shape, whole, first, block, stride));
    INVALID(outlive_protect_cyclic(job, "r", grid, "f8", 2, grid_shape, whole, first, block, wide), "every 15");
    INVALID(outlive_protect_cyclic(job, "r", grid, "f8", 2, grid_shape, whole, first, none, stride), "blocks of 0");
    INVALID(outlive_protect_cyclic(job, "r", grid, "f8", 2, grid_shape, whole, first, stride, block), "every 7");
    INVALID(outlive_protect_cyclic(job, "r", grid, "f8", 2, grid_shape, whole, first, NULL, stride), "the block");
    INVALID(outlive_protect_cyclic(job, "r", grid, "f8", 2, grid_shape, whole, first, block, NULL), "the stride");
    OK(outlive_save(job, OUTLIVE_WAIT, NULL));
    OK(outlive_checkpoint_open(job, 0, &checkpoint));
    OK(outlive_checkpoint_find(checkpoint, "rows", &info));
    CHECK(info.distribution == OUTLIVE_CYCLIC && info.global_shape[0] == 600 && info.offset[0] == 1);
    OK(outlive_checkpoint_blocks(checkpoint, "rows", &its_block, &its_stride));
    CHECK(its_block[0] == 7 && its_block[1] == 200 && its_stride[0] == 14 && its_stride[1] == 200);
    FAILS(outlive_checkpoint_blocks(checkpoint, "grid", &its_block, &its_stride), OUTLIVE_NOTHING, "in blocks");
    CHECK(its_block == NULL && its_stride == NULL);
    FAILS(outlive_checkpoint_blocks(checkpoint, "x", &its_block, &its_stride), OUTLIVE_NOTHING, "in blocks");
    INVALID(outlive_checkpoint_blocks(checkpoint, "rows", NULL, &its_stride), "the block");
    OK(outlive_checkpoint_find(checkpoint, "grid", &info));
    CHECK(info.distribution == OUTLIVE_SHARDED && info.global_shape[0] == 600);
    CHECK(info.offset[0] == 300 && info.offset[1] == 0);
    OK(outlive_checkpoint_find(checkpoint, "small", &info));
    CHECK(info.distribution == OUTLIVE_REPLICATED && info.offset == NULL);
    OK(outlive_checkpoint_close(checkpoint));
    OK(outlive_job_close(job));
}

int main(int argc, char **argv)
{
    outlive_pool *pool;
    outlive_job *job, *timed;
    outlive_saving *saving;
    int due;

    CHECK(argc == 2 && strcmp(outlive_error_message(), "") == 0);
    CHECK(strcmp(outlive_status_name(OUTLIVE_FENCED), "OUTLIVE_FENCED") == 0);
    CHECK(strlen(outlive_version()) >= 5);
    field = malloc(500000 * sizeof *field);
    OK(outlive_open(argv[1], &pool));
    OK(outlive_job_open(pool, "job", 0, &job));
    protect(job);
    saves_and_restores(job);
    looks_before_it_restores(job);
    parts(job);
    notes_and_prunings(job);
    distributed(pool);

    CHECK(outlive_on_preempt(-1) == OUTLIVE_INVALID);
    CHECK(outlive_on_preempt(NAN) == OUTLIVE_INVALID);
    OK(outlive_job_open(pool, "timed", 3600, &timed));
    OK(outlive_should_stop(timed, &due));
    CHECK(due == 0);
    CHECK(outlive_should_stop(timed, NULL) == OUTLIVE_INVALID);
    CHECK(outlive_should_stop(NULL, &due) == OUTLIVE_INVALID);
    OK(outlive_protect_bytes(timed, "small", small, sizeof small));
    OK(outlive_due(timed, &due));
    CHECK(due == 1);
    OK(outlive_save(timed, OUTLIVE_DUE, NULL));
    OK(outlive_due(timed, &due));
    CHECK(due == 0);
    OK(outlive_save(timed, OUTLIVE_WAIT, &saving));
    CHECK(saving == NULL);
    OK(outlive_wait(saving));
    OK(outlive_test(saving, &due));
    CHECK(due == 1);
    OK(outlive_next_label(timed, "a label makes it due"));
    OK(outlive_save(timed, OUTLIVE_WAIT, &saving));
    CHECK(saving != NULL);
    OK(outlive_save_free(saving));
    OK(outlive_job_wait(timed));

    OK(outlive_unprotect(job, "field"));
    FAILS(outlive_unprotect(job, "field"), OUTLIVE_NOTHING, "no region \"field\" is protected");
    free(field);
    OK(outlive_save(job, OUTLIVE_WAIT, NULL));
    OK(outlive_clear(job));
    INVALID(outlive_save(job, OUTLIVE_WAIT, NULL), "has nothing to save");
    /* A job stays open without its pool's handle. */
    OK(outlive_close(pool));
    OK(outlive_job_close(timed));
    OK(outlive_job_close(job));
    INVALID(outlive_job_close(job), "was closed already");
    printf("done\n");
    return 0;
}
