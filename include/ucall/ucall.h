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
 * NULL or 0. All text is UTF-8, and has its length beside it:
 *
 * - UCALL_NUL_TERMINATED: it ends at its NUL.
 * - 0: a name ends at its NUL, any other text is empty. Names are those of params, keys, headers,
 *   members of _meta, methods and topics, so a literal needs no length; "" is the empty name. Text
 *   that a getter has returned may be passed on with its length, also as a name.
 * - Above half of SIZE_MAX, such as a negative number converted to size_t: rejected unread.
 *
 * Only what sets a server up has no length, and ends with a NUL: the strings of `ucall_config_t`,
 * and names of procedures and stores. docs/c.md is the guide.
 *
 * Apache-2.0.
 */
#ifndef UCALL_UCALL_H
#define UCALL_UCALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The version of this header. `ucall_version` returns that of the library. */
#define UCALL_VERSION "1.0.0-alpha.1"
#define UCALL_VERSION_MAJOR 1
#define UCALL_VERSION_MINOR 0
#define UCALL_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/* A server: created by `ucall_init`, freed by `ucall_free`. */
typedef struct ucall_server *ucall_server_t;

/*
 * One call. It lives until its callback returns, or if deferred, until it is released. One thread
 * at a time may use it. Functions that get a call whose callback has returned do what they do with
 * NULL, and a line of the log names the remedy, `ucall_call_defer`: the program must not use it
 * while the callback returns, nor a deferred call after its release.
 */
typedef struct ucall_call *ucall_call_t;

/* A pointer of the program, passed to a callback with each call. */
typedef void *ucall_callback_tag_t;

/* Text. That of a getter has no NUL at its end, but for empty text. */
typedef char const *ucall_str_t;

/* The length of a text that ends at its NUL. */
#define UCALL_NUL_TERMINATED SIZE_MAX

/*
 * A served function. It runs on a serving thread, which serves no other call until it returns: do
 * long work on another thread, see `ucall_call_defer`. Several threads may run it at once. It must
 * return: a C++ exception or pthread_exit that leaves it ends the process, and longjmp leaves the
 * server unusable. pthread_cancel must not be used on a serving thread. A forked child must not
 * return from it but call exec, _exit or exit; one that returns is ended with status 1.
 *
 * It replies once, by one of the `ucall_call_reply_…` functions. A second reply is ignored and
 * logged. Without a reply, the caller gets the error -32603. A reply to a notification is dropped.
 */
typedef void (*ucall_callback_t)(ucall_call_t call, ucall_callback_tag_t tag);

/* A request, while `ucall_auth_callback_t` runs. */
typedef struct ucall_request const *ucall_request_t;

/*
 * Authenticates a request before its body is read, on the thread that serves it. Returns false for
 * one that is rejected, with 401 over HTTP and -32004 otherwise. It may set `*user`, which
 * `ucall_call_user` returns for the calls of the request. The rules of `ucall_callback_t` apply.
 */
typedef bool (*ucall_auth_callback_t)(ucall_request_t request, ucall_callback_tag_t tag,
                                      void **user);

/*
 * Gets a line of the log, which ends with a NUL. It may run on any thread, also on one that replies
 * to a deferred call, one at a time for each kind of line, and must not call functions of the
 * library but `ucall_drain`, `ucall_stop` and `ucall_wake`.
 */
typedef void (*ucall_log_callback_t)(ucall_str_t line, size_t length, ucall_callback_tag_t tag);

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
 * The program may change its directory afterwards, also with relative paths.
 */
typedef struct ucall_config_t {
    /*
     * sizeof(ucall_config_t). 0 means the fields of version 1.0, so a program that sets a field of
     * a later version must set this, too. Then it also works with a library of another version.
     */
    size_t size;
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
    size_t max_procedures;
    /*
     * The threads that may serve, each with a number below this one. Default: 1. At most 1,000
     * threads of a process serve, of all servers together.
     */
    uint16_t serving_threads;
    /*
     * The log: one line a second with the calls, bytes and connections since the previous line, and
     * warnings. Default: -1, without lines, and with warnings on standard error. The program keeps
     * the descriptor open until `ucall_free` returns; one that is not open for writing is rejected.
     * A pipe that is full or has no reader loses lines, and never blocks the server.
     */
    int32_t logs_file_descriptor;
    /* "human" (the default), or "json" for one object a line. */
    char const *logs_format;
    /* Gets the lines in place of the descriptor, with its tag. Default: none. */
    ucall_log_callback_t logs_callback;
    ucall_callback_tag_t logs_tag;
    /* Calls in one batch. Default: 1,000. Past it: -32600. */
    size_t max_batch_calls;
    /*
     * Open connections, divided evenly among the threads. Past it, the longest idle connection is
     * closed for a new one. Default: 16,384. Always below the limit on descriptors, which is raised
     * as far as the system allows.
     */
    size_t max_connections;
    /*
     * The lifetime of a connection, to the second, and its requests, counting a batch as one. The
     * last reply over HTTP says `Connection: close`; an idle connection is closed at that age.
     * Default: no such limits.
     */
    uint64_t max_lifetime_ms;
    size_t max_lifetime_exchanges;
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
    /* Look up the peer of each connection, for `ucall_call_peer` and `ucall_request_peer`. */
    bool with_peers;
    /* Authenticates each request, with its tag. Default: none, and every request is accepted. */
    ucall_auth_callback_t auth;
    ucall_callback_tag_t auth_tag;
    /* Request line and headers of one HTTP request. Default: 16 KiB. Past it: 431. */
    size_t max_head_bytes;
    /* Headers of one HTTP request. Default: 100. Past it: 431. */
    size_t max_headers;
    /*
     * One body, one document over raw TCP, or one message over WebSocket. Default: 16 MiB. Past it:
     * 413, -32600, or closed with 1009.
     */
    size_t max_body_bytes;
    /* Levels of nested arrays and objects, at most 1,024. Default: 128. Past it: -32700. */
    size_t max_nesting;
    /* One reply, or all replies of a batch. Default: 64 MiB. Past it: -32603. */
    size_t max_reply_bytes;
    /* The id of a call. Default: 1 KiB. Past it: -32600. */
    size_t max_id_bytes;
    /* Pipelined requests of one connection. Default: 128. Past it, reading pauses. */
    size_t max_pipeline;
    /* Unsent bytes of one connection. Default: 1 MiB. Past it, reading pauses. */
    size_t max_output_bytes;
    /* Unreleased deferred calls of one thread, the last eighth for connections with few of them.
     * Default: 10,000. Past it: -32003. */
    size_t max_running_calls;
    /* From the first byte of a head to its last. Default: 10 s. Past it: 408. */
    uint64_t head_timeout_ms;
    /* Between two bytes of a body. Default: 30 s. Past it: 408. */
    uint64_t body_timeout_ms;
    /* Between two requests of a connection. Default: 75 s. Past it: closed. */
    uint64_t idle_timeout_ms;
    /* Without the peer receiving a byte of a reply. Default: 30 s. Past it: closed. */
    uint64_t send_timeout_ms;
    /* From the arrival of a call to its reply. Default: no limit. Past it: -32001. */
    uint64_t timeout_ms;
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
    size_t max_held_bytes;
    /* The password of an encrypted private key. */
    char const *ssl_private_key_password;
    /* The authorities that sign the certificates of clients, in PEM. */
    char const *ssl_client_authorities_path;
    /* A `ucall_client_auth_t`. Default: required if there are authorities, otherwise none. */
    uint32_t ssl_client_auth;
    /* For the TLS handshake. Default: 10 s. Past it: closed. */
    uint64_t handshake_timeout_ms;
    /*
     * Permissions of a Unix socket's file, at most 0777: a process that may write to it may call.
     * Default: 0600. A file without a listener is replaced. `ucall_free` removes the file.
     */
    uint32_t unix_mode;
    /* Chunk extensions and trailers of one body. Default: 16 KiB. Past it: 400. */
    size_t max_chunk_overhead_bytes;
    /*
     * Bytes that are received and discarded after the last reply of a connection, because closing
     * earlier could reset the connection before the reply arrives. Default: 256 KiB. Past it:
     * closed.
     */
    size_t max_discarded_bytes;
    /* The time for that. Default: 1 s. Past it: closed. */
    uint64_t discard_timeout_ms;
    /* Payload of one frame over WebSocket. Default: 16 MiB. Past it: closed with 1009. */
    size_t max_frame_bytes;
    /* Frames of one message over WebSocket. Default: 1,024. Past it: closed with 1009. */
    size_t max_message_frames;
    /* Without a byte of a WebSocket's client. Default: 20 s. Past it: the client is pinged. */
    uint64_t ping_interval_ms;
    /* Pings to a WebSocket's client that stays silent. Default: 2. Past it: closed with 1008. */
    size_t max_unanswered_pings;
    /* Text of the member _meta of a request. Default: 4 KiB. Past it: -32600. */
    size_t max_meta_bytes;
    /* Items of streams that wait for a slow client. Default: 64 KiB. Past it: streams pause. */
    size_t max_stream_bytes;
    /* Topics that one connection subscribes to. Default: 1,024. Past it: `ucall_call_subscribe`
     * returns false. */
    size_t max_subscriptions;
    /* The name of a topic. Default: 256. Past it: the same. */
    size_t max_topic_bytes;
    /* Whether to answer calls in UDP datagrams, too. Not with `use_ssl`, nor on a Unix socket. */
    uint8_t udp;
    /* Whether `auth` may serve datagrams from other machines, whose addresses can be forged. */
    uint8_t udp_auth;
    /* Whether a datagram that is sent again runs again. By default it gets the reply it had. */
    uint8_t udp_without_dedupe;
    /* The port of UDP. Default: that of TCP. */
    uint16_t udp_port;
    /* Deferred calls of one address over UDP. Default: 64. Past it: its datagrams are dropped, and
     * get -32006 without a cookie. */
    uint32_t max_source_calls;
    /* A reply in a datagram. Default: 1,232. Past it: an error that says to use TCP. */
    size_t max_datagram_bytes;
    /* Replies that a thread keeps for datagrams that are sent again. Default: 64 MiB. Past it:
     * -32003. */
    size_t max_dedupe_bytes;
    /* How long after the last copy of a datagram its reply is kept. Default: 10 s; at least 5 s,
     * because clients pause for up to 2.5 s between two copies. */
    uint64_t dedupe_ms;
    /* A network interface, such as "eth0", whose datagrams are received over AF_XDP; or "unix:" and
     * the path of the socket of ucall-xdp-setup. Needs `udp`, capabilities, and a queue for each
     * thread. Default: none. See docs/xdp.md. */
    char const *xdp;
    /* Whether a thread polls its queues while datagrams arrive, rather than wait for interrupts: 0
     * or 1. It delays other work of the thread by up to 1 ms. */
    uint32_t xdp_busy_poll;
    /* Calls a second of one address over UDP. Default: no limit. Past it: its datagrams are
     * dropped, and get -32006 without a cookie. */
    uint32_t max_source_calls_per_s;
    /* Addresses and networks of proxies, such as "10.0.0.0/8", and "unix:" for those on a Unix
     * socket. Peers are then the clients that they name in `Forwarded` or `X-Forwarded-For`.
     * Default: none. See docs/deploy.md. */
    char const *const *trusted_proxies;
    size_t trusted_proxies_count;
    /* Messages that wait for a slow client. Default: 1,024. Past it: its topic with the most of
     * them loses one, or its connection is closed: see `ucall_overflow_t`. */
    size_t max_waiting_messages;
    /* The same in bytes. Default: 1 MiB. One message more may wait, however long. */
    size_t max_waiting_message_bytes;
    /* Calls of one connection that run, streams and calls of batches among them. Default: 128. Past
     * it, further requests wait unread; those that cancel such a call do not. */
    size_t max_connection_calls;
    /* Connections to one thread of one address of IPv4, or of 64 bits of one of IPv6. Default: no
     * limit. Past it, further ones are closed. Proxies and load balancers are one address. */
    size_t max_connections_per_peer;
    /* Whether to answer GET /healthz and /readyz, 0 or 1: /healthz while the server runs, /readyz
     * with 200, and with 503 and a reason while it drains or is past a limit. Neither asks `auth`.
     * See docs/observability.md. */
    uint32_t health_checks;
    /* Whether to measure all calls, and to answer GET /metrics with the figures for Prometheus, 0
     * or 1. It asks `auth`. A call takes about 100 instructions more. See docs/observability.md. */
    uint32_t metrics;
    /* Binary parts of one document. Default: 1,024. Past it: -32600. See docs/security.md. */
    size_t max_parts;
    /* Length of a compressed body when it is decoded, from 64 KiB on, over its length. Default:
     * 100. Past it: 413. See docs/compression.md. */
    size_t max_body_ratio;
    /* Length from which replies are compressed for clients that accept it. Default: 0, no reply is.
     * Not for replies with a secret beside what a caller sent. See docs/compression.md. */
    size_t compression_min_bytes;
    /* Length up to which they are, since that takes time of the thread. Default: 4 MiB. */
    size_t compression_max_bytes;
} ucall_config_t;

/* The version of the library, like "1.0.0-alpha.1". Ends with a NUL. */
ucall_str_t ucall_version(void);

/* What kind of error it is. */
typedef enum ucall_error_t {
    UCALL_ERROR_NONE = 0,
    UCALL_ERROR_INVALID_ARGUMENT = 1, /* a NULL, text that is not UTF-8, an invalid field */
    UCALL_ERROR_ADDRESS_IN_USE = 2,   /* another process listens there */
    UCALL_ERROR_ADDRESS = 3,          /* the host name is unknown, or not of this machine */
    UCALL_ERROR_ENGINE = 4,           /* io_uring was required, and is unavailable */
    UCALL_ERROR_TLS = 5,              /* a certificate or key is missing or invalid */
    UCALL_ERROR_STORE = 6,            /* a store cannot be opened */
    UCALL_ERROR_LIMIT = 7,            /* above a limit of the configuration */
    UCALL_ERROR_THREAD = 8,           /* another thread has that number */
    UCALL_ERROR_INVALID_JSON = 9,     /* a writer was used wrongly */
    UCALL_ERROR_INVALID_REPLY = 10,   /* a reply was rejected */
    UCALL_ERROR_SYSTEM = 11,          /* the system has no descriptor, or its engine failed */
    UCALL_ERROR_BUG = 12              /* a bug in the library */
} ucall_error_t;

/*
 * Why the last function that sets the error of this thread has failed; "" if it has not. Ends with
 * a NUL, and is valid until the next of them: `ucall_init`, `ucall_add_procedure`,
 * `ucall_remove_procedure`, `ucall_add_store`, `ucall_take_call`, `ucall_take_call_for`,
 * `ucall_take_calls`, `ucall_poll_fd`, and those of writers.
 *
 * In a callback, also why a reply was rejected: its caller got an error instead, or the first of
 * two replies. Each callback begins without an error.
 */
ucall_str_t ucall_last_error(void);

/* What kind of error `ucall_last_error` explains. Later versions may have further kinds. */
ucall_error_t ucall_last_error_code(void);

/*
 * Creates a server that listens on its port; calls are served once a thread serves. Returns true
 * and sets `*server`. On failure, returns false, sets `*server` to NULL, and changes nothing else.
 *
 * A NULL `config` means all defaults.
 */
bool ucall_init(ucall_config_t *config, ucall_server_t *server);

/*
 * Registers `callback` as the procedure `name`, and replaces the callback of that name, if any;
 * also while the server runs. The name is copied. Other threads may still run a replaced callback,
 * or start it, so its tag must stay valid until `ucall_free` returns. Returns false for a NULL
 * server, name or callback, a name that is not UTF-8, and past `max_procedures`.
 */
bool ucall_add_procedure(ucall_server_t server, ucall_str_t name, ucall_callback_t callback,
                         ucall_callback_tag_t tag);

/*
 * Removes the procedure `name`; its callers then get -32601. Other threads may still run its
 * callback, or start it, so its tag must stay valid until `ucall_free` returns. Returns false if
 * there is none.
 */
bool ucall_remove_procedure(ucall_server_t server, ucall_str_t name);

/* The counters of a server, since its start unless another time is given. */
typedef struct ucall_stats_t {
    uint64_t calls; /* also notifications, and each call of a batch */
    uint64_t accepted_connections;
    uint64_t open_connections; /* now */
    uint64_t bytes_received;
    uint64_t bytes_sent;
    uint64_t subscriptions;    /* now */
    uint64_t dropped_messages; /* for slow clients and busy threads */
    /* Of UDP: see docs/udp.md. */
    uint64_t received_datagrams;
    uint64_t sent_datagrams;     /* replies */
    uint64_t invalid_datagrams;  /* without a valid request, so that they got no reply */
    uint64_t repeated_datagrams; /* copies of a request that has run, or runs */
    uint64_t refused_datagrams;  /* past a limit, or whose reply needed a cookie */
    uint64_t dropped_datagrams;  /* lost on this machine, because a buffer was full */
} ucall_stats_t;

/*
 * The counters of all threads, as of their last turns. `size` is sizeof(ucall_stats_t); counters
 * that the library lacks are 0. May be called on any thread. Returns false for a NULL server or
 * output, and above 64 KiB.
 */
bool ucall_stats(ucall_server_t server, ucall_stats_t *output, size_t size);

/* The options of a store (docs/store.md). 0 is the default of each. */
typedef struct ucall_store_config_t {
    size_t size; /* sizeof(ucall_store_config_t); 0 means the fields of version 1.0 */
    size_t max_bytes;       /* the size up to which its file grows; 64 GiB.
                             * valgrind needs less, such as 1 GiB */
    size_t max_value_bytes; /* the size of one value; 16 MiB */
    size_t max_watch_bytes; /* the changes that are kept for slow watchers; 64 MiB */
    bool no_durability;     /* answer writes before the disk has them */
} ucall_store_config_t;

/*
 * Serves the key-value store in the directory `path`, which is created if there is none, as the
 * procedures "NAME.get", "NAME.put", "NAME.delete", "NAME.cas", "NAME.increment", "NAME.scan",
 * "NAME.batch" and "NAME.watch" (docs/store.md), in place of others of these names. They run no
 * callback, and do not count for `max_procedures`. A NULL `config` has all defaults. Several
 * threads and processes may serve one store; those of one process with the same options. Each
 * thread opens it when it first serves, so fork before; the program may change its directory, also
 * with a relative `path`. Returns false for a NULL server, name or path, for texts that are not
 * UTF-8, and for a store that cannot be opened.
 */
bool ucall_add_store(ucall_server_t server, ucall_str_t name, ucall_str_t path,
                     ucall_store_config_t const *config);

/*
 * Takes one turn: waits for events of this thread, then accepts, reads, runs the calls that have
 * arrived, and replies. Returns true; or false if the server was stopped, or on failure, with
 * `ucall_last_error` set.
 *
 * `thread` is below `serving_threads`. The first thread that serves with a number keeps it, with
 * its connections and its engine. If it stops calling, its connections wait. The library needs at
 * most 128 KiB of its stack; a debug build, 4 MiB.
 */
bool ucall_take_call(ucall_server_t server, uint16_t thread);

/* The same, but waits no longer than `timeout_ms`; with 0, not at all. */
bool ucall_take_call_for(ucall_server_t server, uint16_t thread, uint64_t timeout_ms);

/*
 * A descriptor for an event loop of the program, such as those of libuv and glib: readable when a
 * turn of this thread is due, also by the time. Then call `ucall_take_call_for` with 0. It is
 * readable until the first such call, and valid until `ucall_free`; the loop must not watch it
 * later.
 *
 * The calling thread serves with that number. On io_uring, call it before the thread takes a turn.
 * Returns -1 on failure, and on systems other than Linux, with `ucall_last_error` set.
 */
int ucall_poll_fd(ucall_server_t server, uint16_t thread);

/*
 * Ends the wait of a thread: its `ucall_take_call` returns true, or will at once if it does not
 * wait now. `ucall_take_calls` goes on. May be called on any thread and in a signal handler, like
 * `ucall_stop`.
 */
void ucall_wake(ucall_server_t server, uint16_t thread);

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
 * Has all threads return from `ucall_take_calls` once the calls that have arrived are answered: the
 * server accepts no further connections, and tells clients of raw TCP and WebSocket to send no
 * more, by the notification $/drain. Calls that arrive later get -32002, or 503. Deferred calls get
 * up to `timeout_ms` to be replied to and released, then they are cancelled, and their callers get
 * -32007. May be called where `ucall_stop` may, which ends a drain. A second call has no effect.
 * Threads that take single turns go on with them until they return false.
 */
void ucall_drain(ucall_server_t server, uint64_t timeout_ms);

/*
 * Stops the server, waits for the other threads that serve, closes its connections and port, and
 * frees it. From then on no other thread may call a function with that server; a second call of
 * this one is an error, see `ucall_last_error`, also while newer servers exist. Deferred calls may
 * still be answered, which has no effect, and must be released. A callback may free its own server,
 * whose thread stops after the callback returns.
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
 * - u64: the same from 0 to 2^64 - 1.
 * - f64: any number in range, 1 included.
 * - str: a string. The output is unescaped and may contain NULs.
 * - json: any value. The output is its JSON text as received, a string with its quotes.
 *
 * A name that starts with '/' is a JSON pointer (RFC 6901) into the params, as in "/user/tags/0";
 * the pointer to a member whose name starts with '/' is "/~1…". Of two members with one name the
 * last counts. Params by position have no names but pointers, like "/0".
 *
 * Text outputs live as long as the call, and have no NUL at their end. Outputs may be NULL, and are
 * written only if the function returns true. Memory is allocated only for strings with escapes, and
 * reused for the next calls.
 */
bool ucall_param_named_bool(ucall_call_t call, ucall_str_t name, size_t name_length, bool *output);
bool ucall_param_named_i64(ucall_call_t call, ucall_str_t name, size_t name_length,
                           int64_t *output);
bool ucall_param_named_u64(ucall_call_t call, ucall_str_t name, size_t name_length,
                           uint64_t *output);
bool ucall_param_named_f64(ucall_call_t call, ucall_str_t name, size_t name_length,
                           double *output);
bool ucall_param_named_str(ucall_call_t call, ucall_str_t name, size_t name_length,
                           ucall_str_t *output, size_t *output_length);
bool ucall_param_named_json(ucall_call_t call, ucall_str_t name, size_t name_length,
                            ucall_str_t *output, size_t *output_length);

/* The same by position, from 0, for params in an array. */
bool ucall_param_positional_bool(ucall_call_t call, size_t index, bool *output);
bool ucall_param_positional_i64(ucall_call_t call, size_t index, int64_t *output);
bool ucall_param_positional_u64(ucall_call_t call, size_t index, uint64_t *output);
bool ucall_param_positional_f64(ucall_call_t call, size_t index, double *output);
bool ucall_param_positional_str(ucall_call_t call, size_t index, ucall_str_t *output,
                                size_t *output_length);
bool ucall_param_positional_json(ucall_call_t call, size_t index, ucall_str_t *output,
                                 size_t *output_length);

/* The type of an array's items. Each is in the byte order of the machine. */
typedef enum ucall_dtype_t {
    UCALL_DTYPE_BYTES = 0, /* no array */
    UCALL_DTYPE_BOOL = 1,  /* a byte, 0 or 1 */
    UCALL_DTYPE_I8 = 2,
    UCALL_DTYPE_I16 = 3,
    UCALL_DTYPE_I32 = 4,
    UCALL_DTYPE_I64 = 5,
    UCALL_DTYPE_U8 = 6,
    UCALL_DTYPE_U16 = 7,
    UCALL_DTYPE_U32 = 8,
    UCALL_DTYPE_U64 = 9,
    UCALL_DTYPE_F16 = 10,
    UCALL_DTYPE_F32 = 11,
    UCALL_DTYPE_F64 = 12,
    UCALL_DTYPE_BF16 = 13, /* the upper half of a float */
    UCALL_DTYPE_C64 = 14,  /* two floats */
    UCALL_DTYPE_C128 = 15  /* two doubles */
} ucall_dtype_t;

/*
 * An array, or bytes such as those of an image. The items lie one after another in row-major order:
 * the last index changes fastest. Bytes have no shape, so their rank is 0.
 */
typedef struct ucall_buffer_t {
    void const *data;
    size_t length;       /* in bytes, also of an array */
    uint32_t dtype;      /* a `ucall_dtype_t` */
    uint32_t rank;       /* the number of dimensions, at most 64; 0 also for a single item */
    size_t const *shape; /* the length of each dimension */
} ucall_buffer_t;

/*
 * A param that is an array or bytes: base64, or a part behind the request, which is not copied. A
 * `.npy` file is an array; its data is aligned for its items. The data and the shape live as long
 * as the call, and are read-only. `ucall_param_named_str` reads the base64 of either.
 *
 * Returns false for any other value, and for a `.npy` that is cut off, is longer than its shape
 * says, or has items that are neither bool nor a number of at most 64 bits.
 */
bool ucall_param_named_buffer(ucall_call_t call, ucall_str_t name, size_t name_length,
                              ucall_buffer_t *output);
bool ucall_param_positional_buffer(ucall_call_t call, size_t index, ucall_buffer_t *output);

/* The type of a JSON value. */
typedef enum ucall_type_t {
    UCALL_TYPE_NONE = 0, /* there is no value */
    UCALL_TYPE_NULL = 1,
    UCALL_TYPE_BOOL = 2,
    UCALL_TYPE_INTEGER = 3, /* a number without fraction and exponent, of any length */
    UCALL_TYPE_NUMBER = 4,  /* any other number */
    UCALL_TYPE_STRING = 5,
    UCALL_TYPE_ARRAY = 6,
    UCALL_TYPE_OBJECT = 7
} ucall_type_t;

/*
 * The type of one of the params: after a getter has returned false, it distinguishes a missing
 * param, a null and one of another type.
 */
ucall_type_t ucall_param_named_type(ucall_call_t call, ucall_str_t name, size_t name_length);
ucall_type_t ucall_param_positional_type(ucall_call_t call, size_t index);

/*
 * A value of the params of a call, valid as long as the call. The text is JSON as received, without
 * a NUL at its end. A program sets values to zeros and passes them on, and changes none otherwise.
 */
typedef struct ucall_value_t {
    ucall_call_t call;
    ucall_str_t json;
    size_t json_length;
} ucall_value_t;

/* All params: an array or an object. Returns false for a call without params. */
bool ucall_call_params(ucall_call_t call, ucall_value_t *output);
/* One of the params, of any type. Returns false if there is none. */
bool ucall_param_named_value(ucall_call_t call, ucall_str_t name, size_t name_length,
                             ucall_value_t *output);
bool ucall_param_positional_value(ucall_call_t call, size_t index, ucall_value_t *output);

/* The type of a value. */
ucall_type_t ucall_value_type(ucall_value_t const *value);

/* Reads a value as the getters of params do. Returns false for a value of another type. */
bool ucall_value_bool(ucall_value_t const *value, bool *output);
bool ucall_value_i64(ucall_value_t const *value, int64_t *output);
bool ucall_value_u64(ucall_value_t const *value, uint64_t *output);
bool ucall_value_f64(ucall_value_t const *value, double *output);
bool ucall_value_str(ucall_value_t const *value, ucall_str_t *output, size_t *output_length);

/* The number of items of an array or members of an object, counted in its text; 0 of others. */
size_t ucall_value_count(ucall_value_t const *value);

/*
 * Replaces an item of an array, or the value of a member of an object, by the next one; zeros by
 * the first. Returns false after the last, and leaves `item` as it is.
 *
 *     ucall_value_t item = {0};
 *     while (ucall_value_next(&array, &item)) …
 */
bool ucall_value_next(ucall_value_t const *container, ucall_value_t *item);

/*
 * The same for the members of an object, with the key of each: unescaped, valid as long as the
 * call, and without a NUL at its end. A key may come twice.
 */
bool ucall_value_next_member(ucall_value_t const *object, ucall_value_t *member, ucall_str_t *key,
                             size_t *key_length);

/*
 * Writes one JSON value: of a result, an item of a stream, the params of a message or the data of
 * an error. Created by `ucall_writer_new`, freed by `ucall_writer_free`, used by one thread at a
 * time.
 */
typedef struct ucall_writer *ucall_writer_t;

/* A writer without a value. */
ucall_writer_t ucall_writer_new(void);
/* Frees a writer. */
void ucall_writer_free(ucall_writer_t writer);
/* Discards the value and the error of a writer, and keeps its memory for the next value. */
void ucall_writer_clear(ucall_writer_t writer);

/*
 * Write the next part of the value: inside of an array an item; inside of an object a key, then its
 * value. `ucall_writer_json` takes the JSON text of a whole value.
 *
 * The text is always valid JSON: a part that does not fit there is rejected, and so are texts that
 * are not UTF-8, doubles that are not finite, invalid JSON, and more than 1,024 levels. Then they
 * return false, and so do all later calls with that writer, until `ucall_writer_clear`.
 */
bool ucall_writer_begin_array(ucall_writer_t writer);
bool ucall_writer_end_array(ucall_writer_t writer);
bool ucall_writer_begin_object(ucall_writer_t writer);
bool ucall_writer_end_object(ucall_writer_t writer);
bool ucall_writer_key(ucall_writer_t writer, ucall_str_t key, size_t length);
bool ucall_writer_null(ucall_writer_t writer);
bool ucall_writer_bool(ucall_writer_t writer, bool value);
bool ucall_writer_i64(ucall_writer_t writer, int64_t value);
bool ucall_writer_u64(ucall_writer_t writer, uint64_t value);
bool ucall_writer_f64(ucall_writer_t writer, double value);
bool ucall_writer_str(ucall_writer_t writer, ucall_str_t text, size_t length);
bool ucall_writer_json(ucall_writer_t writer, ucall_str_t json, size_t length);

/*
 * The text of the value, without a NUL at its end, valid until the writer is used again. Returns
 * false if the value is not complete, or a part was rejected.
 */
bool ucall_writer_text(ucall_writer_t writer, ucall_str_t *output, size_t *output_length);

/* The name by which the procedure of a call was registered, without a NUL at its end. */
bool ucall_call_method(ucall_call_t call, ucall_str_t *output, size_t *output_length);

/* Whether a call is a notification, whose reply is dropped. */
bool ucall_call_is_notification(ucall_call_t call);

/* What `auth` has set for the request of a call; NULL without it. */
void *ucall_call_user(ucall_call_t call);

/* The other end of a connection. */
typedef struct ucall_peer_t {
    char address[64]; /* of TCP: the IP address as text, with a NUL; "" for a Unix socket */
    uint16_t port;    /* of TCP; 0 if a proxy has not named it */
    int32_t process;  /* of a Unix socket on Linux: its id, or 0 if it is in another namespace */
    uint32_t user;    /* and its user and group */
    uint32_t group;
} ucall_peer_t;

/*
 * The peer of a call. `size` is sizeof(ucall_peer_t). Returns false without `with_peers` and
 * `trusted_proxies`, and for a client that its proxy does not name.
 */
bool ucall_call_peer(ucall_call_t call, ucall_peer_t *output, size_t size);
/* The same of a request. */
bool ucall_request_peer(ucall_request_t request, ucall_peer_t *output, size_t size);

/*
 * The first header of that name, in any case, of the HTTP request of a call. It has no NUL at its
 * end, and may have bytes that are not UTF-8. Returns false if there is none, over other protocols,
 * and for a deferred call: read its headers before.
 */
bool ucall_call_header(ucall_call_t call, ucall_str_t name, size_t name_length,
                       ucall_str_t *output, size_t *output_length);
/* The same of a request. */
bool ucall_request_header(ucall_request_t request, ucall_str_t name, size_t name_length,
                          ucall_str_t *output, size_t *output_length);

/* What a request has come by. The connection decides it: no client can claim another one. */
typedef enum ucall_transport_t {
    UCALL_TRANSPORT_NONE = 0, /* for NULL */
    UCALL_TRANSPORT_HTTP = 1,
    UCALL_TRANSPORT_WEBSOCKET = 2,
    UCALL_TRANSPORT_TCP = 3, /* the raw protocol, also over a Unix socket */
    UCALL_TRANSPORT_UDP = 4
} ucall_transport_t;

/* The transport of a request. */
ucall_transport_t ucall_request_transport(ucall_request_t request);

/*
 * The path of a request, such as "/metrics", as it was sent: percent-encoded, without the query and
 * without a NUL at its end. Returns false over raw TCP and UDP, which have none.
 */
bool ucall_request_path(ucall_request_t request, ucall_str_t *output, size_t *output_length);

/*
 * The client's verified certificate, in DER, while `auth` runs. Returns false if the client sent
 * none, and without TLS.
 */
bool ucall_request_certificate_der(ucall_request_t request, ucall_str_t *output,
                                   size_t *output_length);
/* Its subject, as in "CN=alice,O=Acme" (RFC 4514), without a NUL at its end; "" if it has none. */
bool ucall_request_certificate_subject(ucall_request_t request, ucall_str_t *output,
                                       size_t *output_length);
/* The common name of the subject. Returns false if it has none. */
bool ucall_request_certificate_common_name(ucall_request_t request, ucall_str_t *output,
                                           size_t *output_length);
/* One of the host names, mail addresses, URIs and IP addresses that it is issued for. Returns false
 * past the last one. */
bool ucall_request_certificate_name(ucall_request_t request, size_t index, ucall_str_t *output,
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
void ucall_call_reply_null(ucall_call_t call);
void ucall_call_reply_bool(ucall_call_t call, bool value);
void ucall_call_reply_i64(ucall_call_t call, int64_t value);
void ucall_call_reply_u64(ucall_call_t call, uint64_t value);
void ucall_call_reply_f64(ucall_call_t call, double value);
void ucall_call_reply_str(ucall_call_t call, ucall_str_t text, size_t length);

/*
 * Replies with the value of a writer, without validating it again. If it is not complete, or a part
 * was rejected, the caller gets -32603, and that is logged.
 */
void ucall_call_reply_writer(ucall_call_t call, ucall_writer_t writer);

/*
 * Replies with an array, as a `.npy` file, or with bytes: as a part behind the reply if the caller
 * takes that, otherwise as base64. They are copied. If the length is not that of the shape, or the
 * dtype is unknown, the caller gets -32603, and that is logged.
 */
void ucall_call_reply_buffer(ucall_call_t call, ucall_buffer_t const *buffer);

/* Replies with an error. Codes from -32768 to -32000 are reserved for JSON-RPC and this library. */
void ucall_call_reply_error(ucall_call_t call, int code, ucall_str_t message, size_t length);
/*
 * The same with data: JSON text, or NULL of length 0 for none. For invalid JSON the caller gets
 * -32603.
 */
void ucall_call_reply_error_data(ucall_call_t call, int code, ucall_str_t message,
                                 size_t message_length, ucall_str_t data, size_t data_length);
/* -32602 "Invalid params" */
void ucall_call_reply_error_invalid_params(ucall_call_t call);
/* -32603 "Out of memory" */
void ucall_call_reply_error_out_of_memory(ucall_call_t call);
/* -32603 "Internal error" */
void ucall_call_reply_error_unknown(ucall_call_t call);

/* Writes a warning to the log: `procedure "NAME"`, and the text. Equal ones are limited to one a
 * second. */
void ucall_call_warn(ucall_call_t call, ucall_str_t text, size_t length);

/*
 * Defers a call, to be answered later on any thread. The program owns the returned call: it reads
 * its params and replies to it as to any call, then releases it by `ucall_call_release`. The
 * callback must not reply to its own call any more.
 *
 * The deferred call has a copy of the params. Text of the original call ends with the callback;
 * read it again from the deferred call.
 *
 * Returns NULL, with nothing to release, if the call was answered or deferred before, and past
 * `max_running_calls`; then the caller gets -32003 with `retry_after_ms` in its data.
 */
ucall_call_t ucall_call_defer(ucall_call_t call);

/*
 * Releases a deferred call, which the program must do exactly once, also after `ucall_free`. A
 * debug build rejects a second release. Without a reply the caller gets -32603, unless the call is
 * cancelled. After it neither the call nor its text may be used. A call that was not deferred is
 * not released, and that is logged.
 */
void ucall_call_release(ucall_call_t call);

/*
 * Messages that the server starts, for clients of WebSocket and raw TCP: notifications of `method`,
 * with the JSON text of an array or object as params, or NULL of length 0 for none. Messages that
 * wait for a slow client are dropped above `max_waiting_messages` and `max_waiting_message_bytes`,
 * and those for a busy thread above 16 MiB; no function waits.
 */

/*
 * Sends the client of a call a notification. Of a deferred call it precedes the reply. Returns
 * false, and sends nothing, over HTTP and UDP, and for params that are no array or object.
 */
bool ucall_call_notify(ucall_call_t call, ucall_str_t method, size_t method_length,
                       ucall_str_t params, size_t params_length);

/* Which messages of a topic, or items of a stream, a slow client loses. */
typedef enum ucall_overflow_t {
    UCALL_OVERFLOW_DROP_OLDEST = 0,
    UCALL_OVERFLOW_DROP_NEWEST = 1,
    UCALL_OVERFLOW_CLOSE = 2, /* none: its connection is closed */
    UCALL_OVERFLOW_PAUSE = 3  /* none: the stream has no room for a while; for streams alone */
} ucall_overflow_t;

/*
 * Subscribes the connection of a call to a topic, until `ucall_call_unsubscribe` or its end. It may
 * be called again, and then replaces the overflow, a `ucall_overflow_t`. Returns false over HTTP
 * and UDP, above `max_subscriptions` or `max_topic_bytes`, when all subscriptions hold half of
 * `max_held_bytes`, and for a topic that is not UTF-8.
 */
bool ucall_call_subscribe(ucall_call_t call, ucall_str_t topic, size_t topic_length,
                          uint32_t overflow);

/* Ends the subscription of the connection of a call to a topic, if it has one. */
void ucall_call_unsubscribe(ucall_call_t call, ucall_str_t topic, size_t topic_length);

/*
 * Sends a notification to the subscribers of a topic, on all threads of the server. May be called
 * on any thread. Returns false, and sends nothing, for params that are no array or object, for
 * texts that are not UTF-8, and above `max_topic_bytes`.
 */
bool ucall_publish(ucall_server_t server, ucall_str_t topic, size_t topic_length,
                   ucall_str_t method, size_t method_length, ucall_str_t params,
                   size_t params_length);

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
bool ucall_call_meta(ucall_call_t call, ucall_str_t name, size_t name_length,
                     ucall_str_t *output, size_t *output_length);

/*
 * Whether a deferred call was cancelled before its reply was sent: by its client, by the end of its
 * connection or server, or because its deadline has passed. A reply is then dropped. A NULL call
 * counts as cancelled.
 */
bool ucall_call_is_cancelled(ucall_call_t call);

/*
 * The deadline of a call in milliseconds of CLOCK_MONOTONIC: the earliest of `timeout_ms` of the
 * configuration, the header Ucall-Timeout-Ms of its request and `timeout_ms` in its `_meta`.
 * Returns false if there is none. At its deadline a deferred call is cancelled, and its caller
 * gets -32001.
 */
bool ucall_call_deadline_ms(ucall_call_t call, int64_t *output);

#ifdef __cplusplus
}
#endif

#endif
