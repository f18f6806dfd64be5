/* Records the writes and syncs of a store's files, so that a test knows what a disk may lose.
 *
 * For LD_PRELOAD. Each call on a file `data.mdb`, on its copy `data.mdb.compact` or on a directory
 * appends a record to the file that DISK_JOURNAL names: four integers of 64 bits, and the bytes of
 * a write or the path of a directory. A write and a rename are recorded before they happen, a sync
 * after it. LMDB maps the file for reading only, so these calls are all its writes.
 *
 * While the directory that DISK_FAILS names has a file `sync`, syncs of `data.mdb` fail; while it
 * has a file `commit`, so do writes that are synced at once, which end a commit. A rename waits
 * until the FIFO that DISK_HOLDS names has been opened and closed.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { WRITE, WRITE_AND_SYNC, SYNC, FAILED_SYNC, RENAME };
enum file { NONE, STORE, COPY, DIRECTORY };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int journal = -1;

__attribute__((constructor)) static void open_journal(void) {
    char const* path = getenv("DISK_JOURNAL");
    if (path) journal = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int ends_with(char const* path, size_t length, char const* end) {
    size_t const end_length = strlen(end);
    return length >= end_length && memcmp(path + length - end_length, end, end_length) == 0;
}

/* The kind of a file, and the length of its path. */
static enum file kind_of(int file, char path[PATH_MAX], size_t* path_length) {
    char link[64] = "/proc/self/fd/", digits[16];
    struct stat status;
    int count = 0, at = (int)strlen(link);
    if (journal < 0 || file < 0) return NONE;
    do digits[count++] = (char)('0' + file % 10);
    while (file /= 10);
    while (count) link[at++] = digits[--count];
    ssize_t const length = readlink(link, path, PATH_MAX);
    if (length < 0) return NONE;
    *path_length = (size_t)length;
    if (ends_with(path, (size_t)length, "/data.mdb")) return STORE;
    if (ends_with(path, (size_t)length, "/data.mdb.compact")) return COPY;
    return stat(link, &status) == 0 && S_ISDIR(status.st_mode) ? DIRECTORY : NONE;
}

static int fails(char const* what) {
    char const* directory = getenv("DISK_FAILS");
    char path[PATH_MAX];
    if (!directory) return 0;
    snprintf(path, sizeof path, "%s/%s", directory, what);
    return access(path, F_OK) == 0;
}

static void append(void const* data, size_t length) {
    // A lost record would make the test wrong.
    if (syscall(SYS_write, journal, data, length) != (ssize_t)length) abort();
}

static void record(enum kind kind, enum file file, off_t offset, struct iovec const* parts,
                   int count) {
    uint64_t head[4] = {kind, file, (uint64_t)offset, 0};
    for (int part = 0; part < count; ++part) head[3] += parts[part].iov_len;
    pthread_mutex_lock(&lock);
    append(head, sizeof head);
    for (int part = 0; part < count; ++part) append(parts[part].iov_base, parts[part].iov_len);
    pthread_mutex_unlock(&lock);
}

/* Whether the write may happen. */
static int record_write(int file, struct iovec const* parts, int count, off_t offset) {
    char path[PATH_MAX];
    size_t length;
    enum file const kind = kind_of(file, path, &length);
    if (kind == NONE || kind == DIRECTORY) return 1;
    int const is_synced = (fcntl(file, F_GETFL) & O_DSYNC) != 0;
    if (is_synced && fails("commit")) {
        // The page cache has it, and perhaps the disk.
        record(WRITE, kind, offset, parts, count);
        if (syscall(SYS_pwrite64, file, parts[0].iov_base, parts[0].iov_len, offset) < 0) abort();
        errno = EIO;
        return 0;
    }
    record(is_synced ? WRITE_AND_SYNC : WRITE, kind, offset, parts, count);
    return 1;
}

static int synced(int file, int (*sync)(int)) {
    char path[PATH_MAX];
    struct iovec name = {path, 0};
    enum file const kind = kind_of(file, path, &name.iov_len);
    if (kind == STORE && fails("sync")) {
        record(FAILED_SYNC, kind, 0, NULL, 0);
        errno = EIO;
        return -1;
    }
    int const status = sync(file);
    if (status == 0 && kind != NONE) record(SYNC, kind, 0, &name, kind == DIRECTORY);
    return status;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t pwrite(int file, void const* data, size_t length, off_t offset) {
    struct iovec const part = {(void*)data, length};
    return record_write(file, &part, 1, offset) ? NEXT(pwrite)(file, data, length, offset) : -1;
}

ssize_t pwritev(int file, struct iovec const* parts, int count, off_t offset) {
    if (!record_write(file, parts, count, offset)) return -1;
    return NEXT(pwritev)(file, parts, count, offset);
}

ssize_t writev(int file, struct iovec const* parts, int count) {
    if (!record_write(file, parts, count, lseek(file, 0, SEEK_CUR))) return -1;
    return NEXT(writev)(file, parts, count);
}

ssize_t write(int file, void const* data, size_t length) {
    struct iovec const part = {(void*)data, length};
    if (!record_write(file, &part, 1, lseek(file, 0, SEEK_CUR))) return -1;
    return NEXT(write)(file, data, length);
}

ssize_t pwrite64(int file, void const* data, size_t length, off64_t offset) {
    return pwrite(file, data, length, offset);
}

ssize_t pwritev64(int file, struct iovec const* parts, int count, off64_t offset) {
    return pwritev(file, parts, count, offset);
}

int fdatasync(int file) { return synced(file, NEXT(fdatasync)); }

int fsync(int file) { return synced(file, NEXT(fsync)); }

int rename(char const* from, char const* to) {
    if (journal >= 0 && ends_with(from, strlen(from), "/data.mdb.compact")) {
        char const* held = getenv("DISK_HOLDS");
        char byte;
        int const fifo = held ? open(held, O_RDONLY | O_CLOEXEC) : -1;
        if (fifo >= 0 && read(fifo, &byte, 1) == 0) close(fifo);
        record(RENAME, DIRECTORY, 0, NULL, 0);
    }
    return NEXT(rename)(from, to);
}
