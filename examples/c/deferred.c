#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <ucall/ucall.h>

enum { WORKERS = 4 };

/* Calls that wait for a worker, in the order of arrival. */
typedef struct job {
    ucall_call_t call;
    struct job *next;
} job;

static job *first, *last;
static bool done;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static ucall_server_t server;

static void stop(int signal_number) {
    (void)signal_number;
    ucall_stop(server);
}

/* Runs on the server's thread, and only queues the call. */
static void slow_sum(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    job *added = malloc(sizeof *added);
    if (!added) {
        ucall_call_reply_error_out_of_memory(call);
        return;
    }
    added->next = NULL;
    added->call = ucall_call_defer(call);
    if (!added->call) { /* Too many calls are running; the caller has got an error. */
        free(added);
        return;
    }
    pthread_mutex_lock(&lock);
    if (last) last->next = added;
    else first = added;
    last = added;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

/* Waits for a job. Returns NULL at the end. */
static job *take(void) {
    pthread_mutex_lock(&lock);
    while (!first && !done) pthread_cond_wait(&changed, &lock);
    job *taken = first;
    if (taken) first = taken->next;
    if (!first) last = NULL;
    pthread_mutex_unlock(&lock);
    return taken;
}

/* Runs on a worker's thread, and may take long. */
static void answer(ucall_call_t call) {
    int64_t a, b, milliseconds = 0;
    if (!ucall_param_named_i64(call, "a", 0, &a) || !ucall_param_named_i64(call, "b", 0, &b)) {
        ucall_call_reply_error_invalid_params(call);
        return;
    }
    ucall_param_named_i64(call, "milliseconds", 0, &milliseconds);
    for (; milliseconds > 0 && !ucall_call_is_cancelled(call); --milliseconds) {
        struct timespec pause = {0, 1000000};
        nanosleep(&pause, NULL);
    }
    ucall_call_reply_i64(call, (int64_t)((uint64_t)a + (uint64_t)b));
}

static void *work(void *unused) {
    (void)unused;
    for (job *taken; (taken = take()); free(taken)) {
        answer(taken->call);
        ucall_call_release(taken->call);
    }
    return NULL;
}

/* deferred [--port PORT] [--engine posix|uring] [--timeout MILLISECONDS] */
int main(int argc, char **argv) {
    ucall_config_t config = {0};
    for (int at = 1; at + 1 < argc; at += 2) {
        if (!strcmp(argv[at], "--port")) {
            config.port = (uint16_t)atoi(argv[at + 1]);
            config.pick_port = config.port == 0;
        } else if (!strcmp(argv[at], "--engine")) {
            config.engine = strcmp(argv[at + 1], "uring") ? UCALL_ENGINE_POSIX
                                                          : UCALL_ENGINE_URING;
        } else if (!strcmp(argv[at], "--timeout")) {
            config.timeout_ms = (uint64_t)atoi(argv[at + 1]);
        }
    }
    if (!ucall_init(&config, &server) ||
        !ucall_add_procedure(server, "slow_sum", slow_sum, NULL)) {
        fprintf(stderr, "%s\n", ucall_last_error());
        return 1;
    }
    pthread_t workers[WORKERS];
    for (int at = 0; at < WORKERS; ++at)
        if (pthread_create(&workers[at], NULL, work, NULL)) return 1;
    signal(SIGINT, stop);
    signal(SIGTERM, stop);
    printf("listening on %d\n", config.port);
    fflush(stdout);
    bool stopped = ucall_take_calls(server, 0);
    if (!stopped) fprintf(stderr, "%s\n", ucall_last_error());

    /* Waiting calls were cancelled with their connections; the workers release them. */
    pthread_mutex_lock(&lock);
    done = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    for (int at = 0; at < WORKERS; ++at) pthread_join(workers[at], NULL);
    /* The handler must not use a freed server. */
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    ucall_free(server);
    return stopped ? 0 : 1;
}
