/* Writes the same bytes to all subscribers: publish MESSAGE_BYTES SUBSCRIBERS
 *
 * The first connection commands: each byte that it sends is one message to the later connections,
 * and is returned when all are written. Prints `listening on PORT`. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SUBSCRIBERS_MAX = 16384 };
static int subscribers[SUBSCRIBERS_MAX];
static int count;

static int listener_on_free_port(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, length) ||
        listen(listener, 4096) || getsockname(listener, (struct sockaddr *)&address, &length)) {
        perror("publish");
        exit(1);
    }
    printf("listening on %d\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

static int accepted(int listener) {
    const int on = 1;
    int connection = accept(listener, NULL, NULL);
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return connection;
}

static void publish(char const *message, size_t length) {
    for (int at = 0; at < count; at++)
        if (send(subscribers[at], message, length, MSG_NOSIGNAL) != (ssize_t)length) exit(1);
}

int main(int argc, char **argv) {
    if (argc != 3 || (count = atoi(argv[2])) > SUBSCRIBERS_MAX) return 2;
    size_t length = (size_t)atol(argv[1]);
    char *message = malloc(length), byte;
    memset(message, 'x', length);
    int listener = listener_on_free_port();
    int command = accepted(listener);
    for (int at = 0; at < count; at++) subscribers[at] = accepted(listener);
    while (recv(command, &byte, 1, 0) == 1) {
        publish(message, length);
        send(command, &byte, 1, MSG_NOSIGNAL);
    }
}
