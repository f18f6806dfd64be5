/* Serves one thread from poll(2), and replies to deferred calls from another thread. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serving.h"

static int64_t polls, echoes;

static void wake(int signal_number) {
    int const before = errno;
    (void)signal_number;
    errno = 77;
    ucall_wake(server, 0);
    if (errno != 77) abort();
    errno = before;
}

static void echo(ucall_call_t call, ucall_callback_tag_t tag) {
    ucall_str_t text;
    size_t length;
    (void)tag;
    ++echoes;
    if (ucall_param_positional_json(call, 0, &text, &length))
        ucall_call_reply_content(call, text, length);
    else
        ucall_call_reply_error_invalid_params(call);
}

static void *reply(void *call) {
    ucall_call_reply_bool(call, true);
    ucall_call_release(call);
    return NULL;
}

/* thread(): replied to on another thread, while this one waits in poll(2). */
static void thread(ucall_call_t call, ucall_callback_tag_t tag) {
    pthread_t other;
    (void)tag;
    if (pthread_create(&other, NULL, reply, ucall_call_defer(call))) abort();
    pthread_detach(other);
}

/* never(): deferred, without a reply until its deadline. */
static void never(ucall_call_t call, ucall_callback_tag_t tag) {
    static ucall_call_t kept;
    (void)tag;
    if (kept) ucall_call_release(kept);
    kept = ucall_call_defer(call);
}

/* polls(): how often poll(2) has returned. */
static void count(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    ucall_call_reply_i64(call, polls);
}

/* A reply has left before its turn returns: the program may do other work now. */
static void check_reply_leaves(uint16_t port, bool waits) {
    static char const call[] =
        "{\"jsonrpc\":\"2.0\",\"method\":\"echo\",\"params\":[1],\"id\":1}\n";
    struct sockaddr_in address = {0};
    struct pollfd client = {socket(AF_INET, SOCK_STREAM, 0), POLLIN, 0};
    int64_t const before = echoes;
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(client.fd, (struct sockaddr *)&address, sizeof address)) abort();
    if (write(client.fd, call, sizeof call - 1) < 0) abort();
    while (echoes == before)
        if (!(waits ? ucall_take_call(server, 0) : ucall_take_call_for(server, 0, 0))) abort();
    if (poll(&client, 1, 10000) != 1) abort();
    close(client.fd);
}

/* Wakes of a wait with and without a time limit, and by a signal. */
static void check_waits(void) {
    ucall_wake(NULL, 0);
    ucall_wake(server, 1);
    ucall_wake(server, 0);
    if (!ucall_take_call(server, 0)) abort();
    if (!ucall_take_call_for(server, 0, 1) || !ucall_take_call_for(server, 0, 0)) abort();
    ucall_wake(server, 0);
    if (!ucall_take_call_for(server, 0, UINT64_MAX)) abort();
    raise(SIGUSR1);
    if (!ucall_take_call(server, 0)) abort();
    if (ucall_take_call_for(server, 1, 0) || ucall_take_call_for(NULL, 0, 0)) abort();
    if (ucall_poll_fd(NULL, 0) != -1 || ucall_poll_fd(server, 1) != -1) abort();
}

int main(int argc, char **argv) {
    ucall_config_t config = config_of(argc, argv);
    config.timeout_ms = number_in(argc, argv, 2);
    config.idle_timeout_ms = number_in(argc, argv, 3);
    procedure_t const procedures[] = {
        {"echo", echo}, {"thread", thread}, {"never", never}, {"polls", count},
    };
    if (!start(&config, procedures, COUNT(procedures))) return 1;
    struct sigaction waking = {0};
    waking.sa_handler = wake;
    sigaction(SIGUSR1, &waking, NULL);
    struct pollfd work = {ucall_poll_fd(server, 0), POLLIN, 0};
    if (work.fd < 0 || ucall_poll_fd(server, 0) != work.fd) return failed();
    check_waits();
    check_reply_leaves(config.port, false);
    check_reply_leaves(config.port, true);
    announce(&config);
    do {
        if (poll(&work, 1, -1) < 0 && errno != EINTR) return 1;
        ++polls;
    } while (ucall_take_call_for(server, 0, 0));
    signal(SIGUSR1, SIG_DFL);
    ucall_free(server);
    return 0;
}
