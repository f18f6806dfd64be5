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

static bool param(ucall_call_t call, char const *name, size_t index, int64_t *value) {
    return ucall_param_named_i64(call, name, 0, value) ||
           ucall_param_positional_i64(call, index, value);
}

static void sum(ucall_call_t call, ucall_callback_tag_t tag) {
    int64_t a, b;
    (void)tag;
    if (!param(call, "a", 0, &a) || !param(call, "b", 1, &b))
        ucall_call_reply_error_invalid_params(call);
    else if (b > 0 ? a > INT64_MAX - b : a < INT64_MIN - b)
        ucall_call_reply_error(call, 1, "The sum is out of range", UCALL_NUL_TERMINATED);
    else
        ucall_call_reply_i64(call, a + b);
}

/* sum [--port PORT] [--engine posix|uring] [--ssl-certfile PEM]; port 0 picks a free one. The file
 * holds the chain and the key. */
int main(int argc, char **argv) {
    ucall_config_t config = {0};
    char const *certificate;
    for (int at = 1; at + 1 < argc; at += 2) {
        if (!strcmp(argv[at], "--port")) {
            config.port = (uint16_t)atoi(argv[at + 1]);
            config.pick_port = config.port == 0;
        } else if (!strcmp(argv[at], "--engine")) {
            config.engine = strcmp(argv[at + 1], "uring") ? UCALL_ENGINE_POSIX
                                                          : UCALL_ENGINE_URING;
        } else if (!strcmp(argv[at], "--ssl-certfile")) {
            certificate = argv[at + 1];
            config.use_ssl = true;
            config.ssl_certificates_paths = &certificate;
            config.ssl_certificates_count = 1;
        }
    }
    if (!ucall_init(&config, &server) || !ucall_add_procedure(server, "sum", sum, NULL)) {
        fprintf(stderr, "%s\n", ucall_last_error());
        return 1;
    }
    signal(SIGINT, stop);
    signal(SIGTERM, stop);
    printf("listening on %d\n", config.port);
    fflush(stdout);
    bool stopped = ucall_take_calls(server, 0);
    if (!stopped) fprintf(stderr, "%s\n", ucall_last_error());
    /* The handler must not use a freed server. */
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    ucall_free(server);
    return stopped ? 0 : 1;
}
