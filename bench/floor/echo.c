/* What a call that carries bytes costs at least: receives a whole HTTP request with a large body,
 * and sends as many bytes back, looking at nothing but the length in its head.
 *
 * One connection at a time is served, on epoll as the other floor programs are, so that waiting
 * costs the same. The body is received into one buffer and sent from it: the bytes cross the socket
 * twice and are never touched in between. */
#define _GNU_SOURCE
#include <errno.h>

#include "tcp.h"

enum {
    HEAD_BYTES_MAX = 4096,
    BODY_BYTES_MAX = 256 << 20,
};

static const char reply_head[] =
    "HTTP/1.1 200 OK\r\n"
    "Content-Type: application/json\r\n"
    "Date: Sat, 21 Nov 2026 21:00:00 GMT\r\n"
    "Content-Length: %zu\r\n\r\n";

static int epoll;

static void wait_for_one(void) {
    struct epoll_event event;
    while (epoll_wait(epoll, &event, 1, -1) < 0) {
        if (errno != EINTR) fail("epoll_wait");
    }
}

/* Returns the number of bytes received, or 0 at the end of the connection. */
static size_t receive(int connection, char *to, size_t room) {
    for (;;) {
        ssize_t received = recv(connection, to, room, 0);
        if (received > 0) return (size_t)received;
        if (received == 0 || errno != EAGAIN) return 0;
        wait_for_one();
    }
}

static int send_all(int connection, const char *bytes, size_t count, int flags) {
    while (count > 0) {
        ssize_t sent = send(connection, bytes, count, flags | MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) return 0;
        if (sent < 0) {
            wait_for_one();
            continue;
        }
        bytes += sent;
        count -= (size_t)sent;
    }
    return 1;
}

/* The bytes of the body that a whole head announces, or -1 while the head is not whole. */
static long body_bytes(char *head, size_t bytes, size_t *head_bytes) {
    head[bytes] = '\0';
    const char *end = strstr(head, "\r\n\r\n");
    if (!end) return -1;
    *head_bytes = (size_t)(end - head) + 4;
    const char *length = strcasestr(head, "content-length:");
    return length ? strtol(length + strlen("content-length:"), NULL, 10) : 0;
}

/* Replies to one request. Returns 0 at the end of the connection. */
static int answer(int connection, char *buffer) {
    size_t bytes = 0, head_bytes = 0;
    long body = -1;
    while (body < 0) {
        size_t received = receive(connection, buffer + bytes, HEAD_BYTES_MAX - 1 - bytes);
        if (received == 0) return 0;
        bytes += received;
        body = body_bytes(buffer, bytes, &head_bytes);
    }
    if (body > BODY_BYTES_MAX) return 0;
    while (bytes < head_bytes + (size_t)body) {
        size_t received = receive(connection, buffer + bytes, head_bytes + (size_t)body - bytes);
        if (received == 0) return 0;
        bytes += received;
    }
    char head[sizeof reply_head + 20];
    int length = snprintf(head, sizeof head, reply_head, (size_t)body);
    return send_all(connection, head, (size_t)length, MSG_MORE)
           && send_all(connection, buffer + head_bytes, (size_t)body, 0);
}

int main(void) {
    char *buffer = malloc(HEAD_BYTES_MAX + (size_t)BODY_BYTES_MAX);
    if (!buffer) fail("malloc");
    epoll = new_epoll();
    int listener = listen_on(0);
    for (;;) {
        int connection = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (connection < 0) fail("accept4");
        watch(epoll, connection, EPOLLIN | EPOLLOUT | EPOLLET, (epoll_data_t){0});
        while (answer(connection, buffer)) {}
        close(connection);
    }
}
