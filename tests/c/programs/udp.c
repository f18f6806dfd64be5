/* Calls over UDP, on two threads. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ucall/ucall.h>

static ucall_server_t server;

static void on_signal(int number) {
    (void)number;
    ucall_stop(server);
}

static void sum(ucall_call_t call, ucall_callback_tag_t tag) {
    int64_t a = 0, b = 0;
    (void)tag;
    ucall_param_named_i64(call, "a", 0, &a);
    ucall_param_named_i64(call, "b", 0, &b);
    ucall_call_reply_i64(call, a + b);
}

/* count(): how often it has run. */
static void count(ucall_call_t call, ucall_callback_tag_t tag) {
    static int64_t runs;
    (void)tag;
    ucall_call_reply_i64(call, __atomic_add_fetch(&runs, 1, __ATOMIC_RELAXED));
}

static void *serve(void *thread) {
    return ucall_take_calls(server, (uint16_t)(size_t)thread) ? NULL : thread;
}

/* udp [posix|uring] [without_dedupe|limited]; limited: 3 calls a second of an address.
 * The ports of TCP and UDP are the same. */
int main(int argc, char **argv) {
    ucall_config_t config = {0};
    config.pick_port = true;
    config.serving_threads = 2;
    config.udp = true;
    config.engine = argc > 1 && !strcmp(argv[1], "uring") ? UCALL_ENGINE_URING : UCALL_ENGINE_POSIX;
    config.udp_without_dedupe = argc > 2 && !strcmp(argv[2], "without_dedupe");
    config.max_source_calls_per_s = argc > 2 && !strcmp(argv[2], "limited") ? 3 : 0;
    if (!ucall_init(&config, &server)) {
        fprintf(stderr, "%s\n", ucall_last_error());
        return 1;
    }
    if (config.udp_port != config.port) return 1;
    ucall_add_procedure(server, "sum", sum, NULL);
    ucall_add_procedure(server, "count", count, NULL);
    signal(SIGTERM, on_signal);
    printf("listening on %d\n", config.port);
    fflush(stdout);
    pthread_t other;
    if (pthread_create(&other, NULL, serve, (void *)1)) return 1;
    void *failed = NULL;
    if (!ucall_take_calls(server, 0)) return 1;
    pthread_join(other, &failed);
    ucall_free(server);
    return failed ? 1 : 0;
}
