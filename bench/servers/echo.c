/* Serves `echo_text`, which returns its text, on a free port. */
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

static void echo_text(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_str_t text;
    size_t length;
    (void)tag;
    if (ucall_param_positional_str(call, 0, &text, &length))
        ucall_call_reply_str(call, text, length);
    else
        ucall_call_reply_error_invalid_params(call);
}

int main(int argc, char **argv) {
    ucall_config_t config = {.pick_port = true};
    for (int at = 1; at + 1 < argc; at += 2) {
        if (!strcmp(argv[at], "--engine"))
            config.engine = strcmp(argv[at + 1], "uring") ? UCALL_ENGINE_POSIX
                                                          : UCALL_ENGINE_URING;
    }
    if (!ucall_init(&config, &server) ||
        !ucall_add_procedure(server, "echo_text", echo_text, NULL)) {
        fprintf(stderr, "%s\n", ucall_last_error());
        return 1;
    }
    signal(SIGTERM, stop);
    printf("listening on %d\n", config.port);
    fflush(stdout);
    bool stopped = ucall_take_calls(server, 0);
    if (!stopped) fprintf(stderr, "%s\n", ucall_last_error());
    signal(SIGTERM, SIG_DFL);
    ucall_free(server);
    return stopped ? 0 : 1;
}
