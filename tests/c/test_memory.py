"""Every program under valgrind and the sanitizers, while clients call it."""

import base64

import load
import pytest

import harness
from harness import Client, serving

PROGRAMS = harness.PROGRAMS
# The examples, their arguments, and their calls.
LOADED = {
    "sum.c": ([], [load.sums]),
    "login.cpp": (["--threads", 2], [load.echoes, load.sessions]),
    "deferred.c": ([], [load.slow_sums]),
    "kv.c": ([], [load.stored]),
}


# Ten times as slow as the sanitizers. All run on the posix engine, whatever the hash of their ids:
# see `watched_engine`.
VALGRIND = pytest.param("valgrind", marks=[pytest.mark.one_of(), pytest.mark.slow])


@pytest.fixture(params=["sanitizers", VALGRIND])
def instrumented(request, built):
    """A function from a source to the command that runs it under a memory checker."""
    if request.param == "valgrind":
        return lambda source: [*harness.valgrind(), built(source, "valgrind")]
    return lambda source: [built(source, "sanitized")]


@pytest.fixture
def watched_engine(request, engine) -> str:
    """Valgrind does not know io_uring, and treats memory written by the kernel as uninitialised."""
    if engine == "uring" and "valgrind" in request.node.name:
        pytest.skip("valgrind does not know io_uring")
    return engine


@pytest.mark.parametrize("name", LOADED)
def test_examples_under_load(instrumented, watched_engine, tmp_path, name):
    options, loads = LOADED[name]
    if name == "kv.c":
        # Valgrind has no room for a map of the default size.
        options = ["--folder", tmp_path / "store", "--megabytes", 64]
    command = [
        *instrumented(harness.example(name)),
        "--port",
        0,
        "--engine",
        watched_engine,
        *options,
    ]
    with serving(command) as server:
        assert load.run(server.port, loads, clients=8, calls=1_600) == 1_600


def test_streams(instrumented, watched_engine):
    """One ends, one is left by its client, and one has no room when its server is freed."""
    options = ["--port", 0, "--engine", watched_engine, "--stream-bytes", 300]
    with serving([*instrumented(harness.example("stream.c")), *options]) as server:
        clients = [Client(server.port) for _ in range(3)]
        for client, end in zip(clients, [2_000, 300_000, 300_000], strict=True):
            client.submit("count", text=f'{{"end":{end}}},"_meta":{{"progressToken":1}}')
            assert client.message()["params"]["value"] == 0
        assert [clients[0].message()["params"]["value"] for _ in range(1_999)][-1] == 1_999
        assert clients[0].message()["result"] == 2_000
        clients[1].reset()
        clients[1].close()
    clients[0].close()
    clients[2].close()


def test_servers(instrumented, watched_engine):
    harness.run([*instrumented(PROGRAMS / "api.c"), watched_engine])


def test_calls(instrumented, watched_engine):
    text = "é\n😀" * 5_000
    command = [*instrumented(PROGRAMS / "calls.c"), watched_engine]
    with serving(command) as server, Client(server.port) as client:
        for how, value in [
            ("i64", 5),
            ("f64", 2.5),
            ("bool", True),
            ("str", text),
            ("json", []),
        ]:
            params = {"how": how, "name": "x", "x": value, "y": text}
            assert client.call("named", params) == value
            params = {"how": how, "name": "/a/0/x", "a": [{"x": value}]}
            assert client.call("named", params) == value
            assert client.call("positional", [how, 3, text, value]) == value
        assert client.call("same", {"texts": ["é\n"] * 1000}) is True
        params = {"truth": True, "integer": 5, "number": 2.5, "text": "é\n"}
        assert client.call("nulls", params) is True
        assert client.call("twice") == 1
        assert client.error_of("never")["code"] == -32603
        for how in ("invalid_params", "own", "silent", "latin", "nan", "bytes", "null"):
            client.error_of("fails", {"how": how})
        assert client.call("add", {"name": "late"}) is True
        assert client.call("late") == "late"


def test_a_server_in_an_event_loop(instrumented, watched_engine):
    command = [*instrumented(PROGRAMS / "loop.c"), watched_engine, 60_000]
    with serving(command) as server, Client(server.port) as client:
        for number in range(50):
            assert client.call("echo", [number]) == number
            assert client.call("thread") is True


def test_a_server_in_libuv(instrumented, watched_engine):
    command = [*instrumented(harness.example("libuv.c")), "--port", 0, "--engine", watched_engine]
    with serving(command) as server, Client(server.port) as client:
        ticks = [client.call("ticks") for _ in range(50)]
        assert ticks == sorted(ticks)


def test_what_calls_know(instrumented, watched_engine):
    command = [*instrumented(PROGRAMS / "context.c"), watched_engine, "peers"]
    with serving(command) as server, Client(server.port) as client:
        for method in ("live", "later", "live"):
            assert client.call(method)["method"] == method
        client.error_of("never")
        assert client.call("remove", {"name": "live"}) is True
        assert "did not reply" in client.call("log")


def test_classes_of_cpp(instrumented, watched_engine):
    command = [*instrumented(harness.example("raii.cpp")), "--port", 0, "--engine", watched_engine]
    with serving(command) as server, Client(server.port) as client:
        assert client.call("greet", {"name": "Ada"}) == "Hello Ada"
        for method in ("fail", "divide"):
            client.error_of(method, {"a": 1, "b": 0})


def test_values(instrumented, watched_engine):
    command = [*instrumented(PROGRAMS / "values.c"), watched_engine]
    with serving(command) as server, Client(server.port) as client:
        params = {"a\n": ["é\n" * 3000, 2**64 - 1, {}, None, True], "b": [[]] * 300}
        for method in ("copy", "later"):
            assert client.call(method, params) == params
        assert client.call("types", [params]) == 7002
        assert client.error_of("fail", {"data": "[1]"})["data"] == [1]
        assert client.error_of("unfinished")["code"] == -32603


def test_buffers(instrumented, watched_engine):
    """Parts, base64, a copy of columns, and what is cut off."""
    head = "{'descr': '<f8', 'fortran_order': True, 'shape': (3, 2), }"
    array = b"\x93NUMPY\x01\x00v\x00" + head.ljust(117).encode() + b"\n" + bytes(48)
    command = [*instrumented(PROGRAMS / "buffers.c"), watched_engine]
    with serving(command) as server, harness.FrameClient(server.port) as client:
        for method in ("echo", "later"):
            for data in (array, bytes(100_000), b""):
                reply, (part,) = client.call_parts(method, {"value": {"$part": 0}}, data)
                text = base64.b64encode(data).decode()
                again = base64.b64decode(client.call(method, {"value": text}))
                assert len(part) == len(data) and part == again
            cut = client.call_parts(method, {"value": {"$part": 0}}, array[:-1])[0]
            assert cut["error"]["code"] == -32602
        reply, _ = client.call_parts("text", {"value": {"$part": 0}}, array)
        assert reply["result"][1] == base64.b64encode(array).decode()
        for how in range(14):
            assert client.error_of("wrong", [how])["code"] == -32603


def test_a_callback_that_frees_its_server(instrumented, watched_engine):
    server = harness.Server([*instrumented(PROGRAMS / "calls.c"), watched_engine])
    with Client(server.port) as client:
        assert client.call("free_server") is True
    assert server.wait() == 0, server.errors


def test_deferred_calls(instrumented, watched_engine):
    with serving([*instrumented(PROGRAMS / "later.c"), watched_engine, 60_000]) as server:
        with Client(server.port) as client, Client(server.port) as gone:
            for number in range(20):
                client.submit("keep", {"text": f"\n{number}"})
                gone.submit("keep", {"text": f"\n{number}"})
            assert gone.call("cancelled") == 0
            gone.reset()
        with Client(server.port) as client:
            assert client.call("answer_all") == 40
            for number in range(20):
                client.submit("keep", {"text": f"{number}"})
            assert client.call("kept") == 20
            # These calls are released after the server has been freed.
            server.stop()
