/*
 * Serves `sum` on a Unix socket: --path PATH [--engine NAME] [--mode OCTAL] [--threads N]. Says
 * what the configuration holds once it serves.
 */

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sum.h"

static void *serve(void *number) {
    ucall_take_calls(server, *(uint16_t *)number);
    return NULL;
}

int main(int count, char **words) {
    ucall_config_t config;
    memset(&config, 0, sizeof config);
    char host[4096] = "unix:";
    for (int i = 1; i + 1 < count; i += 2) {
        char const *value = words[i + 1];
        if (is(words[i], "--path")) strncat(host, value, sizeof host - strlen(host) - 1);
        if (is(words[i], "--engine"))
            config.engine = is(value, "uring") ? UCALL_ENGINE_URING : UCALL_ENGINE_POSIX;
        if (is(words[i], "--mode")) config.unix_mode = (uint32_t)strtoul(value, NULL, 8);
        if (is(words[i], "--threads")) config.serving_threads = (uint16_t)atoi(value);
    }
    config.hostname = host;
    if (!ucall_init(&config, &server)) {
        fprintf(stderr, "%s\n", ucall_last_error());
        return 1;
    }
    /* The configuration may be overwritten, because its strings were copied. */
    memset(host, 0, sizeof host);
    ucall_add_procedure(server, "sum", sum, NULL);
    signal(SIGTERM, on_signal);
    uint16_t numbers[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    pthread_t threads[8];
    for (uint16_t i = 1; i < config.serving_threads; ++i)
        pthread_create(&threads[i], NULL, serve, &numbers[i]);
    printf("listening on %d mode %o\n", config.port, (unsigned)config.unix_mode);
    fflush(stdout);
    ucall_take_calls(server, 0);
    for (uint16_t i = 1; i < config.serving_threads; ++i) pthread_join(threads[i], NULL);
    ucall_free(server);
    return 0;
}
