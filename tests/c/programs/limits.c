/*
 * Serves the functions that limits are tried with, and has them set: --engine NAME
 * [--certificate FILE] [--FIELD NUMBER]..., where FIELD is one of ucall_config_t.
 */

#include "serving.h"

enum { HELD_MAX = 100 };

static ucall_call_t held[HELD_MAX];
static int count;
static int64_t texts;

static void echo(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_str_t text;
    size_t length;
    (void)tag;
    if (ucall_param_named_json(call, "value", 0, &text, &length))
        ucall_call_reply_content(call, text, length);
    else
        ucall_call_reply_error_invalid_params(call);
}

static void text(ucall_call_t call, ucall_callback_tag_t tag) {
    int64_t length;
    (void)tag;
    if (!ucall_param_named_i64(call, "length", 0, &length)) {
        ucall_call_reply_error_invalid_params(call);
        return;
    }
    char *letters = malloc((size_t)length + 1);
    memset(letters, 'x', (size_t)length);
    ++texts;
    ucall_call_reply_str(call, letters, (size_t)length);
    free(letters);
}

static void hold(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    held[count] = ucall_call_defer(call);
    if (held[count]) ++count;
}

static void release(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    int const released = count;
    while (count) {
        ucall_call_reply_i64(held[--count], 1);
        ucall_call_release(held[count]);
    }
    ucall_call_reply_i64(call, released);
}

static void how_many_are_held(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    ucall_call_reply_i64(call, count);
}

static void served(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    ucall_call_reply_i64(call, texts);
}

/* Sets the field of the configuration with the name after two dashes; false for an unknown name. */
static bool set_field(ucall_config_t *config, char const *name, long value) {
#define FIELD(known, type) \
    if (!strcmp(name, "--" #known)) return config->known = (type)value, true
    FIELD(max_batch_calls, size_t);
    FIELD(max_connections, size_t);
    FIELD(max_connections_per_peer, size_t);
    FIELD(max_head_bytes, size_t);
    FIELD(max_headers, size_t);
    FIELD(max_body_bytes, size_t);
    FIELD(max_body_ratio, size_t);
    FIELD(compression_min_bytes, size_t);
    FIELD(compression_max_bytes, size_t);
    FIELD(max_frame_bytes, size_t);
    FIELD(max_message_frames, size_t);
    FIELD(max_unanswered_pings, size_t);
    FIELD(max_chunk_overhead_bytes, size_t);
    FIELD(max_nesting, size_t);
    FIELD(max_parts, size_t);
    FIELD(max_reply_bytes, size_t);
    FIELD(max_id_bytes, size_t);
    FIELD(max_meta_bytes, size_t);
    FIELD(max_pipeline, size_t);
    FIELD(max_connection_calls, size_t);
    FIELD(max_output_bytes, size_t);
    FIELD(max_held_bytes, size_t);
    FIELD(max_running_calls, size_t);
    FIELD(max_discarded_bytes, size_t);
    FIELD(handshake_timeout_ms, uint64_t);
    FIELD(head_timeout_ms, uint64_t);
    FIELD(body_timeout_ms, uint64_t);
    FIELD(idle_timeout_ms, uint64_t);
    FIELD(ping_interval_ms, uint64_t);
    FIELD(send_timeout_ms, uint64_t);
    FIELD(discard_timeout_ms, uint64_t);
#undef FIELD
    return false;
}

int main(int words_count, char **words) {
    ucall_config_t config = config_of(0, NULL);
    char const *certificate = NULL;
    config.ssl_certificates_paths = &certificate;
    for (int i = 1; i + 1 < words_count; i += 2) {
        char const *value = words[i + 1];
        if (set_field(&config, words[i], atol(value))) continue;
        if (is(words[i], "--engine"))
            config.engine = engine_of(value);
        else if (!strcmp(words[i], "--certificate")) {
            certificate = value;
            config.ssl_certificates_count = 1;
            config.use_ssl = true;
        } else {
            fprintf(stderr, "there is no %s\n", words[i]);
            return 1;
        }
    }
    procedure_t const procedures[] = {
        {"echo", echo}, {"text", text}, {"hold", hold}, {"release", release},
        {"held", how_many_are_held}, {"served", served},
    };
    if (!start(&config, procedures, COUNT(procedures))) return 1;
    int status = serve(&config);
    while (count) ucall_call_release(held[--count]);
    return status;
}
