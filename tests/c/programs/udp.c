/* Calls over UDP, on two threads. */

#include "serving.h"

/* count(): how often it has run. */
static void count(ucall_call_t call, ucall_callback_tag_t tag) {
    static int64_t runs;
    (void)tag;
    ucall_call_reply_i64(call, __atomic_add_fetch(&runs, 1, __ATOMIC_RELAXED));
}

/* thread(): which of the two serves. */
static void thread(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    ucall_call_reply_i64(call, (int64_t)(size_t)pthread_self());
}

/* later(): as count, by a deferred call. */
static void later(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_call_t deferred = ucall_call_defer(call);
    if (!deferred) return;
    count(deferred, tag);
    ucall_call_release(deferred);
}

/* stream(items): a list, or a stream, which no datagram carries. */
static void stream(ucall_call_t call, ucall_callback_tag_t tag) {
    bool items = false;
    (void)tag;
    ucall_param_named_bool(call, "items", 0, &items);
    if (ucall_call_takes_items(call)) abort();
    if (!items)
        ucall_call_reply_content(call, "[1,2]", UCALL_NUL_TERMINATED);
    else if (ucall_call_stream(call, UCALL_OVERFLOW_PAUSE, NULL, NULL))
        abort();
}

/* messages(): how many of four attempts to send the client messages have succeeded. */
static void messages(ucall_call_t call, ucall_callback_tag_t tag) {
    int sent = 0;
    (void)tag;
    sent += ucall_call_notify(call, "changed", 0, NULL, 0);
    sent += ucall_call_subscribe(call, "news", 0, UCALL_OVERFLOW_DROP_OLDEST);
    ucall_call_t deferred = ucall_call_defer(call);
    if (!deferred) return;
    sent += ucall_call_notify(deferred, "changed", 0, NULL, 0);
    sent += ucall_call_subscribe(deferred, "news", 0, UCALL_OVERFLOW_DROP_OLDEST);
    ucall_call_reply_i64(deferred, sent);
    ucall_call_release(deferred);
}

/* user(): whether `auth` has set one. */
static void user(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    ucall_call_reply_bool(call, ucall_call_user(call) == &server);
}

/* stats(): the counts of datagrams. */
static void stats(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_stats_t now;
    char text[256];
    (void)tag;
    if (!ucall_stats(server, &now, sizeof now)) abort();
    snprintf(text, sizeof text,
             "{\"received\":%d,\"sent\":%d,\"invalid\":%d,\"repeated\":%d,\"refused\":%d,"
             "\"dropped\":%d}",
             (int)now.received_datagrams, (int)now.sent_datagrams, (int)now.invalid_datagrams,
             (int)now.repeated_datagrams, (int)now.refused_datagrams, (int)now.dropped_datagrams);
    ucall_call_reply_content(call, text, UCALL_NUL_TERMINATED);
}

/* Accepts datagrams of one address. */
static bool auth(ucall_request_t request, ucall_callback_tag_t tag, void **found) {
    ucall_peer_t peer;
    (void)tag;
    *found = &server;
    return ucall_request_peer(request, &peer, sizeof peer) && !strcmp(peer.address, "127.0.0.1");
}

/* udp [posix|uring] [without_dedupe|limited|auth|forced_auth]; limited: 3 calls a second of an
 * address; auth: on all addresses, which needs force. The ports of TCP and UDP are the same. */
int main(int argc, char **argv) {
    ucall_config_t config = config_of(argc, argv);
    char const *how = argc > 2 ? argv[2] : "";
    config.serving_threads = 2;
    config.udp = true;
    config.udp_without_dedupe = !strcmp(how, "without_dedupe");
    config.max_source_calls_per_s = !strcmp(how, "limited") ? 3 : 0;
    config.udp_auth = !strcmp(how, "forced_auth");
    if (strstr(how, "auth")) {
        config.auth = auth;
        config.with_peers = true;
        config.hostname = "0.0.0.0";
    }
    procedure_t const procedures[] = {
        {"sum", sum}, {"count", count}, {"thread", thread}, {"later", later}, {"stream", stream},
        {"messages", messages}, {"user", user}, {"stats", stats},
    };
    if (!start(&config, procedures, COUNT(procedures))) return 1;
    if (config.udp_port != config.port) return 1;
    return serve_on_two_threads(&config);
}
