/* A server that answers on other threads, and whose procedure `race` has a data race. */

#include "serving.h"

static int64_t shared;

static void *answer_on_a_thread(void *deferred) {
    ucall_call_t call = deferred;
    ucall_str_t text;
    size_t length;
    if (ucall_param_named_str(call, "text", 0, &text, &length))
        ucall_call_reply_str(call, text, length);
    ucall_call_release(call);
    return NULL;
}

/* echo(text): by a thread of its own. */
static void echo(ucall_call_t call, ucall_callback_tag_t tag) {
    pthread_t thread;
    ucall_call_t deferred = ucall_call_defer(call);
    (void)tag;
    if (!deferred || pthread_create(&thread, NULL, answer_on_a_thread, deferred)) abort();
    pthread_detach(thread);
}

static void *write_shared(void *none) {
    shared = 1;
    return none;
}

/* race(): two threads write one number. */
static void race(ucall_call_t call, ucall_callback_tag_t tag) {
    pthread_t thread;
    (void)tag;
    if (pthread_create(&thread, NULL, write_shared, NULL)) abort();
    shared = 1;
    pthread_join(thread, NULL);
    ucall_call_reply_i64(call, shared);
}

int main(int argc, char **argv) {
    ucall_config_t config = config_of(argc, argv);
    procedure_t const procedures[] = {{"echo", echo}, {"race", race}};
    if (!start(&config, procedures, COUNT(procedures))) return 1;
    return serve(&config);
}
