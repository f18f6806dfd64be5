/* The floor on epoll: one wait, and for each connection that has bytes one recv and one send.
 *
 * Edge-triggered, because a level-triggered descriptor is polled once more in the next wait. A read
 * that filled its buffer is repeated; a shorter one has emptied the socket, and what comes after it
 * is a new edge. */
#define _GNU_SOURCE
#include <errno.h>

#include "floor.h"

enum { EVENTS_MAX = 256 };

static int epoll;
static size_t unfinished[CONNECTIONS_MAX];

static void accept_all(void) {
    int connection;
    while ((connection = accept4(floor_.listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        if (connection >= CONNECTIONS_MAX) {
            close(connection);
            continue;
        }
        unfinished[connection] = 0;
        watch(epoll, connection, EPOLLIN | EPOLLET, (epoll_data_t){.fd = connection});
    }
}

/* Returns whether more bytes may be waiting. A reply that does not go out whole ends the
 * connection: the load reads what it asked for, so that its window is never full. */
static int answer(int connection) {
    static char bytes[READ_BYTES_MAX];
    ssize_t received = recv(connection, bytes, sizeof bytes, 0);
    if (received < 0 && errno == EAGAIN) return 0;
    if (received <= 0) {
        close(connection);
        return 0;
    }
    size_t requests = floor_count((size_t)received, &unfinished[connection]);
    size_t reply_bytes = requests * floor_.reply_bytes;
    if (reply_bytes && send(connection, floor_.replies, reply_bytes, MSG_NOSIGNAL)
                           != (ssize_t)reply_bytes) {
        close(connection);
        return 0;
    }
    return received == sizeof bytes;
}

static void turn(void) {
    struct epoll_event events[EVENTS_MAX];
    int ready = epoll_wait(epoll, events, EVENTS_MAX, -1);
    for (int i = 0; i < ready; i++) {
        if (events[i].data.fd == floor_.listener) {
            accept_all();
        } else {
            while (answer(events[i].data.fd)) {}
        }
    }
}

int main(int argc, char **argv) {
    epoll = new_epoll();
    floor_start(argc, argv);
    watch(epoll, floor_.listener, EPOLLIN, (epoll_data_t){.fd = floor_.listener});
    for (;;) turn();
}
