/* Writes the same bytes to all subscribers: publish MESSAGE_BYTES SUBSCRIBERS
 *
 * The first connection commands: each byte that it sends is one message to the later connections,
 * and is returned when all are written. Prints `listening on PORT`. */
#include "tcp.h"

enum { SUBSCRIBERS_MAX = 16384 };
static int subscribers[SUBSCRIBERS_MAX];
static int count;

static void publish(char const *message, size_t length) {
    for (int at = 0; at < count; at++)
        if (send(subscribers[at], message, length, MSG_NOSIGNAL) != (ssize_t)length) exit(1);
}

int main(int argc, char **argv) {
    if (argc != 3 || (count = atoi(argv[2])) > SUBSCRIBERS_MAX) return 2;
    size_t length = (size_t)atol(argv[1]);
    char *message = malloc(length), byte;
    memset(message, 'x', length);
    int listener = listen_on(0);
    int command = accept(listener, NULL, NULL);
    for (int at = 0; at < count; at++) subscribers[at] = accept(listener, NULL, NULL);
    while (recv(command, &byte, 1, 0) == 1) {
        publish(message, length);
        send(command, &byte, 1, MSG_NOSIGNAL);
    }
}
