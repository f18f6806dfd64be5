/* uWebSockets: `echo` returns each message, `sum` parses it with simdjson, `http` does so over HTTP.
 *
 * uwebsockets echo|sum|http PORT */
#include <cstdlib>
#include <cstring>
#include <string>

#include <App.h>

#include "answer.h"

namespace {

struct Nothing {};
using Socket = uWS::WebSocket<false, true, Nothing>;

void echo(Socket *socket, std::string_view message, uWS::OpCode opcode) {
    socket->send(message, opcode);
}

void sum(Socket *socket, std::string_view message, uWS::OpCode opcode) {
    static char padded[1 << 16];
    char reply[512];
    if (message.size() + simdjson::SIMDJSON_PADDING > sizeof padded) return;
    memcpy(padded, message.data(), message.size());
    simdjson::padded_string_view body(padded, message.size(), sizeof padded);
    socket->send({reply, answer(body, reply, sizeof reply)}, opcode);
}

/* The body comes in one piece, because its requests are small. */
void post(auto *response, uWS::HttpRequest *) {
    response->onAborted([] {});
    response->onData([response](std::string_view body, bool is_last) {
        static char padded[1 << 16];
        char reply[512];
        if (!is_last || body.size() + simdjson::SIMDJSON_PADDING > sizeof padded) return;
        memcpy(padded, body.data(), body.size());
        simdjson::padded_string_view view(padded, body.size(), sizeof padded);
        size_t bytes = answer(view, reply, sizeof reply);
        response->writeHeader("Content-Type", "application/json")->end({reply, bytes});
    });
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    uWS::App::WebSocketBehavior<Nothing> behavior;
    behavior.message = strcmp(argv[1], "echo") ? sum : echo;
    uWS::App()
        .post("/", [](auto *response, auto *request) { post(response, request); })
        .ws<Nothing>("/*", std::move(behavior))
        .listen("127.0.0.1", std::stoi(argv[2]), [](auto *listener) { if (!listener) exit(1); })
        .run();
}
