/* Calls a server over UDP or TCP, and checks all replies.
 *
 *     calls udp|tcp PORT CLIENTS SECONDS REQUEST REPLY
 *     calls lines PORT CLIENTS SECONDS REQUEST LINES
 *
 * Each client has a socket of its own, sends the bytes of the file REQUEST, waits for the reply,
 * and repeats. A reply has the bytes of the file REPLY, or, for any protocol over TCP, that many
 * lines. A run of '#' in the bytes stands for the number of the call. Prints the number of calls
 * and the seconds. Fails if a reply is wrong, or if none arrives for ten seconds. */

#include "tcp.h"

enum { CLIENTS_MAX = 1024, BYTES_MAX = 1 << 20, SILENCE_MS = 10000 };

/* Bytes with a number in them. */
struct pattern {
    char bytes[BYTES_MAX];
    size_t length, number_at, digits;
};

struct client {
    int descriptor;
    unsigned long calls;
    /* What has arrived of a reply: its bytes, and its lines. */
    size_t received;
    long lines;
};

static struct client clients[CLIENTS_MAX];
static struct pattern request, reply;
/* Of each reply; 0 if its bytes are compared. */
static long lines;

static void read_pattern(struct pattern *pattern, char const *path) {
    FILE *file = fopen(path, "rb");
    if (!file) fail(path);
    pattern->length = fread(pattern->bytes, 1, BYTES_MAX, file);
    fclose(file);
    char const *first = memchr(pattern->bytes, '#', pattern->length);
    pattern->number_at = first ? (size_t)(first - pattern->bytes) : pattern->length;
    while (pattern->number_at + pattern->digits < pattern->length &&
           pattern->bytes[pattern->number_at + pattern->digits] == '#')
        pattern->digits++;
}

/* Writes the last digits of a number; the first digit is not 0. */
static char const *with_number(struct pattern *pattern, unsigned long number) {
    for (size_t digit = pattern->digits; digit-- > 0; number /= 10)
        pattern->bytes[pattern->number_at + digit] =
            (char)(digit ? '0' + number % 10 : '1' + number % 9);
    return pattern->bytes;
}

static int connected(int kind, int port) {
    if (kind == SOCK_STREAM) return connect_to(port);
    struct sockaddr_in address = loopback(port);
    int const descriptor = socket(AF_INET, kind, 0);
    if (connect(descriptor, (struct sockaddr *)&address, sizeof address)) fail("connect");
    return descriptor;
}

static void call(struct client *client) {
    client->received = 0, client->lines = 0;
    char const *bytes = with_number(&request, ++client->calls);
    for (size_t sent = 0; sent < request.length;) {
        ssize_t const more = send(client->descriptor, bytes + sent, request.length - sent, 0);
        if (more <= 0) fail("send");
        sent += (size_t)more;
    }
}

/* Whether the whole reply has arrived. */
static int receive(struct client *client) {
    static char bytes[BYTES_MAX];
    ssize_t const length = recv(client->descriptor, bytes, sizeof bytes, 0);
    if (length <= 0) fail("recv");
    size_t const at = client->received, end = client->received += (size_t)length;
    if (lines) {
        char const *last = bytes + length;
        for (char const *from = bytes; (from = memchr(from, '\n', (size_t)(last - from))); from++)
            client->lines++;
    }
    if (lines ? client->lines > lines
              : end > reply.length ||
                    memcmp(bytes, with_number(&reply, client->calls) + at, (size_t)length)) {
        fprintf(stderr, "a wrong reply: %.*s\n", (int)length, bytes);
        exit(1);
    }
    return lines ? client->lines == lines : end == reply.length;
}

int main(int count, char **arguments) {
    if (count != 7) return 2;
    int const kind = strcmp(arguments[1], "udp") ? SOCK_STREAM : SOCK_DGRAM;
    int const port = atoi(arguments[2]), number = atoi(arguments[3]), poll = new_epoll();
    if (number < 1 || number > CLIENTS_MAX) return 2;
    read_pattern(&request, arguments[5]);
    if (strcmp(arguments[1], "lines")) read_pattern(&reply, arguments[6]);
    else if ((lines = atol(arguments[6])) < 1) return 2;
    for (int at = 0; at < number; at++) {
        clients[at].descriptor = connected(kind, port);
        /* No call of an earlier load has its number. */
        clients[at].calls = (unsigned long)(now() * 1e6);
        watch(poll, clients[at].descriptor, EPOLLIN, (epoll_data_t){.ptr = &clients[at]});
    }
    double const start = now(), seconds = atof(arguments[4]);
    for (int at = 0; at < number; at++) call(&clients[at]);
    unsigned long answered = 0;
    for (int open = number; open > 0;) {
        struct epoll_event events[64];
        int const ready = epoll_wait(poll, events, 64, SILENCE_MS);
        if (ready <= 0) return fprintf(stderr, "no reply\n"), 1;
        int const is_over = now() - start >= seconds;
        for (int each = 0; each < ready; each++) {
            struct client *client = events[each].data.ptr;
            if (!receive(client)) continue;
            answered++;
            if (is_over) open--;
            else call(client);
        }
    }
    printf("%lu %f\n", answered, now() - start);
    return 0;
}
