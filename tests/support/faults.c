/* File system calls that fail on demand, preloaded: Python's, numpy's, PIL's and ONNX Runtime's alike.
 *
 * fault_arm chooses the number of the write-like call, below one folder, that fails, and how. Counted are calls that
 * put something on the disk: writes, truncations, syncs, files and folders that are made or renamed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { ONCE, EVER, SHORT };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static long fails_at, counted;
static int code, mode;
static char told[PATH_MAX + 64];

void fault_arm(const char *folder, long at, int error, int how) {
  snprintf(root, sizeof root, "%s/", folder);
  fails_at = at, code = error, mode = how, counted = 0, told[0] = 0;
}
long fault_count(void) { return counted; }
const char *fault_place(void) { return told; }

#define REAL(name) ({ static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); real; })

static int below(const char *path) { return root[0] && strncmp(path, root, strlen(root)) == 0; }

static int fd_below(int fd) {
  char link[64], path[PATH_MAX];
  if (!root[0]) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return below(path);
}

static int path_below(int dir, const char *path) {
  char whole[2 * PATH_MAX], link[64];
  if (!root[0] || !path) return 0;
  if (path[0] == '/') return below(path);
  if (dir == AT_FDCWD) {
    if (!getcwd(whole, PATH_MAX)) return 0;
  } else {
    snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
    ssize_t n = readlink(link, whole, PATH_MAX - 1);
    if (n < 0) return 0;
    whole[n] = 0;
  }
  strcat(whole, "/");
  strncat(whole, path, PATH_MAX - 1);
  return below(whole);
}

/* Whether this call fails: 1 with the error, 2 by doing half of it. */
static int strikes(const char *call, const char *path, int fd) {
  char link[64], name[PATH_MAX] = "";
  pthread_mutex_lock(&lock);
  long number = ++counted;
  int hit = fails_at && (number == fails_at || (mode == EVER && number > fails_at));
  if (hit && !told[0]) {
    if (!path) {
      snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
      ssize_t n = readlink(link, name, sizeof name - 1);
      if (n > 0) name[n] = 0, path = name;
    }
    snprintf(told, sizeof told, "%s %s", call, path ? path : "");
  }
  pthread_mutex_unlock(&lock);
  if (!hit) return 0;
  if (mode == SHORT) return 2;
  errno = code;
  return 1;
}

#define ON_FD(type, name, parameters, arguments, fd) \
  type name parameters { \
    if (fd_below(fd) && strikes(#name, 0, fd) == 1) return -1; \
    return REAL(name) arguments; \
  }
#define ON_PATH(type, name, parameters, arguments, dir, path) \
  type name parameters { \
    if (path_below(dir, path) && strikes(#name, path, -1) == 1) return -1; \
    return REAL(name) arguments; \
  }
#define WRITING(name, parameters, whole, half, fd) \
  ssize_t name parameters { \
    int hit = fd_below(fd) ? strikes(#name, 0, fd) : 0; \
    if (hit == 1) return -1; \
    if (hit == 2 && n > 1) return REAL(name) half; \
    return REAL(name) whole; \
  }

WRITING(write, (int fd, const void *p, size_t n), (fd, p, n), (fd, p, n / 2), fd)
WRITING(pwrite, (int fd, const void *p, size_t n, off_t at), (fd, p, n, at), (fd, p, n / 2, at), fd)
WRITING(pwrite64, (int fd, const void *p, size_t n, off_t at), (fd, p, n, at), (fd, p, n / 2, at), fd)
WRITING(writev, (int fd, const struct iovec *p, int n), (fd, p, n), (fd, p, n / 2), fd)
WRITING(pwritev, (int fd, const struct iovec *p, int n, off_t at), (fd, p, n, at), (fd, p, n / 2, at), fd)
WRITING(pwritev64, (int fd, const struct iovec *p, int n, off_t at), (fd, p, n, at), (fd, p, n / 2, at), fd)
WRITING(sendfile, (int fd, int in, off_t *at, size_t n), (fd, in, at, n), (fd, in, at, n / 2), fd)
WRITING(sendfile64, (int fd, int in, off_t *at, size_t n), (fd, in, at, n), (fd, in, at, n / 2), fd)
WRITING(copy_file_range, (int in, off_t *a, int fd, off_t *b, size_t n, unsigned f), (in, a, fd, b, n, f),
        (in, a, fd, b, n / 2, f), fd)
ON_FD(int, ftruncate, (int fd, off_t n), (fd, n), fd)
ON_FD(int, ftruncate64, (int fd, off_t n), (fd, n), fd)
ON_FD(int, fallocate, (int fd, int how, off_t at, off_t n), (fd, how, at, n), fd)
ON_FD(int, fsync, (int fd), (fd), fd)
ON_FD(int, fdatasync, (int fd), (fd), fd)
ON_PATH(int, mkdir, (const char *path, mode_t m), (path, m), AT_FDCWD, path)
ON_PATH(int, mkdirat, (int dir, const char *path, mode_t m), (dir, path, m), dir, path)
ON_PATH(int, truncate, (const char *path, off_t n), (path, n), AT_FDCWD, path)
ON_PATH(int, rename, (const char *from, const char *to), (from, to), AT_FDCWD, to)
ON_PATH(int, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to), b, to)
ON_PATH(int, renameat2, (int a, const char *from, int b, const char *to, unsigned f), (a, from, b, to, f), b, to)
ON_PATH(int, link, (const char *from, const char *to), (from, to), AT_FDCWD, to)
ON_PATH(int, linkat, (int a, const char *from, int b, const char *to, int f), (a, from, b, to, f), b, to)
ON_PATH(int, symlink, (const char *from, const char *to), (from, to), AT_FDCWD, to)

/* A write has begun where a file is made or emptied. */
#define MAKES(flags) ((flags) & (O_CREAT | O_TRUNC) || ((flags) & O_TMPFILE) == O_TMPFILE)
#define OPENING(name) \
  int name(const char *path, int flags, ...) { \
    va_list more; \
    va_start(more, flags); \
    mode_t m = va_arg(more, mode_t); \
    va_end(more); \
    if (MAKES(flags) && path_below(AT_FDCWD, path) && strikes(#name, path, -1) == 1) return -1; \
    return REAL(name)(path, flags, m); \
  }
#define OPENING_AT(name) \
  int name(int dir, const char *path, int flags, ...) { \
    va_list more; \
    va_start(more, flags); \
    mode_t m = va_arg(more, mode_t); \
    va_end(more); \
    if (MAKES(flags) && path_below(dir, path) && strikes(#name, path, -1) == 1) return -1; \
    return REAL(name)(dir, path, flags, m); \
  }
OPENING(open)
OPENING(open64)
OPENING_AT(openat)
OPENING_AT(openat64)
