/* Procedures that read arrays and bytes, and reply with them. */

#include "serving.h"

static bool read_value(ucall_call_t call, ucall_buffer_t *buffer) {
    return ucall_param_named_buffer(call, "value", 0, buffer) ||
           ucall_param_named_buffer(call, "/list/1", 0, buffer) ||
           ucall_param_positional_buffer(call, 0, buffer);
}

/* echo(value): the same array or bytes. */
static void echo(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_buffer_t buffer;
    (void)tag;
    if (read_value(call, &buffer)) ucall_call_reply_buffer(call, &buffer);
    else ucall_call_reply_error_invalid_params(call);
}

static void *echo_later(void *call) {
    echo(call, NULL);
    ucall_call_release(call);
    return NULL;
}

/* later(value): the same of a deferred call, on another thread. */
static void later(ucall_call_t call, ucall_callback_tag_t tag) {
    pthread_t thread;
    ucall_call_t deferred = ucall_call_defer(call);
    (void)tag;
    if (deferred && !pthread_create(&thread, NULL, echo_later, deferred)) pthread_detach(thread);
}

/* stream(value): an item, and then the same. */
static void stream(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_call_t deferred = ucall_call_stream(call, UCALL_OVERFLOW_PAUSE, NULL, NULL);
    if (!deferred) return;
    ucall_call_send_item(deferred, "1", 1);
    echo(deferred, tag);
    ucall_call_release(deferred);
}

/* describe(value): what the array is, whether it is aligned, and whether a pointer finds it too. */
static void describe(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_writer_t writer = ucall_writer_new();
    ucall_buffer_t buffer, again;
    (void)tag;
    if (!ucall_param_named_buffer(call, "value", 5, &buffer) ||
        !ucall_param_named_buffer(call, "/value", 6, &again) ||
        !ucall_param_named_buffer(call, "value", 5, NULL) ||
        memcmp(buffer.data, again.data, buffer.length) || again.length != buffer.length) {
        ucall_writer_free(writer);
        ucall_call_reply_error_invalid_params(call);
        return;
    }
    ucall_writer_begin_array(writer);
    ucall_writer_u64(writer, buffer.dtype);
    ucall_writer_begin_array(writer);
    for (size_t at = 0; at < buffer.rank; ++at) ucall_writer_u64(writer, buffer.shape[at]);
    ucall_writer_end_array(writer);
    ucall_writer_u64(writer, buffer.length);
    ucall_writer_bool(writer, !((uintptr_t)buffer.data % 8));
    ucall_writer_end_array(writer);
    ucall_call_reply_writer(call, writer);
    ucall_writer_free(writer);
}

/* text(value): how the other getters see it. */
static void text(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_writer_t writer = ucall_writer_new();
    ucall_value_t params;
    ucall_str_t found;
    size_t length;
    (void)tag;
    ucall_writer_begin_array(writer);
    ucall_writer_u64(writer, ucall_param_named_type(call, "value", 5));
    if (ucall_param_named_str(call, "value", 5, &found, &length))
        ucall_writer_str(writer, found, length);
    if (ucall_param_named_json(call, "value", 5, &found, &length))
        ucall_writer_json(writer, found, length);
    if (ucall_call_params(call, &params))
        ucall_writer_json(writer, params.json, params.json_length);
    ucall_writer_end_array(writer);
    ucall_call_reply_writer(call, writer);
    ucall_writer_free(writer);
}

/* text_later(value): the same of a call that was read before it was deferred. */
static void text_later(ucall_call_t call, ucall_callback_tag_t tag) {
    bool is_text = ucall_param_named_str(call, "value", 5, NULL, NULL);
    ucall_call_t deferred = ucall_call_defer(call);
    if (is_text) text(deferred, tag);
    ucall_call_release(deferred);
}

/* wrong(how): a reply that is rejected. */
static void wrong(ucall_call_t call, ucall_callback_tag_t tag) {
    static size_t const sides[65] = {1, 2};
    static size_t const huge[3] = {SIZE_MAX / 2, 4, 2};
    static double const items[2] = {1, 2};
    ucall_buffer_t const buffers[] = {
        {NULL, 16, UCALL_DTYPE_F64, 2, sides},
        {items, SIZE_MAX, UCALL_DTYPE_BYTES, 0, NULL},
        {items, 16, 16, 2, sides},
        {items, 16, UINT32_MAX, 2, sides},
        {items, 16, UCALL_DTYPE_F64, 2, NULL},
        {items, 8, UCALL_DTYPE_F64, 65, sides},
        {items, 8, UCALL_DTYPE_F64, UINT32_MAX, sides},
        {items, 15, UCALL_DTYPE_F64, 2, sides},
        {items, 8, UCALL_DTYPE_F64, 2, sides},
        {items, 16, UCALL_DTYPE_F64, 0, NULL},
        {items, 16, UCALL_DTYPE_F64, 3, huge},
        {items, 0, UCALL_DTYPE_F64, 2, sides},
        {items, 16, UCALL_DTYPE_BYTES, 1, sides},
    };
    int64_t how = 0;
    (void)tag;
    if (!ucall_param_positional_i64(call, 0, &how)) return;
    if (how < (int64_t)COUNT(buffers)) ucall_call_reply_buffer(call, &buffers[how]);
    else ucall_call_reply_buffer(call, NULL);
    if (ucall_last_error_code() != UCALL_ERROR_INVALID_REPLY) abort();
    // Ignored, as any second reply.
    ucall_call_reply_buffer(call, &(ucall_buffer_t){items, 16, UCALL_DTYPE_F64, 2, sides});
}

/* empty(): no bytes at all. */
static void empty(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_buffer_t const none = {NULL, 0, UCALL_DTYPE_BYTES, 0, NULL};
    ucall_buffer_t buffer = none;
    (void)tag;
    if (!ucall_param_named_buffer(NULL, "value", 0, &buffer) &&
        !ucall_param_positional_buffer(NULL, 0, &buffer) &&
        !ucall_param_named_buffer(call, NULL, 0, &buffer) && !buffer.data)
        ucall_call_reply_buffer(call, &none);
}

int main(int argc, char **argv) {
    ucall_config_t config = config_of(argc, argv);
    procedure_t const procedures[] = {
        {"echo", echo}, {"later", later}, {"stream", stream}, {"describe", describe},
        {"text", text}, {"wrong", wrong}, {"empty", empty},   {"sum", sum},
        {"text_later", text_later},
    };
    ucall_call_reply_buffer(NULL, NULL);
    if (!start(&config, procedures, COUNT(procedures))) return 1;
    return serve(&config);
}
