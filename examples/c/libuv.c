/* Serves within libuv's event loop: the loop's timer and the calls share one thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <uv.h>

#include <ucall/ucall.h>

typedef struct program {
    ucall_server_t server;
    uv_poll_t poll;
    uv_timer_t timer;
    uv_signal_t signal;
    int64_t ticks;
} program;

/* ticks(): how often the timer has fired. */
static void ticks(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_call_reply_i64(call, ((program *)tag)->ticks);
}

static void on_tick(uv_timer_t *timer) { ++((program *)timer->data)->ticks; }

static void on_signal(uv_signal_t *handle, int number) {
    (void)number;
    ucall_stop(((program *)handle->data)->server);
}

/* A turn is due: take it without waiting, and return to the loop. */
static void on_work(uv_poll_t *poll, int status, int events) {
    program *self = poll->data;
    (void)status;
    (void)events;
    if (ucall_take_call_for(self->server, 0, 0)) return;
    uv_poll_stop(poll);
    uv_timer_stop(&self->timer);
    uv_signal_stop(&self->signal);
}

/* libuv [--port PORT] [--engine posix|uring]; port 0 picks a free one. */
int main(int argc, char **argv) {
    ucall_config_t config = {0};
    program self = {0};
    uv_loop_t *loop = uv_default_loop();
    for (int at = 1; at + 1 < argc; at += 2) {
        if (!strcmp(argv[at], "--port")) {
            config.port = (uint16_t)atoi(argv[at + 1]);
            config.pick_port = config.port == 0;
        } else if (!strcmp(argv[at], "--engine")) {
            config.engine = strcmp(argv[at + 1], "uring") ? UCALL_ENGINE_POSIX
                                                          : UCALL_ENGINE_URING;
        }
    }
    if (!ucall_init(&config, &self.server) ||
        !ucall_add_procedure(self.server, "ticks", ticks, &self)) {
        fprintf(stderr, "%s\n", ucall_last_error());
        return 1;
    }
    int descriptor = ucall_poll_fd(self.server, 0);
    if (descriptor < 0) {
        fprintf(stderr, "%s\n", ucall_last_error());
        return 1;
    }
    self.poll.data = self.timer.data = self.signal.data = &self;
    uv_poll_init(loop, &self.poll, descriptor);
    uv_poll_start(&self.poll, UV_READABLE, on_work);
    uv_timer_init(loop, &self.timer);
    uv_timer_start(&self.timer, on_tick, 10, 10);
    uv_signal_init(loop, &self.signal);
    uv_signal_start(&self.signal, on_signal, SIGTERM);
    printf("listening on %d\n", config.port);
    fflush(stdout);
    uv_run(loop, UV_RUN_DEFAULT);
    uv_close((uv_handle_t *)&self.poll, NULL);
    uv_close((uv_handle_t *)&self.timer, NULL);
    uv_close((uv_handle_t *)&self.signal, NULL);
    uv_run(loop, UV_RUN_DEFAULT);
    uv_loop_close(loop);
    ucall_free(self.server);
    return 0;
}
