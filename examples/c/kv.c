#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <lmdb.h>
#include <ucall/ucall.h>

/*
 * A small store: keys are strings, values any JSON. When `set` replies, the value is on disk. Each
 * `set` is a commit of its own, for which the thread waits; the store of `ucall_add_store` commits
 * the writes of all clients together, on another thread.
 */

enum { SCAN_DEFAULT = 10, SCAN_MAX = 1000 };

static ucall_server_t server;
static MDB_env *environment;
static MDB_dbi database;

static void stop(int signal_number) {
    (void)signal_number;
    ucall_stop(server);
}

/* Text that grows. If an allocation fails, `bytes` is NULL, and further text is ignored. */
typedef struct text {
    char *bytes;
    size_t length, capacity;
} text;

static void append(text *to, void const *bytes, size_t length) {
    if (to->capacity - to->length < length) {
        size_t capacity = 2 * (to->length + length) + 64;
        char *grown = to->length && !to->bytes ? NULL : realloc(to->bytes, capacity);
        if (!grown) free(to->bytes);
        to->bytes = grown;
        to->capacity = grown ? capacity : 0;
    }
    if (to->bytes) memcpy(to->bytes + to->length, bytes, length);
    to->length += length;
}

static void append_string(text *to, MDB_val string) {
    unsigned char const *bytes = string.mv_data;
    append(to, "\"", 1);
    for (size_t at = 0; at < string.mv_size; ++at) {
        char escaped[8];
        if (bytes[at] >= 0x20 && bytes[at] != '"' && bytes[at] != '\\') {
            append(to, &bytes[at], 1);
        } else {
            int length = snprintf(escaped, sizeof escaped, "\\u%04x", bytes[at]);
            append(to, escaped, (size_t)length);
        }
    }
    append(to, "\"", 1);
}

static void reply_text(ucall_call_t call, text *content) {
    if (content->bytes) ucall_call_reply_content(call, content->bytes, content->length);
    else ucall_call_reply_error_out_of_memory(call);
    free(content->bytes);
}

static void reply_failure(ucall_call_t call, int code) {
    if (code == MDB_BAD_VALSIZE)
        ucall_call_reply_error(call, -32602, "The key is empty or too long", UCALL_NUL_TERMINATED);
    else
        ucall_call_reply_error(call, 1, mdb_strerror(code), UCALL_NUL_TERMINATED);
}

static bool key_param(ucall_call_t call, MDB_val *key) {
    ucall_str_t bytes;
    if (!ucall_param_named_str(call, "key", 0, &bytes, &key->mv_size)) return false;
    key->mv_data = (void *)bytes;
    return true;
}

/* Commits if `code` is 0, otherwise aborts. */
static int finish(MDB_txn *transaction, int code) {
    if (!code) return mdb_txn_commit(transaction);
    mdb_txn_abort(transaction);
    return code;
}

/* set(key, value): true */
static void set_value(ucall_call_t call, ucall_callback_tag_t tag) {
    MDB_val key, value;
    ucall_str_t json;
    MDB_txn *transaction;
    (void)tag;
    if (!key_param(call, &key) ||
        !ucall_param_named_json(call, "value", 0, &json, &value.mv_size)) {
        ucall_call_reply_error_invalid_params(call);
        return;
    }
    value.mv_data = (void *)json;
    int code = mdb_txn_begin(environment, NULL, 0, &transaction);
    if (!code) code = finish(transaction, mdb_put(transaction, database, &key, &value, 0));
    if (code) reply_failure(call, code);
    else ucall_call_reply_bool(call, true);
}

/* get(key): the value, or null */
static void get_value(ucall_call_t call, ucall_callback_tag_t tag) {
    MDB_val key, value;
    MDB_txn *transaction;
    (void)tag;
    if (!key_param(call, &key)) {
        ucall_call_reply_error_invalid_params(call);
        return;
    }
    int code = mdb_txn_begin(environment, NULL, MDB_RDONLY, &transaction);
    if (code) {
        reply_failure(call, code);
        return;
    }
    code = mdb_get(transaction, database, &key, &value);
    if (!code) ucall_call_reply_content(call, value.mv_data, value.mv_size);
    else if (code == MDB_NOTFOUND) ucall_call_reply_content(call, "null", UCALL_NUL_TERMINATED);
    else reply_failure(call, code);
    mdb_txn_abort(transaction);
}

/* delete(key): whether the key existed */
static void delete_value(ucall_call_t call, ucall_callback_tag_t tag) {
    MDB_val key;
    MDB_txn *transaction;
    (void)tag;
    if (!key_param(call, &key)) {
        ucall_call_reply_error_invalid_params(call);
        return;
    }
    int code = mdb_txn_begin(environment, NULL, 0, &transaction);
    if (!code) code = finish(transaction, mdb_del(transaction, database, &key, NULL));
    if (code && code != MDB_NOTFOUND) reply_failure(call, code);
    else ucall_call_reply_bool(call, !code);
}

/* Writes pairs after the key `after`, and sets `next` to the cursor of the following ones. */
static int scan_from(MDB_cursor *cursor, MDB_val *after, int64_t count, text *content) {
    MDB_val key = {0, NULL}, value;
    bool is_first = true;
    int code;
    if (after->mv_size) {
        key = *after;
        code = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
        if (!code && key.mv_size == after->mv_size &&
            !memcmp(key.mv_data, after->mv_data, key.mv_size))
            code = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    } else {
        code = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
    }
    append(content, "{\"items\":[", 10);
    MDB_val previous = {0, NULL};
    for (; !code && count > 0; --count) {
        append(content, is_first ? "[" : ",[", is_first ? 1 : 2);
        is_first = false;
        append_string(content, key);
        append(content, ",", 1);
        append(content, value.mv_data, value.mv_size);
        append(content, "]", 1);
        previous = key;
        code = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    append(content, "],\"cursor\":", 11);
    if (code) append(content, "null", 4);
    else append_string(content, previous);
    append(content, "}", 1);
    return code == MDB_NOTFOUND ? 0 : code;
}

/*
 * scan(cursor = null, count = 10): {"items": [[key, value], …], "cursor": …}, in the order of keys.
 * The cursor leads to the rest; it is null at the end, and stays right while others write.
 */
static void scan_values(ucall_call_t call, ucall_callback_tag_t tag) {
    MDB_val after = {0, NULL};
    ucall_str_t bytes;
    int64_t count = SCAN_DEFAULT;
    MDB_txn *transaction;
    MDB_cursor *cursor;
    text content = {NULL, 0, 0};
    (void)tag;
    if (ucall_param_named_str(call, "cursor", 0, &bytes, &after.mv_size))
        after.mv_data = (void *)bytes;
    ucall_param_named_i64(call, "count", 0, &count);
    if (count < 1 || count > SCAN_MAX) {
        ucall_call_reply_error(call, -32602, "Expected a count from 1 to 1000",
                               UCALL_NUL_TERMINATED);
        return;
    }
    int code = mdb_txn_begin(environment, NULL, MDB_RDONLY, &transaction);
    if (code) {
        reply_failure(call, code);
        return;
    }
    code = mdb_cursor_open(transaction, database, &cursor);
    if (!code) {
        code = scan_from(cursor, &after, count, &content);
        mdb_cursor_close(cursor);
    }
    if (!code) {
        reply_text(call, &content);
    } else {
        free(content.bytes);
        reply_failure(call, code);
    }
    mdb_txn_abort(transaction);
}

static int open_store(char const *folder, size_t megabytes) {
    MDB_txn *transaction;
    if (mkdir(folder, 0755) && errno != EEXIST) return errno;
    int code = mdb_env_create(&environment);
    if (!code) code = mdb_env_set_mapsize(environment, megabytes << 20);
    if (!code) code = mdb_env_open(environment, folder, 0, 0644);
    if (!code) code = mdb_txn_begin(environment, NULL, 0, &transaction);
    if (!code) code = finish(transaction, mdb_dbi_open(transaction, NULL, 0, &database));
    return code;
}

/* kv [--port PORT] [--engine posix|uring] [--folder FOLDER] [--megabytes SIZE] */
int main(int argc, char **argv) {
    ucall_config_t config = {0};
    char const *folder = "kv-store";
    size_t megabytes = 1024;
    for (int at = 1; at + 1 < argc; at += 2) {
        char const *value = argv[at + 1];
        if (!strcmp(argv[at], "--port")) {
            config.port = (uint16_t)atoi(value);
            config.pick_port = config.port == 0;
        } else if (!strcmp(argv[at], "--engine")) {
            config.engine = strcmp(value, "uring") ? UCALL_ENGINE_POSIX : UCALL_ENGINE_URING;
        } else if (!strcmp(argv[at], "--folder")) {
            folder = value;
        } else if (!strcmp(argv[at], "--megabytes")) {
            megabytes = (size_t)atoi(value);
        }
    }
    int code = open_store(folder, megabytes);
    if (code) {
        fprintf(stderr, "%s: %s\n", folder, mdb_strerror(code));
        return 1;
    }
    if (!ucall_init(&config, &server) || !ucall_add_procedure(server, "set", set_value, NULL) ||
        !ucall_add_procedure(server, "get", get_value, NULL) ||
        !ucall_add_procedure(server, "delete", delete_value, NULL) ||
        !ucall_add_procedure(server, "scan", scan_values, NULL)) {
        fprintf(stderr, "%s\n", ucall_last_error());
        return 1;
    }
    signal(SIGINT, stop);
    signal(SIGTERM, stop);
    printf("listening on %d\n", config.port);
    fflush(stdout);
    bool stopped = ucall_take_calls(server, 0);
    if (!stopped) fprintf(stderr, "%s\n", ucall_last_error());
    /* The handler must not use a freed server. */
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    ucall_free(server);
    mdb_env_close(environment);
    return stopped ? 0 : 1;
}
