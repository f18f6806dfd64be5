/*
 * Serves `sum` under TLS: --engine NAME --certificate FILE... [--key FILE] [--password TEXT]
 * [--authorities FILE] [--handshake-ms N].
 */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sum.h"

int main(int count, char **words) {
    ucall_config_t config;
    memset(&config, 0, sizeof config);
    char const *certificates[4];
    config.use_ssl = true;
    config.pick_port = true;
    config.ssl_certificates_paths = certificates;
    for (int i = 1; i + 1 < count; i += 2) {
        char const *value = words[i + 1];
        if (is(words[i], "--engine"))
            config.engine = is(value, "uring") ? UCALL_ENGINE_URING : UCALL_ENGINE_POSIX;
        if (is(words[i], "--certificate"))
            certificates[config.ssl_certificates_count++] = value;
        if (is(words[i], "--key")) config.ssl_private_key_path = value;
        if (is(words[i], "--password")) config.ssl_private_key_password = value;
        if (is(words[i], "--authorities")) config.ssl_client_authorities_path = value;
        if (is(words[i], "--handshake-ms")) config.handshake_timeout_ms = (uint64_t)atoi(value);
    }
    if (!ucall_init(&config, &server)) {
        fprintf(stderr, "%s\n", ucall_last_error());
        return 1;
    }
    /* The values in effect have been written back. */
    uint32_t asked = config.ssl_client_authorities_path ? UCALL_CLIENT_AUTH_REQUIRED
                                                        : UCALL_CLIENT_AUTH_NONE;
    if (config.ssl_client_auth != asked) return 2;
    ucall_add_procedure(server, "sum", sum, NULL);
    signal(SIGTERM, on_signal);
    printf("listening on %d\n", config.port);
    fflush(stdout);
    ucall_take_calls(server, 0);
    ucall_free(server);
    return 0;
}
