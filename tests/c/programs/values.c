/* Procedures that read params of any shape, and write results of any shape. */

#include "serving.h"

static void write_value(ucall_writer_t writer, ucall_value_t const *value);

static void write_object(ucall_writer_t writer, ucall_value_t const *object) {
    ucall_value_t member = {0};
    ucall_str_t key;
    size_t length;
    ucall_writer_begin_object(writer);
    while (ucall_value_next_member(object, &member, &key, &length)) {
        ucall_writer_key(writer, key, length);
        write_value(writer, &member);
    }
    ucall_writer_end_object(writer);
}

static void write_array(ucall_writer_t writer, ucall_value_t const *array) {
    ucall_value_t item = {0};
    ucall_writer_begin_array(writer);
    while (ucall_value_next(array, &item)) write_value(writer, &item);
    ucall_writer_end_array(writer);
}

static void write_number(ucall_writer_t writer, ucall_value_t const *value) {
    int64_t integer;
    uint64_t natural;
    double number;
    if (ucall_value_i64(value, &integer)) ucall_writer_i64(writer, integer);
    else if (ucall_value_u64(value, &natural)) ucall_writer_u64(writer, natural);
    else if (ucall_value_f64(value, &number)) ucall_writer_f64(writer, number);
    else ucall_writer_json(writer, value->json, value->json_length);
}

/* Writes a value as it was read, part by part. */
static void write_value(ucall_writer_t writer, ucall_value_t const *value) {
    ucall_str_t text;
    size_t length;
    bool truth;
    switch (ucall_value_type(value)) {
    case UCALL_TYPE_NULL: ucall_writer_null(writer); break;
    case UCALL_TYPE_BOOL:
        if (ucall_value_bool(value, &truth)) ucall_writer_bool(writer, truth);
        break;
    case UCALL_TYPE_INTEGER:
    case UCALL_TYPE_NUMBER: write_number(writer, value); break;
    case UCALL_TYPE_STRING:
        if (ucall_value_str(value, &text, &length)) ucall_writer_str(writer, text, length);
        break;
    case UCALL_TYPE_ARRAY: write_array(writer, value); break;
    case UCALL_TYPE_OBJECT: write_object(writer, value); break;
    case UCALL_TYPE_NONE: break;
    }
}

/* copy(…): the params, read and written part by part. */
static void copy(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_writer_t writer = ucall_writer_new();
    ucall_value_t params;
    (void)tag;
    if (ucall_call_params(call, &params)) write_value(writer, &params);
    else ucall_writer_null(writer);
    ucall_call_reply_writer(call, writer);
    ucall_writer_free(writer);
}

/* later(…): the same of a deferred call. */
static void later(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_call_t deferred = ucall_call_defer(call);
    copy(deferred, tag);
    ucall_call_release(deferred);
}

/* types(…): the type of the first param by each way, and how many members it has. */
static void types(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_value_t value = {0};
    ucall_type_t type = ucall_param_positional_type(call, 0);
    (void)tag;
    if (type == UCALL_TYPE_NONE) {
        type = ucall_param_named_type(call, "value", 5);
        ucall_param_named_value(call, "value", 0, &value);
    } else {
        ucall_param_positional_value(call, 0, &value);
    }
    if (ucall_value_type(&value) != type) abort();
    ucall_call_reply_i64(call, (int64_t)type * 1000 + (int64_t)ucall_value_count(&value));
}

/* u64(value): the number, by name and by position. */
static void u64(ucall_call_t call, ucall_callback_tag_t tag) {
    uint64_t number;
    (void)tag;
    if (ucall_param_named_u64(call, "value", 0, &number) ||
        ucall_param_positional_u64(call, 0, &number))
        ucall_call_reply_u64(call, number);
    else
        ucall_call_reply_error_invalid_params(call);
}

/* fail(data): an error with that text as its data. */
static void fail(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_str_t data = NULL;
    size_t length = 0;
    (void)tag;
    ucall_param_named_str(call, "data", 0, &data, &length);
    ucall_call_reply_error_data(call, 7, "seven", UCALL_NUL_TERMINATED, data, length);
}

/* unfinished(): a writer whose object is open. */
static void unfinished(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_writer_t writer = ucall_writer_new();
    ucall_str_t text;
    size_t length;
    (void)tag;
    ucall_writer_begin_object(writer);
    if (ucall_writer_text(writer, &text, &length)) abort();
    if (ucall_last_error_code() != UCALL_ERROR_INVALID_JSON) abort();
    if (ucall_writer_i64(writer, 5) || ucall_writer_end_object(writer)) abort();
    ucall_call_reply_writer(call, writer);
    if (ucall_last_error_code() != UCALL_ERROR_INVALID_REPLY) abort();
    ucall_writer_clear(writer);
    if (!ucall_writer_null(writer) || !ucall_writer_text(writer, NULL, NULL)) abort();
    ucall_writer_free(writer);
}

static void nothing(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    ucall_call_reply_null(call);
}

/* NULL and zeros everywhere. */
static void read_nothing(void) {
    ucall_value_t zeros = {0}, item = {0};
    ucall_str_t text = "kept";
    size_t length = 4;
    bool truth;
    int64_t integer;
    uint64_t natural;
    double number;
    ucall_value_t const *values[] = {NULL, &zeros};
    for (size_t at = 0; at < 2; ++at) {
        ucall_value_t const *value = values[at];
        if (ucall_value_type(value) != UCALL_TYPE_NONE || ucall_value_count(value) ||
            ucall_value_bool(value, &truth) || ucall_value_i64(value, &integer) ||
            ucall_value_u64(value, &natural) || ucall_value_f64(value, &number) ||
            ucall_value_str(value, &text, &length) || ucall_value_next(value, &item) ||
            ucall_value_next(value, NULL) ||
            ucall_value_next_member(value, &item, &text, &length) ||
            ucall_value_next_member(value, NULL, NULL, NULL) || length != 4)
            abort();
    }
    if (ucall_call_params(NULL, &item) || ucall_param_named_value(NULL, "a", 0, &item) ||
        ucall_param_positional_value(NULL, 0, NULL) ||
        ucall_param_named_type(NULL, NULL, 0) != UCALL_TYPE_NONE ||
        ucall_param_positional_type(NULL, 0) != UCALL_TYPE_NONE ||
        ucall_param_named_u64(NULL, "a", 0, &natural) ||
        ucall_param_positional_u64(NULL, 0, &natural))
        abort();
}

static void write_nothing(void) {
    ucall_writer_t writer = ucall_writer_new();
    ucall_writer_free(NULL);
    ucall_writer_clear(NULL);
    if (ucall_writer_begin_array(NULL) || ucall_writer_end_array(NULL) ||
        ucall_writer_begin_object(NULL) || ucall_writer_end_object(NULL) ||
        ucall_writer_key(NULL, "a", 1) || ucall_writer_null(NULL) ||
        ucall_writer_bool(NULL, true) || ucall_writer_i64(NULL, 1) ||
        ucall_writer_u64(NULL, 1) || ucall_writer_f64(NULL, 1) ||
        ucall_writer_str(NULL, "a", 1) || ucall_writer_json(NULL, "1", 1) ||
        ucall_writer_text(NULL, NULL, NULL) || ucall_writer_str(writer, NULL, 1) ||
        ucall_writer_json(writer, "1", (size_t)-2) || ucall_writer_key(writer, NULL, 0))
        abort();
    ucall_call_reply_writer(NULL, writer);
    ucall_call_reply_null(NULL);
    ucall_call_reply_u64(NULL, 1);
    ucall_call_reply_error_data(NULL, 1, NULL, 0, NULL, 0);
    ucall_writer_free(writer);
}

int main(int argc, char **argv) {
    ucall_config_t config = config_of(argc, argv);
    config.max_nesting = 1024;
    read_nothing();
    write_nothing();
    procedure_t const procedures[] = {
        {"copy", copy}, {"later", later}, {"types", types}, {"u64", u64}, {"fail", fail},
        {"unfinished", unfinished}, {"nothing", nothing},
    };
    if (!start(&config, procedures, COUNT(procedures))) return 1;
    return serve(&config);
}
