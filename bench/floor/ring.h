/* A submission and completion ring, and a ring of receive buffers, by system calls alone.
 *
 * Nothing but the kernel's header is needed. Linux 6.1 or newer: DEFER_TASKRUN. */
#ifndef UCALL_BENCH_RING_H
#define UCALL_BENCH_RING_H

#include <linux/io_uring.h>
#include <stddef.h>

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

/* Makes the ring, a sparse table of `files` direct descriptors and BUFFERS buffers. */
void ring_open(struct ring *ring, unsigned entries, unsigned files, size_t buffer_bytes);

/* The next entry to fill, zeroed. Submits first if there is none. */
struct io_uring_sqe *ring_entry(struct ring *ring);

/* Submits what was filled and waits until at least one completion is there. */
void ring_submit_and_wait(struct ring *ring);

/* Gives a receive buffer back. Seen by the kernel after ring_publish_buffers. */
void ring_recycle(struct ring *ring, unsigned buffer);
void ring_publish_buffers(struct ring *ring);

#endif
