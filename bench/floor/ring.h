/* A submission and completion ring, and a ring of receive buffers, by system calls alone.
 *
 * Nothing but the kernel's header is needed. Linux 6.1 or newer: DEFER_TASKRUN. */
#ifndef UCALL_BENCH_RING_H
#define UCALL_BENCH_RING_H

#include <errno.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "tcp.h"

enum {
    BUFFERS = 256, /* a power of two */
    BUFFER_GROUP = 0,
};

struct ring {
    /* The index that the kernel knows the ring by, so that it need not look up a descriptor. */
    int registered;
    unsigned sq_mask, sq_entries, sq_tail_local, sq_submitted;
    unsigned *sq_head, *sq_tail;
    struct io_uring_sqe *sqes;
    unsigned cq_mask, *cq_head, *cq_tail;
    struct io_uring_cqe *cqes;
    struct io_uring_buf_ring *buffer_ring;
    unsigned short buffer_tail;
    char *buffers;
    size_t buffer_bytes;
};

static int register_(int descriptor, unsigned what, void *argument, unsigned count) {
    return (int)syscall(__NR_io_uring_register, descriptor, what, argument, count);
}

static void *map(int descriptor, size_t bytes, off_t offset) {
    int flags = descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED | MAP_POPULATE;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, descriptor, offset);
    if (at == MAP_FAILED) fail("mmap");
    return at;
}

static int set_up(struct io_uring_params *params, unsigned entries) {
    *params = (struct io_uring_params){
        .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQSIZE,
        .cq_entries = entries * 4,
    };
    int descriptor = (int)syscall(__NR_io_uring_setup, entries, params);
    if (descriptor < 0) fail("io_uring_setup");
    return descriptor;
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* Both rings are one mapping since Linux 5.4. */
static void map_rings(struct ring *ring, int descriptor, const struct io_uring_params *params) {
    size_t sq_bytes = params->sq_off.array + params->sq_entries * sizeof(unsigned);
    size_t cq_bytes = params->cq_off.cqes + params->cq_entries * sizeof(struct io_uring_cqe);
    char *at = map(descriptor, larger(sq_bytes, cq_bytes), IORING_OFF_SQ_RING);
    ring->sq_head = (unsigned *)(at + params->sq_off.head);
    ring->sq_tail = (unsigned *)(at + params->sq_off.tail);
    ring->sq_entries = params->sq_entries;
    ring->sq_mask = params->sq_entries - 1;
    ring->cq_head = (unsigned *)(at + params->cq_off.head);
    ring->cq_tail = (unsigned *)(at + params->cq_off.tail);
    ring->cq_mask = params->cq_entries - 1;
    ring->cqes = (struct io_uring_cqe *)(at + params->cq_off.cqes);
    ring->sqes =
        map(descriptor, params->sq_entries * sizeof(struct io_uring_sqe), IORING_OFF_SQES);
    /* Entries are used in order, so the array of indices is filled once. */
    unsigned *array = (unsigned *)(at + params->sq_off.array);
    for (unsigned i = 0; i < params->sq_entries; i++) array[i] = i;
}

static void register_ring(struct ring *ring, int descriptor) {
    struct io_uring_rsrc_update update = {.offset = -1U, .data = (unsigned)descriptor};
    if (register_(descriptor, IORING_REGISTER_RING_FDS, &update, 1) != 1)
        fail("register the ring");
    ring->registered = (int)update.offset;
}

static void register_files(int descriptor, unsigned files) {
    struct io_uring_rsrc_register table = {.nr = files, .flags = IORING_RSRC_REGISTER_SPARSE};
    if (register_(descriptor, IORING_REGISTER_FILES2, &table, sizeof table) != 0)
        fail("register a table of files");
}

/* Gives a receive buffer back; the kernel sees it after `ring_publish_buffers`. The tail lies over
 * the reserved field of the first buffer, so only the others are written. */
static void ring_recycle(struct ring *ring, unsigned buffer) {
    struct io_uring_buf *slot = &ring->buffer_ring->bufs[ring->buffer_tail++ & (BUFFERS - 1)];
    slot->addr = (unsigned long)(ring->buffers + buffer * ring->buffer_bytes);
    slot->len = (unsigned)ring->buffer_bytes;
    slot->bid = (unsigned short)buffer;
}

static void ring_publish_buffers(struct ring *ring) {
    __atomic_store_n(&ring->buffer_ring->tail, ring->buffer_tail, __ATOMIC_RELEASE);
}

static void register_buffers(struct ring *ring, int descriptor, size_t buffer_bytes) {
    ring->buffer_bytes = buffer_bytes;
    ring->buffers = map(-1, BUFFERS * buffer_bytes, 0);
    ring->buffer_ring = map(-1, BUFFERS * sizeof(struct io_uring_buf), 0);
    struct io_uring_buf_reg registration = {
        .ring_addr = (unsigned long)ring->buffer_ring,
        .ring_entries = BUFFERS,
        .bgid = BUFFER_GROUP,
    };
    if (register_(descriptor, IORING_REGISTER_PBUF_RING, &registration, 1) != 0)
        fail("register a ring of buffers");
    for (unsigned i = 0; i < BUFFERS; i++) ring_recycle(ring, i);
    ring_publish_buffers(ring);
}

/* Makes the ring, a sparse table of `files` direct descriptors and BUFFERS buffers. */
static void ring_open(struct ring *ring, unsigned entries, unsigned files, size_t buffer_bytes) {
    struct io_uring_params params;
    int descriptor = set_up(&params, entries);
    memset(ring, 0, sizeof *ring);
    map_rings(ring, descriptor, &params);
    register_ring(ring, descriptor);
    register_files(descriptor, files);
    register_buffers(ring, descriptor, buffer_bytes);
}

static void enter(struct ring *ring, unsigned wait_for) {
    __atomic_store_n(ring->sq_tail, ring->sq_tail_local, __ATOMIC_RELEASE);
    unsigned to_submit = ring->sq_tail_local - ring->sq_submitted;
    unsigned flags = IORING_ENTER_REGISTERED_RING | (wait_for ? IORING_ENTER_GETEVENTS : 0);
    long submitted =
        syscall(__NR_io_uring_enter, ring->registered, to_submit, wait_for, flags, NULL, 0);
    if (submitted >= 0) {
        ring->sq_submitted += (unsigned)submitted;
    } else if (errno != EINTR && errno != EAGAIN && errno != EBUSY) {
        fail("io_uring_enter");
    }
}

/* The next entry to fill, zeroed. Submits first if there is none. */
static struct io_uring_sqe *ring_entry(struct ring *ring) {
    while (ring->sq_tail_local - __atomic_load_n(ring->sq_head, __ATOMIC_ACQUIRE)
           == ring->sq_entries)
        enter(ring, 0);
    struct io_uring_sqe *entry = &ring->sqes[ring->sq_tail_local++ & ring->sq_mask];
    memset(entry, 0, sizeof *entry);
    return entry;
}

/* Submits what was filled and waits until at least one completion is there. */
static void ring_submit_and_wait(struct ring *ring) { enter(ring, 1); }

#endif
