/*
 * ucall: serve C and C++ functions as JSON-RPC 2.0 over HTTP/1.1 and over raw TCP, on one port.
 *
 *     static void sum(ucall_call_t call, ucall_callback_tag_t tag) {
 *         int64_t a, b;
 *         (void)tag;
 *         if (ucall_param_named_i64(call, "a", 0, &a) && ucall_param_named_i64(call, "b", 0, &b))
 *             ucall_call_reply_i64(call, a + b);
 *         else
 *             ucall_call_reply_error_invalid_params(call);
 *     }
 *
 *     int main(void) {
 *         ucall_config_t config = {0};
 *         ucall_server_t server;
 *         if (!ucall_init(&config, &server)) return 1;
 *         ucall_add_procedure(server, "sum", sum, NULL);
 *         ucall_take_calls(server, 0);
 *         ucall_free(server);
 *         return 0;
 *     }
 *
 * Every function checks its pointers: a NULL server or call makes it do nothing and return false,
 * NULL or 0. Strings that go in end at their NUL when their length is given as 0: so an empty one
 * must have one, as "" does. A length above half of SIZE_MAX, such as a negative number that was
 * made a size_t, is refused unread. All text is UTF-8. docs/c.md is the guide.
 *
 * Apache-2.0.
 */
#ifndef UCALL_UCALL_H
#define UCALL_UCALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The version of this header. `ucall_version` tells that of the library. */
#define UCALL_VERSION_MAJOR 0
#define UCALL_VERSION_MINOR 1
#define UCALL_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/* A server: made by `ucall_init`, ended by `ucall_free`. */
typedef struct ucall_server *ucall_server_t;

/*
 * One call. It is there until its callback returns; one that was deferred, until it is released.
 * One thread at a time may use it.
 */
typedef struct ucall_call *ucall_call_t;

/* Whatever a callback should be handed with each call. */
typedef void *ucall_callback_tag_t;

/*
 * Text. What the library hands out has a length beside it and no NUL at its end, unless it is
 * empty: so text and length may go into any function again.
 */
typedef char const *ucall_str_t;

/*
 * A function that is served. It runs on the thread that serves, so nothing else is served there
 * until it returns: long work belongs elsewhere, see `ucall_call_defer`. With several threads it
 * runs on all of them at once. It leaves by returning: a C++ exception or pthread_exit that comes
 * out of it ends the process, and longjmp leaves the server unusable. A forked child that returns
 * from it is ended with status 1: it ends itself, by exec, _exit or exit.
 *
 * It replies once, by one of the `ucall_call_reply_…` functions. A second reply is ignored and
 * logged; without any, the caller gets the error -32603. What a notification is replied is dropped.
 */
typedef void (*ucall_callback_t)(ucall_call_t call, ucall_callback_tag_t tag);

/* The engines that move the bytes. */
typedef enum ucall_engine_t {
    UCALL_ENGINE_AUTO = 0,  /* io_uring where it is allowed, else posix; the log says which */
    UCALL_ENGINE_POSIX = 1, /* epoll or kqueue */
    UCALL_ENGINE_URING = 2  /* io_uring (Linux 5.19 or newer), or `ucall_init` fails */
} ucall_engine_t;

/* Whether clients show a certificate, under TLS. */
typedef enum ucall_client_auth_t {
    UCALL_CLIENT_AUTH_DEFAULT = 0,
    UCALL_CLIENT_AUTH_NONE = 1,     /* they are not asked */
    UCALL_CLIENT_AUTH_OPTIONAL = 2, /* they may; one that does not verify is refused */
    UCALL_CLIENT_AUTH_REQUIRED = 3  /* they must */
} ucall_client_auth_t;

/*
 * What a server is told. Zero means the default everywhere, so start from `{0}`, in C++ from `{}`;
 * `ucall_init` writes back what is in force. Strings are copied: none need outlive `ucall_init`.
 */
typedef struct ucall_config_t {
    /*
     * Name or address to listen on, or "unix:" and the path of a Unix socket, see `unix_mode`.
     * Default: "127.0.0.1", which only this machine reaches.
     */
    char const *hostname;
    /* Default: 8545. See `pick_port` for any that is free. A Unix socket has none: it becomes 0. */
    uint16_t port;
    /* Operations queued for io_uring before they are handed over: a wish. Default: 512. */
    uint16_t queue_depth;
    /* Procedures at most. Default: 1,024. */
    uint16_t max_callbacks;
    /* Threads that may serve, each with a number below this one. Default: 1. */
    uint16_t max_threads;
    /*
     * Where one line a second is written, with the calls, bytes and connections since the one
     * before; and complaints. Default: -1, no lines, and complaints go to standard error. It stays
     * yours, and must stay open until `ucall_free` returns; one that is not open for writing is
     * refused. A pipe that is full or that nobody reads loses lines, and harms no server.
     */
    int32_t logs_file_descriptor;
    /* "human" (the default), or "json": each line an object. */
    char const *logs_format;
    /* Calls in one batch; a larger one is refused with -32600. Default: 1,000. */
    uint16_t max_batch_size;
    /*
     * Connections at once, shared out evenly among the threads. Past it, the longest idle one is
     * closed for a newcomer. Default: 16,384. Always below the limit on descriptors, which is
     * raised as far as the system allows.
     */
    uint32_t max_concurrent_connections;
    /*
     * How long a connection is kept, and for how many requests, a batch counted once. The last
     * reply over HTTP says `Connection: close`; an idle connection is closed at its age, to the
     * second. Default: no such limits.
     */
    uint32_t max_lifetime_micro_seconds;
    uint32_t max_lifetime_exchanges;
    /*
     * TLS 1.2 and 1.3, for all connections, HTTP and raw TCP alike. The files are PEM, and are read
     * again when they change. The certificates follow one another to that of the authority, in one
     * file or in several, the server's own first. The key may stand in the first file, without a
     * path of its own. Without `use_ssl` no other of these fields is looked at.
     */
    bool use_ssl;
    char const *ssl_private_key_path;
    char const *const *ssl_certificates_paths;
    size_t ssl_certificates_count;

    /* A `ucall_engine_t`. Default: UCALL_ENGINE_AUTO. */
    uint32_t engine;
    /* Listen on a port that is free, whatever `port` says; it is written back to `port`. */
    bool pick_port;
    /* Request line and headers of one HTTP request. Default: 16 KiB. Past it: 431. */
    uint32_t max_head_bytes;
    /* Headers of one HTTP request. Default: 100. Past it: 431. */
    uint32_t max_headers;
    /* One body, or one document over raw TCP. Default: 16 MiB. Past it: 413, or -32600. */
    uint32_t max_body_bytes;
    /* Arrays and objects inside one another, at most 1,024. Default: 128. Past it: -32700. */
    uint32_t max_nesting;
    /* One reply, a whole batch's together. Default: 64 MiB. Past it: -32603. */
    uint32_t max_reply_bytes;
    /* The id of a call. Default: 1 KiB. Past it: -32600. */
    uint32_t max_id_bytes;
    /* Requests of one connection that wait. Default: 128. Past it, no more are read. */
    uint32_t max_pipeline;
    /* Bytes of one connection that wait to be sent. Default: 1 MiB. Past it, no more are read. */
    uint32_t max_output_bytes;
    /* Deferred calls of one thread. Default: 10,000. Past it: -32003. */
    uint32_t max_deferred_calls;
    /* From the first byte of a head to its last. Default: 10 s. Past it: 408. */
    uint32_t head_timeout_ms;
    /* Without a byte of a body. Default: 30 s. Past it: 408. */
    uint32_t body_timeout_ms;
    /* Without a request on a connection. Default: 75 s. Then it is closed. */
    uint32_t idle_timeout_ms;
    /* Without the peer taking a byte of a reply. Default: 30 s. Then it is closed. */
    uint32_t send_timeout_ms;
    /* For a call, until it is answered. Default: without a limit. Past it: -32001. */
    uint32_t call_timeout_ms;
    /* Further names that browsers may call this server by. */
    char const *const *allowed_hosts;
    size_t allowed_hosts_count;
    /* Origins whose web pages may call it, like "https://example.com"; "*" for all. */
    char const *const *allow_origins;
    size_t allow_origins_count;
    /*
     * Requests that are not whole, params of deferred calls and replies that wait, of all
     * connections, shared out evenly among the threads. Default: 1 GiB. Past it, reading pauses,
     * and what comes gets 503, or -32003 over raw TCP.
     */
    uint32_t max_held_bytes;
    /* Of a private key that is encrypted. */
    char const *ssl_private_key_password;
    /* Authorities that sign the certificates of clients, in PEM. */
    char const *ssl_client_authorities_path;
    /* A `ucall_client_auth_t`. Default: required if there are authorities, else none. */
    uint32_t ssl_client_auth;
    /* For agreeing on TLS. Default: 10 s. Past it: closed. */
    uint32_t handshake_timeout_ms;
    /*
     * Permissions of a Unix socket's file, at most 0777: who may write to it may call. Default:
     * 0600. A file that nobody listens on any more is replaced; it is removed by `ucall_free`.
     */
    uint32_t unix_mode;
    /* Chunk extensions and trailers of one body. Default: 16 KiB. Past it: 400. */
    uint32_t max_chunk_overhead_bytes;
    /*
     * What is read and thrown away behind the reply that ends a connection, so that what still
     * comes does not take the reply along. Default: 256 KiB. Past it: closed.
     */
    uint32_t max_discarded_bytes;
    /* For how long. Default: 1 s. Past it: closed. */
    uint32_t discard_timeout_ms;
} ucall_config_t;

/* The version of the library, like "0.1.0". */
ucall_str_t ucall_version(void);

/*
 * Why the last of `ucall_init`, `ucall_add_procedure`, `ucall_take_call` and `ucall_take_calls` on
 * this thread has failed; "" if it has not. Ends with a NUL; there until the next of them.
 *
 * In a callback also why a reply was refused: the caller got an error in its place, or the reply
 * before it. A callback begins without.
 */
ucall_str_t ucall_last_error(void);

/*
 * Makes a server that listens on its port; calls are taken once a thread serves. Returns true and
 * sets `*server`; or false, and `*server` is NULL, and nothing else is changed.
 *
 * `bool ucall_init(ucall_config_t *config, ucall_server_t *server)`: a macro that tells the library
 * how large the program's configuration is, so that a program that was built against an older
 * header goes on working. A NULL `config` with size 0 means all defaults.
 */
bool ucall_init_sized(ucall_config_t *config, size_t size, ucall_server_t *server);
#define ucall_init(config, server) ucall_init_sized((config), sizeof *(config), (server))

/*
 * Serves `callback` under `name`, in place of what had that name; also while the server runs. The
 * name is copied. A callback that was replaced may still be running, or begin, on other threads, so
 * its tag has to stay until `ucall_free` returns. False for a NULL server, name or callback, a name
 * that is not UTF-8, and past `max_callbacks`.
 */
bool ucall_add_procedure(ucall_server_t server, ucall_str_t name, ucall_callback_t callback,
                         ucall_callback_tag_t tag);

/*
 * Waits until there is something to do for this thread and does all of it: accepts, reads, runs
 * the calls that have come, replies. Then returns true; false when the server was stopped, or on
 * failure, and then `ucall_last_error` is not empty.
 *
 * `thread` is below `max_threads`. The first thread to come with a number keeps it: its connections
 * and its engine live and end with it. A thread that stops coming leaves its connections waiting.
 * Of its stack the library needs 128 KiB at most; a debug build of it, 4 MiB.
 */
bool ucall_take_call(ucall_server_t server, uint16_t thread);

/*
 * Serves with this thread until the server is stopped, then closes its connections. Returns true
 * when it was stopped, false on failure.
 */
bool ucall_take_calls(ucall_server_t server, uint16_t thread);

/*
 * Asks all threads to return from `ucall_take_calls`. From any thread, from a callback, and from a
 * signal handler: it is async-signal-safe and leaves `errno` alone. A server that was stopped stays
 * stopped, so it does not matter whether this comes before a thread serves or after. A handler must
 * not find a server that was freed: take it away before `ucall_free`.
 */
void ucall_stop(ucall_server_t server);

/*
 * Stops the server, waits until no other thread serves with it, closes its connections and port,
 * and frees it. Once, and no other thread may begin a function with that server from here on.
 * Deferred calls may be answered and released after; they reach nobody. A callback may free its own
 * server: its thread leaves when the callback returns.
 *
 * After fork(2), before any thread has served, one of the two processes goes on with a server; the
 * other leaves it alone and calls none of these functions with it.
 */
void ucall_free(ucall_server_t server);

/*
 * Params by name. True only if there is one of that name and of that type:
 *
 * - bool: true or false.
 * - i64: an integer that fits, without fraction and exponent: 1.0 is none.
 * - f64: any number that fits: 1 is one.
 * - str: a string. The output is what it means, escapes replaced; it may hold NULs.
 * - json: anything. The output is its JSON text as it came, a string with its quotes.
 *
 * A name that starts with '/' is a JSON pointer (RFC 6901) into the params, as in "/user/tags/0";
 * a member whose own name starts with '/' is then "/~1…". Of two members with one name the last
 * counts. Params by position have no names, but pointers: "/0".
 *
 * Text that is handed out lives as long as the call. Outputs are written only if the answer is
 * true, and may be NULL. Nothing is allocated, but for strings with escapes: those are put into
 * memory that the thread uses again for every call.
 */
bool ucall_param_named_bool(ucall_call_t call, ucall_str_t name, size_t name_length, bool *output);
bool ucall_param_named_i64(ucall_call_t call, ucall_str_t name, size_t name_length,
                           int64_t *output);
bool ucall_param_named_f64(ucall_call_t call, ucall_str_t name, size_t name_length,
                           double *output);
bool ucall_param_named_str(ucall_call_t call, ucall_str_t name, size_t name_length,
                           ucall_str_t *output, size_t *output_length);
bool ucall_param_named_json(ucall_call_t call, ucall_str_t name, size_t name_length,
                            ucall_str_t *output, size_t *output_length);

/* The same by position, counted from 0, for params that came as an array. */
bool ucall_param_positional_bool(ucall_call_t call, size_t index, bool *output);
bool ucall_param_positional_i64(ucall_call_t call, size_t index, int64_t *output);
bool ucall_param_positional_f64(ucall_call_t call, size_t index, double *output);
bool ucall_param_positional_str(ucall_call_t call, size_t index, ucall_str_t *output,
                                size_t *output_length);
bool ucall_param_positional_json(ucall_call_t call, size_t index, ucall_str_t *output,
                                 size_t *output_length);

/*
 * Replies with a result that is JSON text already, nested 1,024 deep at most. What is no JSON is
 * answered with -32603 and logged.
 */
void ucall_call_reply_content(ucall_call_t call, ucall_str_t json, size_t length);

/*
 * Replies with one value. A double must be finite; a string is escaped as JSON wants it, and must
 * be UTF-8. What cannot be written is answered with -32603 and logged.
 */
void ucall_call_reply_bool(ucall_call_t call, bool value);
void ucall_call_reply_i64(ucall_call_t call, int64_t value);
void ucall_call_reply_f64(ucall_call_t call, double value);
void ucall_call_reply_str(ucall_call_t call, ucall_str_t text, size_t length);

/*
 * Replies with an error. The codes from -32768 to -32000 belong to JSON-RPC and to this library.
 */
void ucall_call_reply_error(ucall_call_t call, int code, ucall_str_t message, size_t length);
/* -32602 "Invalid params" */
void ucall_call_reply_error_invalid_params(ucall_call_t call);
/* -32603 "Out of memory" */
void ucall_call_reply_error_out_of_memory(ucall_call_t call);
/* -32603 "Internal error" */
void ucall_call_reply_error_unknown(ucall_call_t call);

/*
 * Takes a call out of its callback, to be answered later, from any thread. What is returned is
 * yours: read its params and reply to it like any call, then give it back by `ucall_call_release`.
 * The call that the callback was given is not to be replied to any more.
 *
 * It has a copy of the params. Text that was read from the original call ends with the callback;
 * read it again from this one.
 *
 * NULL if the call was answered or deferred before, and past `max_deferred_calls`; in the latter
 * case the caller is told so (-32003). There is nothing to release then.
 */
ucall_call_t ucall_call_defer(ucall_call_t call);

/*
 * Gives back a call that was deferred, which must happen exactly once. If nobody has replied, the
 * caller gets -32603; a cancelled call needs no reply. Afterwards neither the call nor its text may
 * be used. Harmless after `ucall_free`. A call that was not deferred is left alone.
 */
void ucall_call_release(ucall_call_t call);

/*
 * Whether a deferred call need not be answered any more: its connection or its server has gone, or
 * its deadline has passed. A reply is then dropped.
 */
bool ucall_call_is_cancelled(ucall_call_t call);

/*
 * The moment by which a call must be answered, in microseconds of CLOCK_MONOTONIC: by
 * `call_timeout_ms` or by the header Ucall-Timeout-Ms of its request, whichever is sooner. False if
 * there is neither. A deferred call that is late is answered with -32001 and cancelled.
 */
bool ucall_call_deadline(ucall_call_t call, int64_t *output);

#ifdef __cplusplus
}
#endif

#endif
