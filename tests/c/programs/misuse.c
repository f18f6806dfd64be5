/* Frees handles twice, which a debug build rejects. Replies "freed" from each procedure. */

#include "serving.h"

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

int main(int argc, char **argv) {
    ucall_config_t config = config_of(argc, argv);
    procedure_t const procedures[] = {{"call", call_twice}, {"writer", writer_twice}};
    if (!start(&config, procedures, COUNT(procedures))) return 1;
    announce(&config);
    if (!ucall_take_calls(server, 0)) return 1;
    signal(SIGTERM, SIG_DFL);
    ucall_free(server);
    ucall_free(server);
    check_rejected("ucall_free");
    return 0;
}
