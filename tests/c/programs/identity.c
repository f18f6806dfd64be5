/* A server whose `auth` describes each request, and whose procedure replies with the last one.
 * identity ENGINE [CERTIFICATE KEY AUTHORITY] */

#include "serving.h"

static char last[4096];

/* Writes a text of the request, which a getter has found, or null. */
static void write_text(ucall_writer_t writer, char const *key, bool found, ucall_str_t text,
                       size_t length) {
    ucall_writer_key(writer, key, UCALL_NUL_TERMINATED);
    if (found) ucall_writer_str(writer, text, length);
    else ucall_writer_null(writer);
}

/* Accepts all but /metrics. */
static bool authenticate(ucall_request_t request, ucall_callback_tag_t tag, void **user) {
    ucall_writer_t writer = ucall_writer_new();
    ucall_str_t text, path;
    size_t length, path_length;
    bool found;
    (void)tag, (void)user;
    ucall_writer_begin_object(writer);
    ucall_writer_key(writer, "transport", 0);
    ucall_writer_i64(writer, ucall_request_transport(request));
    bool has_path = ucall_request_path(request, &path, &path_length);
    write_text(writer, "path", has_path, path, path_length);
    found = ucall_request_certificate_subject(request, &text, &length);
    write_text(writer, "subject", found, text, length);
    found = ucall_request_certificate_common_name(request, &text, &length);
    write_text(writer, "common_name", found, text, length);
    ucall_writer_key(writer, "names", 0);
    ucall_writer_begin_array(writer);
    for (size_t at = 0; ucall_request_certificate_name(request, at, &text, &length); ++at)
        ucall_writer_str(writer, text, length);
    ucall_writer_end_array(writer);
    ucall_writer_key(writer, "der", 0);
    ucall_writer_begin_array(writer);
    if (ucall_request_certificate_der(request, &text, &length))
        for (size_t at = 0; at < length; ++at)
            ucall_writer_u64(writer, (unsigned char)text[at]);
    ucall_writer_end_array(writer);
    ucall_writer_end_object(writer);
    if (!ucall_writer_text(writer, &text, &length) || length >= sizeof last) abort();
    memcpy(last, text, length);
    last[length] = 0;
    ucall_writer_free(writer);
    return !has_path || !text_is(path, path_length, "/metrics");
}

static void last_request(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    ucall_call_reply_content(call, last, UCALL_NUL_TERMINATED);
}

static void ask_nothing(void) {
    ucall_str_t text;
    size_t length;
    if (ucall_request_transport(NULL) != UCALL_TRANSPORT_NONE ||
        ucall_request_path(NULL, &text, &length) ||
        ucall_request_certificate_der(NULL, &text, &length) ||
        ucall_request_certificate_subject(NULL, &text, &length) ||
        ucall_request_certificate_common_name(NULL, &text, &length) ||
        ucall_request_certificate_name(NULL, 0, &text, &length))
        abort();
}

int main(int argc, char **argv) {
    ucall_config_t config = config_of(argc, argv);
    char const *certificates[1];
    config.size = sizeof config;
    config.auth = authenticate;
    if (argc > 4) {
        certificates[0] = argv[2];
        config.use_ssl = true;
        config.ssl_certificates_paths = certificates;
        config.ssl_certificates_count = 1;
        config.ssl_private_key_path = argv[3];
        config.ssl_client_authorities_path = argv[4];
        config.ssl_client_auth = UCALL_CLIENT_AUTH_OPTIONAL;
    } else {
        config.udp = true;
        config.metrics = 1;
    }
    procedure_t const procedures[] = {{"last", last_request}};
    if (!start(&config, procedures, COUNT(procedures))) return 1;
    ask_nothing();
    return serve(&config);
}
