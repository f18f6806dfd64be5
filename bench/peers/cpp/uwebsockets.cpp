/* uWebSockets: `echo` returns each message, `sum` parses it with simdjson.
 *
 * uwebsockets echo|sum PORT */
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

} // namespace

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    uWS::App::WebSocketBehavior<Nothing> behavior;
    behavior.message = strcmp(argv[1], "echo") ? sum : echo;
    uWS::App()
        .ws<Nothing>("/*", std::move(behavior))
        .listen("127.0.0.1", std::stoi(argv[2]), [](auto *listener) { if (!listener) exit(1); })
        .run();
}
