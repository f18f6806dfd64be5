"""Servers that register with NATS: what any client of NATS sees of them, and calls."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from brokers import (
    NatsServer,
    connected,
    instances,
    registered,
    request,
)
from certificates import Authority, Files, authority, files

import ucall
from harness import HOST, eventually, in_asyncio
from ucall._client import blocking
from ucall._nats import calls
from ucall._nats.subjects import parse_brokers, subject_of
from ucall.client import Client

# The fixtures, for pytest.
__all__ = ["authority", "files"]


@pytest.fixture
def broker() -> Iterator[NatsServer]:
    with NatsServer() as started:
        yield started


class Seen:
    """What the functions of `served` saw."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.was_cancelled = threading.Event()
        self.may_end = threading.Event()
        self.noted: list[str] = []


def served(seen: Seen | None = None, **options: Any) -> ucall.Server:
    server = ucall.Server(port=0, **ucall.options.arguments(options))
    seen = seen or Seen()

    @server(name="math.add", idempotent=True)
    def add(a: int, b: int = 1) -> int:
        return a + b

    @server(name="straße $x")
    def odd() -> str:
        return "odd"

    @server
    def note(text: str) -> None:
        seen.noted.append(text)

    @server
    def context(ctx: ucall.Context) -> list[Any]:
        return [ctx.user, ctx.headers.get("x-tenant"), ctx.headers.get("ucall-broker")]

    @server
    def origin(ctx: ucall.Context) -> list[str | None]:
        return [ctx.transport, ctx.broker]

    @server
    def peer(ctx: ucall.Context) -> str:
        return str(ctx.peer)

    @server
    def repeat(count: int) -> str:
        return "x" * count

    @server
    def fail() -> None:
        raise ucall.RPCError(7, "no such\nitem: é", {"item": 3})

    @server
    async def wait(ctx: ucall.Context) -> float | None:
        seen.started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.was_cancelled.set()
            raise
        return ctx.time_left

    @server
    async def pause() -> bool:
        seen.started.set()
        return await asyncio.to_thread(seen.may_end.wait, 60)

    return server


@pytest.fixture
def seen() -> Seen:
    return Seen()


@contextmanager
def serving(
    broker: NatsServer, seen: Seen | None = None, advertise: str | None = None, **options: Any
) -> Iterator[ucall.Server]:
    """A server that the broker knows, with these options."""
    server = served(seen, **options)
    server.start(broker=ucall.Broker(url=broker.url, group="models", advertise=advertise))
    try:
        assert registered(broker)
        yield server
    finally:
        server.stop()


@pytest.fixture
def server(broker: NatsServer, seen: Seen) -> Iterator[ucall.Server]:
    with serving(broker, seen) as server:
        yield server


def error_of(reply: Any) -> tuple[str, str, Any]:
    headers = reply.headers
    return (
        headers["Nats-Service-Error-Code"],
        headers["Nats-Service-Error"],
        json.loads(reply.data),
    )


@pytest.mark.parametrize(
    ("method", "subject"),
    [
        ("sum", "g.sum"),
        ("math.sum", "g.math.sum"),
        ("a-b_1", "g.a-b_1"),
        ("a*b>c d", "g.a%2Ab%3Ec%20d"),
        ("$cancel", "g.%24cancel"),
        ("%41", "g.%2541"),
        ("é", "g.%C3%A9"),
        ("a..b", "g.a%2E%2Eb"),
        (".a.b", "g.%2Ea%2Eb"),
    ],
)
def test_each_name_has_a_subject_of_its_own(method: str, subject: str) -> None:
    assert subject_of("g", method) == subject


@pytest.mark.parametrize(
    ("payload", "result"), [(b"[2, 3]", 5), (b'{"a": 2, "b": 3}', 5), (b" [2] ", 3)]
)
def test_any_client_calls_by_position_and_by_name(
    broker: NatsServer, server: ucall.Server, payload: bytes, result: int
) -> None:
    reply = request(broker, "models.math.add", payload)
    assert json.loads(reply.data) == result and reply.headers is None


def test_a_call_without_params_has_an_empty_payload(
    broker: NatsServer, server: ucall.Server
) -> None:
    assert request(broker, subject_of("models", "straße $x")).data == b'"odd"'


@pytest.mark.parametrize(
    "payload",
    [
        b"5",
        b"{",
        b"NaN",
        b"[" * 100_000,
        b"\xff",
        b'[1], "method": "note"',
        b'[1]}\n{"jsonrpc": "2.0", "method": "note", "params": ["x"]',
    ],
)
def test_a_payload_that_is_no_params_calls_nothing(
    broker: NatsServer, server: ucall.Server, seen: Seen, payload: bytes
) -> None:
    code, _, error = error_of(request(broker, "models.math.add", payload))
    assert code == "-32600" and error["code"] == -32600
    assert request(broker, "models.math.add", b"[1]").data == b"2" and seen.noted == []


def test_errors_have_the_headers_of_services_and_the_whole_error(
    broker: NatsServer, server: ucall.Server
) -> None:
    code, line, error = error_of(request(broker, "models.fail"))
    assert (code, line) == ("7", "no such item: ?")
    assert error == {"code": 7, "message": "no such\nitem: é", "data": {"item": 3}}
    code, _, error = error_of(request(broker, "models.math.add", b'["x"]'))
    assert code == "-32602" and error["data"] == "params.a: expected int, got str"


def test_the_service_describes_itself(broker: NatsServer, server: ucall.Server) -> None:
    [info] = instances(broker)
    assert info["type"] == "io.nats.micro.v1.info_response" and info["name"] == "models"
    assert info["metadata"]["address"] == f"{HOST}:{server.port}"
    assert info["metadata"]["transports"] == "http,ws,tcp"
    endpoints = {it["metadata"]["method"]: it for it in info["endpoints"]}
    assert endpoints.keys() == {*server._functions.methods.served, "rpc.discover"}
    assert endpoints["math.add"]["subject"] == "models.math.add"
    assert endpoints["math.add"]["queue_group"] == "q"
    assert endpoints["math.add"]["metadata"]["idempotent"] == "true"
    assert endpoints["note"]["metadata"]["idempotent"] == "false"
    for it in endpoints.values():
        assert re.fullmatch(r"[A-Za-z0-9_-]+", it["name"])
    for subject in ("$SRV.PING", "$SRV.PING.models", f"$SRV.PING.models.{info['id']}"):
        pong = json.loads(request(broker, subject).data)
        assert (pong["id"], pong["metadata"]) == (info["id"], info["metadata"])


def test_statistics_count_calls_and_errors(broker: NatsServer, server: ucall.Server) -> None:
    def stats() -> dict[str, Any]:
        reply = json.loads(request(broker, "$SRV.STATS.models").data)
        return {it["name"]: it for it in reply["endpoints"]}

    before = stats()["math_add"]["data"]
    request(broker, "models.math.add", b"[1]")
    request(broker, "models.math.add", b'["x"]')
    after = stats()["math_add"]
    assert (after["num_requests"], after["num_errors"]) == (2, 1)
    assert after["last_error"] == "Invalid params"
    assert after["processing_time"] >= after["average_processing_time"] > 0
    assert after["data"]["load"]["calls"] == before["load"]["calls"] + 2
    assert after["data"]["openrpc_sha256"] == before["openrpc_sha256"]
    assert stats()["note"]["num_requests"] == 0


def test_calls_keep_their_headers_for_auth(broker: NatsServer) -> None:
    with serving(broker, auth=ucall.auth.bearer({"secret": "ann"})):
        code, _, error = error_of(request(broker, "models.context"))
        assert code == "-32004" and error["code"] == -32004
        headers = {"Authorization": "Bearer secret", "X-Tenant": "t1", "ucall-broker": "forged"}
        reply = request(broker, "models.context", b"", headers)
        assert json.loads(reply.data) == ["ann", "t1", None]
        reply = request(broker, "models.origin", b"", headers)
        assert json.loads(reply.data) == ["nats", "nats"]
        code, _, _ = error_of(request(broker, "models.context", b"", {"Authorization": "Bearer x"}))
        assert code == "-32004"


def test_headers_of_the_connection_are_not_passed_on(
    broker: NatsServer, server: ucall.Server
) -> None:
    headers = {"Content-Length": "3", "Host": "evil", "Transfer-Encoding": "chunked", "Expect": "1"}
    assert request(broker, "models.math.add", b"[1]", headers).data == b"2"
    code, _, _ = error_of(request(broker, "models.math.add", b"[1]", {"x": "a\x01b"}))
    assert code == "-32600"


def test_headers_are_passed_on_except_those_of_connections() -> None:
    given = {"Authorization": "Bearer x", "HOST": "evil", "Nats-Msg-Id": "1", "forwarded": "for=9"}
    head, id = calls._head_of(
        {**given, "X-Forwarded-For": "9.9.9.9", "ucall-call-ID": "a", "x": "é"}
    )
    lines = ["Authorization: Bearer x", "ucall-call-ID: a", "x: é", "", ""]
    assert head.decode().split("\r\n")[2:] == lines and id == "a"


@pytest.mark.parametrize(
    ("message", "line"), [("x" * 600, "x" * 512), ("\n", "error"), (" a\tb\x7f", "a b?")]
)
def test_the_message_of_an_error_is_one_line_of_ascii_in_a_header(message: str, line: str) -> None:
    headers, found = calls._error_headers(json.dumps({"code": 7, "message": message}).encode())
    assert headers == {"Nats-Service-Error-Code": "7", "Nats-Service-Error": line}
    assert found == message


def test_a_caller_cannot_forge_its_address(broker: NatsServer) -> None:
    with serving(broker, trusted_proxies=["127.0.0.1"]):
        for forged in ({"X-Forwarded-For": "9.9.9.9"}, {"forwarded": "for=9.9.9.9"}):
            reply = request(broker, "models.peer", b"", forged)
            assert reply.headers is None and reply.data == b'"None"'


def test_statistics_describe_the_server_once(
    broker: NatsServer, server: ucall.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = []
    sha256 = hashlib.sha256
    monkeypatch.setattr(hashlib, "sha256", lambda text: hashed.append(text) or sha256(text))
    for _ in range(3):
        request(broker, "$SRV.STATS.models")
    assert len(hashed) == 1


def test_a_deadline_holds(broker: NatsServer, server: ucall.Server, seen: Seen) -> None:
    code, _, _ = error_of(request(broker, "models.wait", b"", {"Ucall-Timeout-Ms": "50"}))
    assert code == "-32001"
    assert eventually(seen.was_cancelled.is_set)


def test_a_call_is_cancelled_by_its_id(
    broker: NatsServer, server: ucall.Server, seen: Seen
) -> None:
    async def cancel(connection: Any) -> None:
        headers = {"Ucall-Call-Id": "call 1"}
        await connection.publish("models.wait", b"", reply="nowhere", headers=headers)
        await connection.flush()
        await asyncio.to_thread(seen.started.wait, 60)
        await connection.publish("models.$cancel", b"call 2")
        await connection.flush()
        assert not seen.was_cancelled.wait(0.05)
        await connection.publish("models.$cancel", b"call 1")
        await connection.flush()
        assert await asyncio.to_thread(seen.was_cancelled.wait, 60)

    connected(broker.url, cancel)


def test_a_message_without_a_reply_is_a_notification(
    broker: NatsServer, server: ucall.Server, seen: Seen
) -> None:
    connected(broker.url, lambda it: it.publish("models.note", b'["noted"]'))
    assert eventually(lambda: seen.noted == ["noted"])


def test_a_reply_above_the_broker_s_limit_is_an_error(
    broker: NatsServer, server: ucall.Server
) -> None:
    limit = 1_048_576
    assert len(request(broker, "models.repeat", b"[%d]" % (limit - 2)).data) == limit
    code, line, _ = error_of(request(broker, "models.repeat", b"[%d]" % (limit - 1)))
    assert code == "-32603" and "max_payload of the broker, 1048576" in line
    assert request(broker, "models.math.add", b"[1]").data == b"2"


def test_a_payload_above_the_server_s_limit_is_refused(broker: NatsServer, seen: Seen) -> None:
    with serving(broker, seen, max_body_bytes=1_000):
        at_limit = json.dumps(["x" * 996]).encode()
        assert len(at_limit) == 1_000
        assert request(broker, "models.note", at_limit).data == b"null"
        code, _, error = error_of(request(broker, "models.note", at_limit + b" "))
        assert code == "-32600" and "at most 1000 bytes (max_body_bytes)" in error["data"]
        assert len(seen.noted) == 1


def test_a_server_serves_without_its_broker_and_registers_when_it_comes(seen: Seen) -> None:
    broker = NatsServer()
    server = served(seen)
    server.start(
        broker=ucall.Broker(url=broker.url, group="models", options={"reconnect_time_wait": 0.05})
    )
    try:
        with Client(f"{HOST}:{server.port}") as client:
            assert client.call("math.add", 1).json == 2
        with broker:
            assert registered(broker)
            assert request(broker, "models.math.add", b"[1]").data == b"2"
            broker.kill()
            broker.start()
            assert registered(broker)
            assert request(broker, "models.math.add", b"[1]").data == b"2"
    finally:
        server.stop()


def test_calls_end_with_the_connection_of_their_server(broker: NatsServer, seen: Seen) -> None:
    async def begin(connection: Any) -> None:
        await connection.publish("models.wait", b"", reply="nowhere")
        await connection.flush()
        assert await asyncio.to_thread(seen.started.wait, 60)

    with serving(broker, seen):
        connected(broker.url, begin)
        broker.kill()
        assert seen.was_cancelled.wait(60)
        broker.start()


def test_a_drain_answers_the_calls_in_flight(broker: NatsServer, seen: Seen) -> None:
    async def stop_meanwhile(connection: Any) -> None:
        reply = asyncio.ensure_future(connection.request("models.pause", timeout=60))
        assert await asyncio.to_thread(seen.started.wait, 60)
        stopped = asyncio.ensure_future(asyncio.to_thread(server.stop))
        assert await asyncio.to_thread(registered, broker, 0)
        seen.may_end.set()
        assert (await reply).data == b"true"
        await stopped

    with serving(broker, seen) as server:
        connected(broker.url, stop_meanwhile)


def test_a_server_that_stops_without_a_broker_does_not_hang() -> None:
    server = served()
    server.start(broker=ucall.Broker(url=f"nats://{HOST}:1", group="models"))
    server.stop()
    server.start()  # The next run has no broker.
    server.stop()


def test_a_server_that_stops_is_gone_from_the_broker(broker: NatsServer) -> None:
    servers = [served(), served()]
    for it in servers:
        it.start(broker=ucall.Broker(url=broker.url, group="models"))
    assert registered(broker, 2)
    servers[0].stop()
    [left] = instances(broker)
    assert left["metadata"]["address"] == f"{HOST}:{servers[1].port}"
    servers[1].stop()
    assert instances(broker) == []


def test_a_drain_first_takes_the_server_off_the_list(broker: NatsServer) -> None:
    server = served(shutdown_delay_s=600)
    server.start(broker=ucall.Broker(url=broker.url, group="models"))
    assert registered(broker)
    with ThreadPoolExecutor(1) as pool, Client(f"{HOST}:{server.port}") as client:
        stop = pool.submit(server.stop)
        try:
            assert registered(broker, 0)
            assert client.math.add(1).json == 2
        finally:
            server.stop(at_once=True)
        stop.result()


@in_asyncio
async def test_the_program_s_own_loop_serves(broker: NatsServer) -> None:
    server = served()
    task = asyncio.ensure_future(server.serve(broker=ucall.Broker(url=broker.url, group="models")))
    assert await asyncio.to_thread(registered, broker)
    reply = await asyncio.to_thread(request, broker, "models.math.add", b"[1]")
    assert reply.data == b"2"
    server.stop()
    await task
    assert await asyncio.to_thread(instances, broker) == []


@pytest.mark.parametrize(
    ("advertise", "expected"),
    [
        ("models.internal", "models.internal:{port}"),
        ("models.internal:99", "models.internal:99"),
        ("[::1]", "[::1]:{port}"),
        ("", None),
    ],
)
def test_the_advertised_address(broker: NatsServer, advertise: str, expected: str | None) -> None:
    with serving(broker, advertise=advertise) as server:
        [info] = instances(broker)
        expected = expected and expected.format(port=server.port)
        assert info["metadata"].get("address") == expected


def test_a_server_on_all_addresses_advertises_the_one_towards_the_broker(
    broker: NatsServer,
) -> None:
    with serving(broker, host="0.0.0.0") as server:
        assert instances(broker)[0]["metadata"]["address"] == f"127.0.0.1:{server.port}"
        assert request(broker, "models.math.add", b"[1]").data == b"2"


def test_a_unix_socket_is_called_through_the_broker_only(
    broker: NatsServer, tmp_path: Path
) -> None:
    with serving(broker, uds=tmp_path / "socket"):
        assert "address" not in instances(broker)[0]["metadata"]
        assert request(broker, "models.math.add", b"[1]").data == b"2"


def test_a_server_under_tls(broker: NatsServer, authority: Authority, files: Files) -> None:
    with serving(broker, ssl_certfile=files.certificate, ssl_keyfile=files.key):
        assert instances(broker)[0]["metadata"]["transports"] == "https,wss,tcps"
        assert request(broker, "models.math.add", b"[1]").data == b"2"


def test_functions_for_clients_with_a_certificate_are_not_called_through_the_broker(
    broker: NatsServer, authority: Authority, files: Files
) -> None:
    options = {"ssl_ca_certs": authority.path, "ssl_client_auth": "required"}
    with serving(broker, ssl_certfile=files.certificate, ssl_keyfile=files.key, **options):
        [info] = instances(broker)
        assert info["endpoints"] == [] and info["metadata"]["address"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "nats://a:4222", "group": "a.b"}, "group: expected"),
        ({"url": "nats://a:4222", "group": ""}, "group: expected"),
        ({"url": "http://a:4222", "group": "a"}, "broker: expected nats"),
        ({"url": "nats://a:99999", "group": "a"}, "broker: expected nats"),
        ({"url": "", "group": "a"}, "broker: expected nats"),
        ({"url": "nats://u:secret@a/x", "group": "a"}, "got 'nats://a/x'"),
        ({"url": "a", "group": "b", "advertise": "a b"}, "expected a host"),
        ({"url": "a", "group": "b", "options": {"name": "x"}}, "broker_options"),
    ],
)
def test_brokers_that_are_refused(options: dict[str, Any], message: str) -> None:
    server = served()
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        server.start(broker=ucall.Broker(**options))
    assert "secret" not in str(raised.value)
    server.stop()


def test_urls_of_brokers() -> None:
    assert parse_brokers("a, tls://u:p@b:4223,nats://[::1]:4222") == [
        "nats://a",
        "tls://u:p@b:4223",
        "nats://[::1]:4222",
    ]


def test_the_permissions_of_the_documentation_are_enough(tmp_path: Path) -> None:
    page = Path(__file__, "../../../docs/nats.md").resolve().read_text()
    [found] = re.findall(r"```\n(authorization \{.*?)```", page, re.DOTALL)
    configuration = tmp_path / "nats.conf"
    configuration.write_text(found)
    as_server, as_client = ({"user": it, "password": "…"} for it in ("server", "client"))
    with NatsServer("--config", str(configuration)) as broker:
        servers = [served() for _ in range(2)]
        for it in servers:
            it.start(broker=ucall.Broker(url=broker.url, group="models", options=as_server))
        try:
            with Client(broker.uri(), broker_options=as_client) as client:
                assert eventually(lambda: client.call("math.add", 1).json == 2)

                def finds_both() -> bool:
                    blocking.run(client._pool._servers.resolve())  # type: ignore[union-attr]
                    return len(client._pool._balancer.members) == 2  # type: ignore[union-attr]

                assert eventually(finds_both)
        finally:
            for it in servers:
                it.stop()
