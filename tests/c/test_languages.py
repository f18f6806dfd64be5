"""The header in C++ with RAII, and in Go by cgo."""

import os

import pytest
from programs import require

import harness
from harness import Client, serving


def test_classes_of_cpp(built, engine):
    program = built(harness.example("raii.cpp"))
    with (
        serving([program, "--port", 0, "--engine", engine]) as server,
        Client(server.port) as client,
    ):
        assert client.call("sum", {"a": 2, "b": 3}) == 5
        assert client.call("greet", {"name": "Ada\n"}) == "Hello Ada\n"
        assert client.call("divide", {"a": 1, "b": 4}) == 0.25
        error = client.error_of("divide", {"a": 1, "b": 0})
        assert error == {"code": 1, "message": "Division by zero"}
        for params in ({"a": 1}, {"a": 1, "b": "2"}, []):
            error = client.error_of("sum", params)
            assert error["code"] == -32602 and "Invalid params: " in error["message"]
        # The text of an exception may be a secret.
        error = client.error_of("fail")
        assert error == {"code": -32603, "message": "Internal error"}
        assert client.call("served") == 4


def test_classes_of_cpp_fail_with_a_code(built):
    program = built(harness.example("raii.cpp"))
    refused = pytest.raises(harness.StartError, match="in use")
    with serving([program, "--port", 0]) as server, refused:
        harness.Server([program, "--port", server.port])


GO = """package main

// #include <ucall/ucall.h>
// void sum(ucall_call_t call, ucall_callback_tag_t tag);
import "C"
import "fmt"

//export sum
func sum(call C.ucall_call_t, tag C.ucall_callback_tag_t) {
    var a, b C.int64_t
    if C.ucall_param_positional_i64(call, 0, &a) && C.ucall_param_positional_i64(call, 1, &b) {
        C.ucall_call_reply_i64(call, a+b)
    } else {
        C.ucall_call_reply_error_invalid_params(call)
    }
}

func main() {
    config := C.ucall_config_t{pick_port: true}
    var server C.ucall_server_t
    if !C.ucall_init(&config, &server) {
        panic(C.GoString(C.ucall_last_error()))
    }
    C.ucall_add_procedure(server, C.CString("sum"), C.ucall_callback_t(C.sum), nil)
    fmt.Println("listening on", config.port)
    C.ucall_take_calls(server, 0)
}
"""


def test_go_by_cgo(library, tmp_path):
    go = require("go")
    assert len(GO.splitlines()) < 30
    (tmp_path / "main.go").write_text(GO)
    (tmp_path / "go.mod").write_text("module sum\n\ngo 1.18\n")
    environment = {
        **os.environ,
        "CGO_ENABLED": "1",
        "CGO_CFLAGS": f"-I{harness.INCLUDE}",
        "CGO_LDFLAGS": f"{library} {' '.join(harness.SYSTEM_LIBRARIES)}",
        "GOFLAGS": "-mod=mod",
    }
    harness.run([go, "build", "-o", "sum", "."], cwd=tmp_path, env=environment)
    server = harness.Server([tmp_path / "sum"])
    with Client(server.port) as client:
        assert client.call("sum", [2, 3]) == 5
        assert client.error_of("sum", ["2", 3])["code"] == -32602
    server.kill()
