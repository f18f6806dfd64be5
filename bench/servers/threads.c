/* The server for bench/threads.py: `sum` on as many threads as are asked for.
 *
 *     threads --threads COUNT --engine posix|uring --port PORT
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ucall/ucall.h>

enum { THREADS_MAX = 64 };

static ucall_server_t server;

static void stop(int signal_number) {
    (void)signal_number;
    ucall_stop(server);
}

static void sum(ucall_call_t call, ucall_callback_tag_t tag) {
    int64_t a, b;
    (void)tag;
    if (ucall_param_named_i64(call, "a", 0, &a) && ucall_param_named_i64(call, "b", 0, &b))
        ucall_call_reply_i64(call, a + b);
    else
        ucall_call_reply_error_invalid_params(call);
}

static void *serve(void *number) {
    if (!ucall_take_calls(server, (uint16_t)(size_t)number))
        fprintf(stderr, "%s\n", ucall_last_error());
    return NULL;
}

int main(int argc, char **argv) {
    ucall_config_t config = {0};
    pthread_t threads[THREADS_MAX];
    for (int at = 1; at + 1 < argc; at += 2) {
        char const *value = argv[at + 1];
        if (!strcmp(argv[at], "--threads")) config.serving_threads = (uint16_t)atoi(value);
        if (!strcmp(argv[at], "--port")) config.port = (uint16_t)atoi(value);
        if (!strcmp(argv[at], "--engine"))
            config.engine = strcmp(value, "uring") ? UCALL_ENGINE_POSIX : UCALL_ENGINE_URING;
    }
    config.pick_port = config.port == 0;
    if (config.serving_threads > THREADS_MAX || !ucall_init(&config, &server) ||
        !ucall_add_procedure(server, "sum", sum, NULL)) {
        fprintf(stderr, "%s\n", ucall_last_error());
        return 1;
    }
    signal(SIGINT, stop);
    signal(SIGTERM, stop);
    for (size_t at = 1; at < config.serving_threads; ++at)
        if (pthread_create(&threads[at], NULL, serve, (void *)at)) return 1;
    printf("listening on %d\n", config.port);
    fflush(stdout);
    serve(NULL);
    for (size_t at = 1; at < config.serving_threads; ++at) pthread_join(threads[at], NULL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    ucall_free(server);
    return 0;
}
