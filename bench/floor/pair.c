/* The floor of queues: one writer and one reader over loopback TCP, where the reader allocates
 * memory for each message, as a receiver must that hands messages on.
 *
 *     pair SIZE SECONDS
 *
 * Messages are a length of 8 bytes and so many bytes. Prints messages a second, counted by the
 * reader, and the CPU time in seconds of both. */
#include <errno.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "tcp.h"

/* Short messages are written many at a time. */
#define BATCH_BYTES 65536

static void write_forever(int descriptor, uint64_t size) {
    uint64_t frame = size + sizeof size;
    uint64_t count = frame >= BATCH_BYTES ? 1 : BATCH_BYTES / frame;
    char *batch = malloc(count * frame);
    if (!batch) fail("malloc");
    memset(batch, 1, count * frame);
    for (uint64_t number = 0; number < count; number++)
        memcpy(batch + number * frame, &size, sizeof size);
    for (;;) {
        uint64_t sent = 0;
        while (sent < count * frame) {
            ssize_t written = send(descriptor, batch + sent, count * frame - sent, MSG_NOSIGNAL);
            if (written < 0) return;
            sent += (uint64_t)written;
        }
    }
}

/* Received bytes that are not parsed yet. */
struct input {
    char bytes[BATCH_BYTES];
    size_t from, to;
};

static void read_whole(int descriptor, struct input *input, char *target, size_t length) {
    while (length) {
        size_t held = input->to - input->from;
        if (held) {
            size_t count = held < length ? held : length;
            memcpy(target, input->bytes + input->from, count);
            input->from += count;
            target += count;
            length -= count;
            continue;
        }
        /* Long messages are received directly into their memory. */
        int is_long = length >= BATCH_BYTES;
        ssize_t received = is_long ? recv(descriptor, target, length, 0)
                                   : recv(descriptor, input->bytes, sizeof input->bytes, 0);
        if (received <= 0) fail("recv");
        if (is_long) {
            target += received;
            length -= (size_t)received;
        } else {
            input->from = 0;
            input->to = (size_t)received;
        }
    }
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    uint64_t size = strtoull(arguments[1], NULL, 10);
    double seconds = strtod(arguments[2], NULL);
    struct sockaddr_in address = loopback(0);
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1))
        fail("listen");
    getsockname(listener, (struct sockaddr *)&address, &length);
    pid_t writer = fork();
    if (writer == 0) {
        int descriptor = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(descriptor, (struct sockaddr *)&address, sizeof address)) fail("connect");
        write_forever(descriptor, size);
        return 0;
    }
    int descriptor = accept(listener, NULL, NULL);
    static struct input input;
    uint64_t messages = 0;
    double start = now(), end = start + seconds, time = start;
    while (time < end) {
        for (int burst = size < BATCH_BYTES ? 100 : 1; burst; burst--) {
            uint64_t told;
            read_whole(descriptor, &input, (char *)&told, sizeof told);
            char *message = malloc(told ? told : 1);
            if (!message) fail("malloc");
            read_whole(descriptor, &input, message, told);
            free(message);
            messages++;
        }
        time = now();
    }
    close(descriptor);
    waitpid(writer, NULL, 0);
    struct rusage own, others;
    getrusage(RUSAGE_SELF, &own);
    getrusage(RUSAGE_CHILDREN, &others);
    double cpu = 0;
    struct timeval times[] = {own.ru_utime, own.ru_stime, others.ru_utime, others.ru_stime};
    for (int each = 0; each < 4; each++)
        cpu += (double)times[each].tv_sec + (double)times[each].tv_usec * 1e-6;
    printf("%f %f\n", (double)messages / (time - start), cpu);
    return 0;
}
