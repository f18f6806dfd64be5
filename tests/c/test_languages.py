"""The header in C++ with RAII, and in Go by cgo."""

import build
import pytest

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


def test_whatever_is_thrown_is_an_error_reply(built, engine):
    program = built(harness.PROGRAMS / "thrown.cpp")
    with serving([program, engine]) as server, Client(server.port) as client:
        for name in ("number", "text"):
            assert client.error_of(name) == {"code": -32603, "message": "Internal error"}
        assert client.error_of("exception") == {"code": -32603, "message": "Internal error"}
    for name, text in (("number", "no std::exception"), ("exception", "the reason")):
        assert f'procedure "{name}" threw: {text}' in server.errors


def test_an_exception_that_leaves_a_callback_of_c_is_logged(built, engine):
    server = harness.Server([built(harness.PROGRAMS / "thrown.cpp"), engine])
    with Client(server.port) as client:
        client.submit("raw")
        assert server.wait() != 0
    assert 'procedure "raw" was left by an exception' in server.errors


def test_what_programmers_of_cpp_write_first(built, engine):
    program = built(harness.PROGRAMS / "thrown.cpp")
    with serving([program, engine]) as server, Client(server.port) as client:
        assert client.call("constant") == 42
        assert client.call("add", [2**31 - 100, -3, 5]) == 2**31 - 98
        for wrong in ([2**31, 0, 0], [0, -(2**15) - 1, 0], [0, 0, 256], [0, 0, -1], [0, 0], [1.5]):
            assert client.error_of("add", wrong)["code"] == -32602
        assert client.call("echo", {"text": "a\0b"}) == "a\0b"
        assert client.call("echo", {"text": ""}) == ""
        assert client.call("echo", {"text": None}) is client.call("echo") is None
        assert client.error_of("echo", {"text": 1})["code"] == -32602
        assert client.call("array", ["AP8="]) == "AP8=" and client.call("array", [None]) == ""
        assert client.error_of("array", [1]) == {"code": -32602, "message": "Invalid params: 0"}
        assert client.call("half") == 0.75 and client.call("half", {"number": 3}) == 1.5


def test_classes_of_cpp_fail_with_a_code(built):
    program = built(harness.example("raii.cpp"))
    refused = pytest.raises(harness.StartError, match="in use")
    with serving([program, "--port", 0]) as server, refused:
        harness.Server([program, "--port", server.port])


def test_go_by_cgo():
    assert len(build.GO.read_text().splitlines()) < 30
    server = harness.Server([build.go_program()])
    with Client(server.port) as client:
        assert client.call("sum", [2, 3]) == 5
        assert client.error_of("sum", ["2", 3])["code"] == -32602
    server.kill()
