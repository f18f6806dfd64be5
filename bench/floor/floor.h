/* The common part of both floor programs: the fixed reply, the listening socket, the stop.
 *
 *     floor REQUEST_BYTES REPLY
 *
 * The floor is the cheapest program that could answer: it reads, and writes the bytes of the file
 * REPLY, which it has read before the first connection came. It parses nothing. How many requests
 * one read held it tells from the length of a request; at 0 each read holds exactly one. */
#ifndef UCALL_BENCH_FLOOR_H
#define UCALL_BENCH_FLOOR_H

#include <signal.h>

#include "tcp.h"

enum {
    /* The size of one read. A batch of 100 calls has 7 KB. */
    READ_BYTES_MAX = 16384,
    /* Connections are indices of a table: descriptors for epoll, slots for io_uring. The
     * kernel allows no more slots than the soft descriptor limit, which is often 1024. */
    CONNECTIONS_MAX = 1024,
};

struct floor {
    int listener;
    /* The replies to all requests that one read may hold, one after another. */
    char *replies;
    size_t reply_bytes, request_bytes;
};

static struct floor floor_;

/* There is nothing to finish: replies go out in the turn that read the request. The listener is
 * shut down by hand because a ring that still holds a multishot accept would keep the port. */
static void stop(int signal_number) {
    (void)signal_number;
    shutdown(floor_.listener, SHUT_RDWR);
    _exit(0);
}

/* Reads the arguments, listens, and announces the port. */
static void floor_start(int count, char **arguments) {
    static char reply[1 << 16];
    FILE *file = count == 3 ? fopen(arguments[2], "rb") : NULL;
    if (!file) fail("usage: floor REQUEST_BYTES REPLY");
    floor_.request_bytes = (size_t)atol(arguments[1]);
    floor_.reply_bytes = fread(reply, 1, sizeof reply, file);
    fclose(file);
    /* One read, and what the one before it left over, may end this many requests. */
    size_t times = floor_.request_bytes ? READ_BYTES_MAX / floor_.request_bytes + 1 : 1;
    floor_.replies = malloc(floor_.reply_bytes * times);
    if (!floor_.replies) fail("malloc");
    for (size_t at = 0; at < times; at++)
        memcpy(floor_.replies + at * floor_.reply_bytes, reply, floor_.reply_bytes);
    floor_.listener = listen_on(SOCK_NONBLOCK);
    signal(SIGTERM, stop);
    signal(SIGINT, stop);
}

/* The number of complete requests. `unfinished` gets the bytes of the incomplete one. */
static size_t floor_count(size_t received, size_t *unfinished) {
    if (floor_.request_bytes == 0) return 1;
    size_t bytes = *unfinished + received;
    *unfinished = bytes % floor_.request_bytes;
    return bytes / floor_.request_bytes;
}

#endif
