/* Calls `sum` over UDP, and prints a line: calls answered, calls lost, p50 in microseconds.
 *
 * load ADDRESS PORT window WINDOW SECONDS: as many calls are in flight all the time.
 * load ADDRESS PORT rate CALLS SECONDS: sends as many calls a second, in bursts of 64.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>

#include "tcp.h"

enum { BATCH = 64, BYTES = 256, LATENCIES_MAX = 1 << 20, LOST_AFTER_MS = 200 };

static int descriptor;
static long last_id, answered, lost;
static float latencies[LATENCIES_MAX];

static void send_calls(int count) {
    static char bytes[BATCH][BYTES];
    struct iovec parts[BATCH];
    struct mmsghdr messages[BATCH];
    while (count > 0) {
        int batch = count < BATCH ? count : BATCH;
        memset(messages, 0, sizeof(messages));
        for (int i = 0; i < batch; i++) {
            int length = snprintf(bytes[i], BYTES,
                                  "{\"jsonrpc\":\"2.0\",\"method\":\"sum\","
                                  "\"params\":{\"a\":2,\"b\":3},\"id\":%ld}",
                                  ++last_id);
            parts[i] = (struct iovec){bytes[i], (size_t)length};
            messages[i].msg_hdr.msg_iov = &parts[i];
            messages[i].msg_hdr.msg_iovlen = 1;
        }
        for (int sent = 0; sent < batch;) {
            int more = sendmmsg(descriptor, messages + sent, (unsigned)(batch - sent), 0);
            if (more < 0 && errno != ENOBUFS && errno != EINTR) exit(1);
            sent += more > 0 ? more : 0;
        }
        count -= batch;
    }
}

/* The replies that arrive within a time; 0 if there is none. */
static int receive_replies(int wait_ms) {
    static char bytes[BATCH][BYTES];
    struct iovec parts[BATCH];
    struct mmsghdr messages[BATCH];
    struct pollfd polled = {descriptor, POLLIN, 0};
    memset(messages, 0, sizeof(messages));
    for (int i = 0; i < BATCH; i++) {
        parts[i] = (struct iovec){bytes[i], BYTES};
        messages[i].msg_hdr.msg_iov = &parts[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    if (poll(&polled, 1, wait_ms) <= 0) return 0;
    int count = recvmmsg(descriptor, messages, BATCH, MSG_DONTWAIT, NULL);
    return count > 0 ? count : 0;
}

static void keep_in_flight(int window, double seconds) {
    double end = now() + seconds;
    send_calls(window);
    while (now() < end) {
        double began = now();
        int count = receive_replies(LOST_AFTER_MS);
        if (window == 1 && count == 1 && answered < LATENCIES_MAX)
            latencies[answered] = (float)((now() - began) * 1e6);
        answered += count;
        lost += count ? 0 : window;
        send_calls(count ? count : window);
    }
}

static void send_at(double rate, double seconds) {
    double began = now();
    long sent = 0;
    while (now() < began + seconds) {
        while ((double)sent < (now() - began) * rate) {
            send_calls(BATCH);
            sent += BATCH;
        }
        answered += receive_replies(0);
    }
    for (int count; (count = receive_replies(LOST_AFTER_MS)) > 0;) answered += count;
    lost = sent - answered;
}

static int compare(void const *one, void const *other) {
    float a = *(float const *)one, b = *(float const *)other;
    return (a > b) - (a < b);
}

int main(int argc, char **argv) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    int receive_bytes = 4 << 20;
    if (argc != 6) return 2;
    inet_pton(AF_INET, argv[1], &address.sin_addr);
    address.sin_port = htons((uint16_t)atoi(argv[2]));
    descriptor = socket(AF_INET, SOCK_DGRAM, 0);
    /* So that only the server loses datagrams. */
    setsockopt(descriptor, SOL_SOCKET, SO_RCVBUFFORCE, &receive_bytes, sizeof(receive_bytes));
    if (connect(descriptor, (struct sockaddr *)&address, sizeof(address))) return 1;
    last_id = (long)(now() * 1e6);
    if (!strcmp(argv[3], "window"))
        keep_in_flight(atoi(argv[4]), atof(argv[5]));
    else
        send_at(atof(argv[4]), atof(argv[5]));
    long known = answered < LATENCIES_MAX ? answered : LATENCIES_MAX;
    qsort(latencies, (size_t)known, sizeof(*latencies), compare);
    printf("%ld %ld %.1f\n", answered, lost, known ? (double)latencies[known / 2] : 0.0);
    return 0;
}
