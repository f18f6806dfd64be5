/* Records the writes and syncs of a store's file, so that a test knows what a disk may lose.
 *
 * For LD_PRELOAD. Each call on a file `data.mdb` appends a record to the file that DISK_JOURNAL
 * names: three integers of 64 bits, and the bytes of a write. A write is recorded before it
 * happens, a sync after it. LMDB maps the file for reading only, so these calls are all its writes.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { WRITE, WRITE_AND_SYNC, SYNC };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int journal = -1;

__attribute__((constructor)) static void open_journal(void) {
    char const* path = getenv("DISK_JOURNAL");
    if (path) journal = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int is_recorded(int file) {
    char link[64] = "/proc/self/fd/", path[PATH_MAX], digits[16];
    int count = 0, at = (int)strlen(link);
    if (journal < 0 || file < 0) return 0;
    do digits[count++] = (char)('0' + file % 10);
    while (file /= 10);
    while (count) link[at++] = digits[--count];
    ssize_t const length = readlink(link, path, sizeof path);
    return length >= 9 && memcmp(path + length - 9, "/data.mdb", 9) == 0;
}

static void append(void const* data, size_t length) {
    // A lost record would make the test wrong.
    if (write(journal, data, length) != (ssize_t)length) abort();
}

static void record(enum kind kind, off_t offset, struct iovec const* parts, int count) {
    uint64_t head[3] = {kind, (uint64_t)offset, 0};
    for (int part = 0; part < count; ++part) head[2] += parts[part].iov_len;
    append(head, sizeof head);
    for (int part = 0; part < count; ++part) append(parts[part].iov_base, parts[part].iov_len);
}

static void record_write(int file, struct iovec const* parts, int count, off_t offset) {
    if (!is_recorded(file)) return;
    enum kind const kind = fcntl(file, F_GETFL) & O_DSYNC ? WRITE_AND_SYNC : WRITE;
    pthread_mutex_lock(&lock);
    record(kind, offset, parts, count);
    pthread_mutex_unlock(&lock);
}

static int synced(int file, int status) {
    if (status == 0 && is_recorded(file)) {
        pthread_mutex_lock(&lock);
        record(SYNC, 0, NULL, 0);
        pthread_mutex_unlock(&lock);
    }
    return status;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t pwrite(int file, void const* data, size_t length, off_t offset) {
    struct iovec const part = {(void*)data, length};
    record_write(file, &part, 1, offset);
    return NEXT(pwrite)(file, data, length, offset);
}

ssize_t pwritev(int file, struct iovec const* parts, int count, off_t offset) {
    record_write(file, parts, count, offset);
    return NEXT(pwritev)(file, parts, count, offset);
}

ssize_t writev(int file, struct iovec const* parts, int count) {
    if (is_recorded(file)) record_write(file, parts, count, lseek(file, 0, SEEK_CUR));
    return NEXT(writev)(file, parts, count);
}

ssize_t pwrite64(int file, void const* data, size_t length, off64_t offset) {
    return pwrite(file, data, length, offset);
}

ssize_t pwritev64(int file, struct iovec const* parts, int count, off64_t offset) {
    return pwritev(file, parts, count, offset);
}

int fdatasync(int file) { return synced(file, NEXT(fdatasync)(file)); }

int fsync(int file) { return synced(file, NEXT(fsync)(file)); }
