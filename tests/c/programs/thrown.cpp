// Serves functions that throw, and that use the classes as is natural in C++17: thrown posix|uring.
#include <csignal>
#include <cstdio>
#include <cstring>

#include <ucall/ucall.hpp>

static ucall::server *running;

static void stop(int) { running->stop(); }

int main(int argc, char **argv) {
    ucall_config_t config{};
    if (argc < 2) return 2;
    config.pick_port = true;
    config.engine = std::strcmp(argv[1], "uring") ? UCALL_ENGINE_POSIX : UCALL_ENGINE_URING;
    ucall::server server(config);
    server.add("number", [](ucall::call) { throw 42; });
    server.add("text", [](ucall::call) { throw "a secret"; });
    ucall_add_procedure(
        server.get(), "raw", [](ucall_call_t, ucall_callback_tag_t) { throw 1; }, nullptr);
    server.add("exception", [](ucall::call) { throw std::runtime_error("the reason"); });
    server.add("add", [](ucall::call call) {
        call.reply(call.param<int>(0) + call.param<short>(1) + call.param<unsigned char>(2));
    });
    server.add("constant", [](ucall::call call) { call.reply(42); });
    server.add("echo", [](ucall::call call) {
        call.reply(call.param<std::optional<std::string_view>>("text"));
    });
    server.add("array", [](ucall::call call) {
        call.reply(call.param<std::optional<ucall_buffer_t>>(0).value_or(ucall_buffer_t{}));
    });
    server.add("half", [](ucall::call call) {
        call.reply(call.param<std::optional<float>>("number").value_or(1.5f) / 2);
    });
    running = &server;
    std::signal(SIGTERM, stop);
    std::printf("listening on %d\n", server.port());
    std::fflush(stdout);
    server.run();
    std::signal(SIGTERM, SIG_DFL);
    return 0;
}
