// Serves functions by the classes of ucall.hpp, which free the server and turn exceptions to errors.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <ucall/ucall.hpp>

static ucall::server *running;

static void stop(int) { running->stop(); }

static void divide(ucall::call call) {
    double b = call.param<double>("b");
    if (b == 0) throw ucall::rpc_error(1, "Division by zero");
    call.reply(call.param<double>("a") / b);
}

// raii [--port PORT] [--engine posix|uring]; port 0 picks a free one.
int main(int argc, char **argv) {
    ucall_config_t config{};
    for (int at = 1; at + 1 < argc; at += 2) {
        if (!std::strcmp(argv[at], "--port")) {
            config.port = static_cast<uint16_t>(std::atoi(argv[at + 1]));
            config.pick_port = config.port == 0;
        } else if (!std::strcmp(argv[at], "--engine")) {
            config.engine = std::strcmp(argv[at + 1], "uring") ? UCALL_ENGINE_POSIX
                                                               : UCALL_ENGINE_URING;
        }
    }
    try {
        ucall::server server(config);
        int64_t served = 0;
        server.add("sum", [&served](ucall::call call) {
            ++served;
            call.reply(call.param<int64_t>("a") + call.param<int64_t>("b"));
        });
        server.add("divide", divide);
        server.add("greet", [](ucall::call call) {
            call.reply("Hello " + call.param<std::string>("name"));
        });
        server.add("served", [&served](ucall::call call) { call.reply(served); });
        server.add("fail", [](ucall::call) { throw std::runtime_error("a secret"); });
        running = &server;
        std::signal(SIGTERM, stop);
        std::printf("listening on %d\n", server.port());
        std::fflush(stdout);
        server.run();
        std::signal(SIGTERM, SIG_DFL);
    } catch (ucall::error const &failure) {
        std::fprintf(stderr, "%s\n", failure.what());
        return 1;
    }
    return 0;
}
