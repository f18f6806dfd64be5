/* A stream whose items a test sends one by one. */

#include "serving.h"

static ucall_call_t kept;
static int rooms;

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
    ucall_str_t name = "", value;
    size_t name_length = 0, length;
    bool later = false;
    (void)tag;
    ucall_param_named_bool(call, "later", 0, &later);
    ucall_call_t used = later ? ucall_call_defer(call) : call;
    ucall_param_named_str(used, "name", 0, &name, &name_length);
    if (ucall_call_meta(used, name, name_length, &value, &length))
        ucall_call_reply_str(used, value, length);
    else ucall_call_reply_content(used, "null", UCALL_NUL_TERMINATED);
    if (later) ucall_call_release(used);
}

/* NULL is allowed everywhere. */
static void nulls(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    ucall_call_reply_bool(
        call, ucall_call_takes_items(NULL) || ucall_call_stream(NULL, 0, NULL, NULL) ||
                  ucall_call_send_item(NULL, "1", UCALL_NUL_TERMINATED) != UCALL_ITEM_ENDED ||
                  ucall_call_meta(NULL, "a", 0, NULL, NULL) ||
                  ucall_call_meta(call, NULL, 0, NULL, NULL));
}

/* items [posix|uring] [MAX_STREAM_BYTES] */
int main(int argc, char **argv) {
    ucall_config_t config = config_of(argc, argv);
    config.max_stream_bytes = number_in(argc, argv, 2);
    procedure_t const procedures[] = {
        {"open", open_stream}, {"send", send_items}, {"room_count", room_count},
        {"is_cancelled", is_cancelled}, {"finish", finish}, {"meta", meta}, {"nulls", nulls},
    };
    if (!start(&config, procedures, COUNT(procedures))) return 1;
    int status = serve(&config);
    if (kept) ucall_call_release(kept);
    return status;
}
