/* Calls a server over UDP or TCP, and compares all replies byte for byte.
 *
 *     load udp|tcp PORT CLIENTS SECONDS REQUEST REPLY
 *
 * Each client has a socket of its own, sends a request and waits for its reply, and so on. REQUEST
 * and REPLY are hexadecimal. A run of '#' in them stands for the number of the call. Prints the
 * number of calls. Fails if a reply is wrong, or if none arrives for two seconds.
 */
#include "tcp.h"

enum { CLIENTS_MAX = 256, BYTES_MAX = 2048, SILENCE_MS = 2000 };

/* A text with a number in it. */
struct pattern {
    char bytes[BYTES_MAX];
    size_t length, number_at, digits;
};

struct client {
    int descriptor;
    unsigned long calls;
    /* What has arrived of a reply. */
    char reply[BYTES_MAX];
    size_t received;
};

static struct client clients[CLIENTS_MAX];
static struct pattern request, reply;

static struct pattern parse(char const *hexadecimal) {
    struct pattern found = {.length = strlen(hexadecimal) / 2};
    if (found.length > BYTES_MAX) exit(2);
    for (size_t at = 0; at < found.length; at++) {
        unsigned byte;
        if (sscanf(hexadecimal + 2 * at, "%2x", &byte) != 1) exit(2);
        found.bytes[at] = (char)byte;
    }
    char const *first = memchr(found.bytes, '#', found.length);
    found.number_at = first ? (size_t)(first - found.bytes) : found.length;
    while (found.number_at + found.digits < found.length &&
           found.bytes[found.number_at + found.digits] == '#')
        found.digits++;
    return found;
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
    client->received = 0;
    char const *bytes = with_number(&request, ++client->calls);
    if (send(client->descriptor, bytes, request.length, 0) != (ssize_t)request.length) fail("send");
}

/* Whether the whole reply has arrived. */
static int receive(struct client *client) {
    ssize_t const length = recv(client->descriptor, client->reply + client->received,
                                sizeof client->reply - client->received, 0);
    if (length <= 0) fail("recv");
    client->received += (size_t)length;
    char const *expected = with_number(&reply, client->calls);
    if (client->received > reply.length || memcmp(client->reply, expected, client->received)) {
        fprintf(stderr, "a wrong reply: %.*s\n", (int)client->received, client->reply);
        exit(1);
    }
    return client->received == reply.length;
}

int main(int count, char **arguments) {
    if (count != 7) return 2;
    int const kind = strcmp(arguments[1], "tcp") ? SOCK_DGRAM : SOCK_STREAM;
    int const port = atoi(arguments[2]), number = atoi(arguments[3]), poll = new_epoll();
    double const end = now() + atof(arguments[4]);
    request = parse(arguments[5]), reply = parse(arguments[6]);
    if (number < 1 || number > CLIENTS_MAX) return 2;
    for (int at = 0; at < number; at++) {
        clients[at].descriptor = connected(kind, port);
        /* No call of an earlier load has its number. */
        clients[at].calls = (unsigned long)(now() * 1e6);
        watch(poll, clients[at].descriptor, EPOLLIN, (epoll_data_t){.ptr = &clients[at]});
    }
    for (int at = 0; at < number; at++) call(&clients[at]);
    unsigned long answered = 0;
    for (int open = number; open > 0;) {
        struct epoll_event events[CLIENTS_MAX];
        int const ready = epoll_wait(poll, events, CLIENTS_MAX, SILENCE_MS);
        if (ready <= 0) return fprintf(stderr, "no reply\n"), 1;
        int const is_over = now() >= end;
        for (int each = 0; each < ready; each++) {
            struct client *client = events[each].data.ptr;
            if (!receive(client)) continue;
            answered++;
            if (is_over) open--;
            else call(client);
        }
    }
    printf("%lu\n", answered);
    return 0;
}
