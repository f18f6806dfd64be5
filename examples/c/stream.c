#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ucall/ucall.h>

static ucall_server_t server;

static void stop(int signal_number) {
    (void)signal_number;
    ucall_stop(server);
}

/* A stream of numbers. */
typedef struct counter {
    ucall_call_t call;
    int64_t next, end;
} counter;

/* Sends numbers while there is room, then the reply. Called again when there is room. */
static void send_numbers(ucall_callback_tag_t tag) {
    counter *numbers = tag;
    char text[32];
    for (; numbers->next < numbers->end; ++numbers->next) {
        snprintf(text, sizeof text, "%" PRId64, numbers->next);
        ucall_item_t sent = ucall_call_send_item(numbers->call, text, UCALL_NUL_TERMINATED);
        if (sent == UCALL_ITEM_NO_ROOM) return;
        if (sent == UCALL_ITEM_ENDED) break;
    }
    if (!ucall_call_is_cancelled(numbers->call))
        ucall_call_reply_i64(numbers->call, numbers->next);
    ucall_call_release(numbers->call);
    free(numbers);
}

/* count(end): streams the numbers below `end`. */
static void count(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    int64_t end;
    if (!ucall_param_named_i64(call, "end", 0, &end)) {
        ucall_call_reply_error_invalid_params(call);
        return;
    }
    counter *numbers = malloc(sizeof *numbers);
    if (!numbers) {
        ucall_call_reply_error_out_of_memory(call);
        return;
    }
    numbers->next = 0;
    numbers->end = end;
    numbers->call = ucall_call_stream(call, UCALL_OVERFLOW_PAUSE, send_numbers, numbers);
    if (numbers->call) send_numbers(numbers);
    else free(numbers); /* The client takes no items, and has got an error. */
}

/* stream [--port PORT] [--engine posix|uring] [--stream-bytes BYTES] */
int main(int argc, char **argv) {
    ucall_config_t config = {0};
    for (int at = 1; at + 1 < argc; at += 2) {
        if (!strcmp(argv[at], "--port")) {
            config.port = (uint16_t)atoi(argv[at + 1]);
            config.pick_port = config.port == 0;
        } else if (!strcmp(argv[at], "--engine")) {
            config.engine = strcmp(argv[at + 1], "uring") ? UCALL_ENGINE_POSIX
                                                          : UCALL_ENGINE_URING;
        } else if (!strcmp(argv[at], "--stream-bytes")) {
            config.max_stream_bytes = (size_t)atoi(argv[at + 1]);
        }
    }
    if (!ucall_init(&config, &server) || !ucall_add_procedure(server, "count", count, NULL)) {
        fprintf(stderr, "%s\n", ucall_last_error());
        return 1;
    }
    signal(SIGINT, stop);
    signal(SIGTERM, stop);
    printf("listening on %d\n", config.port);
    fflush(stdout);
    bool stopped = ucall_take_calls(server, 0);
    if (!stopped) fprintf(stderr, "%s\n", ucall_last_error());
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    /* Reports the end to streams that have no room. */
    ucall_free(server);
    return stopped ? 0 : 1;
}
