"""A server of any make that describes its methods: an OpenRPC document and a peer that has it."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any


def param(name: str, schema: Any, description: str = "", *, required: bool = True) -> Any:
    return {"name": name, "schema": schema, "description": description, "required": required}


def method(name: str, *params: Any, result: Any = None, **members: Any) -> Any:
    return {
        "name": name,
        "params": list(params),
        "result": {"name": "result", "schema": result or {}},
        **members,
    }


def binary(kind: str, media_type: str = "application/octet-stream", **hints: Any) -> Any:
    return {
        "type": "string",
        "contentEncoding": "base64",
        "contentMediaType": media_type,
        "x-ucall": {"type": kind, **hints},
    }


BOOLEAN, INTEGER = {"type": "boolean"}, {"type": "integer"}
STRING, NUMBER = {"type": "string"}, {"type": "number"}
DECIMAL = {"type": ["string", "number"], "format": "decimal"}
NULLABLE = {"anyOf": [INTEGER, {"type": "null"}]}
ARRAY = binary("array", "application/x-npy", dtype="float32", shape=None)

DOCUMENT: Any = {
    "openrpc": "1.4.1",
    "info": {"title": "Sample", "version": "1"},
    "methods": [
        method(
            "sum",
            param("a", INTEGER, "The first."),
            param("b", {**INTEGER, "minimum": 0, "default": 3}, "The second.", required=False),
            result=INTEGER,
            summary="Adds two numbers.",
            description="Adds two numbers.\n\nThey are exact.",
            errors=[{"code": 7, "message": "no luck"}],
        ),
        method("store", param("key", STRING), param("data", binary("bytes")), summary="Stores."),
        method("scale", param("values", {"anyOf": [ARRAY, {"type": "array", "items": NUMBER}]})),
        method("greet", param("user", {"$ref": "#/components/schemas/User"}), result=STRING),
        method(
            "paint",
            param("unit", {"enum": ["mm", "cm"]}),
            param("wide", {**BOOLEAN, "default": False}, required=False),
            param("depth", {**NULLABLE, "default": None}, required=False),
            param("width", {"type": ["number", "null"], "default": None}, required=False),
            param("id", {"anyOf": [STRING, INTEGER], "default": 0}, required=False),
            param("pair", {"type": "array", "items": [INTEGER, STRING]}, required=False),
            deprecated=True,
        ),
        method(
            "generate",
            param("prompt", {**STRING, "minLength": 2, "pattern": "^[a-z]"}),
            result={"type": "array", "items": STRING},
            summary="Yields words.",
            **{"x-stream": True, "x-item": STRING},
        ),
        method("math.div", param("a", NUMBER), param("b", NUMBER), paramStructure="by-position"),
        method(
            "pay",
            param("amount", DECIMAL),
            param("tip", {"anyOf": [DECIMAL, {"type": "null"}], "default": None}, required=False),
        ),
        method("any", param("value", {})),
    ],
    "components": {
        "schemas": {
            "User": {
                "title": "User",
                "type": "object",
                "properties": {
                    "name": STRING,
                    "age": {**INTEGER, "minimum": 0},
                    "friends": {"type": "array", "items": {"$ref": "#/components/schemas/User"}},
                },
                "required": ["name", "age"],
                "additionalProperties": False,
            }
        }
    },
}


class Described:
    """A peer's port, and the requests that it received, other than those for the document."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.asked = 0
        self.requests: list[Any] = []


@contextlib.contextmanager
def described(
    document: Any = DOCUMENT,
    reply_of: Callable[[str, Any], Any] = lambda method, params: None,
    text: str | None = None,
) -> Iterator[Described]:
    """A server that replies to `rpc.discover` with the document, or with the text of one, and to
    other calls as told."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reply: Any = {"jsonrpc": "2.0", "id": request.get("id"), "result": None}
            if request["method"] == "rpc.discover":
                peer.asked += 1
                reply["result"] = document if text is None else "TEXT"
            else:
                call = request["method"], request.get("params")
                peer.requests.append(call)
                reply["result"] = reply_of(*call)
            body = json.dumps(reply).replace('"TEXT"', text or '"TEXT"').encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        peer = Described(server.server_port)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield peer
        finally:
            server.shutdown()
            thread.join()
