/* Frees handles twice, which a debug build rejects. Replies "freed" from each procedure. */
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

static void check_rejected(char const *function) {
    if (!strstr(ucall_last_error(), function) || !strstr(ucall_last_error(), "twice")) abort();
}

static void call_twice(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_call_t deferred = ucall_call_defer(call);
    (void)tag;
    ucall_call_reply_str(deferred, "freed", 5);
    ucall_call_release(deferred);
    ucall_call_release(deferred);
    check_rejected("ucall_call_release");
}

static void writer_twice(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_writer_t writer = ucall_writer_new();
    (void)tag;
    ucall_writer_free(writer);
    ucall_writer_free(writer);
    check_rejected("ucall_writer_free");
    /* A writer at the same address is another one. */
    for (int at = 0; at < 100; ++at) ucall_writer_free(ucall_writer_new());
    ucall_call_reply_str(call, "freed", 5);
}

int main(void) {
    ucall_config_t config;
    memset(&config, 0, sizeof config);
    config.pick_port = true;
    if (!ucall_init(&config, &server)) return 1;
    ucall_add_procedure(server, "call", call_twice, NULL);
    ucall_add_procedure(server, "writer", writer_twice, NULL);
    signal(SIGTERM, stop);
    printf("listening on %d\n", config.port);
    fflush(stdout);
    if (!ucall_take_calls(server, 0)) return 1;
    signal(SIGTERM, SIG_DFL);
    ucall_free(server);
    ucall_free(server);
    check_rejected("ucall_free");
    return 0;
}
