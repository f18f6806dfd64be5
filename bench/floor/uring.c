/* The floor on io_uring: one io_uring_enter a turn submits every reply and waits for requests.
 *
 * Multishot accept into direct descriptors, multishot receive into a ring of buffers, and sends
 * that post no completion when they succeed. Loopback sends end while they are submitted, so two of
 * one connection cannot overtake each other. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/socket.h>

#include "floor.h"
#include "ring.h"

enum { ENTRIES = 1024 };

/* What a completion belongs to: in the upper half of its user_data, the slot in the lower. */
enum operation { ACCEPT, RECEIVE, SEND, CLOSE };

static struct ring ring;
static size_t unfinished[CONNECTIONS_MAX];

static struct io_uring_sqe *entry(enum operation operation, unsigned opcode, unsigned slot) {
    struct io_uring_sqe *entry = ring_entry(&ring);
    entry->opcode = (unsigned char)opcode;
    entry->fd = (int)slot;
    entry->user_data = (unsigned long)operation << 32 | slot;
    return entry;
}

static void start_accepting(void) {
    struct io_uring_sqe *accept = entry(ACCEPT, IORING_OP_ACCEPT, (unsigned)floor_.listener);
    accept->ioprio = IORING_ACCEPT_MULTISHOT;
    accept->file_index = IORING_FILE_INDEX_ALLOC;
}

static void start_receiving(unsigned slot) {
    struct io_uring_sqe *receive = entry(RECEIVE, IORING_OP_RECV, slot);
    receive->flags = IOSQE_FIXED_FILE | IOSQE_BUFFER_SELECT;
    receive->ioprio = IORING_RECV_MULTISHOT;
    receive->buf_group = BUFFER_GROUP;
}

static void send_replies(unsigned slot, size_t requests) {
    struct io_uring_sqe *send = entry(SEND, IORING_OP_SEND, slot);
    send->flags = IOSQE_FIXED_FILE | IOSQE_CQE_SKIP_SUCCESS;
    send->addr = (unsigned long)floor_.replies;
    send->len = (unsigned)(requests * floor_.reply_bytes);
    send->msg_flags = MSG_NOSIGNAL | MSG_WAITALL;
}

static void close_slot(unsigned slot) {
    struct io_uring_sqe *close = entry(CLOSE, IORING_OP_CLOSE, 0);
    close->file_index = slot + 1;
    close->flags = IOSQE_CQE_SKIP_SUCCESS;
}

static void accepted(const struct io_uring_cqe *completion) {
    if (completion->res >= 0) {
        unfinished[completion->res] = 0;
        start_receiving((unsigned)completion->res);
    }
    if (!(completion->flags & IORING_CQE_F_MORE)) start_accepting();
}

static void received(const struct io_uring_cqe *completion, unsigned slot) {
    if (completion->flags & IORING_CQE_F_BUFFER)
        ring_recycle(&ring, completion->flags >> IORING_CQE_BUFFER_SHIFT);
    if (completion->res > 0) {
        size_t requests = floor_count((size_t)completion->res, &unfinished[slot]);
        if (requests) send_replies(slot, requests);
    }
    if (completion->flags & IORING_CQE_F_MORE) return;
    /* A multishot that ended with bytes, or for want of a buffer, goes on; others are over. */
    if (completion->res > 0 || completion->res == -ENOBUFS) {
        start_receiving(slot);
    } else {
        close_slot(slot);
    }
}

/* A failed send is ignored: the peer has closed, and the receive ends and closes the connection. */
static void complete(const struct io_uring_cqe *completion) {
    unsigned slot = (unsigned)completion->user_data;
    switch ((enum operation)(completion->user_data >> 32)) {
    case ACCEPT: accepted(completion); break;
    case RECEIVE: received(completion, slot); break;
    case SEND:
    case CLOSE: break;
    }
}

static void turn(void) {
    ring_submit_and_wait(&ring);
    unsigned head = *ring.cq_head;
    unsigned tail = __atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE);
    for (; head != tail; head++) complete(&ring.cqes[head & ring.cq_mask]);
    __atomic_store_n(ring.cq_head, head, __ATOMIC_RELEASE);
    ring_publish_buffers(&ring);
}

int main(int argc, char **argv) {
    ring_open(&ring, ENTRIES, CONNECTIONS_MAX, READ_BYTES_MAX);
    floor_start(argc, argv);
    start_accepting();
    for (;;) turn();
}
