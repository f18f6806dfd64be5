/* Procedures whose params choose the getter or the reply. */
#include <fcntl.h>
#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

#include "serving.h"

/* A reader by name (`name` not NULL) or by position. */
typedef struct param_key {
    ucall_str_t name;
    size_t length, index;
} param_key;

static bool read_bool(ucall_call_t call, param_key at, bool *out) {
    return at.name ? ucall_param_named_bool(call, at.name, at.length, out)
                   : ucall_param_positional_bool(call, at.index, out);
}

static bool read_i64(ucall_call_t call, param_key at, int64_t *out) {
    return at.name ? ucall_param_named_i64(call, at.name, at.length, out)
                   : ucall_param_positional_i64(call, at.index, out);
}

static bool read_f64(ucall_call_t call, param_key at, double *out) {
    return at.name ? ucall_param_named_f64(call, at.name, at.length, out)
                   : ucall_param_positional_f64(call, at.index, out);
}

static bool read_str(ucall_call_t call, param_key at, ucall_str_t *out, size_t *length) {
    return at.name ? ucall_param_named_str(call, at.name, at.length, out, length)
                   : ucall_param_positional_str(call, at.index, out, length);
}

static bool read_json(ucall_call_t call, param_key at, ucall_str_t *out, size_t *length) {
    return at.name ? ucall_param_named_json(call, at.name, at.length, out, length)
                   : ucall_param_positional_json(call, at.index, out, length);
}

/* Replies with the param at `at`, read with the getter `how`; 404 if the getter returns false. */
static void reply_param(ucall_call_t call, ucall_str_t how, size_t how_length, param_key at) {
    bool truth;
    int64_t integer;
    double number;
    ucall_str_t text;
    size_t length;
    if (text_is(how, how_length, "bool") && read_bool(call, at, &truth))
        ucall_call_reply_bool(call, truth);
    else if (text_is(how, how_length, "i64") && read_i64(call, at, &integer))
        ucall_call_reply_i64(call, integer);
    else if (text_is(how, how_length, "f64") && read_f64(call, at, &number))
        ucall_call_reply_f64(call, number);
    else if (text_is(how, how_length, "str") && read_str(call, at, &text, &length))
        ucall_call_reply_str(call, text, length);
    else if (text_is(how, how_length, "json") && read_json(call, at, &text, &length))
        ucall_call_reply_content(call, text, length);
    else
        ucall_call_reply_error(call, 404, "absent", UCALL_NUL_TERMINATED);
}

/* named(how, name, …): the param of that name, which may be empty. */
static void named(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_str_t how;
    size_t how_length;
    param_key at = {NULL, 0, 0};
    (void)tag;
    if (!ucall_param_named_str(call, "how", 0, &how, &how_length) ||
        !ucall_param_named_str(call, "name", 4, &at.name, &at.length)) {
        ucall_call_reply_error_invalid_params(call);
        return;
    }
    reply_param(call, how, how_length, at);
}

/* positional(how, index, …): the param at that index. */
static void positional(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_str_t how;
    size_t how_length;
    int64_t index;
    param_key at = {NULL, 0, 0};
    (void)tag;
    if (!ucall_param_positional_str(call, 0, &how, &how_length) ||
        !ucall_param_positional_i64(call, 1, &index)) {
        ucall_call_reply_error_invalid_params(call);
        return;
    }
    at.index = (size_t)index;
    reply_param(call, how, how_length, at);
}

/* same(texts): whether a thousand strings are unchanged after the last was read. */
static void same(ucall_call_t call, ucall_callback_tag_t tag) {
    static ucall_str_t texts[1000];
    static size_t lengths[1000];
    static char copies[1000][64];
    char pointer[32];
    bool good = true;
    (void)tag;
    for (int at = 0; at < 1000 && good; ++at) {
        snprintf(pointer, sizeof pointer, "/texts/%d", at);
        good = ucall_param_named_str(call, pointer, 0, &texts[at], &lengths[at]);
        if (good) memcpy(copies[at], texts[at], lengths[at]);
    }
    for (int at = 0; at < 1000 && good; ++at)
        good = !memcmp(copies[at], texts[at], lengths[at]);
    ucall_call_reply_bool(call, good);
}

/* content(json): the text as the result, unchecked. */
static void content(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_str_t json;
    size_t length;
    (void)tag;
    if (!ucall_param_named_str(call, "json", 0, &json, &length)) json = NULL, length = 0;
    ucall_call_reply_content(call, json, length);
}

static void twice(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    ucall_call_reply_i64(call, 1);
    ucall_call_reply_i64(call, 2);
    ucall_call_reply_error_unknown(call);
}

static void never(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)call;
    (void)tag;
}

/* fails(how): the error of that name. */
static void fails(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_str_t how;
    size_t length;
    (void)tag;
    if (!ucall_param_named_str(call, "how", 0, &how, &length)) return;
    if (text_is(how, length, "invalid_params")) ucall_call_reply_error_invalid_params(call);
    if (text_is(how, length, "out_of_memory")) ucall_call_reply_error_out_of_memory(call);
    if (text_is(how, length, "unknown")) ucall_call_reply_error_unknown(call);
    if (text_is(how, length, "own")) ucall_call_reply_error(call, -7, "a \"reason\"\n", 10);
    if (text_is(how, length, "silent")) ucall_call_reply_error(call, 7, NULL, 0);
    if (text_is(how, length, "latin")) ucall_call_reply_error(call, 7, "\xe9", 1);
    if (text_is(how, length, "nan")) ucall_call_reply_f64(call, NAN);
    if (text_is(how, length, "bytes")) ucall_call_reply_str(call, "\xff", 1);
    if (text_is(how, length, "null")) ucall_call_reply_str(call, NULL, 3);
}

/* Releases a call that was not deferred; the reply is still sent. */
static void released(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    ucall_call_release(call);
    ucall_call_reply_bool(call, ucall_call_is_cancelled(call));
}

static void quit(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    ucall_call_reply_bool(call, true);
    ucall_stop(server);
}

/* Replies with the tag of its registration. */
static void tagged(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_call_reply_str(call, tag, UCALL_NUL_TERMINATED);
}

/* add(name): registers `tagged` under that name while the server runs. */
static void add(ucall_call_t call, ucall_callback_tag_t tag) {
    static char names[100][32];
    static int count;
    ucall_str_t name;
    size_t length;
    (void)tag;
    if (count == 100 || !ucall_param_named_str(call, "name", 0, &name, &length) || length > 31) {
        ucall_call_reply_error_invalid_params(call);
        return;
    }
    memcpy(names[count], name, length);
    ucall_call_reply_bool(call, ucall_add_procedure(server, names[count], tagged, names[count]));
    ++count;
}

/* inside(): whether ucall_take_call works in a callback. */
static void inside(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    bool driven = ucall_take_call(server, 0);
    ucall_call_reply_str(call, driven ? "driven" : ucall_last_error(), UCALL_NUL_TERMINATED);
}

/* The number of descriptors, without the standard ones, that a program would inherit. */
static void inherited(ucall_call_t call, ucall_callback_tag_t tag) {
    int count = 0;
    (void)tag;
    for (int descriptor = 3; descriptor < 1024; ++descriptor) {
        int flags = fcntl(descriptor, F_GETFD);
        count += flags != -1 && !(flags & FD_CLOEXEC);
    }
    ucall_call_reply_i64(call, count);
}

/* The status of a child that is forked during a call. */
static void forked(ucall_call_t call, ucall_callback_tag_t tag) {
    int status = 0;
    pid_t child = fork();
    (void)tag;
    if (!child) exit(7);
    waitpid(child, &status, 0);
    ucall_call_reply_i64(call, WEXITSTATUS(status));
}

/* The status of a forked child that reads a param, replies and returns. */
static void returned(ucall_call_t call, ucall_callback_tag_t tag) {
    int status = 0;
    int64_t value = 0;
    pid_t child = fork();
    (void)tag;
    if (child) waitpid(child, &status, 0);
    if (!ucall_param_named_i64(call, "value", 0, &value)) value = -1;
    ucall_call_reply_i64(call, child ? 100 * WEXITSTATUS(status) + value : value);
}

/* Whether each getter finds what there is without being given a place for it, and nothing under a
 * name that is NULL. */
static bool takes_nulls(ucall_call_t call) {
    ucall_str_t text = NULL;
    size_t length = 0;
    bool truth = false;
    return ucall_param_named_bool(call, "truth", 0, NULL) &&
           ucall_param_named_i64(call, "integer", 0, NULL) &&
           ucall_param_named_f64(call, "number", 0, NULL) &&
           ucall_param_named_str(call, "text", 0, NULL, NULL) &&
           ucall_param_named_str(call, "text", 0, &text, NULL) && text &&
           ucall_param_named_str(call, "text", 0, NULL, &length) && length == 3 &&
           ucall_param_named_json(call, "text", 0, NULL, NULL) &&
           !ucall_param_named_bool(call, NULL, 0, &truth) && !truth &&
           !ucall_param_named_bool(call, NULL, 5, NULL) &&
           !ucall_param_named_i64(call, NULL, 0, NULL) &&
           !ucall_param_named_f64(call, NULL, 7, NULL) &&
           !ucall_param_named_str(call, NULL, 0, &text, &length) && length == 3 &&
           !ucall_param_named_json(call, NULL, 4, NULL, NULL) &&
           !ucall_param_positional_bool(call, SIZE_MAX, NULL) &&
           !ucall_param_positional_i64(call, SIZE_MAX, NULL) &&
           !ucall_param_positional_f64(call, SIZE_MAX, NULL) &&
           !ucall_param_positional_str(call, SIZE_MAX, NULL, NULL) &&
           !ucall_param_positional_json(call, SIZE_MAX, NULL, NULL);
}

/* nulls(truth, integer, number, text): the same of this call, deferred, deferred away, and
 * answered. */
static void nulls(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    bool good = takes_nulls(call);
    ucall_call_t later = ucall_call_defer(call);
    good = good && takes_nulls(call) && takes_nulls(later);
    ucall_call_reply_bool(later, good);
    if (!takes_nulls(later)) abort();
    ucall_call_release(later);
}

/* Frees its server, which stops after this reply. */
static void free_server(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    ucall_call_reply_bool(call, true);
    ucall_free(server);
    server = NULL;
}

static struct {
    char const *name;
    ucall_callback_t callback;
} const procedures[] = {{"named", named},     {"positional", positional}, {"same", same},
                        {"content", content}, {"twice", twice},           {"never", never},
                        {"fails", fails},     {"released", released},     {"quit", quit},
                        {"tagged", tagged},   {"add", add},               {"inside", inside},
                        {"inherited", inherited}, {"forked", forked},     {"free_server", free_server},
                        {"returned", returned}, {"nulls", nulls}};

static void *serve_small(void *unused) {
    (void)unused;
    return ucall_take_calls(server, 0) ? &server : NULL;
}

/* Serves on a thread with the stack size that the header requires. */
static bool serve_on_a_small_stack(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    void *stopped = NULL;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 128 << 10);
    if (pthread_create(&thread, &attributes, serve_small, NULL)) return false;
    pthread_join(thread, &stopped);
    return stopped != NULL;
}

int main(int argc, char **argv) {
    ucall_config_t config = config_of(argc, argv);
    bool one_by_one = argc > 2 && !strcmp(argv[2], "take_call");
    /* Room for seven that are added. */
    config.max_procedures = COUNT(procedures) + 7;
    if (argc > 2 && !strcmp(argv[2], "deep")) config.max_nesting = 1024;
    if (argc > 2 && !strcmp(argv[2], "three")) config.max_lifetime_exchanges = 3;
    if (argc > 2 && !strcmp(argv[2], "old")) config.max_lifetime_ms = 200;
    if (!ucall_init(&config, &server)) return failed();
    for (size_t at = 0; at < COUNT(procedures); ++at)
        if (!ucall_add_procedure(server, procedures[at].name, procedures[at].callback, "a tag"))
            return 1;
    announce(&config);
    if (one_by_one) {
        while (ucall_take_call(server, 0)) continue;
    } else if (config.max_nesting == 1024) {
        if (!serve_on_a_small_stack()) return 1;
    } else if (!ucall_take_calls(server, 0)) {
        return failed();
    }
    if (server && *ucall_last_error()) return 1;
    ucall_free(server);
    return 0;
}
