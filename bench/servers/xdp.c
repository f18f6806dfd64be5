/* xdp ADDRESS [socket|uring|xdp|poll]: `sum` over UDP by a socket, on posix or on io_uring, by
 * AF_XDP at the interface eth0, or by AF_XDP with busy polling. TCP has the same port. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <ucall/ucall.h>

static ucall_server_t server;

static void stop(int number) {
    (void)number;
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

int main(int argc, char **argv) {
    char const *how = argc > 2 ? argv[2] : "socket";
    ucall_config_t config = {0};
    config.hostname = argc > 1 ? argv[1] : "127.0.0.1";
    config.pick_port = true;
    config.engine = strcmp(how, "uring") ? UCALL_ENGINE_POSIX : UCALL_ENGINE_URING;
    config.udp = true;
    config.udp_without_dedupe = true;
    config.xdp = !strcmp(how, "xdp") || !strcmp(how, "poll") ? "eth0" : NULL;
    config.xdp_busy_poll = !strcmp(how, "poll");
    config.logs_file_descriptor = 2;
    if (!ucall_init(&config, &server) || !ucall_add_procedure(server, "sum", sum, NULL)) {
        fprintf(stderr, "%s\n", ucall_last_error());
        return 1;
    }
    signal(SIGTERM, stop);
    printf("listening on %d\n", config.port);
    fflush(stdout);
    bool stopped = ucall_take_calls(server, 0);
    if (!stopped) fprintf(stderr, "%s\n", ucall_last_error());
    ucall_free(server);
    return stopped ? 0 : 1;
}
