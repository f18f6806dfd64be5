/* Messages that the server starts, on two threads. */

#include "serving.h"

static ucall_call_t kept;

/* Text of a param, which has no NUL at its end. */
typedef struct {
    ucall_str_t text;
    size_t length;
} text_t;

static text_t text_param(ucall_call_t call, char const *name) {
    text_t found = {NULL, 0};
    ucall_param_named_str(call, name, 0, &found.text, &found.length);
    return found;
}

/* subscribe(topic, overflow): whether the limits allow it. */
static void subscribe(ucall_call_t call, ucall_callback_tag_t tag) {
    text_t topic = text_param(call, "topic");
    int64_t overflow = UCALL_OVERFLOW_DROP_OLDEST;
    (void)tag;
    ucall_param_named_i64(call, "overflow", 0, &overflow);
    ucall_call_reply_bool(
        call, ucall_call_subscribe(call, topic.text, topic.length, (uint32_t)overflow));
}

static void unsubscribe(ucall_call_t call, ucall_callback_tag_t tag) {
    text_t topic = text_param(call, "topic");
    (void)tag;
    ucall_call_unsubscribe(call, topic.text, topic.length);
    ucall_call_reply_bool(call, true);
}

/* publish(topic, params): the params are JSON text; without them there are none. */
static void publish(ucall_call_t call, ucall_callback_tag_t tag) {
    text_t topic = text_param(call, "topic"), params = text_param(call, "params");
    (void)tag;
    ucall_call_reply_bool(call, ucall_publish(server, topic.text, topic.length, "m", 1,
                                              params.text, params.length));
}

static void notify(ucall_call_t call, ucall_callback_tag_t tag) {
    text_t params = {"{\n\"a\":\r[1]} ", 11};
    (void)tag;
    ucall_call_reply_bool(call, ucall_call_notify(call, "m", 0, params.text, params.length));
}

/* keep(): defers the call, whose client `finish` then notifies before it replies. */
static void keep(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    kept = ucall_call_defer(call);
}

static void finish(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    bool sent = ucall_call_notify(kept, "m", 0, "[2]", 3) &&
                ucall_call_subscribe(kept, "kept", 0, UCALL_OVERFLOW_DROP_OLDEST);
    ucall_call_reply_bool(kept, true);
    ucall_call_release(kept);
    ucall_call_reply_bool(call, sent);
}

/* What may not be, NULL, and negative lengths are refused. */
static void refused(ucall_call_t call, ucall_callback_tag_t tag) {
    size_t const nul = UCALL_NUL_TERMINATED, negative = (size_t)-3;
    (void)tag;
    ucall_call_unsubscribe(call, NULL, 0);
    ucall_call_unsubscribe(NULL, "t", 0);
    ucall_call_unsubscribe(call, "t", negative);
    ucall_call_reply_bool(
        call, ucall_publish(NULL, "t", 0, "m", 0, NULL, 0) ||
                  ucall_publish(server, NULL, 0, "m", 0, NULL, 0) ||
                  ucall_publish(server, "t", 0, NULL, 0, NULL, 0) ||
                  ucall_publish(server, "t", 0, "m", 0, "5", nul) ||
                  ucall_publish(server, "t", 0, "m", 0, "[", nul) ||
                  ucall_publish(server, "\xff", 0, "m", 0, "[]", nul) ||
                  ucall_publish(server, "t", negative, "m", 0, NULL, 0) ||
                  ucall_publish(server, "t", 0, "m", negative, NULL, 0) ||
                  ucall_publish(server, "t", 0, "m", 0, "[]", negative) ||
                  ucall_publish(server, "t", 0, "m", 0, NULL, negative) ||
                  ucall_call_notify(call, "m", 0, "\"text\"", nul) ||
                  ucall_call_notify(NULL, "m", 0, NULL, 0) ||
                  ucall_call_notify(call, NULL, 0, NULL, 0) ||
                  ucall_call_notify(call, "m", negative, NULL, 0) ||
                  ucall_call_notify(call, "m", 0, "[]", negative) ||
                  ucall_call_notify(call, "m", 0, NULL, negative) ||
                  ucall_call_subscribe(call, NULL, 0, UCALL_OVERFLOW_CLOSE) ||
                  ucall_call_subscribe(NULL, "t", 0, UCALL_OVERFLOW_CLOSE) ||
                  ucall_call_subscribe(call, "\xff", 0, UCALL_OVERFLOW_CLOSE) ||
                  ucall_call_subscribe(call, "t", negative, UCALL_OVERFLOW_CLOSE) ||
                  ucall_call_subscribe(call, "t", 0, UCALL_OVERFLOW_PAUSE));
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
