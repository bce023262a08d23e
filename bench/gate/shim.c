/* A library to be preloaded into programs. It records their input and output, or makes each sync
   complete later. record.py, programs.py and confirm.py compile and use it.

       OUTLIVE_SHIM_FOLDER=DIR    appends to DIR/PID one line for each operation:
                                  START_NS TOOK_NS THREAD OPERATION KEY OFFSET BYTES
                                  and before the first use of a file: # KEY PATH
       OUTLIVE_SHIM_DELAY_US=N    makes each sync, and each write that is durable by itself, wait
                                  N microseconds longer

   KEY is the inode of a file or socket, or the address of a semaphore. Times are of the monotonic
   clock, which all processes of a machine share. Lines stay in memory until a buffer is full or the
   process exits, so that recording hardly slows the program down. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1 << 18, LINE_BYTES_MAX = 512, NAMES = 1 << 12 };

static const char *folder;
static long delay_us = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char buffer[BUFFER_BYTES];
static size_t used;
static uint64_t named[NAMES];
static __thread pid_t thread;
/* Set while this library works, so that its own calls are not recorded. */
static __thread int inside;

static void flush(void)
{
    char path[512];
    int fd;
    if (!folder || !used)
        return;
    snprintf(path, sizeof path, "%s/%d", folder, (int)getpid());
    fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd >= 0) {
        if (syscall(SYS_write, fd, buffer, used) != (ssize_t)used)
            folder = NULL;
        syscall(SYS_close, fd);
    }
    used = 0;
}

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void in_parent(void) { pthread_mutex_unlock(&lock); }

/* The lines so far are the parent's. */
static void in_child(void)
{
    used = 0;
    thread = 0;
    memset(named, 0, sizeof named);
    pthread_mutex_unlock(&lock);
}

static void at_exit(void)
{
    pthread_mutex_lock(&lock);
    flush();
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void begin(void)
{
    const char *text = getenv("OUTLIVE_SHIM_DELAY_US");
    /* A copy, since servers write their titles over their environment. */
    folder = getenv("OUTLIVE_SHIM_FOLDER");
    if (folder)
        folder = strdup(folder);
    delay_us = text ? atol(text) : 0;
    /* Sleeps end up to 50 us late by default. */
    if (delay_us > 0)
        prctl(PR_SET_TIMERSLACK, 1000UL);
    pthread_atfork(before_fork, in_parent, in_child);
    atexit(at_exit);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void append(const char *format, ...)
{
    va_list values;
    int bytes;
    if (used + LINE_BYTES_MAX > BUFFER_BYTES)
        flush();
    va_start(values, format);
    bytes = vsnprintf(buffer + used, LINE_BYTES_MAX, format, values);
    va_end(values);
    if (bytes > 0 && bytes < LINE_BYTES_MAX)
        used += (size_t)bytes;
}

static void line(uint64_t start, uint64_t end, const char *what, uint64_t key, long long offset,
                 long long bytes)
{
    if (!thread)
        thread = (pid_t)syscall(SYS_gettid);
    append("%llu %llu %d %s %llu %lld %lld\n", (unsigned long long)start,
           (unsigned long long)(end - start), (int)thread, what, (unsigned long long)key, offset,
           bytes);
}

static void name(int fd, uint64_t key)
{
    char link[64], path[400];
    ssize_t length;
    uint64_t *slot = &named[key % NAMES];
    if (*slot == key)
        return;
    *slot = key;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path - 1);
    if (length > 0) {
        path[length] = 0;
        for (char *at = path; *at; at++)
            if ((unsigned char)*at < ' ')
                *at = '?';
        append("# %llu %s\n", (unsigned long long)key, path);
    }
}

enum kind { READ, WRITE, SYNC };

/* Records an operation on a file or socket. `at` is its offset, or -1 for the file's own. */
static void done(enum kind kind, int fd, uint64_t start, long long at, ssize_t result)
{
    struct stat about;
    const char *what;
    int error = errno;
    int durable = 0;
    if (inside || result < 0 || (!folder && delay_us <= 0))
        return;
    inside = 1;
    if (kind == WRITE)
        durable = (fcntl(fd, F_GETFL) & O_DSYNC) != 0;
    if (delay_us > 0 && (kind == SYNC || durable)) {
        struct timespec t = {delay_us / 1000000, delay_us % 1000000 * 1000};
        while (nanosleep(&t, &t) && errno == EINTR) {
        }
    }
    if (folder && !fstat(fd, &about)) {
        uint64_t end = now_ns();
        int file = S_ISREG(about.st_mode), directory = S_ISDIR(about.st_mode);
        if (file || directory || S_ISSOCK(about.st_mode)) {
            if (kind == SYNC)
                what = "sync";
            else if (file)
                what = kind == READ ? "read" : durable ? "durable" : "write";
            else
                what = kind == READ ? "recv" : "send";
            if (file && at < 0 && kind != SYNC)
                at = (long long)lseek(fd, 0, SEEK_CUR) - (long long)result;
            pthread_mutex_lock(&lock);
            if (file || directory)
                name(fd, about.st_ino);
            line(start, end, what, about.st_ino, at < 0 ? 0 : at,
                 kind == SYNC ? 0 : (long long)result);
            pthread_mutex_unlock(&lock);
        }
    }
    inside = 0;
    errno = error;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) \
        real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define TIMED(type, call, kind, fd, at) \
    uint64_t start = now_ns(); \
    type result = call; \
    done(kind, fd, start, at, result); \
    return result

#define HOOK(kind, at, name, parameters, arguments) \
    ssize_t name parameters \
    { \
        REAL(name); \
        TIMED(ssize_t, real arguments, kind, fd, at); \
    }

HOOK(READ, -1, read, (int fd, void *to, size_t bytes), (fd, to, bytes))
HOOK(WRITE, -1, write, (int fd, const void *from, size_t bytes), (fd, from, bytes))
HOOK(READ, at, pread, (int fd, void *to, size_t bytes, off_t at), (fd, to, bytes, at))
HOOK(READ, at, pread64, (int fd, void *to, size_t bytes, off64_t at), (fd, to, bytes, at))
HOOK(WRITE, at, pwrite, (int fd, const void *from, size_t bytes, off_t at), (fd, from, bytes, at))
HOOK(WRITE, at, pwrite64, (int fd, const void *from, size_t bytes, off64_t at),
     (fd, from, bytes, at))
HOOK(READ, -1, readv, (int fd, const struct iovec *to, int count), (fd, to, count))
HOOK(WRITE, -1, writev, (int fd, const struct iovec *from, int count), (fd, from, count))
HOOK(READ, at, preadv, (int fd, const struct iovec *to, int count, off_t at), (fd, to, count, at))
HOOK(READ, at, preadv64, (int fd, const struct iovec *to, int count, off64_t at),
     (fd, to, count, at))
HOOK(WRITE, at, pwritev, (int fd, const struct iovec *from, int count, off_t at),
     (fd, from, count, at))
HOOK(WRITE, at, pwritev64, (int fd, const struct iovec *from, int count, off64_t at),
     (fd, from, count, at))
HOOK(READ, -1, recv, (int fd, void *to, size_t bytes, int flags), (fd, to, bytes, flags))
HOOK(READ, -1, recvmsg, (int fd, struct msghdr *to, int flags), (fd, to, flags))
HOOK(READ, -1, recvfrom,
     (int fd, void *restrict to, size_t bytes, int flags, struct sockaddr *restrict from,
      socklen_t *restrict size),
     (fd, to, bytes, flags, from, size))
HOOK(WRITE, -1, send, (int fd, const void *from, size_t bytes, int flags), (fd, from, bytes, flags))
HOOK(WRITE, -1, sendmsg, (int fd, const struct msghdr *from, int flags), (fd, from, flags))
HOOK(WRITE, -1, sendto,
     (int fd, const void *from, size_t bytes, int flags, const struct sockaddr *to, socklen_t size),
     (fd, from, bytes, flags, to, size))
HOOK(WRITE, -1, sendfile, (int fd, int from, off_t *at, size_t bytes), (fd, from, at, bytes))
HOOK(WRITE, -1, sendfile64, (int fd, int from, off64_t *at, size_t bytes), (fd, from, at, bytes))

int fsync(int fd)
{
    REAL(fsync);
    TIMED(int, real(fd), SYNC, fd, 0);
}

int fdatasync(int fd)
{
    REAL(fdatasync);
    TIMED(int, real(fd), SYNC, fd, 0);
}

static void semaphore(uint64_t start, const char *what, const sem_t *sem)
{
    uint64_t end = now_ns();
    inside = 1;
    pthread_mutex_lock(&lock);
    line(start, end, what, (uint64_t)(uintptr_t)sem, 0, 0);
    pthread_mutex_unlock(&lock);
    inside = 0;
}

/* PostgreSQL's processes wait for each other's locks on semaphores. */
int sem_wait(sem_t *sem)
{
    uint64_t start;
    int result;
    REAL(sem_wait);
    start = now_ns();
    result = real(sem);
    if (folder && !inside && !result) {
        semaphore(start, "wait", sem);
    }
    return result;
}

int sem_post(sem_t *sem)
{
    uint64_t start;
    int result;
    REAL(sem_post);
    start = now_ns();
    result = real(sem);
    if (folder && !inside && !result) {
        semaphore(start, "wake", sem);
    }
    return result;
}
