/* A JSON-RPC 2.0 `sum` by simdjson, which the servers in C++ call. */
#pragma once

#include <cstdint>
#include <cstdio>
#include <string_view>

#include <simdjson.h>

inline simdjson::ondemand::parser parser;

/* Writes the reply to `out` and returns its length. */
inline size_t refuse(char *out, size_t room, int code, const char *message) {
    return (size_t)snprintf(
        out, room, R"({"jsonrpc":"2.0","id":null,"error":{"code":%d,"message":"%s"}})", code,
        message);
}

inline size_t answer(simdjson::padded_string_view body, char *out, size_t room) {
    simdjson::ondemand::document document;
    simdjson::ondemand::object params;
    std::string_view version, method, id;
    int64_t a, b;
    if (parser.iterate(body).get(document) || document["jsonrpc"].get(version)
        || document["method"].get(method))
        return refuse(out, room, -32700, "Parse error");
    if (version != "2.0") return refuse(out, room, -32600, "Invalid Request");
    if (method != "sum") return refuse(out, room, -32601, "Method not found");
    if (document["params"].get(params) || params["a"].get(a) || params["b"].get(b)
        || document["id"].raw_json_token().get(id))
        return refuse(out, room, -32602, "Invalid params");
    while (!id.empty() && id.back() <= ' ') id.remove_suffix(1);
    return (size_t)snprintf(out, room, R"({"jsonrpc":"2.0","id":%.*s,"result":%lld})",
                            (int)id.size(), id.data(), (long long)(a + b));
}
