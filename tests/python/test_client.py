"""The client against the real server: calls, batches, errors, threads, connections."""

from __future__ import annotations

import gc
import inspect
import os
import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import forking
import pytest
from both_clients import NewClient
from functions import echo, sum

import ucall
from harness import eventually, started
from ucall import aio
from ucall.client import Client


def fail(code: int, message: str, data: Any = None) -> None:
    raise ucall.RPCError(code, message, data)


def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@pytest.fixture
def held() -> list[threading.Event]:
    """Events by number; a call of `hold` returns when its event is set."""
    return [threading.Event() for _ in range(60)]


@pytest.fixture
def server(
    serve_once: Callable[..., ucall.Server], held: list[threading.Event]
) -> Iterator[ucall.Server]:
    def hold(number: int) -> bool:
        return held[number].wait(60)

    server = serve_once(sum, echo, fail, sleep, hold, max_body_bytes=1 << 26)
    server.add(sum, name="math.basic.sum")
    server.add(sum, name="not a name")
    yield server
    for event in held:
        event.set()


@pytest.fixture(params=["http", "tcp"])
def client(
    request: pytest.FixtureRequest, server: ucall.Server, new_client: NewClient
) -> Iterator[Any]:
    """A client of each kind and protocol."""
    with new_client(f"{request.param}://127.0.0.1", server.port) as client:
        yield client


def test_by_name_by_position_and_dotted(client: Any) -> None:
    assert client.sum(a=2, b=3).json == 5
    assert client.sum(2, 3).json == 5
    assert client.math.basic.sum(2, 3).json == 5
    assert client.call("not a name", a=2, b=3).json == 5
    assert client.echo().json is None


def test_a_param_may_be_named_self(server: ucall.Server, client: Any) -> None:
    server.add(lambda self: self, name="same")
    assert client.same(self=1).json == client.call("same", self=1).json == 1


def test_mixing_named_and_positional_params_is_rejected(client: Any) -> None:
    with pytest.raises(TypeError, match="not both"):
        client.sum(2, b=3)
    with pytest.raises(TypeError, match="not both"):
        client.batch().sum(2, b=3)


def test_whole_requests(client: Any) -> None:
    request = {"method": "sum", "params": {"a": 2, "b": 3}, "jsonrpc": "2.0", "id": 100}
    assert client(request).data == {"jsonrpc": "2.0", "id": 100, "result": 5}
    assert client({"method": "sum", "params": [2, 3], "id": 'é\n"/\\'}).id == 'é\n"/\\'
    assert client({"method": "sum", "params": [2, 3], "id": None}).data["id"] is None
    response = client({"method": "sum", "params": [2, 3]})
    assert (response.json, response.id) == (5, 1)
    with pytest.raises(TypeError, match="expected a request as a dict"):
        client([request])  # type: ignore[arg-type]


def test_errors(client: Any) -> None:
    response = client.fail(7, "no", {"why": [1]})
    assert response.data["error"] == {"code": 7, "message": "no", "data": {"why": [1]}}
    error = response.error
    assert error is not None and (error.code, error.message) == (7, "no")
    for ask in (response.raise_for_status, lambda: response.json, lambda: response.bytes):
        with pytest.raises(ucall.RPCError) as raised:
            ask()
        assert raised.value.data == {"why": [1]}
    assert client.sum(1, 2).error is None
    client.sum(1, 2).raise_for_status()
    with pytest.raises(ucall.RPCError, match=r"params\.b: expected int, got str"):
        client.sum(a=1, b="2").raise_for_status()
    with pytest.raises(ucall.RPCError, match="32601"):
        client.absent().raise_for_status()


def test_unsendable_params_raise_and_keep_the_connection(client: Any) -> None:
    assert client.sum(1, 2).json == 3
    with pytest.raises(ValueError, match=r"params\.value\[1\]: NaN cannot be written"):
        client.echo(value=[1, float("nan")])
    with pytest.raises(ValueError, match=r"params\.value: module cannot be written"):
        client.echo(value=sys)
    with pytest.raises(ValueError, match=r"params\[0\]: complex cannot be written"):
        client.echo(1j)
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(ValueError, match="nests deeper"):
        client.echo(cycle)
    assert client.sum(1, 2).json == 3


def test_batches(client: Any) -> None:
    with client.batch() as batch:
        three = batch.sum(1, 2)
        batch.notify("echo", "nobody hears")
        refused = batch.fail(7, "no")
        five = batch.math.basic.sum(a=2, b=3)
        called = batch.call("echo", "x")
        assert len(batch) == 5
        with pytest.raises(RuntimeError, match="not been sent"):
            _ = three.json
        assert "not sent" in repr(three)
    assert (three.json, five.json, called.json) == (3, 5, "x")
    with pytest.raises(ucall.RPCError, match="no"):
        refused.raise_for_status()


def test_a_batch_as_a_builder(client: Any) -> None:
    batch = client.batch()
    assert batch.send() == []
    for number in range(100):
        batch.echo(number)
    assert [response.json for response in batch.send()] == list(range(100))
    batch.notify("echo", 1)
    assert len(batch) == 1 and batch.send() == []
    batch.echo("again")
    assert [response.json for response in batch.send()] == ["again"]


def test_a_batch_refused_as_a_whole_raises(client: Any) -> None:
    batch = client.batch()
    for number in range(1001):
        batch.echo(number)
    with pytest.raises(ucall.RPCError, match="32600"):
        batch.send()
    assert client.sum(1, 2).json == 3
    with pytest.raises(ZeroDivisionError), client.batch() as batch:
        batch.echo(1)
        _ = 1 // 0


def test_notifications(server: ucall.Server, client: Any) -> None:
    heard: list[int] = []
    server.add(heard.append, name="hear")
    for number in range(3):
        client.notify("hear", number)
    assert eventually(lambda: heard == [0, 1, 2])
    assert client.sum(1, 2).json == 3
    assert server.stats()["accepted"] == 1


def test_one_connection_is_kept(server: ucall.Server, client: Any) -> None:
    for number in range(20):
        assert client.echo(number).json == number
    assert server.stats()["accepted"] == 1
    client.close()
    assert client.echo(1).json == 1
    assert server.stats()["accepted"] == 2


def test_a_connection_in_use_closes_after_its_call(server: ucall.Server, client: Any) -> None:
    began, go_on = threading.Event(), threading.Event()

    def wait() -> bool:
        began.set()
        return go_on.wait(60)

    server.add(wait, threads=True)
    call = started(lambda: client.call("wait").json)
    assert began.wait(60)
    client.close()
    go_on.set()
    if repr(client).startswith("<ucall.aio.Client of tcp://"):
        # All its calls share the connection.
        with pytest.raises(ucall.ConnectionError, match="the client was closed"):
            call.result()
    else:
        assert call.result() is True
    assert eventually(lambda: server.stats()["connections"] == 0)
    assert client.sum(1, 2).json == 3


def test_a_restarted_server_is_reconnected_to(server: ucall.Server, client: Any) -> None:
    for _ in range(3):
        assert client.sum(1, 2).json == 3
        server.stop()
        with pytest.raises(ucall.ConnectionError, match="cannot connect to 127"):
            client.sum(1, 2)
        server.start()
    assert client.sum(1, 2).json == 3


def test_threads_share_a_client(server: ucall.Server, client: Any) -> None:
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda number: client.sum(number, 1).json, range(500)))
    assert results == list(range(1, 501))
    assert server.stats()["accepted"] <= 8


@pytest.mark.parametrize("size", [0, 1, 100, 65_536, 500_000])
def test_sizes(client: Any, size: int) -> None:
    text = "é" * size
    assert client.echo(text).json == text
    data = os.urandom(size)
    assert client.echo(data).bytes == data
    assert client.echo(value=memoryview(data)).bytes == data


def test_timeouts(client: Any, held: list[threading.Event]) -> None:
    impatient_client = client.with_options(timeout=0.05)
    for number in range(2):
        start = time.monotonic()
        with pytest.raises(ucall.TimeoutError) as raised:
            impatient_client.hold(number)
        assert time.monotonic() - start > 0.04
        assert isinstance(raised.value, TimeoutError)
        held[number].set()
    assert client.sum(1, 2).json == 3
    assert client.with_options(timeout=None).sleep(0.01).json == 0.01


@pytest.mark.parametrize("timeout", [0, -1, 1e10, float("nan"), float("inf")])
def test_invalid_timeouts_are_rejected(client: Any, timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout"):
        client.with_options(timeout=timeout)


@pytest.mark.parametrize("timeout", [(1, 2), "5", True, timedelta(seconds=1)])
def test_a_timeout_is_one_number(timeout: Any, new_client: NewClient) -> None:
    expected = f"timeout: expected seconds or None, got {timeout!r}; one number limits a call as a"
    with pytest.raises(TypeError, match=re.escape(expected)):
        new_client(timeout=timeout)


def test_options_make_another_client_on_the_same_connections(
    server: ucall.Server, client: Any
) -> None:
    other = client.with_options(id="mine", timeout=3)
    assert other.echo(1).id == "mine"
    assert client.echo(1).id == 1
    assert other.with_options(id=None).echo(1).id == 2
    assert client.with_options(timeout=1, id=7).echo(1).id == 7
    assert server.stats()["accepted"] == 1
    with pytest.raises(TypeError):
        client.with_options(id=1.5)  # type: ignore[arg-type]


def test_documented_defaults_are_the_defaults() -> None:
    parameters = inspect.signature(Client).parameters
    names = ["timeout", "max_reply_bytes", "max_waiting_bytes", "max_image_pixels"]
    assert [parameters[name].default for name in names] == [60, 64 << 20, 1 << 20, 64 << 20]
    for name in names:
        assert inspect.signature(aio.Client).parameters[name].default == parameters[name].default


def test_repr_and_private_names(client: Any) -> None:
    assert "127.0.0.1" in repr(client)
    assert repr(client.math.sum) == "<ucall method math.sum>"
    assert '"result":3' in repr(client.sum(1, 2))
    with pytest.raises(AttributeError):
        _ = client._absent
    with pytest.raises(AttributeError):
        _ = client.math._absent


def test_a_reply_past_the_limit(server: ucall.Server, new_client: NewClient) -> None:
    for scheme in ("http", "tcp"):
        client = new_client(f"{scheme}://127.0.0.1", server.port, max_reply_bytes=1000)
        assert len(client.echo("x" * 900).json) == 900
        with pytest.raises(ucall.ConnectionError, match=r"max_reply_bytes \(1000 bytes\)"):
            client.echo("x" * 1000)
        assert client.sum(1, 2).json == 3


def test_a_request_past_the_servers_limit(
    serve_once: Callable[..., ucall.Server], new_client: NewClient
) -> None:
    """The server's reason arrives although it stopped reading."""
    server = serve_once(echo, max_body_bytes=100_000)
    http = new_client(port=server.port)
    text = "x" * 30_000_000
    for _ in range(2):
        with pytest.raises((ucall.HTTPError, ucall.RPCError), match="max_body_bytes"):
            http.echo(text).raise_for_status()
        assert http.echo(1).json == 1


def test_no_descriptor_leaks(server: ucall.Server, held: list[threading.Event]) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    Client(port=server.port).sum(1, 2)
    gc.collect()
    assert eventually(lambda: server.stats()["connections"] == 0)
    before = descriptors()
    for number in range(50):
        client = Client(port=server.port)
        client.sum(1, 2)
        with pytest.raises(ucall.TimeoutError):
            client.with_options(timeout=0.01).hold(number)
        held[number].set()
    del client
    gc.collect()
    assert eventually(lambda: descriptors() <= before)


@pytest.mark.parametrize("scheme", ["http", "tcp"])
def test_a_forked_child_opens_new_connections(server: ucall.Server, scheme: str) -> None:
    source = f"""
import os
from ucall import aio
from ucall.client import Client
client = Client("{scheme}://127.0.0.1:{server.port}")
assert client.echo("a").json == "a"
child = os.fork()
assert client.echo([child]).json == [child]
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    before = server.stats()["accepted"]
    assert forking.run([sys.executable, "-c", source]).returncode == 0
    assert server.stats()["accepted"] == before + 2


def test_ctrl_c_ends_a_call(server: ucall.Server) -> None:
    source = f"""
import os, signal, threading
from ucall import aio
from ucall.client import Client
client = Client(port={server.port}, timeout=None)
client.sum(1, 2)
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    client.hold(0)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = forking.run([sys.executable, "-c", source], timeout=50)
    assert done.stdout == b"interrupted\n", done.stderr


class Interrupting:
    """An observer that Ctrl-C interrupts after the first part of a long message."""

    def sending(self, data: memoryview) -> None:
        pass

    def sent(self, done_bytes: int, total_bytes: int) -> None:
        if done_bytes < total_bytes:
            raise KeyboardInterrupt

    def received(self, data: bytes) -> None:
        pass


@pytest.mark.parametrize("scheme", ["tcp", "ws"])
def test_ctrl_c_within_a_message_closes_a_shared_connection(
    server: ucall.Server, scheme: str
) -> None:
    uri = f"{scheme}://127.0.0.1:{server.port}"
    with Client(uri, _observer=Interrupting()) as client:
        if scheme == "tcp":
            client.subscribe()
        assert client.echo(1).json == 1
        with pytest.raises(KeyboardInterrupt):
            client.echo("x" * 1_000_000)
        assert client.echo(2).json == 2


def test_a_signal_whose_handler_returns_does_not_end_a_call(server: ucall.Server) -> None:
    source = f"""
import signal
from ucall import aio
from ucall.client import Client
heard = []
signal.signal(signal.SIGALRM, lambda *_: heard.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
client = Client(port={server.port})
while len(heard) < 4:
    assert client.sleep(0.3).json == 0.3
print(len(client.echo("x" * 20_000_000).json))
"""
    done = forking.run([sys.executable, "-c", source])
    assert done.stdout == b"20000000\n", done.stderr


def test_other_threads_run_during_a_call(
    server: ucall.Server, held: list[threading.Event], new_client: NewClient
) -> None:
    client = new_client(port=server.port)
    # Another thread ends the call.
    threading.Timer(0.1, held[0].set).start()
    assert client.hold(0).json is True


def test_importing_is_quick_and_light() -> None:
    source = """
import sys
import ucall, ucall.client
heavy = {"numpy", "PIL", "msgspec", "pydantic", "ssl", "asyncio", "dataclasses", "inspect"}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, check=True)
    assert done.stdout == b"[]\n"


def test_errors_can_be_pickled_and_are_builtin_ones() -> None:
    error = pickle.loads(pickle.dumps(ucall.HTTPError(413, "Content Too Large", "too large")))
    assert (error.status, error.reason, error.text) == (413, "Content Too Large", "too large")
    assert str(error) == "HTTP status 413 Content Too Large: too large"
    assert isinstance(error, ucall.ConnectionError) and isinstance(error, ConnectionError)
    assert isinstance(pickle.loads(pickle.dumps(ucall.TimeoutError("x"))), TimeoutError)
