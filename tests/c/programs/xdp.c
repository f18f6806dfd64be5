/* Calls over AF_XDP at the interface eth0. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <ucall/ucall.h>

static ucall_server_t server;
static __thread int number_of_thread;

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

/* The number of the thread that answers. */
static void thread(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    ucall_call_reply_i64(call, number_of_thread);
}

/* The sockets of AF_XDP that prefer busy polling. */
static void polling(ucall_call_t call, ucall_callback_tag_t tag) {
    int count = 0, family, prefers;
    (void)tag;
    for (int descriptor = 0; descriptor < 1024; descriptor++) {
        socklen_t length = sizeof(int), other_length = sizeof(int);
        if (!getsockopt(descriptor, SOL_SOCKET, 39 /* SO_DOMAIN */, &family, &length) &&
            family == 44 /* AF_XDP */ &&
            !getsockopt(descriptor, SOL_SOCKET, 69 /* SO_PREFER_BUSY_POLL */, &prefers,
                        &other_length))
            count += prefers;
    }
    ucall_call_reply_i64(call, count);
}

static void *serve(void *number) {
    number_of_thread = (int)(intptr_t)number;
    if (!ucall_take_calls(server, (uint16_t)number_of_thread))
        fprintf(stderr, "%s\n", ucall_last_error());
    return NULL;
}

/* xdp [posix|uring] [THREADS] [poll] */
int main(int argc, char **argv) {
    pthread_t threads[8];
    ucall_config_t config = {0};
    config.hostname = "192.0.2.2";
    config.pick_port = true;
    config.udp = true;
    config.xdp = "eth0";
    config.engine = argc > 1 && !strcmp(argv[1], "uring") ? UCALL_ENGINE_URING : UCALL_ENGINE_POSIX;
    config.serving_threads = (uint16_t)(argc > 2 ? atoi(argv[2]) : 1);
    config.xdp_busy_poll = argc > 3;
    config.logs_file_descriptor = 2;
    if (!ucall_init(&config, &server)) {
        fprintf(stderr, "%s\n", ucall_last_error());
        return 1;
    }
    ucall_add_procedure(server, "sum", sum, NULL);
    ucall_add_procedure(server, "thread", thread, NULL);
    ucall_add_procedure(server, "polling", polling, NULL);
    signal(SIGTERM, on_signal);
    printf("listening on %d\n", config.port);
    fflush(stdout);
    for (int number = 0; number < config.serving_threads; number++)
        pthread_create(&threads[number], NULL, serve, (void *)(intptr_t)number);
    for (int number = 0; number < config.serving_threads; number++)
        pthread_join(threads[number], NULL);
    ucall_free(server);
    return 0;
}
