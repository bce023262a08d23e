/* A disk with one arm, for bench/striped: FUSE passes a directory on, and every read and write of
   data waits for the arm. The arm serves requests in their order, one at a time, at a given speed,
   and first moves if a request is far from the end of the last one. This is a central server whose
   clients disturb each other.

       arm MOUNTPOINT FOLDER BYTES_PER_S SEEK_MS      in the foreground, until it is unmounted */
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <pthread.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

/* Requests this near to the last one need no move: a few containers in flight together. */
enum { NEAR_BYTES = 16 << 20 };

static struct {
    pthread_mutex_t lock;
    int folder;
    double bytes_per_s, seek_s, free_at;
    uint64_t file;
    off_t at;
} arm = {PTHREAD_MUTEX_INITIALIZER, -1, 0, 0, 0, 0, 0};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void wait_for_arm(uint64_t file, off_t offset, size_t bytes)
{
    double until, begin;
    struct timespec t;
    off_t away;
    pthread_mutex_lock(&arm.lock);
    away = offset > arm.at ? offset - arm.at : arm.at - offset;
    begin = now();
    if (begin < arm.free_at)
        begin = arm.free_at;
    until = begin + (double)bytes / arm.bytes_per_s + (file != arm.file || away > NEAR_BYTES ? arm.seek_s : 0);
    arm.free_at = until;
    arm.file = file;
    arm.at = offset + (off_t)bytes;
    pthread_mutex_unlock(&arm.lock);
    t.tv_sec = (time_t)until;
    t.tv_nsec = (long)((until - (double)t.tv_sec) * 1e9);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
    }
}

static const char *inside(const char *path)
{
    return path[1] == 0 ? "." : path + 1;
}

static int answer(int outcome)
{
    return outcome < 0 ? -errno : outcome;
}

static int do_getattr(const char *path, struct stat *into, struct fuse_file_info *open)
{
    if (open != NULL)
        return answer(fstat((int)open->fh, into));
    return answer(fstatat(arm.folder, inside(path), into, AT_SYMLINK_NOFOLLOW));
}

static int do_open(const char *path, struct fuse_file_info *open)
{
    int file = openat(arm.folder, inside(path), open->flags & ~(O_DIRECT | O_CREAT | O_EXCL));
    open->fh = (uint64_t)file;
    open->direct_io = 1;
    return file < 0 ? -errno : 0;
}

static int do_create(const char *path, mode_t mode, struct fuse_file_info *open)
{
    int file = openat(arm.folder, inside(path), (open->flags & ~O_DIRECT) | O_CREAT, mode);
    open->fh = (uint64_t)file;
    open->direct_io = 1;
    return file < 0 ? -errno : 0;
}

static uint64_t name_of(int file)
{
    struct stat found;
    return fstat(file, &found) == 0 ? found.st_ino : 0;
}

static int do_read(const char *path, char *into, size_t bytes, off_t at, struct fuse_file_info *open)
{
    ssize_t done = pread((int)open->fh, into, bytes, at);
    (void)path;
    if (done > 0)
        wait_for_arm(name_of((int)open->fh), at, (size_t)done);
    return answer((int)done);
}

static int do_write(const char *path, const char *from, size_t bytes, off_t at, struct fuse_file_info *open)
{
    ssize_t done = pwrite((int)open->fh, from, bytes, at);
    (void)path;
    if (done > 0)
        wait_for_arm(name_of((int)open->fh), at, (size_t)done);
    return answer((int)done);
}

static int do_release(const char *path, struct fuse_file_info *open)
{
    (void)path;
    close((int)open->fh);
    return 0;
}

/* Written data has waited for the arm already; the real disk below does not matter. */
static int do_fsync(const char *path, int data_only, struct fuse_file_info *open)
{
    (void)path, (void)data_only, (void)open;
    return 0;
}

static int do_readdir(const char *path, void *into, fuse_fill_dir_t fill, off_t at,
                      struct fuse_file_info *open, enum fuse_readdir_flags flags)
{
    struct dirent *entry;
    int file = openat(arm.folder, inside(path), O_RDONLY | O_DIRECTORY);
    DIR *folder = file < 0 ? NULL : fdopendir(file);
    (void)at, (void)open, (void)flags;
    if (folder == NULL)
        return -errno;
    while ((entry = readdir(folder)) != NULL)
        fill(into, entry->d_name, NULL, 0, 0);
    closedir(folder);
    return 0;
}

static int do_mkdir(const char *path, mode_t mode)
{
    return answer(mkdirat(arm.folder, inside(path), mode));
}

static int do_unlink(const char *path)
{
    return answer(unlinkat(arm.folder, inside(path), 0));
}

static int do_rmdir(const char *path)
{
    return answer(unlinkat(arm.folder, inside(path), AT_REMOVEDIR));
}

static int do_link(const char *from, const char *to)
{
    return answer(linkat(arm.folder, inside(from), arm.folder, inside(to), 0));
}

static int do_rename(const char *from, const char *to, unsigned int flags)
{
    return answer(renameat2(arm.folder, inside(from), arm.folder, inside(to), flags));
}

static int do_chmod(const char *path, mode_t mode, struct fuse_file_info *open)
{
    (void)open;
    return answer(fchmodat(arm.folder, inside(path), mode, 0));
}

static int do_truncate(const char *path, off_t bytes, struct fuse_file_info *open)
{
    int file, outcome;
    if (open != NULL)
        return answer(ftruncate((int)open->fh, bytes));
    file = openat(arm.folder, inside(path), O_WRONLY);
    if (file < 0)
        return -errno;
    outcome = answer(ftruncate(file, bytes));
    close(file);
    return outcome;
}

static int do_fallocate(const char *path, int mode, off_t at, off_t bytes, struct fuse_file_info *open)
{
    (void)path;
    return answer(fallocate((int)open->fh, mode, at, bytes));
}

static int do_statfs(const char *path, struct statvfs *into)
{
    (void)path;
    return answer(fstatvfs(arm.folder, into));
}

static const struct fuse_operations operations = {
    .getattr = do_getattr, .open = do_open, .create = do_create, .read = do_read, .write = do_write,
    .release = do_release, .fsync = do_fsync, .readdir = do_readdir, .mkdir = do_mkdir,
    .unlink = do_unlink, .rmdir = do_rmdir, .link = do_link, .rename = do_rename, .chmod = do_chmod,
    .truncate = do_truncate, .fallocate = do_fallocate, .statfs = do_statfs,
};

int main(int argc, char **argv)
{
    char name[] = "arm", foreground[] = "-f", option[] = "-o", limits[] = "max_threads=64,max_idle_threads=64";
    char *arguments[] = {name, foreground, option, limits, NULL, NULL};
    if (argc != 5)
        return 2;
    arm.folder = open(argv[2], O_RDONLY | O_DIRECTORY);
    arm.bytes_per_s = atof(argv[3]);
    arm.seek_s = atof(argv[4]) / 1000;
    arguments[4] = argv[1];
    if (arm.folder < 0 || arm.bytes_per_s <= 0)
        return 2;
    return fuse_main(5, arguments, &operations, NULL);
}
