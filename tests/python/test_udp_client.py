"""The client's side of calls over UDP: retransmission, the window, batches, and its sockets."""

from __future__ import annotations

import asyncio
import builtins
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from both_clients import NewClient
from functions import sum, text
from programs import require
from serving import Serve

import ucall
from harness import eventually, in_asyncio
from ucall import _core, aio
from ucall._client.aio_udp_endpoint import Endpoint
from ucall._client.datagrams import WINDOW, Cookie, RoundTrips, Window
from ucall._client.sockets import Deadline

BATCHES = """
import asyncio, sys
from ucall import aio
from ucall.client import Client

uri = sys.argv[1]
with Client(uri) as client, client.batch() as batch:
    for number in range(32):
        batch.sum(number, 1)

async def run():
    async with aio.Client(uri) as client, client.batch() as batch:
        for number in range(32):
            batch.sum(number, 1)

asyncio.run(run())
"""


def test_a_batch_goes_in_one_system_call(serve_once: Serve, tmp_path: Path) -> None:
    server, report = serve_once(sum, udp=True), tmp_path / "strace"
    traced = [require("strace"), "-f", "-qq", "-e", "trace=sendmmsg,sendto,sendmsg", "-o", report]
    program = [sys.executable, "-c", BATCHES, f"udp://127.0.0.1:{server.udp_port}"]
    done = subprocess.run([*traced, *program], capture_output=True, text=True, timeout=60)
    if "ptrace" in done.stderr:
        pytest.skip("strace is not allowed here")
    assert done.returncode == 0, done.stderr
    sends = re.findall(r"(send\w+)\(.* = (\d+)", report.read_text())
    # asyncio wakes itself by a byte.
    sends = [call for call in sends if call != ("sendto", "1")]
    assert sends == [("sendmmsg", "32"), ("sendmmsg", "32")]


def test_datagrams_are_received_many_at_once() -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        datagrams = [b"", b"a", b"b" * 65_507]
        assert _core.send_datagrams(one.fileno(), datagrams) == 3
        assert _core.receive_datagrams(other.fileno(), 2, 60) == datagrams[:2]
        assert _core.receive_datagrams(other.fileno(), 32, 0) == datagrams[2:]
        assert _core.receive_datagrams(other.fileno(), 32, 0) == []
        assert _core.receive_datagrams(other.fileno(), 32, 0.001) == []
        with pytest.raises(ValueError, match="timeout"):
            _core.receive_datagrams(other.fileno(), 32, -1)
        sent = _core.send_datagrams(one.fileno(), [b"x"] * 10_000)
        assert 0 < sent < 10_000
    with pytest.raises(OSError):
        _core.send_datagrams(-1, [b"x"])
    with pytest.raises(OSError):
        _core.receive_datagrams(-1, 1, 0)


@in_asyncio
async def test_datagrams_wait_in_asyncio_while_the_system_has_no_room() -> None:
    loop = asyncio.get_running_loop()
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for made in (one, other):
        made.setblocking(False)
    endpoint = Endpoint(loop, one, Window(RoundTrips(), Cookie()), 10_000)
    datagrams = [b"%d" % number for number in range(1000)]
    endpoint.send(datagrams[:999])
    endpoint.send(datagrams[999:])
    assert [await loop.sock_recv(other, 100) for _ in datagrams] == datagrams
    endpoint.close()
    other.close()


@in_asyncio
async def test_a_call_in_asyncio_reads_past_what_is_no_reply_and_frees_its_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, delays = asyncio.get_running_loop(), []
    call_later = loop.call_later

    def recorded(delay_s: float, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        delays.append(delay_s)
        return call_later(delay_s, *args, **kwargs)

    monkeypatch.setattr(loop, "call_later", recorded)
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for made in (one, other):
        made.setblocking(False)
    endpoint = Endpoint(loop, one, Window(RoundTrips(), Cookie()), 10_000)
    request = b'{"jsonrpc":"2.0","method":"later","id":1}'
    for _ in range(2):
        call = asyncio.ensure_future(endpoint.run([(1, request)], Deadline(30)))
        assert await loop.sock_recv(other, 100) == request
        # Both are there before the loop looks.
        for data in (b"no reply", _answer(request)):
            other.send(data)
        await call
    # It would have been sent again within a second.
    assert 0 < min(delays) < 1
    endpoint.close()
    other.close()


@in_asyncio
async def test_a_client_in_asyncio_has_one_window_for_all_calls() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.setblocking(False)
        loop = asyncio.get_running_loop()
        async with aio.Client(f"udp://127.0.0.1:{server.getsockname()[1]}") as client:
            first = asyncio.ensure_future(client.first())
            data, place = await loop.sock_recvfrom(server, 65_536)
            server.sendto(_answer(data), place)
            await first
            batches = [client.batch() for _ in range(2)]
            responses = [batch.later() for batch in batches for _ in range(WINDOW)]
            tasks = [asyncio.ensure_future(batch.send()) for batch in batches]
            tasks += [asyncio.ensure_future(client.later()) for _ in range(5)]
            await asyncio.sleep(0)
            requests = _received(server)
            assert len(requests) == WINDOW
            for request in requests:
                server.sendto(_answer(request), place)
            answering = asyncio.ensure_future(_answer_all(server, place))
            await asyncio.gather(*tasks)
            answering.cancel()
            assert all(response.json == "done" for response in responses)


def _answer(request: bytes) -> bytes:
    return json.dumps(
        {"jsonrpc": "2.0", "id": json.loads(request)["id"], "result": "done"}
    ).encode()


async def _answer_all(server: socket.socket, client: object) -> None:
    while True:
        request = await asyncio.get_running_loop().sock_recv(server, 65_536)
        server.sendto(_answer(request), client)  # type: ignore[arg-type]


def _received(made: socket.socket) -> list[bytes]:
    found = []
    while True:
        try:
            found.append(made.recv(65_536))
        except BlockingIOError:
            return found


@in_asyncio
async def test_each_call_in_progress_learns_that_no_server_listens() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    async with aio.Client(f"udp://127.0.0.1:{port}", timeout=60) as client:
        calls = [client.sum(number, 1) for number in range(3)]
        failed = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(error) for error in failed] == [ucall.ConnectionError] * 3


def test_long_replies_of_a_batch_come_over_tcp_when_told_to(
    serve_once: Serve, new_client: NewClient
) -> None:
    server = serve_once(text, udp=True)
    uri, lengths = f"udp://127.0.0.1:{server.udp_port}", [1, 5000, 2, *[6000] * WINDOW]
    with new_client(uri, tcp_fallback=True) as client:
        with client.batch() as batch:
            responses = [batch.text(length) for length in lengths]
        assert [len(response.json) for response in responses] == lengths
        # Each of the others ran for UDP, and again for TCP, in two batches.
        assert server.stats()["calls"] == 2 * len(lengths) - 2
        assert client.text(1).json == text(1)
        assert server.stats()["calls"] == 2 * len(lengths) - 1
    with new_client(uri) as client, client.batch() as batch:
        response = batch.text(5000)
    assert response.error is not None and response.error.data["transport"] == "tcp"


@pytest.mark.parametrize("options", [{"verify": False}, {"verify": "a.pem"}, {"cert": "a.pem"}])
def test_options_of_tls_are_refused(options: dict[str, Any], new_client: NewClient) -> None:
    with pytest.raises(ValueError, match="verify and cert: UDP has no TLS"):
        new_client("udp://127.0.0.1", **options)


def test_a_call_that_was_sent_may_have_run(new_client: NewClient, pauses: None) -> None:
    reason = r"\d: Connection refused.*; the call may have run"
    with _ending() as (port, methods), pytest.raises(ucall.ConnectionError, match=reason) as caught:
        _call(new_client, f"udp://127.0.0.1:{port}", "sum", 1, 2)
    assert [*methods.values()] == ["sum"]
    assert caught.value.may_have_run


def test_a_call_that_fails_over_tcp_has_run_over_udp(
    serve_once: Serve, new_client: NewClient
) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        serve_once(text, udp_port=port)
        with pytest.raises(ucall.ConnectionError, match="cannot connect") as caught:
            _call(new_client, f"udp://127.0.0.1:{port}", "text", 5000, tcp_fallback=True)
    assert caught.value.may_have_run


def test_a_call_that_takes_too_long_over_tcp_names_its_whole_limit(
    serve_once: Serve, new_client: NewClient
) -> None:
    def exchange(*_: object) -> None:
        raise builtins.TimeoutError

    uri = f"udp://127.0.0.1:{serve_once(text, udp=True).udp_port}"
    with new_client(uri, tcp_fallback=True, timeout=60) as client:
        client._pool._tcp = SimpleNamespace(exchange=exchange, close=lambda: None)
        with pytest.raises(ucall.TimeoutError, match="60 s"):
            client.text(5000)


def test_a_call_is_sent_to_one_address_of_a_name(
    serve_once: Serve, monkeypatch: pytest.MonkeyPatch, new_client: NewClient
) -> None:
    server = serve_once(sum, udp=True)
    with _ending(answered=1) as (port, methods):
        uri = _name(monkeypatch, port, server.udp_port)
        with pytest.raises(ucall.ConnectionError):
            _call(new_client, uri, "sum", 1, 2)
    assert [*methods.values()] == ["$/probe", "sum"]
    assert server.stats()["datagrams"]["received"] == 0


def test_a_name_has_addresses_at_which_no_server_listens(
    serve_once: Serve, monkeypatch: pytest.MonkeyPatch, new_client: NewClient, pauses: None
) -> None:
    server = serve_once(sum, udp=True)
    with _ending() as (port, methods):
        # The server has ended when its first address refuses a copy, so the second refuses at once.
        assert _call(new_client, _name(monkeypatch, port, port, server.udp_port), "sum", 1, 2) == 3
    assert [*methods.values()] == ["$/probe"]
    assert server.stats()["datagrams"]["received"] == 1


def test_an_address_that_does_not_answer_leaves_time_for_the_next(
    serve_once: Serve, monkeypatch: pytest.MonkeyPatch, new_client: NewClient
) -> None:
    server = serve_once(sum, udp=True)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        uri = _name(monkeypatch, silent.getsockname()[1], server.udp_port)
        assert _call(new_client, uri, "sum", 1, 2, timeout=4) == 3


def test_a_notification_goes_to_the_address_with_a_server(
    serve_once: Serve, monkeypatch: pytest.MonkeyPatch, new_client: NewClient, pauses: None
) -> None:
    server = serve_once(sum, udp=True)
    with (
        _ending() as (port, methods),
        new_client(_name(monkeypatch, port, server.udp_port)) as client,
    ):
        client.notify("sum", 1, 2)
    assert [*methods.values()] == ["$/probe"]
    assert eventually(lambda: server.stats()["calls"] == 1)


def test_a_notification_to_an_unknown_host_is_an_error(
    monkeypatch: pytest.MonkeyPatch, new_client: NewClient
) -> None:
    def resolve(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(ucall.ConnectionError, match="cannot connect") as caught:
        new_client("udp://server.test").notify("sum", 1, 2)
    assert not caught.value.may_have_run


def test_a_notification_that_is_too_long_is_refused(
    serve_once: Serve, new_client: NewClient
) -> None:
    server = serve_once(text, udp=True)
    uri = f"udp://127.0.0.1:{server.udp_port}"
    with new_client(uri) as client, pytest.raises(ValueError, match="expected at most"):
        client.notify("text", "x" * 70_000)


def test_an_address_is_chosen_again_when_its_server_has_ended(
    serve_once: Serve, monkeypatch: pytest.MonkeyPatch, pauses: None, new_client: NewClient
) -> None:
    server = serve_once(sum, udp=True)
    with _ending(answered=1) as (port, _), new_client(_name(monkeypatch, port)) as client:
        assert client.sum(1, 2).json == "done"
        with pytest.raises(ucall.ConnectionError):
            client.sum(1, 2)
        _name(monkeypatch, server.udp_port)
        assert client.sum(1, 2).json == 3


def test_options_limit_the_time_of_one_call(serve_once: Serve, new_client: NewClient) -> None:
    server = serve_once(sum, udp=True)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        uri = f"udp://127.0.0.1:{silent.getsockname()[1]}"
        with new_client(uri) as client, pytest.raises(ucall.TimeoutError, match=r"0\.1 s"):
            client.with_options(timeout=0.1).sum(1, 2)
    with new_client(f"udp://127.0.0.1:{server.udp_port}") as client:
        assert client.with_options(timeout=60).sum(1, 2).json == 3


@in_asyncio
async def test_options_limit_the_time_of_a_call_that_waits_for_an_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        silent.setblocking(False)
        port = silent.getsockname()[1]
        async with aio.Client(_name(monkeypatch, port, port)) as client:
            first = asyncio.ensure_future(client.sum(1, 2))
            assert await asyncio.get_running_loop().sock_recv(silent, 65_536)
            with pytest.raises(ucall.TimeoutError, match=r"0\.1 s") as caught:
                await client.with_options(timeout=0.1).sum(1, 2)
            assert not caught.value.may_have_run
            first.cancel()


def test_calls_of_another_loop_wait_for_its_socket(serve_once: Serve) -> None:
    client = aio.Client(f"udp://127.0.0.1:{serve_once(sum, udp=True).udp_port}")

    async def both() -> list[int]:
        async with client:
            return [it.json for it in await asyncio.gather(client.sum(1, 2), client.sum(3, 4))]

    assert [asyncio.run(both()) for _ in range(2)] == [[3, 7]] * 2


@pytest.fixture(name="pauses")
def pauses_fixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the first pauses short."""
    monkeypatch.setattr("ucall._client.datagrams.FIRST_PAUSE_S", 0.05)


def _name(monkeypatch: pytest.MonkeyPatch, *ports: int | None) -> str:
    """A URI whose name has an address for each of these ports."""
    found = [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.0.1", port)) for port in ports]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    return "udp://server.test"


@contextmanager
def _ending(answered: int = 0) -> Iterator[tuple[int, dict[object, str]]]:
    """A server that answers so many requests, and their copies, reads another one and ends.

    Yields:
        Its port, and the methods of the requests that it has read, by their ids.
    """
    methods: dict[object, str] = {}
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    made.settimeout(60)

    def run() -> None:
        with made:
            while True:
                data, client = made.recvfrom(65_536)
                request = json.loads(data)
                methods[request["id"]] = request["method"]
                if len(methods) > answered:
                    return
                made.sendto(_answer(data), client)

    thread = threading.Thread(target=run)
    port = made.getsockname()[1]
    thread.start()
    try:
        yield port, methods
    finally:
        thread.join()


def _call(new_client: NewClient, uri: str, method: str, *args: object, **options: Any) -> object:
    """The result of a call of a new client."""
    with new_client(uri, **options) as client:
        return client.call(method, *args).json
