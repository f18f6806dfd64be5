/* The common part of both floor programs: options, the fixed reply, the listening socket, the stop.
 *
 * The floor is the cheapest program that could answer: it reads, and writes a reply made before
 * the first connection came. It parses nothing. How many requests one read held it tells from the
 * length of a request, which is given on the command line. */
#ifndef UCALL_BENCH_FLOOR_H
#define UCALL_BENCH_FLOOR_H

#include <stddef.h>

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
    const char *replies;
    size_t reply_bytes;
    /* The length of one request; 0 means that each read holds exactly one. */
    size_t request_bytes;
};

/* Reads the options, binds, listens, and prints `listening on PORT`. Exits on an error. */
struct floor floor_start(int argc, char **argv);

/* The number of complete requests. `unfinished` gets the bytes of the incomplete one. */
size_t floor_count(const struct floor *floor, size_t received, size_t *unfinished);

#endif
