// Serves a callback that ends in a forbidden way: early_exit posix|uring throw|exit.
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include <pthread.h>

#include <ucall/ucall.h>

static void exit_early(ucall_call_t, ucall_callback_tag_t how) {
    if (!std::strcmp(static_cast<char const *>(how), "throw")) throw std::runtime_error("out");
    pthread_exit(nullptr);
}

int main(int argc, char **argv) {
    ucall_config_t config = {};
    ucall_server_t server;
    config.pick_port = true;
    config.engine =
        argc > 1 && !std::strcmp(argv[1], "uring") ? UCALL_ENGINE_URING : UCALL_ENGINE_POSIX;
    if (argc < 3 || !ucall_init(&config, &server) ||
        !ucall_add_procedure(server, "exit_early", exit_early, argv[2]))
        return 1;
    std::printf("listening on %d\n", config.port);
    std::fflush(stdout);
    try {
        ucall_take_calls(server, 0);
    } catch (std::exception const &) {
        return 2;
    }
    return 3;
}
