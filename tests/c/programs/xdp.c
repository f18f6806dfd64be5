/* Calls over AF_XDP at the interface eth0. */
#include <sys/socket.h>

#include "serving.h"

static __thread int number_of_thread;

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

static void *serve_numbered(void *number) {
    number_of_thread = (int)(intptr_t)number;
    if (!ucall_take_calls(server, (uint16_t)number_of_thread)) failed();
    return NULL;
}

/* xdp [posix|uring] [THREADS] [poll] */
int main(int argc, char **argv) {
    pthread_t threads[8];
    ucall_config_t config = config_of(argc, argv);
    config.hostname = "192.0.2.2";
    config.udp = true;
    config.xdp = "eth0";
    config.serving_threads = (uint16_t)(argc > 2 ? atoi(argv[2]) : 1);
    config.xdp_busy_poll = argc > 3;
    config.logs_file_descriptor = 2;
    procedure_t const procedures[] = {{"sum", sum}, {"thread", thread}, {"polling", polling}};
    if (!start(&config, procedures, COUNT(procedures))) return 1;
    announce(&config);
    for (int number = 0; number < config.serving_threads; number++)
        pthread_create(&threads[number], NULL, serve_numbered, (void *)(intptr_t)number);
    for (int number = 0; number < config.serving_threads; number++)
        pthread_join(threads[number], NULL);
    ucall_free(server);
    return 0;
}
