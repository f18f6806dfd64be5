/* A stream whose items a test sends one by one. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ucall/ucall.h>

static ucall_server_t server;
static ucall_call_t kept;
static int rooms;

static void stop(int signal_number) {
    (void)signal_number;
    ucall_stop(server);
}

static void has_room(ucall_callback_tag_t tag) {
    ++*(int *)tag;
}

/* open(overflow): a stream, or the list of all its items for a client that takes none. */
static void open_stream(ucall_call_t call, ucall_callback_tag_t tag) {
    int64_t overflow = UCALL_OVERFLOW_PAUSE;
    bool collect = false;
    (void)tag;
    ucall_param_named_i64(call, "overflow", 0, &overflow);
    ucall_param_named_bool(call, "collect", 0, &collect);
    if (collect && !ucall_call_takes_items(call)) {
        ucall_call_reply_content(call, "[1,2]", UCALL_NUL_TERMINATED);
        return;
    }
    kept = ucall_call_stream(call, (uint32_t)overflow, has_room, &rooms);
    if (kept && !ucall_call_takes_items(kept)) abort();
    if (ucall_call_send_item(call, "1", UCALL_NUL_TERMINATED) != UCALL_ITEM_ENDED) abort();
}

/* send(item, times): how the last of the equal items was received. */
static void send_items(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_str_t item;
    size_t length;
    int64_t times = 1;
    ucall_item_t sent = UCALL_ITEM_ENDED;
    (void)tag;
    ucall_param_named_i64(call, "times", 0, &times);
    if (!ucall_param_named_str(call, "item", 0, &item, &length)) item = NULL, length = 0;
    for (; times > 0; --times) sent = ucall_call_send_item(kept, item, length);
    ucall_call_reply_i64(call, sent);
}

static void room_count(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    ucall_call_reply_i64(call, rooms);
}

static void is_cancelled(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    ucall_call_reply_bool(call, ucall_call_is_cancelled(kept));
}

/* finish(reply): ends the stream; without `reply` its caller gets an error. */
static void finish(ucall_call_t call, ucall_callback_tag_t tag) {
    int64_t reply;
    (void)tag;
    if (ucall_param_named_i64(call, "reply", 0, &reply)) ucall_call_reply_i64(kept, reply);
    ucall_item_t late = ucall_call_send_item(kept, "1", UCALL_NUL_TERMINATED);
    ucall_call_release(kept);
    kept = NULL;
    ucall_call_reply_i64(call, late);
}

/* meta(name, later): a member of `_meta`, of the deferred call if it is `later`. */
static void meta(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_str_t name, value;
    char copy[100] = "";
    size_t length;
    bool later = false;
    (void)tag;
    ucall_param_named_bool(call, "later", 0, &later);
    if (ucall_param_named_str(call, "name", 0, &name, &length) && length < sizeof copy)
        memcpy(copy, name, length);
    ucall_call_t used = later ? ucall_call_defer(call) : call;
    if (ucall_call_meta(used, copy, &value, &length)) ucall_call_reply_str(used, value, length);
    else ucall_call_reply_content(used, "null", UCALL_NUL_TERMINATED);
    if (later) ucall_call_release(used);
}

/* NULL is allowed everywhere. */
static void nulls(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    ucall_call_reply_bool(
        call, ucall_call_takes_items(NULL) || ucall_call_stream(NULL, 0, NULL, NULL) ||
                  ucall_call_send_item(NULL, "1", UCALL_NUL_TERMINATED) != UCALL_ITEM_ENDED ||
                  ucall_call_meta(NULL, "a", NULL, NULL) ||
                  ucall_call_meta(call, NULL, NULL, NULL));
}

/* items [posix|uring] [MAX_STREAM_BYTES] */
int main(int argc, char **argv) {
    ucall_config_t config = {0};
    config.pick_port = true;
    config.engine = argc > 1 && !strcmp(argv[1], "uring") ? UCALL_ENGINE_URING : UCALL_ENGINE_POSIX;
    config.max_stream_bytes = argc > 2 ? (size_t)atoi(argv[2]) : 0;
    if (!ucall_init(&config, &server)) {
        fprintf(stderr, "%s\n", ucall_last_error());
        return 1;
    }
    ucall_add_procedure(server, "open", open_stream, NULL);
    ucall_add_procedure(server, "send", send_items, NULL);
    ucall_add_procedure(server, "room_count", room_count, NULL);
    ucall_add_procedure(server, "is_cancelled", is_cancelled, NULL);
    ucall_add_procedure(server, "finish", finish, NULL);
    ucall_add_procedure(server, "meta", meta, NULL);
    ucall_add_procedure(server, "nulls", nulls, NULL);
    signal(SIGTERM, stop);
    printf("listening on %d\n", config.port);
    fflush(stdout);
    bool stopped = ucall_take_calls(server, 0);
    ucall_free(server);
    if (kept) ucall_call_release(kept);
    return stopped ? 0 : 1;
}
