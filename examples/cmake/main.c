/* greet(name): an object with a greeting. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include <ucall/ucall.h>

static ucall_server_t server;

static void stop(int signal_number) {
    (void)signal_number;
    ucall_stop(server);
}

static void greet(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_str_t name;
    size_t length;
    ucall_writer_t writer;
    (void)tag;
    if (!ucall_param_named_str(call, "name", UCALL_NUL_TERMINATED, &name, &length)) {
        ucall_call_reply_error_invalid_params(call);
        return;
    }
    writer = ucall_writer_new();
    ucall_writer_begin_object(writer);
    ucall_writer_key(writer, "hello", UCALL_NUL_TERMINATED);
    ucall_writer_str(writer, name, length);
    ucall_writer_end_object(writer);
    ucall_call_reply_writer(call, writer);
    ucall_writer_free(writer);
}

int main(int argc, char **argv) {
    ucall_config_t config = {0};
    if (argc > 1) config.port = (uint16_t)atoi(argv[1]);
    config.pick_port = argc > 1 && !config.port;
    if (!ucall_init(&config, &server)) {
        fprintf(stderr, "%s\n", ucall_last_error());
        return 1;
    }
    ucall_add_procedure(server, "greet", greet, NULL);
    signal(SIGTERM, stop);
    signal(SIGINT, stop);
    printf("listening on %d\n", config.port);
    fflush(stdout);
    ucall_take_calls(server, 0);
    ucall_free(server);
    return 0;
}
