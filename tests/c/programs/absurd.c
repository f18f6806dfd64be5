/* Procedures that pass invalid lengths and texts to the library. */
#include <math.h>

#include "serving.h"

/* The library's error for the last reply by `reply` or `later`. */
static char why[256];

/* A negative length, as a size_t. -1 is UCALL_NUL_TERMINATED. */
static size_t const negative = (size_t)-2;

static void reply_absurdly(ucall_call_t call, ucall_str_t how, size_t length) {
    if (text_is(how, length, "content")) ucall_call_reply_content(call, "17", negative);
    if (text_is(how, length, "content, half")) ucall_call_reply_content(call, "17", negative / 2 + 1);
    if (text_is(how, length, "content, NULL")) ucall_call_reply_content(call, NULL, 3);
    if (text_is(how, length, "content, NULL, all")) ucall_call_reply_content(call, NULL, negative);
    if (text_is(how, length, "content, bytes")) ucall_call_reply_content(call, "\"\xff\"", 3);
    if (text_is(how, length, "content, NUL")) ucall_call_reply_content(call, "1\0", 2);
    if (text_is(how, length, "content, cut")) ucall_call_reply_content(call, "{\"a\":1}", 6);
    if (text_is(how, length, "content, empty")) ucall_call_reply_content(call, "", 0);
    if (text_is(how, length, "content, none")) ucall_call_reply_content(call, "17", 0);
    if (text_is(how, length, "content, blank")) ucall_call_reply_content(call, " \n", 2);
    if (text_is(how, length, "content, all")) ucall_call_reply_content(call, "17", (size_t)-1);
    if (text_is(how, length, "str, none")) ucall_call_reply_str(call, "x", 0);
    if (text_is(how, length, "error, none")) ucall_call_reply_error(call, 7, "x", 0);
    if (text_is(how, length, "str")) ucall_call_reply_str(call, "x", negative);
    if (text_is(how, length, "str, NULL")) ucall_call_reply_str(call, NULL, negative);
    if (text_is(how, length, "str, bytes")) ucall_call_reply_str(call, "\xc3", 1);
    if (text_is(how, length, "f64")) ucall_call_reply_f64(call, -INFINITY);
    if (text_is(how, length, "error")) ucall_call_reply_error(call, 7, "x", negative);
    if (text_is(how, length, "error, NULL")) ucall_call_reply_error(call, 7, NULL, negative);
    if (text_is(how, length, "twice")) {
        ucall_call_reply_i64(call, 1);
        ucall_call_reply_content(call, "2", negative);
    }
    snprintf(why, sizeof why, "%s", ucall_last_error());
}

/* reply(how): a reply that cannot be sent. */
static void reply(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_str_t how;
    size_t length;
    (void)tag;
    if (ucall_param_named_str(call, "how", 0, &how, &length)) reply_absurdly(call, how, length);
}

/* later(how): the same for a deferred call. */
static void later(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_str_t how;
    size_t length;
    ucall_call_t deferred = ucall_call_defer(call);
    (void)tag;
    if (ucall_param_named_str(deferred, "how", 0, &how, &length))
        reply_absurdly(deferred, how, length);
    ucall_call_release(deferred);
}

/* reason(): the library's error; "stale" if it is still set in this callback. */
static void reason(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    ucall_call_reply_str(call, *ucall_last_error() ? "stale" : why, UCALL_NUL_TERMINATED);
}

/* params(…): the number of getters that return true for names of invalid lengths. */
static void params(ucall_call_t call, ucall_callback_tag_t tag) {
    static char const *const names[] = {"a", "/a", "/0", "", "/", NULL};
    static size_t const lengths[] = {(size_t)-3, (size_t)-2, (size_t)-1 / 2 + 1};
    int found = 0;
    (void)tag;
    for (size_t name = 0; name < sizeof names / sizeof *names; ++name)
        for (size_t at = 0; at < sizeof lengths / sizeof *lengths; ++at) {
            size_t length = lengths[at], text_length;
            bool truth;
            int64_t integer;
            double number;
            ucall_str_t text;
            found += ucall_param_named_bool(call, names[name], length, &truth);
            found += ucall_param_named_i64(call, names[name], length, &integer);
            found += ucall_param_named_f64(call, names[name], length, &number);
            found += ucall_param_named_str(call, names[name], length, &text, &text_length);
            found += ucall_param_named_json(call, names[name], length, &text, &text_length);
            found += ucall_param_positional_bool(call, length, &truth);
            found += ucall_param_positional_i64(call, length, &integer);
            found += ucall_param_positional_f64(call, length, &number);
            found += ucall_param_positional_str(call, length, &text, &text_length);
            found += ucall_param_positional_json(call, length, &text, &text_length);
        }
    found += ucall_param_named_json(call, NULL, 5, NULL, NULL);
    ucall_call_reply_i64(call, found);
}

int main(int argc, char **argv) {
    ucall_config_t config = config_of(argc, argv);
    procedure_t const procedures[] = {
        {"reply", reply}, {"later", later}, {"reason", reason}, {"params", params},
    };
    if (!start(&config, procedures, COUNT(procedures))) return 1;
    return serve(&config);
}
