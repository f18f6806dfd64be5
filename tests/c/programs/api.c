/* Calls the functions of servers in every wrong and right way; ends with 0 if all do as the header
 * says. With a second word, "left", only what leaks on io_uring, as it has to. */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/epoll.h>
#endif

#include <ucall/ucall.h>

#define CHECK(what)                                                                       \
    do {                                                                                  \
        if (!(what)) {                                                                    \
            fprintf(stderr, "%d: %s (%s)\n", __LINE__, #what, ucall_last_error());        \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

static uint32_t engine;

static void ignore(ucall_call_t call, ucall_callback_tag_t tag) {
    (void)tag;
    ucall_call_reply_content(call, "null", UCALL_NUL_TERMINATED);
}

static ucall_server_t make_server(ucall_config_t *config) {
    ucall_server_t server = NULL;
    config->pick_port = true;
    config->engine = engine;
    CHECK(ucall_init(config, &server) && server);
    return server;
}

static bool last_error_contains(char const *word) {
    return strstr(ucall_last_error(), word) != NULL;
}

/* Whether the last function has failed for that reason. */
static bool failed_by(ucall_error_t code) {
    return ucall_last_error_code() == code && *ucall_last_error();
}

/* On a port below the ephemeral ones, so that it is still free after it is closed. */
static ucall_server_t make_server_on_a_reusable_port(ucall_config_t *config) {
    ucall_server_t server = NULL;
    config->engine = engine;
    config->port = (uint16_t)(10000 + getpid() % 10000);
    for (; !ucall_init(config, &server); ++config->port) CHECK(last_error_contains("in use"));
    return server;
}

static void nulls_do_nothing(void) {
    ucall_config_t config = {0};
    ucall_server_t server = make_server(&config);
    bool truth = true;
    int64_t integer = 7;
    double number = 7;
    ucall_str_t text = "kept";
    size_t length = 4;

    CHECK(!ucall_init(&config, NULL) && last_error_contains("server is NULL"));
    CHECK(!ucall_add_procedure(NULL, "a", ignore, NULL) && last_error_contains("server is NULL"));
    CHECK(!ucall_add_procedure(server, NULL, ignore, NULL) && last_error_contains("name is NULL"));
    CHECK(!ucall_add_procedure(server, "a", NULL, NULL) && last_error_contains("callback is NULL"));
    CHECK(!ucall_add_procedure(server, "\xff", ignore, NULL) && last_error_contains("UTF-8"));
    CHECK(!ucall_take_call(NULL, 0) && last_error_contains("server is NULL"));
    CHECK(failed_by(UCALL_ERROR_INVALID_ARGUMENT));
    CHECK(!ucall_take_calls(NULL, 0) && last_error_contains("server is NULL"));
    ucall_stop(NULL);
    ucall_free(NULL);

    CHECK(!ucall_param_named_bool(NULL, "a", 0, &truth) && truth);
    CHECK(!ucall_param_named_i64(NULL, "a", 0, &integer) && integer == 7);
    CHECK(!ucall_param_named_f64(NULL, "a", 0, &number) && number > 6);
    CHECK(!ucall_param_named_str(NULL, "a", 0, &text, &length) && length == 4);
    CHECK(!ucall_param_named_json(NULL, "a", 0, &text, &length) && !strcmp(text, "kept"));
    CHECK(!ucall_param_positional_bool(NULL, 0, &truth));
    CHECK(!ucall_param_positional_i64(NULL, 0, &integer));
    CHECK(!ucall_param_positional_f64(NULL, 0, &number));
    CHECK(!ucall_param_positional_str(NULL, 0, &text, &length));
    CHECK(!ucall_param_positional_json(NULL, 0, &text, &length));
    ucall_call_reply_content(NULL, "1", UCALL_NUL_TERMINATED);
    ucall_call_reply_bool(NULL, true);
    ucall_call_reply_i64(NULL, 1);
    ucall_call_reply_f64(NULL, 1);
    ucall_call_reply_str(NULL, "a", UCALL_NUL_TERMINATED);
    ucall_call_reply_error(NULL, 1, "a", UCALL_NUL_TERMINATED);
    ucall_call_reply_error_invalid_params(NULL);
    ucall_call_reply_error_out_of_memory(NULL);
    ucall_call_reply_error_unknown(NULL);
    CHECK(!ucall_call_defer(NULL));
    ucall_call_release(NULL);
    CHECK(ucall_call_is_cancelled(NULL));
    CHECK(!ucall_call_deadline_ms(NULL, &integer));
    ucall_free(server);
}

static void defaults_are_written_back(void) {
    ucall_config_t config = {0};
    ucall_server_t server = make_server(&config);
    CHECK(!strcmp(config.hostname, "127.0.0.1") && config.port != 0);
    CHECK(config.queue_depth == 512 && config.max_procedures == 1024);
    CHECK(config.serving_threads == 1);
    CHECK(config.logs_file_descriptor == -1 && !strcmp(config.logs_format, "human"));
    CHECK(config.max_batch_calls == 1000 && config.max_connections > 0);
    CHECK(config.max_connections <= 16384);
    CHECK(config.engine == engine && config.max_head_bytes == 16 << 10);
    CHECK(config.max_headers == 100 && config.max_body_bytes == 16 << 20);
    CHECK(config.max_nesting == 128 && config.max_reply_bytes == 64 << 20);
    CHECK(config.max_id_bytes == 1024 && config.max_pipeline == 128);
    CHECK(config.max_connection_calls == 128 && config.max_connections_per_peer == 0);
    CHECK(config.max_output_bytes == 1 << 20 && config.max_running_calls == 10000);
    CHECK(config.max_held_bytes == 1 << 30 && config.max_chunk_overhead_bytes == 16 << 10);
    CHECK(config.max_discarded_bytes == 256 << 10 && config.discard_timeout_ms == 1000);
    CHECK(config.max_frame_bytes == 16 << 20 && config.max_message_frames == 1024);
    CHECK(config.max_unanswered_pings == 2 && config.ping_interval_ms == 20000);
    CHECK(config.max_meta_bytes == 4 << 10 && config.max_stream_bytes == 64 << 10);
    CHECK(config.max_subscriptions == 1024 && config.max_topic_bytes == 256);
    CHECK(config.max_parts == 1024 && config.max_body_ratio == 100);
    CHECK(config.compression_min_bytes == 0 && config.compression_max_bytes == 4 << 20);
    CHECK(config.max_waiting_messages == 1024 && config.max_waiting_message_bytes == 1 << 20);
    CHECK(config.udp == 0 && config.udp_port == 0 && config.max_source_calls == 64);
    CHECK(config.max_datagram_bytes == 1232 && config.max_dedupe_bytes == 64 << 20);
    CHECK(config.dedupe_ms == 10000);
    CHECK(config.xdp == NULL && config.xdp_busy_poll == 0);
    CHECK(config.max_source_calls_per_s == 0);
    CHECK(config.head_timeout_ms == 10000 && config.body_timeout_ms == 30000);
    CHECK(config.idle_timeout_ms == 75000 && config.send_timeout_ms == 30000);
    ucall_free(server);
    /* The values in effect make the same server again. */
    CHECK(ucall_init(&config, &server));
    ucall_free(server);
}

static bool is_refused(ucall_config_t config, char const *word) {
    ucall_config_t const before = config;
    ucall_server_t server = (ucall_server_t)&config;
    bool refused = !ucall_init(&config, &server) && !server && last_error_contains(word);
    return refused && !memcmp(&before, &config, sizeof config);
}

static void invalid_configurations_are_refused(void) {
    ucall_config_t config;
    memset(&config, 0, sizeof config);
    config.pick_port = true;
    config.use_ssl = true;
    CHECK(is_refused(config, "ssl_certificates_paths"));
    char const *certificates = "no-such-certificate.pem";
    config.ssl_certificates_paths = &certificates;
    config.ssl_certificates_count = 1;
    CHECK(is_refused(config, "no-such-certificate.pem") && failed_by(UCALL_ERROR_TLS));
    config.ssl_client_auth = 4;
    CHECK(is_refused(config, "ssl_client_auth"));
    config.ssl_client_auth = UCALL_CLIENT_AUTH_DEFAULT;
    config.ssl_certificates_paths = NULL;
    config.ssl_certificates_count = 0;
    config.use_ssl = false;
    config.engine = 9;
    CHECK(is_refused(config, "engine") && failed_by(UCALL_ERROR_INVALID_ARGUMENT));
    config.engine = engine;
    config.logs_format = "xml";
    CHECK(is_refused(config, "logs_format"));
    config.logs_format = NULL;
    config.logs_file_descriptor = 999999;
    CHECK(is_refused(config, "logs_file_descriptor: 999999 is not open"));
    config.logs_file_descriptor = 0;
    config.unix_mode = 01000;
    CHECK(is_refused(config, "unix_mode"));
    config.unix_mode = 0;
    config.max_nesting = 1025;
    CHECK(is_refused(config, "max_nesting"));
    config.max_nesting = 0;
    config.hostname = "no.such.host.invalid";
    CHECK(is_refused(config, "no.such.host.invalid"));
    config.hostname = "\xff";
    CHECK(is_refused(config, "UTF-8"));
    config.hostname = "192.0.2.1"; /* reserved (RFC 5737) */
    CHECK(is_refused(config, "192.0.2.1") && failed_by(UCALL_ERROR_ADDRESS));
    config.hostname = NULL;
    char const *hosts[] = {"good.example", "not/a/host"};
    config.allowed_hosts = hosts;
    config.allowed_hosts_count = 2;
    CHECK(is_refused(config, "not/a/host"));
    config.allowed_hosts_count = 1;
    char const *proxies[] = {"10.0.0.0/8", "10.0.0.1/8"};
    config.trusted_proxies = proxies;
    config.trusted_proxies_count = 2;
    CHECK(is_refused(config, "10.0.0.1/8"));
}

static void a_port_is_bound_once(void) {
    for (uint16_t threads = 1; threads <= 2; ++threads) {
        ucall_config_t config = {0};
        config.serving_threads = threads;
        ucall_server_t server = make_server_on_a_reusable_port(&config), second = NULL;
        ucall_config_t same = {0};
        same.port = config.port;
        same.serving_threads = threads;
        CHECK(!ucall_init(&same, &second) && !second && last_error_contains("in use"));
        CHECK(failed_by(UCALL_ERROR_ADDRESS_IN_USE));
        ucall_free(server);
        CHECK(ucall_init(&same, &second));
        ucall_free(second);
    }
}

static void programs_built_against_other_headers_work(void) {
    struct {
        ucall_config_t config;
        char behind[64];
    } now;
    ucall_server_t server = NULL;
    /* The program has other data after the fields that its size names; 0 names those of 1.0. */
    for (size_t size = 0; size <= sizeof now.config; size += sizeof now.config) {
        memset(&now, 0x5a, sizeof now);
        memset(&now.config, 0, sizeof now.config);
        now.config.size = size;
        now.config.pick_port = true;
        CHECK(ucall_init(&now.config, &server) && now.config.max_batch_calls == 1000);
        CHECK(now.config.size == sizeof now.config && now.behind[0] == 0x5a);
        ucall_free(server);
    }
    /* A newer header has more fields, which matter only if they are set. */
    memset(&now, 0, sizeof now);
    now.config.size = sizeof now;
    now.config.pick_port = true;
    CHECK(ucall_init(&now.config, &server));
    ucall_free(server);
    memset(&now, 0, sizeof now);
    now.config.size = sizeof now;
    now.behind[63] = 1;
    CHECK(!ucall_init(&now.config, &server) && last_error_contains("newer"));
    now.config.size = sizeof(ucall_config_t) - 1;
    CHECK(!ucall_init(&now.config, &server) && last_error_contains("size: no version"));
    now.config.size = SIZE_MAX;
    CHECK(!ucall_init(&now.config, &server) && last_error_contains("size: no version"));
}

static void without_a_configuration_all_are_defaults(void) {
    ucall_server_t server = NULL;
    /* The default port may be in use. */
    if (ucall_init(NULL, &server)) ucall_free(server);
    else CHECK(last_error_contains("8545"));
}

static void procedures_are_counted_by_name(void) {
    ucall_config_t config = {0};
    config.max_procedures = 2;
    ucall_server_t server = make_server(&config);
    CHECK(ucall_add_procedure(server, "a", ignore, NULL));
    CHECK(ucall_add_procedure(server, "b", ignore, NULL));
    CHECK(ucall_add_procedure(server, "b", ignore, NULL));
    CHECK(!ucall_add_procedure(server, "c", ignore, NULL) && last_error_contains("max_procedures"));
    CHECK(failed_by(UCALL_ERROR_LIMIT));
    CHECK(ucall_add_procedure(server, "a", ignore, NULL));
    CHECK(ucall_last_error_code() == UCALL_ERROR_NONE);
    ucall_free(server);
}

static void init_interrupts_no_system_call(void) {
    for (int round = 0; round < 20; ++round) {
        ucall_config_t config = {0};
        ucall_server_t server = make_server(&config);
#ifdef __linux__
        struct epoll_event event;
        int descriptor = epoll_create1(0);
        CHECK(epoll_wait(descriptor, &event, 1, 5) == 0);
        close(descriptor);
#endif
        ucall_free(server);
    }
}

static void a_stop_before_serving_is_kept(void) {
    ucall_config_t config = {0};
    ucall_server_t server = make_server(&config);
    errno = 77;
    ucall_stop(server);
    CHECK(errno == 77);
    CHECK(ucall_take_calls(server, 0) && !*ucall_last_error());
    CHECK(!ucall_take_call(server, 0) && !*ucall_last_error());
    CHECK(!ucall_take_calls(server, 1) && last_error_contains("serving_threads"));
    ucall_free(server);
}

static void a_wake_before_serving_is_kept(void) {
    ucall_config_t config = {0};
    ucall_server_t server = make_server(&config);
    ucall_wake(server, 0);
    CHECK(ucall_take_call(server, 0));
    CHECK(ucall_take_call_for(server, 0, 1));
    /* On io_uring a thread that has served cannot wait by a descriptor. */
    if (engine == UCALL_ENGINE_URING)
        CHECK(ucall_poll_fd(server, 0) == -1 && last_error_contains("before the thread serves"));
    else
        CHECK(ucall_poll_fd(server, 0) >= 0);
    ucall_stop(server);
    CHECK(!ucall_take_call_for(server, 0, UINT64_MAX) && !*ucall_last_error());
    CHECK(ucall_poll_fd(server, 0) == -1 && failed_by(UCALL_ERROR_THREAD));
    ucall_free(server);
}

static void *drive(void *server) {
    CHECK(ucall_take_calls(server, 0));
    return NULL;
}

static void sleep_briefly(void) {
    struct timespec pause = {0, 20000000};
    nanosleep(&pause, NULL);
}

static int connected(uint16_t port) {
    struct sockaddr_in address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int descriptor = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(!connect(descriptor, (struct sockaddr *)&address, sizeof address));
    return descriptor;
}

/* Waits until a thread serves: it replies, with a result or an unknown method. */
static void wait_until_served(uint16_t port) {
    static char const request[] = "{\"jsonrpc\":\"2.0\",\"method\":\"none\",\"id\":1}\n";
    char byte;
    int peer = connected(port);
    CHECK(send(peer, request, sizeof request - 1, 0) == sizeof request - 1);
    CHECK(recv(peer, &byte, 1, 0) == 1);
    close(peer);
}

static void limits_have_no_largest_value(void) {
    ucall_config_t config = {0};
    config.max_body_bytes = config.max_reply_bytes = config.max_held_bytes = SIZE_MAX;
    config.max_connections = config.max_running_calls = config.max_procedures = SIZE_MAX;
    config.max_batch_calls = config.max_pipeline = config.max_output_bytes = SIZE_MAX;
    config.idle_timeout_ms = config.timeout_ms = config.max_lifetime_ms = UINT64_MAX;
    config.head_timeout_ms = config.body_timeout_ms = config.send_timeout_ms = UINT64_MAX;
    ucall_server_t server = make_server(&config);
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, drive, server));
    wait_until_served(config.port);
    ucall_free(server);
    CHECK(!pthread_join(thread, NULL));
}

static void a_server_is_freed_once(void) {
    ucall_config_t config = {0};
    ucall_server_t server = make_server(&config);
    ucall_free(server);
    ucall_free(server);
    CHECK(last_error_contains("ucall_free: called twice") && failed_by(UCALL_ERROR_INVALID_ARGUMENT));
    server = make_server(&config);
    CHECK(ucall_last_error_code() == UCALL_ERROR_NONE);
    ucall_free(server);
    CHECK(ucall_last_error_code() == UCALL_ERROR_NONE);
}

static void another_thread_stops_and_frees(void) {
    ucall_config_t config = {0};
    ucall_server_t server = make_server(&config);
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, drive, server));
    wait_until_served(config.port);
    CHECK(!ucall_take_call(server, 0) && last_error_contains("already"));
    CHECK(failed_by(UCALL_ERROR_THREAD));
    ucall_stop(server);
    CHECK(!pthread_join(thread, NULL));
    ucall_free(server);
    /* ucall_free stops the server and waits for the other thread. */
    server = make_server(&config);
    CHECK(!pthread_create(&thread, NULL, drive, server));
    wait_until_served(config.port);
    ucall_free(server);
    CHECK(!pthread_join(thread, NULL));
}

static ucall_server_t woken;

static void *stop_it(void *unused) {
    sleep_briefly();
    ucall_stop(woken);
    return unused;
}

static void *wake_it(void *unused) {
    sleep_briefly();
    ucall_wake(woken, 0);
    return unused;
}

static void *drive_once(void *server) {
    pthread_t thread;
    /* A worker is made, and the stop ends its turn. */
    CHECK(!pthread_create(&thread, NULL, stop_it, NULL));
    CHECK(!ucall_take_call(server, 0));
    CHECK(!pthread_join(thread, NULL));
    return NULL;
}

/* The same within a time limit, after a wake has ended a wait without one. */
static void *drive_twice(void *server) {
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, wake_it, NULL));
    CHECK(ucall_take_call(server, 0));
    CHECK(!pthread_join(thread, NULL));
    CHECK(!pthread_create(&thread, NULL, stop_it, NULL));
    CHECK(!ucall_take_call_for(server, 0, UINT64_MAX));
    CHECK(!pthread_join(thread, NULL));
    return NULL;
}

static void turns_end_with_a_wake_or_a_stop(void) {
    void *(*const drives[])(void *) = {drive_once, drive_twice};
    for (size_t at = 0; at < sizeof drives / sizeof *drives; ++at) {
        ucall_config_t config = {0};
        pthread_t thread;
        woken = make_server(&config);
        CHECK(!pthread_create(&thread, NULL, drives[at], woken));
        CHECK(!pthread_join(thread, NULL));
        ucall_free(woken);
    }
}

static void *drive_one_turn(void *server) {
    CHECK(ucall_take_call(server, 0));
    return NULL;
}

static void a_thread_that_ended_keeps_no_port(void) {
    ucall_config_t config = {0}, same = {0};
    ucall_server_t server = make_server_on_a_reusable_port(&config);
    pthread_t thread;
    int peer = connected(config.port);
    char byte;
    CHECK(!pthread_create(&thread, NULL, drive_one_turn, server));
    CHECK(!pthread_join(thread, NULL));
    CHECK(!ucall_take_call(server, 0) && last_error_contains("first thread that served"));
    ucall_free(server);
    CHECK(recv(peer, &byte, 1, 0) <= 0);
    close(peer);
    same.port = config.port;
    same.engine = engine;
    /* The kernel may take a moment to release a ring whose thread has ended. */
    for (int at = 0; at < 500 && !ucall_init(&same, &server); ++at) sleep_briefly();
    CHECK(server);
    ucall_free(server);
}

static void *read_error(void *unused) {
    CHECK(!*ucall_last_error());
    return unused;
}

static void errors_belong_to_their_thread(void) {
    pthread_t thread;
    CHECK(!ucall_take_call(NULL, 0) && *ucall_last_error());
    CHECK(!pthread_create(&thread, NULL, read_error, NULL) && !pthread_join(thread, NULL));
}

int main(int argc, char **argv) {
    char numbers[32];
    engine = argc > 1 && !strcmp(argv[1], "uring") ? UCALL_ENGINE_URING : UCALL_ENGINE_POSIX;
    snprintf(numbers, sizeof numbers, "%d.%d.%d", UCALL_VERSION_MAJOR, UCALL_VERSION_MINOR,
             UCALL_VERSION_PATCH);
    CHECK(!strcmp(ucall_version(), UCALL_VERSION));
    CHECK(!strncmp(UCALL_VERSION, numbers, strlen(numbers)));
    if (argc > 2 && !strcmp(argv[2], "left")) {
        a_thread_that_ended_keeps_no_port();
        return 0;
    }
    nulls_do_nothing();
    defaults_are_written_back();
    invalid_configurations_are_refused();
    a_port_is_bound_once();
    programs_built_against_other_headers_work();
    without_a_configuration_all_are_defaults();
    limits_have_no_largest_value();
    procedures_are_counted_by_name();
    init_interrupts_no_system_call();
    a_stop_before_serving_is_kept();
    a_wake_before_serving_is_kept();
    a_server_is_freed_once();
    another_thread_stops_and_frees();
    turns_end_with_a_wake_or_a_stop();
    errors_belong_to_their_thread();
    return 0;
}
