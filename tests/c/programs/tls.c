/*
 * Serves `sum` under TLS: --engine NAME --certificate FILE... [--key FILE] [--password TEXT]
 * [--authorities FILE] [--handshake-ms N].
 */

#include "serving.h"

int main(int count, char **words) {
    ucall_config_t config = config_of(0, NULL);
    char const *certificates[4];
    config.use_ssl = true;
    config.ssl_certificates_paths = certificates;
    for (int i = 1; i + 1 < count; i += 2) {
        char const *value = words[i + 1];
        if (is(words[i], "--engine")) config.engine = engine_of(value);
        if (is(words[i], "--certificate"))
            certificates[config.ssl_certificates_count++] = value;
        if (is(words[i], "--key")) config.ssl_private_key_path = value;
        if (is(words[i], "--password")) config.ssl_private_key_password = value;
        if (is(words[i], "--authorities")) config.ssl_client_authorities_path = value;
        if (is(words[i], "--handshake-ms")) config.handshake_timeout_ms = (uint64_t)atoi(value);
    }
    procedure_t const procedures[] = {{"sum", sum}};
    if (!start(&config, procedures, COUNT(procedures))) return 1;
    /* The values in effect have been written back. */
    uint32_t asked = config.ssl_client_authorities_path ? UCALL_CLIENT_AUTH_REQUIRED
                                                        : UCALL_CLIENT_AUTH_NONE;
    if (config.ssl_client_auth != asked) return 2;
    return serve(&config);
}
