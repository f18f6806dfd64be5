/* Reads streams as fast as it can: streams PORT CONNECTIONS REQUEST ITEM END
 *
 * Opens the connections, prints `ready`, and waits for a line. Then it sends the request in the
 * file REQUEST on all of them, and reads until the text END has arrived on each. Prints the items
 * (occurrences of the text ITEM) and the seconds. */
#define _GNU_SOURCE
#include <stdbool.h>

#include "tcp.h"

enum { CONNECTIONS_MAX = 4096, TAIL_MAX = 64, READ_BYTES = 1 << 18, EVENTS_MAX = 256 };

typedef struct {
    int socket;
    size_t items;
    /* The last bytes, in which a text may have begun. */
    char tail[TAIL_MAX];
    size_t tail_length;
} stream_t;

static stream_t streams[CONNECTIONS_MAX];
static char buffer[TAIL_MAX + READ_BYTES];
static char const *item, *end;

/* Counts the items in the bytes that have arrived; returns whether the stream has ended. */
static bool take(stream_t *stream, size_t received) {
    size_t item_length = strlen(item), end_length = strlen(end);
    size_t longest = item_length > end_length ? item_length : end_length;
    char *text = buffer + TAIL_MAX - stream->tail_length, *from = text, *found;
    char *limit = buffer + TAIL_MAX + received;
    memcpy(text, stream->tail, stream->tail_length);
    while ((found = memmem(from, (size_t)(limit - from), item, item_length))) {
        stream->items++;
        from = found + item_length;
    }
    bool ended = memmem(text, (size_t)(limit - text), end, end_length) != NULL;
    stream->tail_length = (size_t)(limit - from);
    if (stream->tail_length > longest - 1) stream->tail_length = longest - 1;
    memcpy(stream->tail, limit - stream->tail_length, stream->tail_length);
    return ended;
}

static void read_all(int poll, int count) {
    struct epoll_event events[EVENTS_MAX];
    while (count > 0) {
        int ready = epoll_wait(poll, events, EVENTS_MAX, 60000);
        if (ready <= 0) fail("streams do not end");
        for (int at = 0; at < ready; at++) {
            stream_t *stream = events[at].data.ptr;
            ssize_t received = recv(stream->socket, buffer + TAIL_MAX, READ_BYTES, 0);
            if (received <= 0) fail("a connection closed");
            if (take(stream, (size_t)received)) {
                epoll_ctl(poll, EPOLL_CTL_DEL, stream->socket, NULL);
                count--;
            }
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    int count = atoi(argv[2]), poll = new_epoll();
    char request[4096];
    FILE *file = fopen(argv[3], "rb");
    if (!file || count > CONNECTIONS_MAX || strlen(argv[4]) >= TAIL_MAX ||
        strlen(argv[5]) >= TAIL_MAX)
        return 2;
    size_t length = fread(request, 1, sizeof request, file), items = 0;
    item = argv[4], end = argv[5];
    for (int at = 0; at < count; at++) {
        streams[at].socket = connect_to(atoi(argv[1]));
        watch(poll, streams[at].socket, EPOLLIN, (epoll_data_t){.ptr = &streams[at]});
    }
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF) return 1;
    double start = now();
    for (int at = 0; at < count; at++)
        if (send(streams[at].socket, request, length, 0) != (ssize_t)length) fail("send");
    read_all(poll, count);
    double seconds = now() - start;
    for (int at = 0; at < count; at++) items += streams[at].items;
    printf("%zu %f\n", items, seconds);
}
