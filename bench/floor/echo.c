/* What a call that carries bytes costs at least: receives whole HTTP requests with a large body,
 * and sends as many bytes back, looking at nothing but the length in each head.
 *
 * Connections are served on epoll as by the other floor programs, so that waiting costs the same. A
 * body is received into the buffer of its connection and sent from it: the bytes cross the socket
 * twice and are never touched in between. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/uio.h>

#include "tcp.h"

enum {
    HEAD_BYTES_MAX = 4096,
    BODY_BYTES_MAX = 256 << 20,
    EVENTS_MAX = 64,
};

static const char reply_head[] =
    "HTTP/1.1 200 OK\r\n"
    "Content-Type: application/json\r\n"
    "Date: Sat, 21 Nov 2026 21:00:00 GMT\r\n"
    "Content-Length: %zu\r\n\r\n";

struct connection {
    int descriptor;
    /* A head and its body, of which `bytes` have come. Lengths are 0 until the head is whole. */
    char *buffer;
    size_t room, bytes, head_bytes, whole_bytes;
    /* Of the reply, of which `sent` bytes are sent. Its length is 0 before the request is whole. */
    char head[sizeof reply_head + 20];
    size_t reply_head_bytes, sent;
};

static void make_room(struct connection *connection, size_t room) {
    if (room <= connection->room) return;
    connection->buffer = realloc(connection->buffer, room);
    if (!connection->buffer) fail("realloc");
    connection->room = room;
}

/* Finds the end of the head, and the length of the body that it announces. */
static void read_head(struct connection *connection) {
    connection->buffer[connection->bytes] = '\0';
    const char *end = strstr(connection->buffer, "\r\n\r\n");
    if (!end) return;
    const char *length = strcasestr(connection->buffer, "content-length:");
    size_t body = length ? strtoul(length + strlen("content-length:"), NULL, 10) : 0;
    if (body > BODY_BYTES_MAX) fail("the body is too long");
    connection->head_bytes = (size_t)(end - connection->buffer) + 4;
    connection->whole_bytes = connection->head_bytes + body;
    make_room(connection, connection->whole_bytes);
    connection->reply_head_bytes =
        (size_t)snprintf(connection->head, sizeof connection->head, reply_head, body);
}

/* Each returns 1 when it is done, 0 when the socket has to be waited for, and -1 at the end. */
static int outcome(ssize_t moved) {
    if (moved > 0) return 1;
    return moved < 0 && errno == EAGAIN ? 0 : -1;
}

static int receive(struct connection *connection) {
    while (!connection->whole_bytes || connection->bytes < connection->whole_bytes) {
        size_t until = connection->whole_bytes ? connection->whole_bytes : HEAD_BYTES_MAX - 1;
        ssize_t received = recv(connection->descriptor, connection->buffer + connection->bytes,
                                until - connection->bytes, 0);
        if (received <= 0) return outcome(received);
        connection->bytes += (size_t)received;
        if (!connection->whole_bytes) read_head(connection);
    }
    return 1;
}

static int reply(struct connection *connection) {
    size_t head = connection->reply_head_bytes;
    size_t whole = head + connection->whole_bytes - connection->head_bytes;
    while (connection->sent < whole) {
        size_t sent = connection->sent;
        struct iovec parts[2];
        int count = 0;
        if (sent < head) parts[count++] = (struct iovec){connection->head + sent, head - sent};
        size_t from = sent < head ? 0 : sent - head;
        parts[count++] = (struct iovec){connection->buffer + connection->head_bytes + from,
                                        whole - head - from};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
        ssize_t moved = sendmsg(connection->descriptor, &message, MSG_NOSIGNAL);
        if (moved <= 0) return outcome(moved);
        connection->sent += (size_t)moved;
    }
    connection->bytes = connection->head_bytes = connection->whole_bytes = connection->sent = 0;
    return 1;
}

/* Goes on until the socket has to be waited for. */
static void serve(struct connection *connection) {
    int state = 1;
    while (state > 0) {
        state = receive(connection);
        if (state > 0) state = reply(connection);
    }
    if (state < 0) {
        close(connection->descriptor);
        free(connection->buffer);
        free(connection);
    }
}

static void accept_all(int epoll, int listener) {
    for (;;) {
        int accepted = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (accepted < 0 && errno == EAGAIN) return;
        if (accepted < 0) fail("accept4");
        struct connection *connection = calloc(1, sizeof *connection);
        if (!connection) fail("calloc");
        connection->descriptor = accepted;
        make_room(connection, HEAD_BYTES_MAX);
        watch(epoll, accepted, EPOLLIN | EPOLLOUT | EPOLLET, (epoll_data_t){.ptr = connection});
    }
}

int main(void) {
    int epoll = new_epoll();
    int listener = listen_on(SOCK_NONBLOCK);
    watch(epoll, listener, EPOLLIN, (epoll_data_t){.ptr = NULL});
    struct epoll_event events[EVENTS_MAX];
    for (;;) {
        int count = epoll_wait(epoll, events, EVENTS_MAX, -1);
        if (count < 0 && errno != EINTR) fail("epoll_wait");
        for (int each = 0; each < count; each++) {
            if (events[each].data.ptr)
                serve(events[each].data.ptr);
            else
                accept_all(epoll, listener);
        }
    }
}
