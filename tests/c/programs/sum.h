/* The function that the test programs serve, and their signal handler. */

#ifndef SUM_H
#define SUM_H

#include <string.h>

#include <ucall/ucall.h>

static ucall_server_t server;

static void on_signal(int number) {
    (void)number;
    ucall_stop(server);
}

static void sum(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    int64_t a, b;
    if (!ucall_param_named_i64(call, "a", 0, &a) || !ucall_param_named_i64(call, "b", 0, &b)) {
        ucall_call_reply_error_invalid_params(call);
        return;
    }
    ucall_call_reply_i64(call, a + b);
}

static bool is(char const *word, char const *other) { return !strcmp(word, other); }

#endif
