/* Deferred calls, which reply when a test asks for it, or after the server has been freed. */
#include <arpa/inet.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "serving.h"

enum { KEPT_MAX = 100 };

static ucall_call_t kept[KEPT_MAX];
static int count;

/* keep(text): defers the call, which later replies with its text. */
static void keep(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    kept[count] = ucall_call_defer(call);
    if (!kept[count]) return;
    ++count;
    /* Each of these is ignored and logged, because the call has been deferred. */
    ucall_call_reply_i64(call, 1);
    ucall_call_release(call);
    if (ucall_call_defer(call)) abort();
}

/* Replies with the param, then a second time, which is ignored. */
static void answer(ucall_call_t call) {
    ucall_str_t text;
    size_t length;
    if (ucall_param_named_str(call, "text", 0, &text, &length)) {
        ucall_call_reply_str(call, text, length);
        ucall_call_reply_error_unknown(call);
    }
    ucall_call_release(call);
}

static void answer_all(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    int answered = count;
    while (count) answer(kept[--count]);
    ucall_call_reply_i64(call, answered);
}

/* Replies in reverse order of the calls. */
static void answer_last(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    if (count) answer(kept[--count]);
    ucall_call_reply_i64(call, count);
}

static void how_many_are_kept(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    ucall_call_reply_i64(call, count);
}

/* The call of a callback that has returned, which the program must not keep. */
static ucall_call_t ended;

/* outlive(answers): keeps its call without deferring it, and replies to it if it is to. */
static void outlive(ucall_call_t call, ucall_callback_tag_t tag) {
    bool answers;
    (void)tag;
    ended = call;
    if (ucall_param_named_bool(call, "answers", 0, &answers) && answers)
        ucall_call_reply_i64(call, 3);
}

/* Every use of a call that has ended does nothing. */
static void *use_ended(void *same) {
    bool answers;
    (void)same;
    if (ucall_param_named_bool(ended, "answers", 0, &answers)) abort();
    if (ucall_param_named_type(ended, "answers", 0) != UCALL_TYPE_NONE) abort();
    if (ucall_call_defer(ended) || !ucall_call_is_cancelled(ended)) abort();
    ucall_call_reply_i64(ended, 5);
    ucall_call_release(ended);
    return NULL;
}

/* use(thread): uses the call that has ended, on this thread or on another, before it replies. */
static void use(ucall_call_t call, ucall_callback_tag_t tag) {
    bool other = false;
    pthread_t thread;
    (void)tag;
    ucall_param_named_bool(call, "thread", 0, &other);
    if (!other)
        use_ended(NULL);
    else if (pthread_create(&thread, NULL, use_ended, NULL) || pthread_join(thread, NULL))
        abort();
    ucall_call_reply_i64(call, 4);
}

/* The number of deferred calls that are cancelled. */
static void cancelled(ucall_call_t call, ucall_callback_tag_t tag) {
    int found = 0;
    (void)tag;
    for (int at = 0; at < count; ++at) found += ucall_call_is_cancelled(kept[at]);
    ucall_call_reply_i64(call, found);
}

static uint16_t port;

/* Replies to the calls that are kept when no connection is accepted any more. */
static void *answer_when_closed(void *none) {
    struct sockaddr_in address = {0};
    int refused = 0;
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    while (!refused) {
        int client = socket(AF_INET, SOCK_STREAM, 0);
        refused = connect(client, (struct sockaddr *)&address, sizeof address);
        close(client);
    }
    while (count) answer(kept[--count]);
    return none;
}

/* drain(timeout_ms, answers) */
static void drain(ucall_call_t call, ucall_callback_tag_t tag) {
    bool answers = false;
    uint64_t timeout_ms = 0;
    pthread_t thread;
    (void)tag;
    ucall_param_named_bool(call, "answers", 0, &answers);
    ucall_param_named_u64(call, "timeout_ms", 0, &timeout_ms);
    if (answers && pthread_create(&thread, NULL, answer_when_closed, NULL)) abort();
    if (answers) pthread_detach(thread);
    ucall_drain(NULL, 1);
    ucall_drain(server, timeout_ms);
    ucall_call_reply_i64(call, count);
}

/* The milliseconds until this call's deadline; -1 without a deadline. */
static void time_left(ucall_call_t call, ucall_callback_tag_t tag) {
    int64_t deadline;
    struct timespec now;
    (void)tag;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (ucall_call_deadline_ms(call, &deadline) && ucall_call_deadline_ms(call, NULL))
        ucall_call_reply_i64(
            call, deadline - ((int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000));
    else
        ucall_call_reply_i64(call, -1);
}

/* Rejects everyone. */
static bool reject(ucall_request_t request, ucall_callback_tag_t tag, void **user) {
    return !request && tag && user;
}

/* later [posix|uring] [TIMEOUT_MS] [MAX_DEFERRED] [THREADS] [auth]: monitored with THREADS */
int main(int argc, char **argv) {
    ucall_config_t config = config_of(argc, argv);
    config.timeout_ms = number_in(argc, argv, 2);
    config.max_running_calls = argc > 3 ? (size_t)atoi(argv[3]) : KEPT_MAX;
    if (argc > 4) {
        config.size = sizeof config;
        config.health_checks = config.metrics = 1;
        config.serving_threads = (uint16_t)number_in(argc, argv, 4);
    }
    if (argc > 5) config.auth = reject;
    procedure_t const procedures[] = {
        {"keep", keep}, {"answer_all", answer_all}, {"answer_last", answer_last},
        {"outlive", outlive}, {"use", use}, {"drain", drain},
        {"kept", how_many_are_kept}, {"cancelled", cancelled}, {"time_left", time_left},
    };
    if (!start(&config, procedures, COUNT(procedures))) return 1;
    port = config.port;
    int status = config.serving_threads == 2 ? serve_on_two_threads(&config) : serve(&config);
    /* The server has been freed: all calls are cancelled, and may still be replied to. */
    for (int at = 0; at < count; ++at)
        if (!ucall_call_is_cancelled(kept[at])) return 2;
    while (count) answer(kept[--count]);
    return status;
}
