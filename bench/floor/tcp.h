/* What these programs share: errors, the time, sockets of TCP on loopback, and epoll. */
#ifndef BENCH_TCP_H
#define BENCH_TCP_H

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static inline _Noreturn void fail(char const *what) {
    perror(what);
    exit(1);
}

static inline int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* In seconds. */
static inline double now(void) { return (double)now_ns() / 1e9; }

static inline struct sockaddr_in loopback(int port) {
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static inline void send_at_once(int connection) {
    int const on = 1;
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static inline int connect_to(int port) {
    struct sockaddr_in address = loopback(port);
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(connection, (struct sockaddr *)&address, sizeof address)) fail("connect");
    send_at_once(connection);
    return connection;
}

/* Announces the port of a bound socket, and returns it. */
static inline int announced(int bound) {
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    if (getsockname(bound, (struct sockaddr *)&address, &length)) fail("getsockname");
    printf("listening on %d\n", ntohs(address.sin_port));
    fflush(stdout);
    return bound;
}

/* Listens on a free port, and announces it. Connections inherit TCP_NODELAY, which saves a system
 * call for each. */
static inline int listen_on(int flags) {
    struct sockaddr_in address = loopback(0);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    send_at_once(listener);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096))
        fail("listen");
    return announced(listener);
}

static inline int new_epoll(void) {
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0) fail("epoll_create1");
    return epoll;
}

/* Has epoll report these events of a descriptor, with the data. */
static inline void watch(int epoll, int descriptor, unsigned events, epoll_data_t data) {
    struct epoll_event event = {.events = events, .data = data};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event)) fail("epoll_ctl");
}

#endif
