/* Procedures that reply with what their call knows. With the word "auth", callers need a key. */

#include "serving.h"

static char log_lines[4096];
static int notifications;

static void write_text(ucall_writer_t writer, char const *key, bool found, ucall_str_t text,
                       size_t length) {
    ucall_writer_key(writer, key, UCALL_NUL_TERMINATED);
    if (found) ucall_writer_str(writer, text, length);
    else ucall_writer_null(writer);
}

static void describe(ucall_call_t call) {
    ucall_writer_t writer = ucall_writer_new();
    ucall_str_t text = NULL;
    size_t length = 0;
    ucall_peer_t peer;
    ucall_writer_begin_object(writer);
    bool found = ucall_call_method(call, &text, &length);
    write_text(writer, "method", found, text, length);
    found = ucall_call_header(call, "x-WORD", 0, &text, &length);
    write_text(writer, "word", found, text, length);
    found = ucall_call_peer(call, &peer, sizeof peer);
    write_text(writer, "address", found, peer.address, UCALL_NUL_TERMINATED);
    ucall_writer_key(writer, "port", 4);
    ucall_writer_i64(writer, found ? peer.port : -1);
    char const *user = ucall_call_user(call);
    write_text(writer, "user", user, user, UCALL_NUL_TERMINATED);
    ucall_writer_key(writer, "notification", UCALL_NUL_TERMINATED);
    ucall_writer_bool(writer, ucall_call_is_notification(call));
    ucall_writer_end_object(writer);
    ucall_call_reply_writer(call, writer);
    ucall_writer_free(writer);
}

static void live(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    describe(call);
}

static void later(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_call_t deferred = ucall_call_defer(call);
    (void)tag;
    describe(deferred);
    ucall_call_release(deferred);
}

/* note(): counts the notifications; replies with the count. */
static void note(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    notifications += ucall_call_is_notification(call);
    ucall_call_reply_i64(call, notifications);
}

/* remove(name): whether it was removed. */
static void remove_procedure(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_str_t name;
    size_t length;
    char copy[32] = {0};
    (void)tag;
    if (ucall_param_named_str(call, "name", 0, &name, &length) && length < sizeof copy)
        memcpy(copy, name, length);
    ucall_call_reply_bool(call, ucall_remove_procedure(server, copy));
}

/* stats(): calls, accepted and open connections, bytes received. */
static void stats(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_stats_t now;
    struct {
        ucall_stats_t known;
        uint64_t newer;
    } later = {.newer = 7};
    uint64_t calls = 7;
    char text[128];
    (void)tag;
    /* A program that knows the first counter alone. */
    if (!ucall_stats(server, &now, sizeof now) ||
        !ucall_stats(server, (ucall_stats_t *)&calls, sizeof calls) || calls != now.calls ||
        ucall_stats(NULL, &now, sizeof now) || ucall_stats(server, NULL, 8))
        abort();
    /* One that knows a counter which the library lacks, and one with a negative size. */
    if (!ucall_stats(server, &later.known, sizeof later) || later.newer ||
        ucall_stats(server, &now, (size_t)-1))
        abort();
    snprintf(text, sizeof text, "[%d,%d,%d,%d]", (int)now.calls, (int)now.accepted_connections,
             (int)now.open_connections, (int)now.bytes_received);
    ucall_call_reply_content(call, text, UCALL_NUL_TERMINATED);
}

static void never(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)call;
    (void)tag;
}

/* log(): the lines so far. */
static void read_log(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    ucall_call_reply_str(call, log_lines, UCALL_NUL_TERMINATED);
}

static void on_log(ucall_str_t line, size_t length, ucall_callback_tag_t tag) {
    if (strlen(line) != length || strcmp(tag, "log")) abort();
    if (strlen(log_lines) + length + 2 < sizeof log_lines) {
        strcat(log_lines, line);
        strcat(log_lines, "\n");
    }
}

/* Accepts the key "secret" of the user ada, which callers of raw TCP cannot send. */
static bool authenticate(ucall_request_t request, ucall_callback_tag_t tag, void **user) {
    ucall_str_t key;
    size_t length;
    ucall_peer_t peer;
    *user = NULL;
    if (strcmp(tag, "auth") || !ucall_request_peer(request, &peer, sizeof peer))
        abort();
    if (ucall_request_header(NULL, "x-key", 0, &key, &length) ||
        ucall_request_peer(NULL, &peer, sizeof peer))
        abort();
    if (ucall_request_header(request, "x-key", 5, &key, &length) && length == 6 &&
        !memcmp(key, "secret", 6)) {
        *user = "ada";
        return true;
    }
    return false;
}

/* NULL everywhere. */
static void ask_nothing(void) {
    ucall_str_t text;
    size_t length;
    if (ucall_call_method(NULL, &text, &length) || ucall_call_is_notification(NULL) ||
        ucall_call_user(NULL) || ucall_call_peer(NULL, NULL, 0) ||
        ucall_call_header(NULL, "a", 0, &text, &length) || ucall_remove_procedure(NULL, "a") ||
        ucall_remove_procedure(server, NULL) || ucall_remove_procedure(server, "none"))
        abort();
}

int main(int argc, char **argv) {
    static char log_tag[] = "log", auth_tag[] = "auth";
    ucall_config_t config = config_of(argc, argv);
    config.logs_callback = on_log;
    config.logs_tag = log_tag;
    static char const *const proxies[] = {"127.0.0.1", "::1"};
    if (argc > 2 && !strcmp(argv[2], "proxies")) {
        config.trusted_proxies = proxies;
        config.trusted_proxies_count = 2;
    } else if (argc > 2) {
        config.with_peers = true;
        if (!strcmp(argv[2], "auth")) config.auth = authenticate, config.auth_tag = auth_tag;
        if (!strncmp(argv[2], "unix:", 5)) config.hostname = argv[2];
    }
    procedure_t const procedures[] = {
        {"live", live}, {"later", later}, {"note", note}, {"remove", remove_procedure},
        {"stats", stats}, {"never", never}, {"log", read_log},
    };
    if (!start(&config, procedures, COUNT(procedures))) return 1;
    ask_nothing();
    return serve(&config);
}
