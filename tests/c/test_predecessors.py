"""The example in C++ of the README of earlier versions, whose reply is no JSON.

It prints the reply by `"%ll"`, an incomplete format.
"""

import harness
from harness import Client


def test_a_printed_reply(built):
    program = built(harness.PROGRAMS / "content.cpp")
    server = harness.Server([program])
    with Client(server.port) as client:
        assert client.call("right", {"a": 2, "b": 3}) == 5
        error = client.error_of("wrong", {"a": 2, "b": 3})
        # glibc returns a negative length, other libraries return a text.
        assert error["code"] == -32603, error
        assert "is its length negative?" in error["message"] or "invalid JSON" in error["message"]
        assert client.call("right", {"a": -2, "b": 0}) == -2
        assert client.error_of("right", {"a": 2})["code"] == -32602
    server.kill()
