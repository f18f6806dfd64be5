/* The H2O server as a library, on its own event loop, with simdjson. The argument is the port. */
#include <arpa/inet.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#define H2O_USE_EPOLL 1
extern "C" {
#include <h2o.h>
#include <h2o/http1.h>
}

#include "answer.h"

namespace {

h2o_globalconf_t config;
h2o_context_t context;
h2o_accept_ctx_t accepting;

int on_request(h2o_handler_t *, h2o_req_t *request) {
    if (!h2o_memis(request->method.base, request->method.len, H2O_STRLIT("POST"))) return -1;
    static char padded[1 << 16];
    static char reply[512];
    size_t length = request->entity.len;
    if (length + simdjson::SIMDJSON_PADDING > sizeof padded) return -1;
    memcpy(padded, request->entity.base, length);
    simdjson::padded_string_view body(padded, length, sizeof padded);
    size_t bytes = answer(body, reply, sizeof reply);
    request->res.status = 200;
    request->res.reason = "OK";
    request->res.content_length = bytes;
    h2o_add_header(&request->pool, &request->res.headers, H2O_TOKEN_CONTENT_TYPE, nullptr,
                   H2O_STRLIT("application/json"));
    h2o_send_inline(request, reply, bytes);
    return 0;
}

void on_accept(h2o_socket_t *listener, const char *error) {
    if (error) return;
    h2o_socket_t *accepted;
    while ((accepted = h2o_evloop_socket_accept(listener))) h2o_accept(&accepting, accepted);
}

int listener_on(int port) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    const int on = 1;
    struct sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096)) {
        perror("h2o");
        exit(1);
    }
    return listener;
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    int listener = listener_on(atoi(argv[1]));
    h2o_config_init(&config);
    h2o_hostconf_t *host =
        h2o_config_register_host(&config, h2o_iovec_init(H2O_STRLIT("default")), 65535);
    h2o_pathconf_t *path = h2o_config_register_path(host, "/", 0);
    h2o_create_handler(path, sizeof(h2o_handler_t))->on_req = on_request;
    h2o_context_init(&context, h2o_evloop_create(), &config);
    accepting.ctx = &context;
    accepting.hosts = config.hosts;
    h2o_socket_t *socket =
        h2o_evloop_socket_create(context.loop, listener, H2O_SOCKET_FLAG_DONT_READ);
    h2o_socket_read_start(socket, on_accept);
    while (h2o_evloop_run(context.loop, INT32_MAX) == 0) {}
    return 1;
}
