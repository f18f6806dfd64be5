#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include <ucall/ucall.h>

static ucall_server_t server = nullptr;

// Two ids match if their exclusive or is a multiple of 23.
static void validate_session(ucall_call_t call, ucall_callback_tag_t) {
    int64_t user_id, session_id;
    if (!ucall_param_named_i64(call, "user_id", 0, &user_id) ||
        !ucall_param_named_i64(call, "session_id", 0, &session_id))
        return ucall_call_reply_error_invalid_params(call);
    ucall_call_reply_bool(call, (user_id ^ session_id) % 23 == 0);
}

// Replies with the JSON text of the param `content`.
static void echo(ucall_call_t call, ucall_callback_tag_t) {
    ucall_str_t json;
    size_t length;
    if (!ucall_param_named_json(call, "content", 0, &json, &length))
        return ucall_call_reply_error_invalid_params(call);
    ucall_call_reply_content(call, json, length);
}

// login [--port PORT] [--engine posix|uring] [--threads COUNT] [--logs human|json]
int main(int argc, char **argv) {
    ucall_config_t config = {};
    config.logs_format = "human";
    for (int at = 1; at + 1 < argc; at += 2) {
        char const *value = argv[at + 1];
        if (!std::strcmp(argv[at], "--port")) {
            config.port = static_cast<uint16_t>(std::atoi(value));
            config.pick_port = config.port == 0;
        } else if (!std::strcmp(argv[at], "--threads")) {
            config.serving_threads = static_cast<uint16_t>(std::atoi(value));
        } else if (!std::strcmp(argv[at], "--engine")) {
            config.engine = std::strcmp(value, "uring") ? UCALL_ENGINE_POSIX : UCALL_ENGINE_URING;
        } else if (!std::strcmp(argv[at], "--logs")) {
            config.logs_file_descriptor = 2;
            config.logs_format = value;
        }
    }
    if (!ucall_init(&config, &server) ||
        !ucall_add_procedure(server, "validate_session", validate_session, nullptr) ||
        !ucall_add_procedure(server, "echo", echo, nullptr)) {
        std::fprintf(stderr, "%s\n", ucall_last_error());
        return 1;
    }
    auto stop = [](int) { ucall_stop(server); };
    std::signal(SIGINT, stop);
    std::signal(SIGTERM, stop);
    std::printf("listening on %d\n", config.port);
    std::fflush(stdout);

    // `serving_threads` is now the value in effect, by default 1.
    std::vector<std::thread> others;
    for (uint16_t thread = 1; thread < config.serving_threads; ++thread)
        others.emplace_back(ucall_take_calls, server, thread);
    bool const stopped = ucall_take_calls(server, 0);
    if (!stopped) std::fprintf(stderr, "%s\n", ucall_last_error());
    // Where this thread failed, the others go on.
    ucall_stop(server);
    for (std::thread &other : others) other.join();
    // The handler must not use a freed server.
    std::signal(SIGINT, SIG_DFL);
    std::signal(SIGTERM, SIG_DFL);
    ucall_free(server);
    return stopped ? 0 : 1;
}
