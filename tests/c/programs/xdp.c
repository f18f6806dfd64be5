/* Calls over AF_XDP at the interface eth0. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <ucall/ucall.h>

static ucall_server_t server;

static void on_signal(int number) {
    (void)number;
    ucall_stop(server);
}

static void sum(ucall_call_t call, ucall_callback_tag_t tag) {
    int64_t a = 0, b = 0;
    (void)tag;
    ucall_param_named_i64(call, "a", 0, &a);
    ucall_param_named_i64(call, "b", 0, &b);
    ucall_call_reply_i64(call, a + b);
}

/* xdp [posix|uring] */
int main(int argc, char **argv) {
    ucall_config_t config = {0};
    config.hostname = "192.0.2.2";
    config.pick_port = true;
    config.udp = true;
    config.xdp = "eth0";
    config.engine = argc > 1 && !strcmp(argv[1], "uring") ? UCALL_ENGINE_URING : UCALL_ENGINE_POSIX;
    config.logs_file_descriptor = 2;
    if (!ucall_init(&config, &server)) {
        fprintf(stderr, "%s\n", ucall_last_error());
        return 1;
    }
    ucall_add_procedure(server, "sum", sum, NULL);
    signal(SIGTERM, on_signal);
    printf("listening on %d\n", config.port);
    fflush(stdout);
    bool is_done = ucall_take_calls(server, 0);
    if (!is_done) fprintf(stderr, "%s\n", ucall_last_error());
    ucall_free(server);
    return is_done ? 0 : 1;
}
