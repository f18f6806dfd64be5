/* The ideal sleeper: answers each HTTP request with fixed bytes after a fixed time, and a call of
 * `sum` at once. What it takes under a load is the load generator's own cost, and the floor for any
 * server.
 *
 *     sleeper MILLISECONDS
 *
 * One thread, one epoll. All requests sleep equally long, so that the first to come is the first to
 * be due: a queue does for a heap. */
#define _GNU_SOURCE
#include "tcp.h"

#define BODY "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":76}"
#define QUEUE 65536
#define EVENTS 512

struct due {
    int socket;
    int keep;
    int64_t at_ns;
};

static struct due queue[QUEUE];
static unsigned head, tail;

static void answer(const struct due *due) {
    char reply[256];
    int len = snprintf(reply, sizeof reply,
                       "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                       "Content-Length: %zu\r\nConnection: %s\r\n\r\n%s",
                       strlen(BODY), due->keep ? "keep-alive" : "close", BODY);
    if (write(due->socket, reply, len) != len || !due->keep) close(due->socket);
}

static void take(int socket, int64_t sleep_ns) {
    char request[8192];
    ssize_t len = read(socket, request, sizeof request - 1);
    if (len <= 0) {
        close(socket);
        return;
    }
    request[len] = 0;
    struct due due = {socket, strcasestr(request, "keep-alive") != NULL, now_ns() + sleep_ns};
    if (strstr(request, "\"sum\""))
        answer(&due);
    else
        queue[tail++ % QUEUE] = due;
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    int64_t sleep_ns = atoll(arguments[1]) * 1000000;
    int listener = listen_on(SOCK_NONBLOCK), poll = new_epoll();
    struct epoll_event events[EVENTS];
    watch(poll, listener, EPOLLIN, (epoll_data_t){.fd = listener});
    for (;;) {
        struct timespec left = {0, 0}, *timeout = NULL;
        if (head != tail) {
            int64_t left_ns = queue[head % QUEUE].at_ns - now_ns();
            if (left_ns > 0) left = (struct timespec){left_ns / 1000000000, left_ns % 1000000000};
            timeout = &left;
        }
        int ready = epoll_pwait2(poll, events, EVENTS, timeout, NULL);
        for (int index = 0; index < ready; index++) {
            int socket = events[index].data.fd;
            if (socket != listener) {
                take(socket, sleep_ns);
                continue;
            }
            while ((socket = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0)
                watch(poll, socket, EPOLLIN, (epoll_data_t){.fd = socket});
        }
        while (head != tail && queue[head % QUEUE].at_ns <= now_ns())
            answer(&queue[head++ % QUEUE]);
    }
}
