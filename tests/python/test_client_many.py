"""A client of several servers: what it sends, and what it does with their replies."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from both_clients import NewClient
from certificates import Authority, Files, authority, files
from scripted import Peer, answering, http_reply, result, scripted
from serving import Serve

import ucall
from harness import HOST, eventually, free_port, in_asyncio, started
from ucall import aio
from ucall._client.resend import PROBE
from ucall.schema import describe

# The fixtures, for pytest.
__all__ = ["authority", "files"]

SCHEMES = pytest.mark.parametrize("scheme", ["http://", "tcp://", "ws://"])


def call(new_client: NewClient, uris: str | list[str], *args: object, **options: Any) -> Any:
    """One call of a new client."""
    of_client = {name: options.pop(name) for name in ("timeout", "verify") if name in options}
    with new_client(uris, **of_client) as client:
        return client.with_options(**options).call(*args).json


def items(new_client: NewClient, uris: list[str]) -> list[Any]:
    """Those of a new client's stream."""
    with new_client(uris) as client:
        return list(client.stream.generate(3))


def replies(*bodies: dict[str, Any]) -> Callable[[Peer], None]:
    """Replies over HTTP with these members, and the id of the request; `{}` closes instead."""

    def script(peer: Peer) -> None:
        for body in bodies:
            request = json.loads(peer.http_request())
            if not body:
                return
            text = json.dumps({"jsonrpc": "2.0", "id": request["id"], **body}).encode()
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text), text)

    return script


def error(code: int, data: object = None) -> dict[str, Any]:
    return {"error": {"code": code, "message": "refused", "data": data}}


@pytest.fixture
def fine() -> Iterator[ucall.Server]:
    """A server that takes calls."""
    server = ucall.Server(port=0)

    @server
    def count(number: int) -> int:
        return number + 1

    @server
    def generate(number: int) -> Iterator[int]:
        yield from range(number)

    with server:
        yield server


@pytest.mark.parametrize("code", [-32002, -32003])
def test_a_refused_call_goes_to_another_server(
    fine: ucall.Server, new_client: NewClient, code: int
) -> None:
    with scripted(replies(error(code, {"retry_after_ms": 5000}))) as refuses:
        uris = [f"{HOST}:{refuses.port}", f"{HOST}:{fine.port}"]
        assert all(call(new_client, uris, "count", 1) == 2 for _ in range(30))
        assert refuses.accepted > 0


def test_an_overloaded_server_is_left_alone_as_long_as_it_asks(
    fine: ucall.Server, new_client: NewClient
) -> None:
    with scripted(replies(error(-32003, {"retry_after_ms": 30_000}))) as refuses:
        uris = [f"{HOST}:{refuses.port}", f"{HOST}:{fine.port}"]
        with new_client(uris) as client:
            assert [client.count(number).json for number in range(50)] == list(range(1, 51))
        assert refuses.accepted == 1


def test_of_two_servers_the_one_with_fewer_calls_gets_the_next(
    serve_once: Serve, new_client: NewClient
) -> None:
    held, may_end = [0, 0], threading.Event()

    def holding(number: int) -> ucall.Server:
        async def hold() -> None:
            held[number] += 1
            while not may_end.is_set():
                await asyncio.sleep(0.01)

        return serve_once(hold)

    uris = [f"{HOST}:{holding(number).port}" for number in range(2)]
    with new_client(uris) as client:
        calls = []
        for count in range(1, 7):
            calls.append(started(client.hold))
            assert eventually(lambda count=count: sum(held) == count)
        may_end.set()
        assert all(it.result(60).error is None for it in calls)
    assert held == [3, 3]


class Late:
    """Two servers that answer all calls but those of `slow`, and probes when they may."""

    def __init__(self) -> None:
        self.methods: list[str] = []
        self.may_reply = threading.Event()

    def script(self, peer: Peer) -> None:
        while True:
            asked = json.loads(peer.http_request())
            self.methods.append(asked["method"])
            if asked["method"] == PROBE:
                self.may_reply.wait(60)
            if asked["method"] != "slow":
                peer.send(http_reply(result(1, asked["id"])))

    @contextmanager
    def serving(self) -> Iterator[list[str]]:
        """Their addresses."""
        with scripted(self.script) as first, scripted(self.script) as second:
            try:
                yield [f"{HOST}:{first.port}", f"{HOST}:{second.port}"]
            finally:
                self.may_reply.set()

    def are_probed(self) -> bool:
        return eventually(lambda: PROBE in self.methods, timeout_s=20)


def test_a_server_whose_call_was_late_is_probed_at_the_next_call(new_client: NewClient) -> None:
    late = Late()
    with late.serving() as uris, new_client(uris) as client:
        assert client.fast().json == 1
        with pytest.raises(ucall.TimeoutError):
            client.with_options(timeout=0.1).slow()
        assert PROBE not in late.methods
        assert client.fast().json == 1
        assert late.are_probed()
        # The end of a program waits for no probe.
        probing = [it for it in threading.enumerate() if it.name == "ucall-client-probe"]
        assert all(it.daemon for it in probing)
        late.may_reply.set()


@in_asyncio
async def test_the_end_of_a_client_in_asyncio_ends_its_probes() -> None:
    late = Late()
    with late.serving() as uris:
        async with aio.Client(uris) as client:
            with pytest.raises(ucall.TimeoutError):
                await client.with_options(timeout=0.1).slow()
            await client.fast()
            assert await asyncio.to_thread(late.are_probed)
            [probe] = [it for it in asyncio.all_tasks() if it.get_name() == "ucall-client-probe"]
        await asyncio.wait([probe])
        assert probe.cancelled()


def test_without_another_server_the_caller_gets_the_refusal(new_client: NewClient) -> None:
    with scripted(replies(error(-32003, {"retry_after_ms": 30_000}))) as refuses:
        uris = [f"{HOST}:{refuses.port}"]
        with pytest.raises(ucall.RPCError) as caught:
            call(new_client, uris, "count", 1)
        assert caught.value.code == -32003 and refuses.accepted == 1


def test_a_call_that_may_have_run_is_repeated_only_if_it_is_idempotent(
    fine: ucall.Server, new_client: NewClient
) -> None:
    with scripted(replies({})) as cuts:
        uris = [f"{HOST}:{cuts.port}", f"{HOST}:{fine.port}"]

        def failures(**options: Any) -> int:
            failed = 0
            for _ in range(20):
                try:
                    assert call(new_client, uris, "count", 1, **options) == 2
                except ucall.ConnectionError as error:
                    assert error.may_have_run
                    failed += 1
            return failed

        assert 0 < failures() < 20
        accepted = cuts.accepted
        assert failures(idempotent=True) == 0 and cuts.accepted > accepted


def test_each_server_gets_its_own_host_and_the_time_that_is_left(new_client: NewClient) -> None:
    heads: list[bytes] = []
    seen = threading.Event()

    def slow_refusal(peer: Peer) -> None:
        body = json.loads(peer.http_request())
        if body["method"] == "count":  # Not a probe.
            heads.append(peer.head)
        seen.wait(0.2)
        text = json.dumps({"jsonrpc": "2.0", "id": body["id"], **error(-32002)}).encode()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text), text)

    with scripted(slow_refusal) as one, scripted(slow_refusal) as other:
        uris = [f"{HOST}:{one.port}", f"{HOST}:{other.port}"]
        with pytest.raises(ucall.RPCError):
            call(new_client, uris, "count", 1, timeout=30)
    hosts = {re.search(rb"Host: (\S+)", head)[1] for head in heads}  # type: ignore[index]
    assert hosts == {b"%s:%d" % (HOST.encode(), it.port) for it in (one, other)}
    times = [int(re.search(rb"Ucall-Timeout-Ms: (\d+)", head)[1]) for head in heads]  # type: ignore[index]
    assert times[0] == 30_000 and times[1] <= 29_800
    assert times == sorted(times, reverse=True)


def test_each_server_gets_its_own_host(new_client: NewClient) -> None:
    hosts: dict[int, set[bytes]] = {}

    def answer(peer: Peer) -> None:
        port = peer.socket.getsockname()[1]
        while True:
            id = json.loads(peer.http_request())["id"]
            found = re.search(rb"Host: (\S+)", peer.head)
            hosts.setdefault(port, set()).add(found[1] if found else b"")
            text = json.dumps({"jsonrpc": "2.0", "id": id, "result": 1}).encode()
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text), text)

    with scripted(answer) as one, scripted(answer) as other:
        uris = [f"{HOST}:{it.port}" for it in (one, other)]
        with new_client(uris) as client:
            for number in range(20):
                client.count(number)
    assert hosts == {it.port: {f"{HOST}:{it.port}".encode()} for it in (one, other)}


def test_requests_that_a_drain_has_not_read_are_sent_again(fine: ucall.Server) -> None:
    """The server reads one request of two over the connection of an asyncio client, and says so."""

    def drain(peer: Peer) -> None:
        peer.raw_request()
        peer.raw_request()
        peer.send(b'{"jsonrpc":"2.0","method":"$/drain","params":{"read":1}}\n')

    async def main() -> list[Any]:
        async with aio.Client([f"tcp://{HOST}:{port}"]) as client:
            # Both calls are on the connection before the other server is known.
            calls = [asyncio.ensure_future(client.count(number)) for number in range(2)]
            while len(client._pool._balancer.members[0].running) < 2:
                await asyncio.sleep(0)
            others = ucall_addresses([f"tcp://{HOST}:{port}", f"tcp://{HOST}:{fine.port}"])
            client._pool._balancer.update(others, 0.0)
            return await asyncio.gather(*calls, return_exceptions=True)

    with scripted(drain) as drains:
        port = drains.port
        first, second = asyncio.run(main())
    assert isinstance(first, ucall.ConnectionError) and first.may_have_run
    assert second.json == 2


def ucall_addresses(uris: list[str]) -> Any:
    from ucall._client.address import Addresses

    return Addresses(uris).list


def test_a_raw_connection_says_that_its_request_was_not_read(new_client: NewClient) -> None:
    def drain(peer: Peer) -> None:
        peer.raw_request()
        peer.send(b'{"jsonrpc":"2.0","method":"$/drain","params":{"read":0}}\n')

    with scripted(drain) as drains, new_client(f"tcp://{HOST}:{drains.port}") as client:
        with pytest.raises(ucall.ConnectionError) as caught:
            client.count(1)
        assert not caught.value.may_have_run


@SCHEMES
def test_streams_skip_a_server_that_is_down(
    fine: ucall.Server, new_client: NewClient, scheme: str
) -> None:
    uris = [f"{scheme}{HOST}:{free_port()}", f"{scheme}{HOST}:{fine.port}"]
    for _ in range(5):
        assert items(new_client, uris) == [0, 1, 2]


@pytest.mark.parametrize("code", [-32002, -32003])
def test_streams_that_are_refused_begin_on_another_server(
    fine: ucall.Server, new_client: NewClient, code: int
) -> None:
    def refuse(peer: Peer) -> None:
        while True:
            id = json.loads(peer.raw_request()).get("id")  # A cancellation has none.
            peer.send(json.dumps({"jsonrpc": "2.0", "id": id, **error(code)}).encode() + b"\n")

    with scripted(refuse) as refuses:
        uris = [f"tcp://{HOST}:{refuses.port}", f"tcp://{HOST}:{fine.port}"]

        def has_been_refused() -> bool:
            assert items(new_client, uris) == [0, 1, 2]
            return refuses.accepted > 0

        assert eventually(has_been_refused)
        # Without another one the stream fails with the refusal.
        del uris[1]
        with pytest.raises(ucall.RPCError) as caught:
            items(new_client, uris)
        assert caught.value.code == code


def test_a_stream_that_has_begun_begins_on_no_other_server(
    fine: ucall.Server, new_client: NewClient
) -> None:
    def refuse_late(peer: Peer) -> None:
        id = json.loads(peer.raw_request())["id"]
        item = {"method": "$/progress", "params": {"token": id, "value": 7}}
        for message in (item, {"id": id, **error(-32003)}):
            peer.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    with scripted(refuse_late) as refuses:
        uris = [f"tcp://{HOST}:{refuses.port}", f"tcp://{HOST}:{fine.port}"]

        def has_failed() -> bool:
            try:
                assert items(new_client, uris) == [0, 1, 2]
            except ucall.RPCError:
                return True
            return False

        assert eventually(has_failed)


@pytest.mark.parametrize("ending", ["item", "cut", "refusal", "late"])
def test_a_server_counts_a_stream_until_it_is_closed(new_client: NewClient, ending: str) -> None:
    """Also one that another server had to begin, or none could."""

    def answer(peer: Peer) -> None:
        while True:
            id = json.loads(peer.raw_request()).get("id")  # A cancellation has none.
            if ending == "cut":
                return
            if ending == "late":
                continue
            reply = error(-32002) if ending == "refusal" else {"result": None}
            item = {"method": "$/progress", "params": {"token": id, "value": 1}}
            messages = [{"id": id, **reply}] if ending == "refusal" else [item, {"id": id, **reply}]
            for message in messages:
                peer.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    counts: list[list[int]] = []

    def count() -> None:
        counts.append([len(it.running) for it in client._pool._balancer.members])

    limit = {"timeout": 0.05} if ending == "late" else {}
    with scripted(answer) as one, scripted(answer) as other:
        uris = [f"tcp://{HOST}:{it.port}" for it in (one, other)]
        with new_client(uris, **limit) as client:
            stream = client.stream.generate(1)
            with suppress(OSError, ucall.RPCError):
                for _ in stream:
                    count()
            count()
    assert counts.pop() == [0, 0]
    assert [sorted(it) for it in counts] == ([[0, 1]] if ending == "item" else [])


@SCHEMES
def test_streams_that_begin_together_go_to_all_servers_in_asyncio(scheme: str) -> None:
    """Each counts before it is connected, and none that ends before."""
    counts: list[list[int]] = []

    async def begin() -> None:
        async with aio.Client([f"{scheme}{HOST}:{it.port}" for it in (one, other)]) as client:
            members = client._pool._balancer.members
            begun = [asyncio.ensure_future(client.stream.get()._next_item()) for _ in range(10)]
            await asyncio.sleep(0)
            counts.append([len(it.running) for it in members])
            for task in begun:
                task.cancel()
            await asyncio.gather(*begun, return_exceptions=True)
            counts.append([len(it.running) for it in members])

    with scripted(answering()) as one, scripted(answering()) as other:
        asyncio.run(begin())
    assert sum(counts[0]) == 10 and min(counts[0]) > 1
    assert counts[1] == [0, 0]


def test_a_time_limit_that_the_program_sets_is_sent_without_headers(new_client: NewClient) -> None:
    """And an attempt at another server has the time that is left."""
    seen: list[dict[str, Any]] = []

    def refuse(peer: Peer) -> None:
        while True:
            request = json.loads(peer.raw_request())
            if request["method"] == "count":  # No probe.
                seen.append(request)
            if "id" not in request:  # A cancellation.
                continue
            body = {"jsonrpc": "2.0", "id": request["id"], **error(-32002)}
            peer.send(json.dumps(body).encode() + b"\n")

    with scripted(refuse) as refuses:
        uris = [f"tcp://{HOST}:{refuses.port}"]
        for limit in ({}, {"timeout": None}, {"timeout": 5}):
            with pytest.raises(ucall.RPCError):
                call(new_client, uris, "count", 1, **limit)
    assert all("_meta" not in it for it in seen[:-3])
    limits = [it["_meta"]["timeout_ms"] for it in seen[-3:]]
    # It was tried three times, with pauses of up to 0.1 and 0.3 s, of which half may be left out.
    assert limits[0] == 5000 and 4000 < limits[2] < limits[1] - 140 < 4850


@pytest.mark.parametrize("scheme", ["tcp://", "ws://"])
def test_a_server_learns_the_time_limit_without_headers(
    serve: Serve, new_client: NewClient, scheme: str
) -> None:
    def left(ctx: ucall.Context) -> float:
        assert ctx.time_left is not None
        return ctx.time_left

    server = serve(left)
    assert 0 < call(new_client, f"{scheme}{HOST}:{server.port}", "left", timeout=7) <= 7
    with new_client(f"{scheme}{HOST}:{server.port}", timeout=7) as client, client.batch() as batch:
        found = batch.left()
    assert 0 < found.json <= 7


def test_an_error_has_the_seconds_of_its_retry_after(new_client: NewClient) -> None:
    def refuse(peer: Peer) -> None:
        peer.http_request()
        head = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 25\r\nContent-Length: 0\r\n\r\n"
        peer.send(head)

    with scripted(refuse) as refuses, new_client(f"{HOST}:{refuses.port}") as client:
        with pytest.raises(ucall.HTTPError) as caught:
            client.count(1)
        assert caught.value.retry_after_s == 25


def test_batches_and_notifications(fine: ucall.Server, new_client: NewClient) -> None:
    uris = [f"{HOST}:{free_port()}", f"{HOST}:{fine.port}"]
    with new_client(uris) as client:
        for _ in range(5):
            client.notify("count", 1)
            with client.batch() as batch:
                found = [batch.count(number) for number in range(3)]
            assert [it.json for it in found] == [1, 2, 3]
            assert client({"method": "count", "params": [4]}).json == 5


@pytest.mark.parametrize("scheme", ["unix://", "tcp+unix://", "ws+unix://"])
def test_unix_sockets(tmp_path: Path, new_client: NewClient, scheme: str) -> None:
    with ExitStack() as stack:
        for name in "ab":
            server = ucall.Server(uds=str(tmp_path / name))
            server.add(lambda number: number + 1, "count")
            stack.enter_context(server)
        uris = [f"{scheme}{tmp_path / name}" for name in "abc"]
        assert all(call(new_client, uris, "count", 1) == 2 for _ in range(5))


@pytest.mark.parametrize("scheme", ["https", "tcps", "wss"])
def test_tls_checks_the_name_that_was_resolved(
    serve_once: Serve, new_client: NewClient, scheme: str, authority: Authority, files: Files
) -> None:
    server = serve_once(ssl_certfile=files.both)
    server.add(lambda number: number + 1, "count")
    verify = str(authority.path)
    uri = f"dns+{scheme}://localhost:{server.port}"
    assert call(new_client, uri, "count", 1, verify=verify) == 2
    with pytest.raises(ucall.ConnectionError, match=r"cannot connect to 127\.0\.0\.2"):
        call(new_client, f"dns+{scheme}://127.0.0.2:{server.port}", "count", 1, verify=verify)


def test_a_name_that_is_not_known(new_client: NewClient) -> None:
    with pytest.raises(ucall.ConnectionError, match=r"cannot connect to nobody\.invalid") as caught:
        call(new_client, "dns://nobody.invalid:80", "count", 1)
    assert not caught.value.may_have_run


def test_keys_pick_servers(new_client: NewClient) -> None:
    with ExitStack() as stack:
        servers = [ucall.Server(port=0) for _ in range(3)]
        for number, server in enumerate(servers):
            server.add(lambda number=number: number, "who")
            stack.enter_context(server)
        uris = [f"{HOST}:{server.port}" for server in servers]
        with new_client(uris) as client:
            found = [
                {client.with_options(key=key).who().json for _ in range(5)} for key in range(20)
            ]
        assert all(len(it) == 1 for it in found) and len(set.union(*found)) == 3
        assert call(new_client, uris, "who", key=7) == next(iter(found[7]))


def test_functions_declare_that_they_are_idempotent(new_client: NewClient) -> None:
    """Which the client learns from a server that works."""
    with scripted(replies({})) as cuts:
        server = ucall.Server(port=0)
        server.add(lambda: "got", "get", idempotent=True)
        server.add(lambda: "put", "put")
        described = describe(server).openrpc()["methods"]
        assert {it["name"]: it.get("x-idempotent") for it in described} == {
            "get": True,
            "put": None,
        }
        with server:
            uris = [f"{HOST}:{cuts.port}", f"{HOST}:{server.port}"]
            assert all(call(new_client, uris, "get") == "got" for _ in range(30))
            with pytest.raises(ucall.ConnectionError):
                for _ in range(50):
                    call(new_client, uris, "put")
