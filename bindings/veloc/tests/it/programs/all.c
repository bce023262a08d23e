/* A program that was written for VELOC: one process. */
#include <stdio.h>
#include <stdlib.h>
#include <veloc.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define OK(call) CHECK((call) == VELOC_SUCCESS)
#define NO(call) CHECK((call) == VELOC_FAILURE)

static double grid[20000], other[500];
static int step;

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void first(const char *config)
{
    int ids[] = {1}, version;
    char routed[VELOC_MAX_NAME];

    NO(VELOC_Checkpoint("heat", 1));
    NO(VELOC_Mem_protect(0, &step, 1, sizeof step));
    NO(VELOC_Init_single(7, "/nowhere/veloc.cfg"));
    NO(VELOC_Init_single(7, NULL));
    OK(VELOC_Init_single(7, config));
    OK(VELOC_Init_single(7, config));
    CHECK(VELOC_Restart_test("heat", 0) == -1);
    NO(VELOC_Restart("heat", 3));
    NO(VELOC_Checkpoint("heat", 1)); /* nothing is protected */
    OK(VELOC_Mem_protect(0, &step, 1, sizeof step));
    OK(VELOC_Mem_protect(1, grid, 20000, sizeof *grid));
    OK(VELOC_Mem_protect(1, grid, 20000, sizeof *grid));
    NO(VELOC_Mem_protect(2, NULL, 1, 8));
    NO(VELOC_Mem_protect(2, grid, (size_t)-1, 8));
    NO(VELOC_Mem_unprotect(5));
    for (version = 1; version <= 5; version++) {
        step = version * 10;
        grid[version * 1000] = version;
        OK(VELOC_Checkpoint("heat", version));
    }
    OK(VELOC_Checkpoint_wait());
    OK(VELOC_Checkpoint_finished());
    CHECK(VELOC_Restart_test("heat", 0) == 5);
    CHECK(VELOC_Restart_test("heat", 3) == 3);
    CHECK(VELOC_Restart_test("heat", 100) == 5);
    CHECK(VELOC_Restart_test("cold", 0) == -1);
    NO(VELOC_Restart_test("a/b", 0));
    NO(VELOC_Checkpoint_begin("heat", -1));
    NO(VELOC_Checkpoint_begin("", 1));

    /* A checkpoint that the program reports as failed is dropped. */
    OK(VELOC_Checkpoint_begin("heat", 6));
    NO(VELOC_Checkpoint_begin("heat", 7));
    NO(VELOC_Checkpoint_wait());
    OK(VELOC_Checkpoint_mem());
    OK(VELOC_Route_file("given-up.txt", routed));
    write_file(routed, "given up");
    NO(VELOC_Checkpoint_end(0));
    CHECK(VELOC_Restart_test("heat", 0) == 5);
    NO(VELOC_Checkpoint_end(1));
    NO(VELOC_Checkpoint_mem());

    /* Parts, in both directions. */
    OK(VELOC_Checkpoint_begin("part", 0));
    NO(VELOC_Checkpoint_selective(3, ids, 1));
    NO(VELOC_Checkpoint_selective(VELOC_CKPT_SOME, NULL, 1));
    NO(VELOC_Checkpoint_selective(VELOC_CKPT_SOME, NULL, 0));
    OK(VELOC_Checkpoint_selective(VELOC_CKPT_REST, ids, 1));
    OK(VELOC_Checkpoint_end(1));
    CHECK(VELOC_Restart_test("part", 0) == 0);
    OK(VELOC_Restart_begin("part", 0));
    CHECK(VELOC_Recover_size(0) == sizeof step && VELOC_Recover_size(1) == 0);
    NO(VELOC_Route_file("output.txt", routed)); /* it has no file */
    OK(VELOC_Restart_end(1));
    NO(VELOC_Recover_size(0));

    /* Memory of one name, and a file. */
    OK(VELOC_Region_protect(0, other, 500, sizeof *other, "named"));
    other[3] = 3;
    OK(VELOC_Checkpoint_begin("named", 1));
    OK(VELOC_Checkpoint_mem());
    NO(VELOC_Route_file("output.txt", NULL));
    OK(VELOC_Route_file("\xff\xfe output.txt", routed)); /* not UTF-8, but never read */
    write_file(routed, "what the program writes itself");
    OK(VELOC_Checkpoint_end(1));
    OK(VELOC_Cleanup("named"));
    OK(VELOC_Finalize(1));
    NO(VELOC_Finalize(1));
}

static void second(const char *config)
{
    int ids[] = {0};
    char routed[VELOC_MAX_NAME], text[VELOC_MAX_NAME];
    FILE *file;

    OK(VELOC_Init_single(7, config));
    CHECK(VELOC_Restart_test("heat", 0) == 5);
    OK(VELOC_Mem_protect(0, &step, 1, sizeof step));
    OK(VELOC_Restart_begin("heat", 4));
    NO(VELOC_Recover_mem()); /* no memory for region 1 */
    OK(VELOC_Mem_protect(1, grid, 19999, sizeof *grid));
    NO(VELOC_Recover_mem()); /* too short */
    OK(VELOC_Mem_protect(1, grid, 20000, sizeof *grid));
    OK(VELOC_Recover_selective(VELOC_RECOVER_SOME, ids, 1));
    CHECK(step == 40 && grid[1000] == 0);
    OK(VELOC_Recover_mem());
    CHECK(grid[1000] == 1 && grid[4000] == 4 && grid[5000] == 0);
    OK(VELOC_Restart_end(1));

    /* The program continues from there, and saves another version 5. */
    step = 55;
    OK(VELOC_Checkpoint("heat", 5));
    OK(VELOC_Checkpoint_wait());
    step = 0;
    OK(VELOC_Restart("heat", 5));
    CHECK(step == 55 && grid[5000] == 0);

    OK(VELOC_Restart_begin("named", 1));
    strcpy(routed, "another name");
    OK(VELOC_Route_file(routed, routed));
    file = fopen(routed, "r");
    CHECK(file != NULL && fgets(text, sizeof text, file) != NULL && fclose(file) == 0);
    CHECK(strcmp(text, "what the program writes itself") == 0);
    OK(VELOC_Route_file(NULL, text));
    CHECK(strcmp(text, routed) == 0);
    OK(VELOC_Region_protect(0, other, 500, sizeof *other, "named"));
    OK(VELOC_Recover_mem());
    CHECK(other[3] == 3);
    OK(VELOC_Restart_end(1));
    OK(VELOC_Region_unprotect(0, "named"));
    OK(VELOC_Region_clear("named"));
    OK(VELOC_Mem_clear());
    NO(VELOC_Checkpoint("heat", 9));
    /* Another process has checkpoints of its own. */
    OK(VELOC_Finalize(0));
    OK(VELOC_Init_single(8, config));
    CHECK(VELOC_Restart_test("heat", 0) == -1);
    /* The program ends without a finalize. */
    OK(VELOC_Mem_protect(0, grid, 20000, sizeof *grid));
    OK(VELOC_Checkpoint("end", 1));
}

static void third(const char *config)
{
    int version;
    OK(VELOC_Init_single(8, config));
    CHECK(VELOC_Restart_test("end", 0) == 1);
    OK(VELOC_Mem_protect(0, grid, 20000, sizeof *grid));
    /* The configuration keeps three. */
    for (version = 2; version <= 9; version++)
        OK(VELOC_Checkpoint("end", version));
    OK(VELOC_Finalize(1));
    OK(VELOC_Init_single(8, config));
    CHECK(VELOC_Restart_test("end", 6) == -1 && VELOC_Restart_test("end", 7) == 7);
    OK(VELOC_Finalize(1));
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    switch (argv[1][0]) {
    case '1': first(argv[2]); break;
    case '2': second(argv[2]); break;
    default: third(argv[2]); break;
    }
    printf("done\n");
    return 0;
}
