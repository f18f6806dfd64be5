/* Replaces recvmmsg and sendmmsg in a server, for the cost of its calls without sockets: the server
 * finds the same request 32 times in each batch, and its replies are only compared.
 *
 * The server needs one real datagram to begin. After CALLS calls it prints the nanoseconds of CPU
 * time of one, and ends. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { WARM_UP = 100 * 1000, CALLS = 2 * 1000 * 1000 };

static char const request[] =
    "{\"jsonrpc\":\"2.0\",\"method\":\"sum\",\"params\":{\"a\":2,\"b\":3},\"id\":100}";
static char const reply[] = "{\"jsonrpc\":\"2.0\",\"id\":100,\"result\":5}";
static long answered;
static double began;

static double cpu_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int recvmmsg(int descriptor, struct mmsghdr *messages, unsigned count, int flags,
             struct timespec *timeout) {
    struct sockaddr_in const source = {
        .sin_family = AF_INET,
        .sin_port = htons(9),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    (void)descriptor, (void)flags, (void)timeout;
    for (unsigned i = 0; i < count; i++) {
        struct msghdr *header = &messages[i].msg_hdr;
        memcpy(header->msg_iov->iov_base, request, sizeof request - 1);
        memcpy(header->msg_name, &source, sizeof source);
        header->msg_namelen = sizeof source;
        header->msg_controllen = 0;
        messages[i].msg_len = sizeof request - 1;
    }
    return (int)count;
}

int sendmmsg(int descriptor, struct mmsghdr *messages, unsigned count, int flags) {
    (void)descriptor, (void)flags;
    for (unsigned i = 0; i < count; i++) {
        struct iovec const *part = messages[i].msg_hdr.msg_iov;
        if (part->iov_len != sizeof reply - 1 || memcmp(part->iov_base, reply, sizeof reply - 1)) {
            fprintf(stderr, "a wrong reply: %.*s\n", (int)part->iov_len, (char *)part->iov_base);
            _exit(1);
        }
    }
    answered += count;
    if (!began && answered >= WARM_UP) answered = 0, began = cpu_seconds();
    if (began && answered >= CALLS) {
        printf("%.1f\n", (cpu_seconds() - began) / (double)answered * 1e9);
        fflush(stdout);
        _exit(0);
    }
    return (int)count;
}
