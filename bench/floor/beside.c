/* The load for "fast calls beside slow ones": 32 connections that call `sum` as fast as replies
 * come, and so many that call `sleep`, all at one moment, again when the last has its reply.
 *
 *     beside PORT SLEEPERS SECONDS METHOD
 *
 * METHOD is `sum`, or another one with its params.
 * Prints the calls of METHOD a second, and the median and the 99th percentile of their latency in
 * microseconds. One thread. It looks at the fast connections before each single one of the slow, so
 * that what the slow ones cost the load itself is not taken for the server's. */
#define _GNU_SOURCE
#include <poll.h>

#include "tcp.h"

#define FAST 32
#define SLOW_MAX 1024
#define CALLS_MAX (1 << 24)
#define WARM_UP_NS 300000000LL

struct request {
    char text[512];
    int len;
};

static struct request sum, sleeping;
static int64_t sent_ns[FAST];
static uint32_t *latencies_ns;
static long calls;

static void make(struct request *request, const char *call) {
    request->len = snprintf(request->text, sizeof request->text,
                            "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: keep-alive\r\n"
                            "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                            strlen(call), call);
}

static void send_one(int socket, const struct request *request) {
    if (write(socket, request->text, request->len) != request->len) fail("write");
}

/* A reply is small, so one read returns all of it. */
static void receive_one(int socket) {
    char reply[4096];
    ssize_t len = read(socket, reply, sizeof reply - 1);
    if (len <= 0) fail("read");
    reply[len] = 0;
    if (!strstr(reply, "\"result\"") || reply[len - 1] != '}') {
        fprintf(stderr, "not a reply: %s\n", reply);
        exit(1);
    }
}

static void connect_all(int poll, int *sockets, int count, int port) {
    for (int index = 0; index < count; index++) {
        sockets[index] = connect_to(port);
        watch(poll, sockets[index], EPOLLIN, (epoll_data_t){.u32 = index});
    }
}

static void take_fast(int poll, const int *sockets, int64_t from_ns) {
    struct epoll_event events[FAST];
    int ready = epoll_wait(poll, events, FAST, 0);
    for (int index = 0; index < ready; index++) {
        int number = events[index].data.u32;
        receive_one(sockets[number]);
        int64_t now = now_ns();
        if (sent_ns[number] >= from_ns && calls < CALLS_MAX)
            latencies_ns[calls++] = (uint32_t)(now - sent_ns[number]);
        sent_ns[number] = now;
        send_one(sockets[number], &sum);
    }
}

static int ascending(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

int main(int count, char **arguments) {
    if (count != 5) return 2;
    int slow = atoi(arguments[2]), polls[2] = {new_epoll(), new_epoll()};
    static int fast_sockets[FAST], slow_sockets[SLOW_MAX];
    if (slow > SLOW_MAX) return 2;
    char call[256];
    snprintf(call, sizeof call,
             "{\"jsonrpc\":\"2.0\",\"method\":\"%s\",\"params\":{\"a\":55,\"b\":21},\"id\":1}",
             arguments[4]);
    make(&sum, call);
    make(&sleeping, "{\"jsonrpc\":\"2.0\",\"method\":\"sleep\",\"id\":1}");
    latencies_ns = malloc(CALLS_MAX * sizeof *latencies_ns);
    connect_all(polls[0], fast_sockets, FAST, atoi(arguments[1]));
    connect_all(polls[1], slow_sockets, slow, atoi(arguments[1]));
    int64_t from_ns = now_ns() + WARM_UP_NS;
    int64_t until_ns = from_ns + (int64_t)(atof(arguments[3]) * 1e9);
    for (int index = 0; index < FAST; index++) {
        sent_ns[index] = now_ns();
        send_one(fast_sockets[index], &sum);
    }
    int to_send = slow, asleep = 0;
    while (now_ns() < until_ns) {
        struct pollfd waits[2] = {{polls[0], POLLIN, 0}, {polls[1], POLLIN, 0}};
        if (to_send == 0) poll(waits, 2, 100);
        take_fast(polls[0], fast_sockets, from_ns);
        struct epoll_event event;
        if (to_send > 0) {
            send_one(slow_sockets[--to_send], &sleeping);
            asleep++;
        } else if (asleep > 0 && epoll_wait(polls[1], &event, 1, 0) == 1) {
            receive_one(slow_sockets[event.data.u32]);
            if (--asleep == 0) to_send = slow;
        }
    }
    if (calls == 0) fail("no calls");
    qsort(latencies_ns, calls, sizeof *latencies_ns, ascending);
    printf("%.0f %.1f %.1f\n", calls / ((until_ns - from_ns) / 1e9), latencies_ns[calls / 2] / 1e3,
           latencies_ns[calls * 99 / 100] / 1e3);
    return 0;
}
