/*
 * Serves `sum` in a child, which has left the directory that its paths are relative to:
 * directory posix|uring store|unix|tls DIRECTORY.
 */

#include <sys/wait.h>
#include <unistd.h>

#include "serving.h"

int main(int count, char **words) {
    ucall_config_t config = config_of(count, words);
    char const *certificates[] = {"own.pem", "between.pem"};
    if (count < 4) return 2;
    if (is(words[2], "unix")) config.hostname = "unix:sum.sock";
    if (is(words[2], "tls")) {
        config.use_ssl = true;
        config.ssl_certificates_paths = certificates;
        config.ssl_certificates_count = 2;
        config.ssl_private_key_path = "server.key";
        config.ssl_client_authorities_path = "root.pem";
        config.ssl_client_auth = UCALL_CLIENT_AUTH_OPTIONAL;
    }
    if (!ucall_init(&config, &server) || !ucall_add_procedure(server, "sum", sum, NULL) ||
        (is(words[2], "store") && !ucall_add_store(server, "kv", "kv", NULL)) || chdir(words[3]))
        return failed();
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    sigprocmask(SIG_BLOCK, &stop, NULL);
    pid_t child = fork();
    if (child > 0) {
        int number, status = 1;
        sigwait(&stop, &number);
        kill(child, number);
        waitpid(child, &status, 0);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    }
    signal(SIGTERM, on_signal);
    sigprocmask(SIG_UNBLOCK, &stop, NULL);
    return serve(&config);
}
