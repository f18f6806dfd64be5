/* A load for any protocol whose replies have a known number of lines.
 *
 *     blocks PORT CONNECTIONS SECONDS LINES <BLOCK
 *
 * Each connection sends the block of requests, waits until its replies have come, which have LINES
 * lines together, and repeats. Prints the number of blocks and the seconds.
 */

#include "tcp.h"

enum { BLOCK_MAX = 1 << 20, CONNECTIONS_MAX = 1024 };

static char block[BLOCK_MAX], replies[BLOCK_MAX];
static size_t block_bytes;

static void send_block(int connected) {
    for (size_t sent = 0; sent < block_bytes;) {
        ssize_t const wrote = write(connected, block + sent, block_bytes - sent);
        if (wrote <= 0) fail("write");
        sent += (size_t)wrote;
    }
}

static long received_lines(int connected) {
    ssize_t const length = read(connected, replies, sizeof replies);
    if (length <= 0) fail("read");
    long lines = 0;
    char const* end = replies + length;
    for (char const* at = replies; (at = memchr(at, '\n', (size_t)(end - at))); ++at) ++lines;
    return lines;
}

int main(int count, char** arguments) {
    if (count != 5) return 2;
    int const port = atoi(arguments[1]), connections = atoi(arguments[2]);
    double const seconds = atof(arguments[3]);
    long const lines = atol(arguments[4]);
    static long left[CONNECTIONS_MAX];
    if (connections < 1 || connections > CONNECTIONS_MAX || lines < 1) return 2;
    block_bytes = fread(block, 1, sizeof block, stdin);
    int const poll = new_epoll();
    static int sockets[CONNECTIONS_MAX];
    for (int at = 0; at < connections; ++at) {
        sockets[at] = connect_to(port);
        left[at] = lines;
        watch(poll, sockets[at], EPOLLIN, (epoll_data_t){.u32 = (uint32_t)at});
    }
    double const start = now();
    for (int at = 0; at < connections; ++at) send_block(sockets[at]);
    long blocks = 0;
    for (int open = connections; open > 0;) {
        struct epoll_event events[64];
        int const ready = epoll_wait(poll, events, 64, 10000);
        if (ready <= 0) fail("no reply");
        int const is_over = now() - start >= seconds;
        for (int each = 0; each < ready; ++each) {
            uint32_t const at = events[each].data.u32;
            left[at] -= received_lines(sockets[at]);
            if (left[at] > 0) continue;
            if (left[at] < 0) return fprintf(stderr, "too many lines\n"), 1;
            ++blocks, left[at] = lines;
            if (is_over) --open;
            else send_block(sockets[at]);
        }
    }
    printf("%ld %f\n", blocks, now() - start);
    return 0;
}
