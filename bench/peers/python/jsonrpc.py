"""A JSON-RPC 2.0 `sum` by msgspec, which the Python servers call: typed, checked and fast."""

import msgspec


class Sum(msgspec.Struct):
    a: int
    b: int


class Request(msgspec.Struct):
    jsonrpc: str
    method: str
    params: msgspec.Raw
    id: int | str | None


class Reply(msgspec.Struct):
    jsonrpc: str
    id: int | str | None
    result: int


class Failure(msgspec.Struct):
    code: int
    message: str


class Refusal(msgspec.Struct):
    jsonrpc: str
    id: int | str | None
    error: Failure


def sum(params: Sum) -> int:
    return params.a + params.b


decode_request = msgspec.json.Decoder(Request).decode
FUNCTIONS = {"sum": (msgspec.json.Decoder(Sum).decode, sum)}
encode = msgspec.json.Encoder().encode


def refuse(request_id: int | str | None, code: int, message: str) -> bytes:
    return encode(Refusal("2.0", request_id, Failure(code, message)))


def answer(body: bytes | str) -> bytes:
    """The reply to a request."""
    try:
        request = decode_request(body)
    except msgspec.ValidationError:
        return refuse(None, -32600, "Invalid Request")
    except msgspec.DecodeError:
        return refuse(None, -32700, "Parse error")
    if request.jsonrpc != "2.0":
        return refuse(None, -32600, "Invalid Request")
    found = FUNCTIONS.get(request.method)
    if not found:
        return refuse(request.id, -32601, "Method not found")
    decode_params, function = found
    try:
        params = decode_params(request.params)
    except msgspec.ValidationError:
        return refuse(request.id, -32602, "Invalid params")
    return encode(Reply("2.0", request.id, function(params)))
