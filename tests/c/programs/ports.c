/* Ports of UDP that are in use: ports taken|picked. The status is 0 if all is as ucall.h says. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <ucall/ucall.h>

#define HOST "127.0.0.9"

static int failed(char const *what) {
    fprintf(stderr, "%s: %s\n", what, ucall_last_error());
    return 1;
}

/* A second server on a port of UDP fails, whether or not threads share it. */
static int taken(void) {
    for (uint16_t threads = 1; threads <= 2; ++threads) {
        ucall_config_t config = {0}, same = {0};
        ucall_server_t server, second;
        config.pick_port = true;
        config.udp = true;
        config.serving_threads = threads;
        if (!ucall_init(&config, &server)) return failed("the first");
        same.pick_port = true;
        same.udp = true;
        same.serving_threads = threads;
        same.udp_port = config.udp_port;
        if (ucall_init(&same, &second)) return failed("a second was made");
        if (ucall_last_error_code() != UCALL_ERROR_ADDRESS_IN_USE) return failed("another code");
        ucall_free(server);
    }
    return 0;
}

/* Takes a third of the ports that the system picks from. */
static void take_ports(void) {
    struct rlimit limit;
    struct sockaddr_in address;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    inet_pton(AF_INET, HOST, &address.sin_addr);
    for (int port = 32768; port < 61000; port += 3) {
        int taken = socket(AF_INET, SOCK_DGRAM, 0);
        if (taken < 0) return;
        address.sin_port = htons((uint16_t)port);
        /* It stays open until the program ends. */
        bind(taken, (struct sockaddr *)&address, sizeof address);
    }
}

/* A port is picked that is free for TCP and for UDP. */
static int picked(void) {
    take_ports();
    for (int at = 0; at < 30; ++at) {
        ucall_config_t config = {0};
        ucall_server_t server;
        config.hostname = HOST;
        config.pick_port = true;
        config.udp = true;
        if (!ucall_init(&config, &server)) return failed("no port");
        if (config.udp_port != config.port) return failed("two ports");
        ucall_free(server);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    return strcmp(argv[1], "taken") ? picked() : taken();
}
