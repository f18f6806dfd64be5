/* ucall's server in C, on a free port, which it announces: `sum`, or with --echo `echo_text`, which
 * returns its text.
 *
 *     server [--engine posix|uring] [--echo yes] [--udp ADDRESS [--xdp xdp|poll]]
 *
 * With --udp it listens at that address, over UDP as well, without dedupe; --xdp is AF_XDP at the
 * interface eth0, with `poll` by busy polling. */
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

static void sum(ucall_call_t call, ucall_callback_tag_t tag) {
    int64_t a, b;
    (void)tag;
    if (ucall_param_named_i64(call, "a", 0, &a) && ucall_param_named_i64(call, "b", 0, &b))
        ucall_call_reply_i64(call, a + b);
    else
        ucall_call_reply_error_invalid_params(call);
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
    bool echoes = false;
    for (int at = 1; at + 1 < argc; at += 2) {
        char const *option = argv[at], *value = argv[at + 1];
        if (!strcmp(option, "--engine"))
            config.engine = strcmp(value, "uring") ? UCALL_ENGINE_POSIX : UCALL_ENGINE_URING;
        if (!strcmp(option, "--echo")) echoes = true;
        if (!strcmp(option, "--udp")) {
            config.hostname = value;
            config.udp = config.udp_without_dedupe = true;
            config.logs_file_descriptor = 2;
        }
        if (!strcmp(option, "--xdp")) {
            config.xdp = "eth0";
            config.xdp_busy_poll = !strcmp(value, "poll");
        }
    }
    if (!ucall_init(&config, &server) ||
        !(echoes ? ucall_add_procedure(server, "echo_text", echo_text, NULL)
                 : ucall_add_procedure(server, "sum", sum, NULL))) {
        fprintf(stderr, "%s\n", ucall_last_error());
        return 1;
    }
    signal(SIGTERM, stop);
    printf("listening on %d\n", config.port);
    fflush(stdout);
    if (!ucall_take_calls(server, 0)) fprintf(stderr, "%s\n", ucall_last_error());
    signal(SIGTERM, SIG_DFL);
    ucall_free(server);
}
