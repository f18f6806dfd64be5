/*
 * Serves a procedure that is complained about, and logs to a pipe that nobody reads ("unread") or
 * that is full ("full"), or to standard error, which nobody reads ("none"): logs posix|uring KIND.
 */
#include <fcntl.h>
#include <unistd.h>

#include "serving.h"

static void twice(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    ucall_call_reply_i64(call, 1);
    ucall_call_reply_i64(call, 2);
}

/* A pipe's writing end. */
static int unread_or_full(bool unread) {
    int ends[2];
    char zeros[4096] = {0};
    if (pipe(ends)) return -1;
    if (unread) {
        close(ends[0]);
    } else {
        fcntl(ends[1], F_SETFL, O_NONBLOCK);
        while (write(ends[1], zeros, sizeof zeros) > 0) continue;
        fcntl(ends[1], F_SETFL, 0);
    }
    return ends[1];
}

int main(int argc, char **argv) {
    ucall_config_t config = config_of(argc, argv);
    if (argc != 3) return 1;
    if (strcmp(argv[2], "none"))
        config.logs_file_descriptor = unread_or_full(!strcmp(argv[2], "unread"));
    procedure_t const procedures[] = {{"twice", twice}};
    if (!start(&config, procedures, COUNT(procedures))) return 1;
    announce(&config);
    if (!strcmp(argv[2], "none")) dup2(unread_or_full(true), 2);
    bool stopped = ucall_take_calls(server, 0);
    signal(SIGTERM, SIG_DFL);
    ucall_free(server);
    return stopped ? 0 : 1;
}
