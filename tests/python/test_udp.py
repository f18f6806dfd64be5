"""Calls over UDP: the server and both clients, over a network that loses and repeats datagrams."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import forking
import pytest
from applications import PID
from both_clients import NewClient
from certificates import Files, authority, files
from functions import sum, text
from serving import Serve
from test_workers import supervised
from udp_proxy import UdpProxy

import ucall
from harness import eventually, in_asyncio
from ucall import aio
from ucall._client.datagrams import Cookie, RoundTrips, Window, parse_reply
from ucall.client import Client
from wire import UdpWire

__all__ = ["authority", "files"]

#: Calls over a bad network; `make test-udp-long` makes more.
CALLS = int(os.environ.get("UDP_CALLS", "1000"))


async def later(a: int) -> int:
    await asyncio.sleep(0.01)
    return a


def fail() -> None:
    raise ucall.RPCError(7, "no", {"x": 1})


def _udp(serve: Serve, *functions: Any, **options: Any) -> ucall.Server:
    return serve(*functions, udp=True, **options)


def _request(method: str, params: Any = (), id: Any = 1, **others: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params, "id": id, **others}


@pytest.fixture
def wire(serve: Serve) -> Iterator[UdpWire]:
    with UdpWire(_udp(serve, sum, later, fail, text).udp_port) as wire:
        yield wire


def test_functions_of_all_kinds_answer(serve: Serve, new_client: NewClient) -> None:
    server = _udp(serve, sum, later, fail)
    server.add(sum, "threaded", threads=True)

    @server.batch(max_size=8)
    def double(numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    with new_client(f"udp://127.0.0.1:{server.udp_port}") as client:
        assert client.sum(1, 2).json == 3
        assert client.later(a=4).json == 4
        assert client.threaded(1, 2).json == 3
        assert client.double(21).json == 42
        with pytest.raises(ucall.RPCError) as raised:
            _ = client.fail().json
        assert (raised.value.code, raised.value.data) == (7, {"x": 1})
        assert client.nothing().error is not None
        client.notify("sum", 1, 2)
        with pytest.raises(ValueError, match="UDP has no streams"):
            client.stream.sum(1, 2)
        with pytest.raises(ValueError, match="UDP has no streams"):
            client.subscribe()
        assert eventually(lambda: server.stats()["calls"] == 7)
        with client.batch() as batch:
            responses = [batch.sum(number, 1) for number in range(200)]
            batch.notify("sum", 1, 2)
        assert [response.json for response in responses] == list(range(1, 201))


def test_the_transport_is_known(serve: Serve) -> None:
    def origin(ctx: ucall.Context) -> list[str | None]:
        return [ctx.transport, ctx.broker]

    with UdpWire(_udp(serve, origin).udp_port) as wire:
        assert wire.exchange(_request("origin"))["result"] == ["udp", None]


@in_asyncio
async def test_a_client_in_asyncio(serve: Serve) -> None:
    server = _udp(serve, sum, later, fail)
    async with aio.Client(f"udp://127.0.0.1:{server.udp_port}") as client:
        replies = await asyncio.gather(*(client.sum(number, 1) for number in range(300)))
        assert [reply.json for reply in replies] == list(range(1, 301))
        replies = await asyncio.gather(*(client.later(number) for number in range(100)))
        assert [reply.json for reply in replies] == list(range(100))


def test_a_repeat_gets_the_reply_and_does_not_run(serve: Serve) -> None:
    runs: list[int] = []

    def once(a: int) -> int:
        runs.append(a)
        return len(runs)

    server = _udp(serve, once)
    server.add(once, "again", idempotent=True)
    with UdpWire(server.udp_port) as wire:
        first = wire.exchange(_request("once", [1]))
        assert wire.exchange(_request("once", [1])) == first == {**first, "result": 1}
        assert wire.exchange(_request("once", [1], _meta={"timeout_ms": 9000})) == first
        assert wire.exchange(_request("once", [2])) == {**first, "result": 2}
        assert [wire.exchange(_request("again", [1]))["result"] for _ in range(2)] == [3, 4]
    assert server.stats()["datagrams"]["repeated"] == 2


def test_a_datagram_without_a_valid_request_is_not_answered(serve: Serve) -> None:
    server = _udp(serve, sum)
    with UdpWire(server.udp_port) as wire:
        for data in (b"", b"{", b"[]", b"\xff", b"GET / HTTP/1.1\r\n\r\n", b"[1]", b"\0" * 65_507):
            wire.send(data)
        wire.send({"jsonrpc": "2.0", "id": 1, "result": 3})
        wire.send({"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "no"}})
        assert wire.exchange(_request("sum", [1, 2], "x")) == {
            "jsonrpc": "2.0",
            "id": "x",
            "result": 3,
        }
    datagrams = server.stats()["datagrams"]
    assert (datagrams["invalid"], datagrams["sent"]) == (9, 1)


def test_a_long_reply_needs_a_cookie_which_clients_get_by_themselves(wire: UdpWire) -> None:
    request = _request("text", [300])
    error = wire.exchange(request)["error"]
    assert (error["code"], len(json.dumps(request)) * 3 < 300) == (-32006, True)
    with_cookie = {**request, "_meta": error["data"]}
    assert wire.exchange(with_cookie)["result"] == text(300)
    cookie = wire.exchange(_request("rpc.cookie", [], 2))["result"]
    request = _request("text", [400], 3, _meta={"cookie": cookie})
    assert wire.exchange(request)["result"] == text(400)
    for other in (cookie[:-1] + ("0" if cookie[-1] != "0" else "1"), "", 1, None):
        reply = wire.exchange(_request("text", [500], 4, _meta={"cookie": other}))
        assert reply["error"]["code"] == -32006


def test_clients_use_cookies_and_fall_back_to_tcp_when_told_to(
    serve: Serve, new_client: NewClient
) -> None:
    server = _udp(serve, text)
    uri = f"udp://127.0.0.1:{server.udp_port}"
    with new_client(uri) as client:
        assert client.text(1000).json == text(1000)
        assert client({"method": "text", "params": [900], "_meta": {"x": 1}}).json == text(900)
        calls = server.stats()["calls"]
        assert client.text(1001).json == text(1001)
        # The client knows the cookie, so the call runs once, and was sent once.
        assert server.stats()["calls"] == calls + 1
        error = client.text(5000).error
        assert error is not None
        assert (error.code, error.data["transport"]) == (-32603, "tcp")
        with pytest.raises(ValueError, match="expected at most 65507"):
            client.text("x" * 70_000)
    with new_client(uri, tcp_fallback=True) as client:
        assert client.text(5000).json == text(5000)


def test_no_reply_is_an_error_in_time(new_client: NewClient) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        uri = f"udp://127.0.0.1:{silent.getsockname()[1]}"
        with new_client(uri, timeout=0.2) as client, pytest.raises(ucall.TimeoutError):
            client.sum(1, 2)
    with new_client(uri, timeout=60) as client, pytest.raises(ucall.ConnectionError):
        client.sum(1, 2)


@pytest.mark.parametrize("kind", ["sync", "asyncio"])
@pytest.mark.slow
def test_calls_are_answered_and_run_once_over_a_bad_network(serve: Serve, kind: str) -> None:
    runs: Counter[int] = Counter()
    lock = threading.Lock()

    def square(number: int) -> int:
        with lock:
            runs[number] += 1
        return number * number

    server = _udp(serve, square)
    assert server.udp_port is not None
    network = {"loss": 0.05, "duplicates": 0.02, "delay_s": 0.005}
    with UdpProxy(("127.0.0.1", server.udp_port), **network) as proxy:
        uri = f"udp://127.0.0.1:{proxy.port}"
        answered = _in_asyncio(uri) if kind == "asyncio" else _in_threads(uri)
        assert proxy.lost > CALLS / 50
    assert all(result == number * number for number, result in answered.items())
    assert len(answered) >= 0.999 * CALLS
    assert set(runs.values()) == {1}
    assert server.stats()["datagrams"]["repeated"] > 0


def _in_threads(uri: str) -> dict[int, int]:
    answered: dict[int, int] = {}

    def call_some(first: int) -> None:
        with Client(uri) as client:
            for start in range(first, CALLS, 400):
                batch = client.batch()
                numbers = range(start, min(start + 100, CALLS))
                responses = {number: batch.square(number) for number in numbers}
                with suppress(ucall.TimeoutError):
                    batch.send()
                    answered.update({number: it.json for number, it in responses.items()})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(call_some, range(0, 400, 100)))
    return answered


def _in_asyncio(uri: str) -> dict[int, int]:
    answered: dict[int, int] = {}

    numbers = iter(range(CALLS))

    async def call_some(client: aio.Client) -> None:
        for number in numbers:
            with suppress(ucall.TimeoutError):
                answered[number] = (await client.square(number)).json

    async def run() -> None:
        async with aio.Client(uri) as client, asyncio.TaskGroup() as group:
            for _ in range(50):
                group.create_task(call_some(client))

    asyncio.run(run())
    return answered


def test_a_reply_that_is_late_or_forged_answers_no_other_call(new_client: NewClient) -> None:
    """A server that answers each call twice, and with replies to others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(60)

        def answer() -> None:
            for number in range(10):
                data, client = server.recvfrom(65_536)
                id = json.loads(data)["id"]
                for reply in (
                    b"\xff",
                    b"[]",
                    b'{"jsonrpc":"2.0","id":%s,"result":1}' % (b"9" * 5_000),
                    b'{"jsonrpc":"2.0","id":%d,"error":1}' % id,
                    b'{"jsonrpc":"2.0","id":%d,"error":{"code":%s}}' % (id, b"9" * 5_000),
                    json.dumps([{"jsonrpc": "2.0", "id": id, "result": "batch"}]).encode(),
                    _reply(id - 1, "late"),
                    _reply(str(id), "another"),
                    _reply(id, number),
                    _reply(id, "again"),
                ):
                    server.sendto(reply, client)

        thread = threading.Thread(target=answer)
        thread.start()
        with new_client(f"udp://127.0.0.1:{server.getsockname()[1]}") as client:
            assert [client.sum(1, 2).json for _ in range(10)] == list(range(10))
        thread.join()


def test_a_forged_cookie_does_not_make_later_requests_invalid() -> None:
    for length, expected in ((256, "0" * 256), (257, None)):
        cookie = Cookie()
        window = Window(RoundTrips(), cookie)
        window.add([(1, b"{}")])
        window.take_due(0)
        error = {"code": -32006, "message": "", "data": {"cookie": "0" * length}}
        datagram = json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}).encode()
        id, reply = parse_reply(datagram, 10_000)
        assert reply is not None
        window.take_reply(id, reply, 1)
        assert cookie.text == expected
        assert window.is_done == (expected is None)


def _reply(id: object, result: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode()


def test_two_servers_do_not_answer_each_other(serve: Serve) -> None:
    """A forged datagram makes one server answer another."""
    one, other = _udp(serve, sum, fail), _udp(serve, sum, fail)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forger, UdpWire(one.udp_port) as wire:
        forger.bind(("127.0.0.1", 0))
        to = ("127.0.0.1", other.udp_port or 0)
        for method in ("sum", "fail", "nothing"):
            reply = json.dumps(wire.exchange(_request(method, [1, 2] if method == "sum" else [])))
            forger.sendto(reply.encode(), to)
        forger.sendto(json.dumps(_request("sum", [1, 2])).encode(), to)
        forger.settimeout(60)
        assert json.loads(forger.recv(1000))["result"] == 3
    assert other.stats()["datagrams"]["invalid"] == 3
    assert other.stats()["datagrams"]["sent"] == 1


def test_deadlines_and_limits_hold(serve: Serve) -> None:
    async def forever() -> None:
        await asyncio.sleep(3600)

    server = _udp(serve, forever, sum, max_source_calls=3, drain_timeout_s=0.1)
    with UdpWire(server.udp_port) as wire:
        meta = {"cookie": wire.exchange(_request("rpc.cookie", [], 9))["result"]}
        for id in range(5):
            wire.send(_request("forever", [], id, _meta=meta))
        assert eventually(lambda: server.stats()["datagrams"]["refused"] == 2)
        assert server.stats()["calls"] == 3
    assert server.stats()["datagrams"]["sent"] == 1
    server = _udp(serve, forever)
    with UdpWire(server.udp_port) as wire:
        reply = wire.exchange(_request("forever", [], 9, _meta={"timeout_ms": 20}))
        assert reply["error"]["code"] == -32001


def test_notifications_leave_half_of_all_running_calls_to_others(serve: Serve) -> None:
    begun: list[int] = []

    async def forever(number: int) -> None:
        begun.append(number)
        await asyncio.sleep(3600)

    server = _udp(serve, forever, max_running_calls=4, drain_timeout_s=0.1)
    with UdpWire(server.udp_port) as wire:
        notifications = [
            {"jsonrpc": "2.0", "method": "forever", "params": [number]} for number in range(6)
        ]
        wire.send(json.dumps(notifications[:3]).encode())
        for notification in notifications[3:]:
            wire.send(notification)
        assert eventually(lambda: server.stats()["datagrams"]["refused"] == 2)
        assert eventually(lambda: begun == [3, 4])
        for id in range(2):
            wire.send(_request("forever", [6 + id], id))
        assert eventually(lambda: begun == [3, 4, 6, 7])


def test_calls_a_second_of_an_address_are_limited(serve: Serve) -> None:
    server = _udp(serve, sum, max_source_calls_per_s=3)
    requests = [_request("sum", [number, 1], number) for number in range(4)]
    with UdpWire(server.udp_port) as wire:
        refused = wire.exchange(json.dumps(requests).encode())
        assert (refused["error"]["code"], server.stats()["calls"]) == (-32006, 0)
        wire.send(json.dumps(requests[:3]).encode())
        assert [reply["result"] for reply in wire.message()] == [1, 2, 3]
        # A cookie costs no call, and has calls of its own.
        cookie = wire.exchange(_request("rpc.cookie"))["result"]
        reply = wire.exchange(_request("sum", [4, 1], 4, _meta={"cookie": cookie}))
        assert reply["result"] == 5
    with pytest.raises(ValueError, match="max_source_calls_per_s: expected a positive number"):
        ucall.Server(port=0, udp=ucall.UDP(max_source_calls_per_s=0))


def test_peers_and_metrics(serve: Serve) -> None:
    def who(ctx: ucall.Context) -> str:
        return str(ctx.peer)

    server = _udp(serve, who, metrics=True)
    with Client(f"udp://127.0.0.1:{server.udp_port}") as client:
        assert "127.0.0.1" in client.who().json
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as response:
        lines = response.read().decode().splitlines()
    assert "ucall_received_datagrams_total 1" in lines
    assert "ucall_sent_datagrams_total 1" in lines


def test_authentication_is_for_loopback_alone_unless_forced(serve: Serve) -> None:
    def auth(ctx: ucall.Context) -> str:
        return f"user at {ctx.peer[0]}" if ctx.peer else ""  # type: ignore[index]

    def who(ctx: ucall.Context) -> Any:
        return ctx.user

    server = _udp(serve, who, auth=auth)
    with Client(f"udp://127.0.0.1:{server.udp_port}") as client:
        assert client.who().json == "user at 127.0.0.1"
    server = _udp(serve, who, auth=lambda ctx: None)
    with Client(f"udp://127.0.0.1:{server.udp_port}") as client:
        error = client.who().error
        assert error is not None and error.code == -32004
    with pytest.raises(ValueError, match=r"UDP\(auth=True\)"):
        ucall.Server("0.0.0.0", 0, auth=auth, udp=ucall.UDP())
    ucall.Server("0.0.0.0", 0, auth=auth, udp=ucall.UDP(auth=True))


def test_a_wildcard_server_answers_from_the_address_that_was_asked(
    serve: Serve, new_client: NewClient
) -> None:
    server = _udp(serve, sum, host="0.0.0.0")
    if sys.platform != "linux":
        pytest.skip("other systems have one loopback address")
    with new_client(f"udp://127.0.0.7:{server.udp_port}", timeout=60) as client:
        assert client.sum(1, 2).json == 3


def test_options_that_exclude_each_other(tmp_path: Any, new_client: NewClient) -> None:
    for options, expected in (
        ({"udp": True, "uds": str(tmp_path / "a")}, "Unix socket"),
        ({"udp_auth": True}, "no effect without udp"),
        ({"udp_port": -1}, "udp.port: expected 0 to 65535"),
        ({"udp": True, "max_datagram_bytes": 65_508}, "at most 65507"),
        ({"udp": True, "dedupe_s": 4.9}, "dedupe_s: expected at least 5, got 4.9"),
    ):
        with pytest.raises(ValueError, match=expected):
            ucall.Server(port=0, **ucall.options.arguments(options))  # type: ignore[arg-type]
    ucall.Server(port=0, udp=ucall.UDP(dedupe_s=5))
    server = ucall.Server(port=0)
    assert server.udp_port is None
    with ucall.Server(port=0, udp=ucall.UDP(port=0)) as other:
        assert other.udp_port not in (0, None)
        second = ucall.Server(port=0, udp=ucall.UDP(port=other.udp_port))
        assert (second.port, second.udp_port) == (None, other.udp_port)
        with pytest.raises(OSError, match="in use"):
            second.start()
    for arguments, expected in (
        ({"reconnect": True}, "UDP has no connection"),
        ({"headers": {"a": "b"}}, "headers"),
    ):
        with pytest.raises(ValueError, match=expected):
            new_client("udp://127.0.0.1", **arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tcp_fallback"):
        new_client("127.0.0.1", tcp_fallback=True)
    with pytest.raises(ValueError, match="ids of their own"):
        new_client("udp://127.0.0.1").with_options(id=1)


def test_datagrams_are_refused_beside_tls(files: Files) -> None:
    with pytest.raises(ValueError, match="datagrams cannot be encrypted; expected no tls"):
        ucall.Server(port=0, tls=ucall.TLS(certfile=files.both), udp=ucall.UDP())


def test_the_command_calls_over_udp(serve: Serve) -> None:
    server = _udp(serve, sum)
    command = [sys.executable, "-m", "ucall.cli", "sum", "a=1", "b=2", "-u"]
    done = forking.run([*command, "-p", str(server.udp_port)], text=True)
    assert (done.stdout, done.stderr) == ("3\n", "")
    assert server.stats()["datagrams"]["received"] == 1


def test_a_server_starts_again_on_its_port(serve: Serve, new_client: NewClient) -> None:
    server = _udp(serve, sum)
    port = server.udp_port
    server.stop()
    server.start()
    with new_client(f"udp://127.0.0.1:{port}") as client:
        assert client.sum(1, 2).json == 3


def test_workers_share_the_port_and_the_key_of_cookies(tmp_path: Any) -> None:
    source = (
        PID.replace("(port=0)", "(udp=ucall.UDP())") + 'server.add(lambda n: "x" * n, "text")\n'
    )
    with supervised(tmp_path, "--workers", "2", source=source) as app:
        port = app.port
        pids, cookie = set(), ""

        def has_both() -> bool:
            nonlocal cookie
            # The supervisor reports the port before its workers are bound to it.
            with Client(f"udp://127.0.0.1:{port}") as client, suppress(ucall.ConnectionError):
                pids.add(client.pid().json)
            return len(pids) == 2

        assert eventually(has_both)
        with UdpWire(port) as wire:
            cookie = wire.exchange(_request("rpc.cookie"))["result"]
        # A cookie of one worker counts at both: sources are spread over them by their ports.
        for id in range(20):
            with UdpWire(port) as wire:
                reply = wire.exchange(_request("text", [900], id, _meta={"cookie": cookie}))
                assert reply["result"] == text(900)
