/*
 * ucall: serves C and C++ functions as JSON-RPC 2.0 over HTTP/1.1 and raw TCP, on one port.
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
 * Every function checks its pointers: with a NULL server or call it does nothing and returns false,
 * NULL or 0. An input string with a length of 0 ends at its NUL, so an empty string must have one,
 * as "" does. A length above half of SIZE_MAX, such as a negative number converted to size_t, is
 * rejected unread. All text is UTF-8. docs/c.md is the guide.
 *
 * Apache-2.0.
 */
#ifndef UCALL_UCALL_H
#define UCALL_UCALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The version of this header. `ucall_version` returns that of the library. */
#define UCALL_VERSION_MAJOR 0
#define UCALL_VERSION_MINOR 1
#define UCALL_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/* A server: created by `ucall_init`, freed by `ucall_free`. */
typedef struct ucall_server *ucall_server_t;

/*
 * One call. It lives until its callback returns, or if deferred, until it is released. One thread
 * at a time may use it.
 */
typedef struct ucall_call *ucall_call_t;

/* A pointer of the program, passed to a callback with each call. */
typedef void *ucall_callback_tag_t;

/*
 * Text. Text of the library has a length and no NUL at its end, unless it is empty: so text and
 * length may be passed to any function again.
 */
typedef char const *ucall_str_t;

/*
 * A served function. It runs on a serving thread, which serves no other call until it returns: do
 * long work on another thread, see `ucall_call_defer`. Several threads may run it at once. It must
 * return: a C++ exception or pthread_exit that leaves it ends the process, and longjmp leaves the
 * server unusable. A forked child must not return from it but call exec, _exit or exit; one that
 * returns is ended with status 1.
 *
 * It replies once, by one of the `ucall_call_reply_…` functions. A second reply is ignored and
 * logged. Without a reply, the caller gets the error -32603. A reply to a notification is dropped.
 */
typedef void (*ucall_callback_t)(ucall_call_t call, ucall_callback_tag_t tag);

/* The engines, which move bytes between sockets and the server. */
typedef enum ucall_engine_t {
    UCALL_ENGINE_AUTO = 0,  /* io_uring if available; otherwise posix, and the log says why */
    UCALL_ENGINE_POSIX = 1, /* epoll or kqueue */
    UCALL_ENGINE_URING = 2  /* io_uring (Linux 5.19 or newer), or `ucall_init` fails */
} ucall_engine_t;

/* Whether TLS clients authenticate by a certificate. */
typedef enum ucall_client_auth_t {
    UCALL_CLIENT_AUTH_DEFAULT = 0,
    UCALL_CLIENT_AUTH_NONE = 1,     /* never */
    UCALL_CLIENT_AUTH_OPTIONAL = 2, /* if they have one; an invalid one is rejected */
    UCALL_CLIENT_AUTH_REQUIRED = 3  /* always */
} ucall_client_auth_t;

/*
 * The configuration of a server. Zero means the default, so start from `{0}`, in C++ from `{}`.
 * `ucall_init` writes back the values in force. Strings are copied: none need outlive `ucall_init`.
 */
typedef struct ucall_config_t {
    /*
     * The name or address to listen on, or "unix:" and the path of a Unix socket, see `unix_mode`.
     * Default: "127.0.0.1", which only this machine reaches.
     */
    char const *hostname;
    /* Default: 8545. See `pick_port` for any free port. With a Unix socket it becomes 0. */
    uint16_t port;
    /* The length of io_uring's submission queue, as a hint. Default: 512. */
    uint16_t queue_depth;
    /* The most procedures. Default: 1,024. */
    uint16_t max_callbacks;
    /* The threads that may serve, each with a number below this one. Default: 1. */
    uint16_t max_threads;
    /*
     * The log: one line a second with the calls, bytes and connections since the previous line, and
     * warnings. Default: -1, without lines, and with warnings on standard error. The program keeps
     * the descriptor open until `ucall_free` returns; one that is not open for writing is rejected.
     * A pipe that is full or has no reader loses lines, and never blocks the server.
     */
    int32_t logs_file_descriptor;
    /* "human" (the default), or "json" for one object a line. */
    char const *logs_format;
    /* Calls in one batch. Default: 1,000. Past it: -32600. */
    uint16_t max_batch_size;
    /*
     * Open connections, divided evenly among the threads. Past it, the longest idle connection is
     * closed for a new one. Default: 16,384. Always below the limit on descriptors, which is raised
     * as far as the system allows.
     */
    uint32_t max_concurrent_connections;
    /*
     * The lifetime of a connection, to the second, and its requests, counting a batch as one. The
     * last reply over HTTP says `Connection: close`; an idle connection is closed at that age.
     * Default: no such limits.
     */
    uint32_t max_lifetime_micro_seconds;
    uint32_t max_lifetime_exchanges;
    /*
     * TLS 1.2 and 1.3 for all connections, over HTTP and raw TCP. The files are PEM, and are read
     * again when they change. The chain starts with the server's certificate and leads to its
     * authority, in one file or in several. Without a path of its own, the key is in the first
     * file. Without `use_ssl` the other fields of TLS are ignored.
     */
    bool use_ssl;
    char const *ssl_private_key_path;
    char const *const *ssl_certificates_paths;
    size_t ssl_certificates_count;

    /* A `ucall_engine_t`. Default: UCALL_ENGINE_AUTO. */
    uint32_t engine;
    /* Listen on any free port, which is written back to `port`. */
    bool pick_port;
    /* Request line and headers of one HTTP request. Default: 16 KiB. Past it: 431. */
    uint32_t max_head_bytes;
    /* Headers of one HTTP request. Default: 100. Past it: 431. */
    uint32_t max_headers;
    /*
     * One body, one document over raw TCP, or one message over WebSocket. Default: 16 MiB. Past it:
     * 413, -32600, or closed with 1009.
     */
    uint32_t max_body_bytes;
    /* Levels of nested arrays and objects, at most 1,024. Default: 128. Past it: -32700. */
    uint32_t max_nesting;
    /* One reply, or all replies of a batch. Default: 64 MiB. Past it: -32603. */
    uint32_t max_reply_bytes;
    /* The id of a call. Default: 1 KiB. Past it: -32600. */
    uint32_t max_id_bytes;
    /* Pipelined requests of one connection. Default: 128. Past it, reading pauses. */
    uint32_t max_pipeline;
    /* Unsent bytes of one connection. Default: 1 MiB. Past it, reading pauses. */
    uint32_t max_output_bytes;
    /* Unreleased deferred calls of one thread. Default: 10,000. Past it: -32003. */
    uint32_t max_deferred_calls;
    /* From the first byte of a head to its last. Default: 10 s. Past it: 408. */
    uint32_t head_timeout_ms;
    /* Between two bytes of a body. Default: 30 s. Past it: 408. */
    uint32_t body_timeout_ms;
    /* Between two requests of a connection. Default: 75 s. Past it: closed. */
    uint32_t idle_timeout_ms;
    /* Without the peer receiving a byte of a reply. Default: 30 s. Past it: closed. */
    uint32_t send_timeout_ms;
    /* From the arrival of a call to its reply. Default: no limit. Past it: -32001. */
    uint32_t call_timeout_ms;
    /* Further host names by which browsers may call this server. */
    char const *const *allowed_hosts;
    size_t allowed_hosts_count;
    /* Origins whose web pages may call this server, like "https://example.com"; "*" for all. */
    char const *const *allow_origins;
    size_t allow_origins_count;
    /*
     * Memory of incomplete requests, params of deferred calls and waiting replies, divided evenly
     * among the threads. Default: 1 GiB. Past it, reading pauses, and new requests get 503, or
     * -32003 over raw TCP.
     */
    uint32_t max_held_bytes;
    /* The password of an encrypted private key. */
    char const *ssl_private_key_password;
    /* The authorities that sign the certificates of clients, in PEM. */
    char const *ssl_client_authorities_path;
    /* A `ucall_client_auth_t`. Default: required if there are authorities, otherwise none. */
    uint32_t ssl_client_auth;
    /* For the TLS handshake. Default: 10 s. Past it: closed. */
    uint32_t handshake_timeout_ms;
    /*
     * Permissions of a Unix socket's file, at most 0777: a process that may write to it may call.
     * Default: 0600. A file without a listener is replaced. `ucall_free` removes the file.
     */
    uint32_t unix_mode;
    /* Chunk extensions and trailers of one body. Default: 16 KiB. Past it: 400. */
    uint32_t max_chunk_overhead_bytes;
    /*
     * Bytes that are received and discarded after the last reply of a connection, because closing
     * earlier could reset the connection before the reply arrives. Default: 256 KiB. Past it:
     * closed.
     */
    uint32_t max_discarded_bytes;
    /* The time for that. Default: 1 s. Past it: closed. */
    uint32_t discard_timeout_ms;
    /* Payload of one frame over WebSocket. Default: 16 MiB. Past it: closed with 1009. */
    uint32_t max_frame_bytes;
    /* Frames of one message over WebSocket. Default: 1,024. Past it: closed with 1009. */
    uint32_t max_message_frames;
    /* Without a byte of a WebSocket's client. Default: 20 s. Past it: the client is pinged. */
    uint32_t ping_interval_ms;
    /* Pings to a WebSocket's client that stays silent. Default: 2. Past it: closed with 1008. */
    uint32_t max_unanswered_pings;
    /* Text of the member _meta of a request. Default: 4 KiB. Past it: -32600. */
    uint32_t max_meta_bytes;
    /* Items of streams that wait for a slow client. Default: 64 KiB. Past it: streams pause. */
    uint32_t max_stream_bytes;
    /* Topics that one connection subscribes to. Default: 128. Past it: the call fails. */
    uint32_t max_subscriptions;
    /* The name of a topic. Default: 256. Past it: the call fails. */
    uint32_t max_topic_bytes;
} ucall_config_t;

/* The version of the library, like "0.1.0". */
ucall_str_t ucall_version(void);

/*
 * Why the last call of `ucall_init`, `ucall_add_procedure`, `ucall_take_call` or `ucall_take_calls`
 * on this thread has failed; "" if it has not. Ends with a NUL, and is valid until the next of
 * them.
 *
 * In a callback, also why a reply was rejected: its caller got an error instead, or the first of
 * two replies. Each callback begins without an error.
 */
ucall_str_t ucall_last_error(void);

/*
 * Creates a server that listens on its port; calls are served once a thread serves. Returns true
 * and sets `*server`. On failure, returns false, sets `*server` to NULL, and changes nothing else.
 *
 * `bool ucall_init(ucall_config_t *config, ucall_server_t *server)` is a macro that passes the size
 * of the program's configuration, so that programs built against an older header still work. A NULL
 * `config` with size 0 means all defaults.
 */
bool ucall_init_sized(ucall_config_t *config, size_t size, ucall_server_t *server);
#define ucall_init(config, server) ucall_init_sized((config), sizeof *(config), (server))

/*
 * Registers `callback` as the procedure `name`, and replaces the callback of that name, if any;
 * also while the server runs. The name is copied. Other threads may still run a replaced callback,
 * or start it, so its tag must stay valid until `ucall_free` returns. Returns false for a NULL
 * server, name or callback, a name that is not UTF-8, and past `max_callbacks`.
 */
bool ucall_add_procedure(ucall_server_t server, ucall_str_t name, ucall_callback_t callback,
                         ucall_callback_tag_t tag);

/*
 * Takes one turn: waits for events of this thread, then accepts, reads, runs the calls that have
 * arrived, and replies. Returns true; or false if the server was stopped, or on failure, with
 * `ucall_last_error` set.
 *
 * `thread` is below `max_threads`. The first thread that serves with a number keeps it, with its
 * connections and its engine. If it stops calling, its connections wait. The library needs at most
 * 128 KiB of its stack; a debug build, 4 MiB.
 */
bool ucall_take_call(ucall_server_t server, uint16_t thread);

/*
 * Takes turns of this thread until the server is stopped, then closes its connections. Returns true
 * if it was stopped, false on failure.
 */
bool ucall_take_calls(ucall_server_t server, uint16_t thread);

/*
 * Has all threads return from `ucall_take_calls`. May be called on any thread, in a callback and in
 * a signal handler: it is async-signal-safe and keeps `errno`. A stopped server stays stopped, also
 * for threads that serve later. Remove a signal handler before `ucall_free`: it must not use a
 * freed server.
 */
void ucall_stop(ucall_server_t server);

/*
 * Stops the server, waits for the other threads that serve, closes its connections and port, and
 * frees it. Call it once; from then on no other thread may call a function with that server.
 * Deferred calls may still be answered, which has no effect, and must be released. A callback may
 * free its own server, whose thread stops after the callback returns.
 *
 * After fork(2), before any thread has served, only one of the two processes may use a server; the
 * other must not call these functions with it.
 */
void ucall_free(ucall_server_t server);

/*
 * Params by name. Returns true only for a param of that name and that type:
 *
 * - bool: true or false.
 * - i64: an integer in range, without fraction and exponent: not 1.0.
 * - f64: any number in range, 1 included.
 * - str: a string. The output is unescaped and may contain NULs.
 * - json: any value. The output is its JSON text as received, a string with its quotes.
 *
 * A name that starts with '/' is a JSON pointer (RFC 6901) into the params, as in "/user/tags/0";
 * the pointer to a member whose name starts with '/' is "/~1…". Of two members with one name the
 * last counts. Params by position have no names but pointers, like "/0".
 *
 * Text outputs live as long as the call. Outputs may be NULL, and are written only if the function
 * returns true. Memory is allocated only for strings with escapes, and reused for the next calls.
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

/* The same by position, from 0, for params in an array. */
bool ucall_param_positional_bool(ucall_call_t call, size_t index, bool *output);
bool ucall_param_positional_i64(ucall_call_t call, size_t index, int64_t *output);
bool ucall_param_positional_f64(ucall_call_t call, size_t index, double *output);
bool ucall_param_positional_str(ucall_call_t call, size_t index, ucall_str_t *output,
                                size_t *output_length);
bool ucall_param_positional_json(ucall_call_t call, size_t index, ucall_str_t *output,
                                 size_t *output_length);

/*
 * Replies with JSON text, nested at most 1,024 levels. For invalid JSON the caller gets -32603, and
 * that is logged.
 */
void ucall_call_reply_content(ucall_call_t call, ucall_str_t json, size_t length);

/*
 * Replies with one value. A double must be finite. A string must be UTF-8, and is escaped. For any
 * other value the caller gets -32603, and that is logged.
 */
void ucall_call_reply_bool(ucall_call_t call, bool value);
void ucall_call_reply_i64(ucall_call_t call, int64_t value);
void ucall_call_reply_f64(ucall_call_t call, double value);
void ucall_call_reply_str(ucall_call_t call, ucall_str_t text, size_t length);

/* Replies with an error. Codes from -32768 to -32000 are reserved for JSON-RPC and this library. */
void ucall_call_reply_error(ucall_call_t call, int code, ucall_str_t message, size_t length);
/* -32602 "Invalid params" */
void ucall_call_reply_error_invalid_params(ucall_call_t call);
/* -32603 "Out of memory" */
void ucall_call_reply_error_out_of_memory(ucall_call_t call);
/* -32603 "Internal error" */
void ucall_call_reply_error_unknown(ucall_call_t call);

/*
 * Defers a call, to be answered later on any thread. The program owns the returned call: it reads
 * its params and replies to it as to any call, then releases it by `ucall_call_release`. The
 * callback must not reply to its own call any more.
 *
 * The deferred call has a copy of the params. Text of the original call ends with the callback;
 * read it again from the deferred call.
 *
 * Returns NULL, with nothing to release, if the call was answered or deferred before, and past
 * `max_deferred_calls`; then the caller gets -32003 with `retry_after_ms` in its data.
 */
ucall_call_t ucall_call_defer(ucall_call_t call);

/*
 * Releases a deferred call, which the program must do exactly once, also after `ucall_free`.
 * Without a reply the caller gets -32603, unless the call is cancelled. After it neither the call
 * nor its text may be used. A call that was not deferred is not released, and that is logged.
 */
void ucall_call_release(ucall_call_t call);

/*
 * Messages that the server starts, for clients of WebSocket and raw TCP: notifications of `method`,
 * with the JSON text of an array or an object as params, or NULL for none. A `length` of 0 means up
 * to the NUL. Messages that wait for a slow client are dropped above `max_stream_bytes`, or for a
 * busy thread above 16 MiB; no function waits.
 */

/*
 * Sends the client of a call a notification. Of a deferred call it precedes the reply. Returns
 * false, and sends nothing, over HTTP, and for params that are no array or object.
 */
bool ucall_call_notify(ucall_call_t call, ucall_str_t method, ucall_str_t params, size_t length);

/* Which messages of a topic, or items of a stream, a slow client loses. */
typedef enum ucall_overflow_t {
    UCALL_OVERFLOW_DROP_OLDEST = 0,
    UCALL_OVERFLOW_DROP_NEWEST = 1,
    UCALL_OVERFLOW_CLOSE = 2, /* none: its connection is closed */
    UCALL_OVERFLOW_PAUSE = 3  /* none: the stream has no room for a while; for streams alone */
} ucall_overflow_t;

/*
 * Subscribes the connection of a call to a topic, until `ucall_call_unsubscribe` or its end. It may
 * be called again, and then replaces the overflow, a `ucall_overflow_t`. Returns false over HTTP,
 * above `max_subscriptions` or `max_topic_bytes`, and for a topic that is not UTF-8.
 */
bool ucall_call_subscribe(ucall_call_t call, ucall_str_t topic, uint32_t overflow);

/* Ends the subscription of the connection of a call to a topic, if it has one. */
void ucall_call_unsubscribe(ucall_call_t call, ucall_str_t topic);

/*
 * Sends a notification to the subscribers of a topic, on all threads of the server. May be called
 * on any thread. Returns false, and sends nothing, for params that are no array or object, for
 * texts that are not UTF-8, and above `max_topic_bytes`.
 */
bool ucall_publish(ucall_server_t server, ucall_str_t topic, ucall_str_t method, ucall_str_t params,
                   size_t length);

/*
 * A call that is replied to in parts is a stream: items, then the reply. docs/streams.md describes
 * how clients receive items.
 *
 * Returns true if the client of a call takes items: it has sent a progressToken in `_meta`, or over
 * HTTP accepts text/event-stream or application/x-ndjson. Otherwise a program may defer the call by
 * `ucall_call_defer`, and reply with a list of all items.
 */
bool ucall_call_takes_items(ucall_call_t call);

/*
 * Called when a stream that had no room has room again or has ended, once after each
 * UCALL_ITEM_NO_ROOM. Runs on the thread that serves, or in `ucall_free`; it may send items, reply
 * and release the call.
 */
typedef void (*ucall_room_callback_t)(ucall_callback_tag_t tag);

/*
 * Defers a call as a stream, which ends with its reply. It is a deferred call in everything else,
 * and must be released once; after UCALL_ITEM_NO_ROOM not before `has_room` is called. The overflow
 * is a `ucall_overflow_t`. `has_room` may be NULL.
 *
 * Returns NULL in the cases of `ucall_call_defer`, and if the client takes no items, which gets
 * -32600; for any other overflow it gets -32603.
 */
ucall_call_t ucall_call_stream(ucall_call_t call, uint32_t overflow, ucall_room_callback_t has_room,
                               ucall_callback_tag_t tag);

/* What happened to an item. */
typedef enum ucall_item_t {
    UCALL_ITEM_ACCEPTED = 0, /* it will be sent, or dropped by the stream's overflow */
    UCALL_ITEM_NO_ROOM = 1,  /* it is not sent: send it again when `has_room` is called */
    UCALL_ITEM_ENDED = 2     /* it is not sent: the call is replied to, cancelled or no stream */
} ucall_item_t;

/*
 * Sends an item of a stream: JSON text. For invalid JSON the caller gets -32603 as its reply, and
 * that is logged. There is no room while the client is slow and the overflow is to pause, and with
 * any overflow while more than `max_stream_bytes` wait for the thread that serves. An item that is
 * longer is accepted when nothing waits. Does not wait.
 */
ucall_item_t ucall_call_send_item(ucall_call_t call, ucall_str_t json, size_t length);

/*
 * Reads a member of a request's `_meta`, such as "progressToken" or "traceparent": the content of a
 * string, or the JSON text of any other value. The text is valid as that of a param is. Returns
 * false if there is none.
 */
bool ucall_call_meta(ucall_call_t call, ucall_str_t name, ucall_str_t *output,
                     size_t *output_length);

/*
 * Whether a deferred call was cancelled before its reply was sent: by its client, by the end of its
 * connection or server, or because its deadline has passed. A reply is then dropped.
 */
bool ucall_call_is_cancelled(ucall_call_t call);

/*
 * The deadline of a call in microseconds of CLOCK_MONOTONIC, by `call_timeout_ms` or the header
 * Ucall-Timeout-Ms of its request, whichever is shorter. Returns false if there is neither. At its
 * deadline a deferred call is cancelled, and its caller gets -32001.
 */
bool ucall_call_deadline(ucall_call_t call, int64_t *output);

#ifdef __cplusplus
}
#endif

#endif
