/* Each mistake of a program gives a status and a text, and loses nothing. */
#include "check.h"
#include <math.h>

static unsigned char bytes[1000];
static const size_t shape[] = {10, 100};

static void pools(const char *there, const char *not_there)
{
    outlive_pool *pool = (outlive_pool *)1;

    INVALID(outlive_open(NULL, &pool), "location is NULL");
    CHECK(pool == NULL);
    INVALID(outlive_open(there, NULL), "place for the pool is NULL");
    INVALID(outlive_open("", &pool), "is empty");
    INVALID(outlive_open("/dev/null", &pool), "/dev/null");
    INVALID(outlive_open("/dev/null/x", &pool), "/dev/null");
    INVALID(outlive_open("s3://", &pool), "s3://");
    INVALID(outlive_open_existing(not_there, &pool), not_there);
    INVALID(outlive_close((outlive_pool *)shape), "is no pool");
    OK(outlive_close(NULL));
}

static void jobs(outlive_pool *pool)
{
    outlive_job *job = (outlive_job *)1;

    INVALID(outlive_job_open(NULL, "a", 0, &job), "the pool is NULL");
    CHECK(job == NULL);
    INVALID(outlive_job_open(pool, NULL, 0, &job), "name is NULL");
    INVALID(outlive_job_open(pool, "", 0, &job), "");
    INVALID(outlive_job_open(pool, "\xff", 0, &job), "UTF-8");
    INVALID(outlive_job_open(pool, "a", -1, &job), "every_s = -1");
    INVALID(outlive_job_open(pool, "a", NAN, &job), "every_s = NaN");
    INVALID(outlive_job_open(pool, "a", INFINITY, &job), "every_s = inf");
    INVALID(outlive_job_open(pool, "a", 0, NULL), "place for the job is NULL");
    INVALID(outlive_job_open((outlive_pool *)bytes, "a", 0, &job), "is no pool");
    OK(outlive_job_close(NULL));
    INVALID(outlive_job_close((outlive_job *)pool), "is no job");
    INVALID(outlive_job_wait(NULL), "the job is NULL");
    INVALID(outlive_job_take_over(NULL), "the job is NULL");
}

static void regions(outlive_job *job)
{
    size_t huge[] = {(size_t)-1, (size_t)-1};
    size_t many[65] = {0};
    char *name = malloc(70001);
    size_t at;
    const char *dtypes[] = {"", "x", "f7", "f", "8", "<", "|f8", "O8", "py:int", "f8 ", "ext:x"};

    for (at = 0; at < sizeof dtypes / sizeof *dtypes; at++)
        INVALID(outlive_protect(job, "a", bytes, dtypes[at], 2, shape), "is no dtype");
    INVALID(outlive_protect(job, "a", bytes, NULL, 2, shape), "dtype is NULL");
    INVALID(outlive_protect(job, "a", NULL, "u1", 2, shape), "memory is NULL");
    INVALID(outlive_protect(job, "a", bytes, "u1", 2, NULL), "the shape is no list of 2");
    INVALID(outlive_protect(job, "a", bytes, "u1", 2, huge), "larger than memory");
    INVALID(outlive_protect(job, "a", bytes, "u1", 1, huge), "cannot be");
    INVALID(outlive_protect(job, "a", bytes, "u1", 65, many), "65 dimensions");
    INVALID(outlive_protect(job, "a", bytes, "u1", (size_t)-1, many), "dimensions");
    INVALID(outlive_protect(job, NULL, bytes, "u1", 2, shape), "name is NULL");
    INVALID(outlive_protect(job, "", bytes, "u1", 2, shape), "name is empty");
    INVALID(outlive_protect(job, "\xff", bytes, "u1", 2, shape), "UTF-8");
    INVALID(outlive_protect_bytes(job, "a", bytes, (size_t)-1), "cannot be");
    INVALID(outlive_protect_bytes(job, "a", NULL, 1), "memory is NULL");
    INVALID(outlive_protect_bytes(NULL, "a", bytes, 1), "the job is NULL");
    INVALID(outlive_protect_sharded(job, "a", bytes, "u1", 2, shape, NULL, NULL), "global shape");
    INVALID(outlive_protect_sharded(job, "a", bytes, "u1", 0, NULL, NULL, NULL), "dimensions");
    INVALID(outlive_unprotect(job, NULL), "name is NULL");

    /* Only a save can find this: the name is too long for a checkpoint. */
    memset(name, 'x', 70000);
    name[70000] = 0;
    OK(outlive_protect_bytes(job, name, bytes, sizeof bytes));
    INVALID(outlive_save(job, OUTLIVE_FORCE, NULL), "65535");
    OK(outlive_unprotect(job, name));
    free(name);
}

static void saves(outlive_job *job)
{
    outlive_saving *saving = (outlive_saving *)1;
    outlive_figures figures;
    uint64_t epoch;
    int done;

    INVALID(outlive_save(job, OUTLIVE_DUE, &saving), "nothing to save");
    CHECK(saving == NULL);
    OK(outlive_protect(job, "a", bytes, OUTLIVE_UINT8, 2, shape));
    INVALID(outlive_save(job, 8, NULL), "flags = 0x8");
    INVALID(outlive_save(NULL, 0, &saving), "the job is NULL");
    INVALID(outlive_save_some(job, NULL, 1, 0, NULL), "list of region's names");
    INVALID(outlive_wait((outlive_saving *)job), "is no save");
    INVALID(outlive_test(NULL, NULL), "place for the answer is NULL");
    INVALID(outlive_wait_for(NULL, NAN, &done), "not a number");
    INVALID(outlive_save_epoch(NULL, &epoch), "the save is NULL");
    INVALID(outlive_save_figures(NULL, &figures), "the save is NULL");
    OK(outlive_save_free(NULL));
    INVALID(outlive_next_label(job, NULL), "label is NULL");
    INVALID(outlive_next_metric(job, "loss", NAN), "not a number");
    INVALID(outlive_next_metric(job, "", 1), "1 to 65,535 bytes");
    INVALID(outlive_next_tag(job, NULL), "the tag is NULL");
    INVALID(outlive_next_tag(job, "two words"), "tag");
    INVALID(outlive_tag(job, 1, "x", 2), "add = 2");
    INVALID(outlive_note(job, 1, NULL, 2), "pin = 2");
    OK(outlive_save(job, OUTLIVE_FORCE | OUTLIVE_WAIT, &saving));
    INVALID(outlive_save_figures(saving, NULL), "place for the figures is NULL");
    OK(outlive_save_free(saving));
    INVALID(outlive_save_free(saving), "was closed already");
}

/* A region that does not fit is refused before anything is written. */
static void restores(outlive_job *job)
{
    const size_t other[] = {100, 10};
    unsigned char before[sizeof bytes], more[1];
    size_t count;

    fill(bytes, sizeof bytes, 5);
    memcpy(before, bytes, sizeof bytes);
    OK(outlive_protect(job, "a", bytes, OUTLIVE_UINT8, 2, other));
    INVALID(outlive_restore(job, 0, NULL), "[10, 100]");
    OK(outlive_protect(job, "a", bytes, OUTLIVE_INT8, 2, shape));
    INVALID(outlive_restore(job, 0, NULL), "\"|u1\"");
    OK(outlive_protect(job, "a", bytes, OUTLIVE_UINT8, 2, shape));
    OK(outlive_protect_bytes(job, "b", more, 1));
    INVALID(outlive_restore(job, 0, NULL), "does not have");
    OK(outlive_unprotect(job, "a"));
    INVALID(outlive_restore(job, 0, NULL), "names no memory");
    CHECK(memcmp(bytes, before, sizeof bytes) == 0);
    OK(outlive_clear(job));
    INVALID(outlive_restore(job, 0, NULL), "no memory to restore into");
    INVALID(outlive_copy_region(job, 0, "a", NULL, 1000, NULL), "memory is NULL");
    INVALID(outlive_newest(job, NULL), "place for the epoch is NULL");
    INVALID(outlive_epochs(job, NULL, 1, &count), "is no list");
    INVALID(outlive_epochs(job, NULL, 0, NULL), "is NULL");
    INVALID(outlive_checkpoint_open(job, 0, NULL), "is NULL");
    INVALID(outlive_checkpoint_about(NULL, NULL, NULL, NULL), "the checkpoint is NULL");
    OK(outlive_checkpoint_close(NULL));
}

int main(int argc, char **argv)
{
    outlive_pool *pool;
    outlive_job *job;

    CHECK(argc == 3);
    pools(argv[1], argv[2]);
    OK(outlive_open(argv[1], &pool));
    jobs(pool);
    OK(outlive_job_open(pool, "job", 0, &job));
    regions(job);
    saves(job);
    restores(job);
    OK(outlive_protect(job, "a", bytes, OUTLIVE_UINT8, 2, shape));
    OK(outlive_save(job, OUTLIVE_FORCE | OUTLIVE_WAIT, NULL));
    OK(outlive_job_close(job));
    INVALID(outlive_save(job, OUTLIVE_FORCE, NULL), "was closed already");
    OK(outlive_close(pool));
    INVALID(outlive_job_open(pool, "a", 0, &job), "was closed already");
    CHECK(outlive_refuse("x") == OUTLIVE_INVALID);
    CHECK(strcmp(outlive_error_message(), "x") == 0);
    printf("done\n");
    return 0;
}
