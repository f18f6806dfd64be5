/* Options, the fixed reply and the listening socket of both floor programs. See floor.h. */
#define _GNU_SOURCE
#include "floor.h"

#include <getopt.h>
#include <signal.h>
#include <stdbool.h>

#include "tcp.h"

struct options {
    int batch;
    bool raw;
    size_t request_bytes;
};

static const char usage[] =
    "usage: floor [--batch N] [--raw] [--pipeline REQUEST_BYTES]\n"
    "  --batch N        the reply is that of a batch of N calls\n"
    "  --raw            no HTTP head; the reply ends with a newline\n"
    "  --pipeline N     a request has N bytes; each whole one gets a reply\n";

static int listener_to_stop = -1;

static _Noreturn void refuse(const char *complaint) {
    fprintf(stderr, "%s\n%s", complaint, usage);
    exit(2);
}

static long number_of(const char *text, long most) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || value < 0 || value > most) refuse("not a number in range");
    return value;
}

static struct options options_of(int argc, char **argv) {
    static const struct option known[] = {
        {"batch", required_argument, NULL, 'b'},
        {"raw", no_argument, NULL, 'r'},
        {"pipeline", required_argument, NULL, 'l'},
        {NULL, 0, NULL, 0},
    };
    struct options options = {0};
    for (int found; (found = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (found) {
        case 'b': options.batch = (int)number_of(optarg, 1000); break;
        case 'r': options.raw = true; break;
        case 'l': options.request_bytes = (size_t)number_of(optarg, 1 << 20); break;
        default: refuse("unknown option");
        }
    }
    if (optind != argc) refuse("unknown argument");
    return options;
}

static void write_result(FILE *out, int id) {
    fprintf(out, "{\"jsonrpc\":\"2.0\",\"id\":%d,\"result\":76}", id);
}

static void write_body(FILE *out, int batch) {
    if (batch == 0) {
        write_result(out, 1);
        return;
    }
    for (int id = 1; id <= batch; id++) {
        fputc(id == 1 ? '[' : ',', out);
        write_result(out, id);
    }
    fputc(']', out);
}

static char *reply_of(const struct options *options, size_t *bytes) {
    size_t body_bytes;
    char *body, *reply;
    FILE *out = open_memstream(&body, &body_bytes);
    if (!out) fail("open_memstream");
    write_body(out, options->batch);
    if (fclose(out) != 0) fail("fclose");
    int written = options->raw ? asprintf(&reply, "%s\n", body)
                               : asprintf(&reply, REPLY_HEAD "%s", body_bytes, body);
    if (written < 0) fail("asprintf");
    *bytes = (size_t)written;
    free(body);
    return reply;
}

/* One read, and what the one before it left over, may end this many requests. */
static size_t requests_a_read(size_t request_bytes) {
    return request_bytes ? READ_BYTES_MAX / request_bytes + 1 : 1;
}

static char *repeated(const char *reply, size_t bytes, size_t times) {
    char *all = malloc(bytes * times);
    if (!all) fail("malloc");
    for (size_t i = 0; i < times; i++) memcpy(all + i * bytes, reply, bytes);
    return all;
}

/* There is nothing to finish: replies go out in the turn that read the request. The listener is
 * shut down by hand because a ring that still holds a multishot accept would keep the port. */
static void stop(int signal_number) {
    (void)signal_number;
    shutdown(listener_to_stop, SHUT_RDWR);
    _exit(0);
}

static void stop_on_signals(int listener) {
    listener_to_stop = listener;
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
}

struct floor floor_start(int argc, char **argv) {
    struct options options = options_of(argc, argv);
    struct floor floor = {.request_bytes = options.request_bytes};
    char *reply = reply_of(&options, &floor.reply_bytes);
    floor.replies = repeated(reply, floor.reply_bytes, requests_a_read(floor.request_bytes));
    free(reply);
    floor.listener = listen_on(0, SOCK_NONBLOCK);
    stop_on_signals(floor.listener);
    return floor;
}

size_t floor_count(const struct floor *floor, size_t received, size_t *unfinished) {
    if (floor->request_bytes == 0) return 1;
    size_t bytes = *unfinished + received;
    *unfinished = bytes % floor->request_bytes;
    return bytes / floor->request_bytes;
}
