/*
 * Serves `sum` on a Unix socket: --path PATH [--engine NAME] [--mode OCTAL] [--threads N]. Says
 * what the configuration holds once it serves.
 */

#include "serving.h"

int main(int count, char **words) {
    ucall_config_t config = {0};
    char host[4096] = "unix:";
    for (int i = 1; i + 1 < count; i += 2) {
        char const *value = words[i + 1];
        if (is(words[i], "--path")) strncat(host, value, sizeof host - strlen(host) - 1);
        if (is(words[i], "--engine")) config.engine = engine_of(value);
        if (is(words[i], "--mode")) config.unix_mode = (uint32_t)strtoul(value, NULL, 8);
        if (is(words[i], "--threads")) config.serving_threads = (uint16_t)atoi(value);
    }
    config.hostname = host;
    procedure_t const procedures[] = {{"sum", sum}};
    if (!start(&config, procedures, COUNT(procedures))) return 1;
    /* The configuration may be overwritten, because its strings were copied. */
    memset(host, 0, sizeof host);
    signal(SIGTERM, on_signal);
    pthread_t threads[8];
    for (size_t i = 1; i < config.serving_threads; ++i)
        pthread_create(&threads[i], NULL, serve_thread, (void *)i);
    printf("listening on %d mode %o\n", config.port, (unsigned)config.unix_mode);
    fflush(stdout);
    ucall_take_calls(server, 0);
    for (size_t i = 1; i < config.serving_threads; ++i) pthread_join(threads[i], NULL);
    ucall_free(server);
    return 0;
}
