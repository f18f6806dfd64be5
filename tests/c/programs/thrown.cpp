// Serves functions that throw what is no std::exception: thrown posix|uring.
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
    running = &server;
    std::signal(SIGTERM, stop);
    std::printf("listening on %d\n", server.port());
    std::fflush(stdout);
    server.run();
    std::signal(SIGTERM, SIG_DFL);
    return 0;
}
