/* What the test programs share: their server, its options and procedures, and how they serve. */

#ifndef SERVING_H
#define SERVING_H

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ucall/ucall.h>

static ucall_server_t server;

typedef struct {
    char const *name;
    ucall_callback_t callback;
} procedure_t;

/* The number of an array's elements. */
#define COUNT(array) (sizeof(array) / sizeof *(array))

static inline void on_signal(int number) {
    (void)number;
    ucall_stop(server);
}

static inline bool is(char const *word, char const *other) { return !strcmp(word, other); }

static inline ucall_engine_t engine_of(char const *name) {
    return is(name, "uring") ? UCALL_ENGINE_URING : UCALL_ENGINE_POSIX;
}

/* The configuration of a server on a free port, on the engine that the first argument names. */
static inline ucall_config_t config_of(int argc, char **argv) {
    ucall_config_t config = {0};
    config.pick_port = true;
    config.engine = engine_of(argc > 1 ? argv[1] : "posix");
    return config;
}

/* The number that is an argument; 0, which means the default, without it. */
static inline size_t number_in(int argc, char **argv, int position) {
    return argc > position ? (size_t)atol(argv[position]) : 0;
}

/* Whether a text, which has no NUL, is a word. */
static inline bool text_is(ucall_str_t text, size_t length, char const *word) {
    return strlen(word) == length && !memcmp(text, word, length);
}

/* A procedure that several programs serve. */
static inline void sum(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    int64_t a, b;
    if (!ucall_param_named_i64(call, "a", 0, &a) || !ucall_param_named_i64(call, "b", 0, &b)) {
        ucall_call_reply_error_invalid_params(call);
        return;
    }
    ucall_call_reply_i64(call, a + b);
}

/* Prints the library's error; returns the status of a program that has failed. */
static inline int failed(void) {
    fprintf(stderr, "%s\n", ucall_last_error());
    return 1;
}

/* Makes the server and adds the procedures; prints the error if it cannot. */
static inline bool start(ucall_config_t *config, procedure_t const *procedures, size_t count) {
    bool started = ucall_init(config, &server);
    for (size_t at = 0; started && at < count; ++at)
        started = ucall_add_procedure(server, procedures[at].name, procedures[at].callback, NULL);
    return started || !failed();
}

/* Prints the port, which tells the test that it can connect. */
static inline void announce(ucall_config_t const *config) {
    signal(SIGTERM, on_signal);
    printf("listening on %d\n", config->port);
    fflush(stdout);
}

/* Serves on one thread until SIGTERM; returns the status of the program. */
static inline int serve(ucall_config_t const *config) {
    announce(config);
    bool served = ucall_take_calls(server, 0);
    ucall_free(server);
    return served ? 0 : 1;
}

static inline void *serve_thread(void *thread) {
    return ucall_take_calls(server, (uint16_t)(size_t)thread) ? NULL : thread;
}

/* The same on two threads. */
static inline int serve_on_two_threads(ucall_config_t const *config) {
    pthread_t other;
    void *error = NULL;
    announce(config);
    if (pthread_create(&other, NULL, serve_thread, (void *)1)) return 1;
    if (!ucall_take_calls(server, 0)) return 1;
    pthread_join(other, &error);
    ucall_free(server);
    return error ? 1 : 0;
}

#endif
