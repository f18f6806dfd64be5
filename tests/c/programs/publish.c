/* Messages that the server starts, on two threads. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ucall/ucall.h>

static ucall_server_t server;
static ucall_call_t kept;

static void on_signal(int number) {
    (void)number;
    ucall_stop(server);
}

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

static void *serve(void *thread) {
    return ucall_take_calls(server, (uint16_t)(size_t)thread) ? NULL : thread;
}

/* publish [posix|uring] [MAX_SUBSCRIPTIONS [MAX_TOPIC_BYTES [MAX_WAITING_MESSAGES [..._BYTES]]]] */
int main(int argc, char **argv) {
    ucall_config_t config = {0};
    config.pick_port = true;
    config.serving_threads = 2;
    config.engine = argc > 1 && !strcmp(argv[1], "uring") ? UCALL_ENGINE_URING : UCALL_ENGINE_POSIX;
    config.max_subscriptions = argc > 2 ? (size_t)atoi(argv[2]) : 0;
    config.max_topic_bytes = argc > 3 ? (size_t)atoi(argv[3]) : 0;
    config.max_waiting_messages = argc > 4 ? (size_t)atoi(argv[4]) : 0;
    config.max_waiting_message_bytes = argc > 5 ? (size_t)atoi(argv[5]) : 0;
    if (!ucall_init(&config, &server)) {
        fprintf(stderr, "%s\n", ucall_last_error());
        return 1;
    }
    ucall_add_procedure(server, "subscribe", subscribe, NULL);
    ucall_add_procedure(server, "unsubscribe", unsubscribe, NULL);
    ucall_add_procedure(server, "publish", publish, NULL);
    ucall_add_procedure(server, "notify", notify, NULL);
    ucall_add_procedure(server, "keep", keep, NULL);
    ucall_add_procedure(server, "finish", finish, NULL);
    ucall_add_procedure(server, "refused", refused, NULL);
    ucall_add_procedure(server, "text", text, NULL);
    signal(SIGTERM, on_signal);
    printf("listening on %d\n", config.port);
    fflush(stdout);
    pthread_t other;
    if (pthread_create(&other, NULL, serve, (void *)1)) return 1;
    void *failed = NULL;
    if (!ucall_take_calls(server, 0)) return 1;
    pthread_join(other, &failed);
    ucall_free(server);
    return failed ? 1 : 0;
}
