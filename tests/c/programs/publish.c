/* Messages that the server starts, on two threads. */

#include "serving.h"

static ucall_call_t kept;

/* The string param, which has no NUL. */
static char const *text_param(ucall_call_t call, char const *name, char text[static 300]) {
    ucall_str_t value;
    size_t length;
    if (!ucall_param_named_str(call, name, 0, &value, &length) || length >= 300) return NULL;
    memcpy(text, value, length);
    text[length] = '\0';
    return text;
}

/* subscribe(topic, overflow): whether the limits allow it. */
static void subscribe(ucall_call_t call, ucall_callback_tag_t tag) {
    char topic[300];
    int64_t overflow = UCALL_OVERFLOW_DROP_OLDEST;
    (void)tag;
    ucall_param_named_i64(call, "overflow", 0, &overflow);
    ucall_call_reply_bool(
        call, ucall_call_subscribe(call, text_param(call, "topic", topic), (uint32_t)overflow));
}

static void unsubscribe(ucall_call_t call, ucall_callback_tag_t tag) {
    char topic[300];
    (void)tag;
    ucall_call_unsubscribe(call, text_param(call, "topic", topic));
    ucall_call_reply_bool(call, true);
}

/* publish(topic, params): the params are JSON text; without them there are none. */
static void publish(ucall_call_t call, ucall_callback_tag_t tag) {
    char topic[300];
    ucall_str_t params = NULL;
    size_t length = 0;
    (void)tag;
    ucall_param_named_str(call, "params", 0, &params, &length);
    ucall_call_reply_bool(
        call, ucall_publish(server, text_param(call, "topic", topic), "m", params, length));
}

static void notify(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    ucall_call_reply_bool(call, ucall_call_notify(call, "m", "{\n\"a\":\r[1]}", UCALL_NUL_TERMINATED));
}

/* keep(): defers the call, whose client `finish` then notifies before it replies. */
static void keep(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    kept = ucall_call_defer(call);
}

static void finish(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    bool sent = ucall_call_notify(kept, "m", "[2]", 3) && ucall_call_subscribe(kept, "kept", 0);
    ucall_call_reply_bool(kept, true);
    ucall_call_release(kept);
    ucall_call_reply_bool(call, sent);
}

/* What may not be, and NULL, is refused. */
static void refused(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    ucall_call_unsubscribe(call, NULL);
    ucall_call_unsubscribe(NULL, "t");
    ucall_call_reply_bool(
        call, ucall_publish(NULL, "t", "m", NULL, UCALL_NUL_TERMINATED) || ucall_publish(server, NULL, "m", NULL, UCALL_NUL_TERMINATED) ||
                  ucall_publish(server, "t", NULL, NULL, UCALL_NUL_TERMINATED) ||
                  ucall_publish(server, "t", "m", "5", UCALL_NUL_TERMINATED) ||
                  ucall_publish(server, "t", "m", "[", UCALL_NUL_TERMINATED) ||
                  ucall_publish(server, "\xff", "m", "[]", UCALL_NUL_TERMINATED) ||
                  ucall_call_notify(call, "m", "\"text\"", UCALL_NUL_TERMINATED) ||
                  ucall_call_notify(NULL, "m", NULL, UCALL_NUL_TERMINATED) ||
                  ucall_call_notify(call, NULL, NULL, UCALL_NUL_TERMINATED) ||
                  ucall_call_subscribe(call, NULL, 0) ||
                  ucall_call_subscribe(NULL, "t", 0) || ucall_call_subscribe(call, "\xff", 0) ||
                  ucall_call_subscribe(call, "t", 3));
}

/* text(length): a reply that a client may leave unread. */
static void text(ucall_call_t call, ucall_callback_tag_t tag) {
    int64_t length = 0;
    (void)tag;
    ucall_param_named_i64(call, "length", 0, &length);
    char *letters = malloc((size_t)length + 1);
    if (!letters) return;
    memset(letters, 'x', (size_t)length);
    ucall_call_reply_str(call, letters, (size_t)length);
    free(letters);
}

/* publish [posix|uring] [MAX_SUBSCRIPTIONS [MAX_TOPIC_BYTES [MAX_WAITING_MESSAGES [..._BYTES]]]] */
int main(int argc, char **argv) {
    ucall_config_t config = config_of(argc, argv);
    config.serving_threads = 2;
    config.max_subscriptions = number_in(argc, argv, 2);
    config.max_topic_bytes = number_in(argc, argv, 3);
    config.max_waiting_messages = number_in(argc, argv, 4);
    config.max_waiting_message_bytes = number_in(argc, argv, 5);
    procedure_t const procedures[] = {
        {"subscribe", subscribe}, {"unsubscribe", unsubscribe}, {"publish", publish},
        {"notify", notify}, {"keep", keep}, {"finish", finish}, {"refused", refused},
        {"text", text},
    };
    if (!start(&config, procedures, COUNT(procedures))) return 1;
    return serve_on_two_threads(&config);
}
