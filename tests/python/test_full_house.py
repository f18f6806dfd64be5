"""When batches start, who waits for them, and who waits in vain."""

from __future__ import annotations

import json
import pickle
import selectors
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from test_metrics import samples, value

import ucall
from harness import HOST, Wire, eventually, http, let_read, request
from ucall._functions.process_pool import Pool
from ucall.client import Client

Serve = Callable[..., ucall.Server]

#: The time of a batch of any size.
BATCH_S = 0.05


def _sizes(server: ucall.Server) -> dict[int, int]:
    sizes: dict[int, int] = server.stats()["batches"].get("call", {})
    return dict(sizes)


def _answer(selector: selectors.BaseSelector, replies: int) -> None:
    """Has callers in closed loops get so many replies: each sends a call for each reply."""
    while replies > 0:
        for key, _ in selector.select(60):
            key.data.line()
            key.data.send(request("call", ["a"]))
            replies -= 1


def test_eight_callers_make_batches_of_eight(serve: Serve) -> None:
    def call(texts: list[str]) -> list[str]:
        time.sleep(BATCH_S)
        return texts

    server = serve()
    server.batch(call, threads=True)
    with selectors.DefaultSelector() as selector, ExitStack() as stack:
        for _ in range(8):
            wire = stack.enter_context(Wire(server.port))
            selector.register(wire.socket, selectors.EVENT_READ, wire)
            wire.send(request("call", ["a"]))

        def are_whole() -> bool:
            before = _sizes(server)
            _answer(selector, 160)
            sizes = {size: n - before.get(size, 0) for size, n in _sizes(server).items()}
            return sizes.get(8, 0) >= 0.9 * sum(sizes.values())

        # The first batches teach, and a busy machine returns calls late.
        assert eventually(are_whole)


class Busy:
    """A server whose function waits until the test lets it end."""

    def __init__(self, serve: Serve, server: Any = (), **options: Any) -> None:
        self.seen: list[str] = []
        self.may_end = threading.Event()

        def call(texts: list[str]) -> list[str]:
            self.seen.extend(texts)
            assert self.may_end.wait(60)
            return texts

        self.server = serve(**dict(server))
        self.server.batch(call, threads=True, **options)

    def begin(self, wire: Wire) -> None:
        wire.send(request("call", ["first"], id="first"))
        assert eventually(lambda: self.seen == ["first"])


def _replies(wire: Wire, count: int) -> dict[str, Any]:
    replies = [json.loads(wire.line()) for _ in range(count)]
    return {reply["id"]: reply.get("result", reply.get("error")) for reply in replies}


def test_no_more_calls_wait_for_a_batch_than_the_option_allows(serve: Serve) -> None:
    busy = Busy(serve, max_waiting=2)
    with Wire(busy.server.port) as wire, Wire(busy.server.port) as other:
        busy.begin(wire)
        for name in ("a", "b", "c"):
            wire.send(request("call", [name], id=name))
        (refused,) = _replies(wire, 1).items()
        name, error = refused
        assert (name, error["code"]) == ("c", -32003)
        assert error["data"]["max_waiting"] == 2
        assert error["data"]["retry_after_ms"] >= 1
        other.send(http(b'{"texts": "d"}', target="/call"))
        status, headers, _ = other.reply()
        assert status == 503
        assert b"retry-after" in headers.lower()
        busy.may_end.set()
        assert _replies(wire, 3) == {"first": "first", "a": "a", "b": "b"}


def test_callers_who_leave_make_room(serve: Serve) -> None:
    busy = Busy(serve, max_waiting=1)
    with Wire(busy.server.port) as wire:
        busy.begin(wire)
        with Wire(busy.server.port) as gone:
            gone.send(http(request("call", ["gone"])))
            let_read(busy.server.port)
        assert eventually(lambda: busy.server.stats()["connections"] == 1)
        wire.send(request("call", ["a"], id="a"))
        let_read(busy.server.port)
        busy.may_end.set()
        assert _replies(wire, 2) == {"first": "first", "a": "a"}
    assert busy.seen == ["first", "a"]


def test_a_deadline_that_no_batch_can_meet_is_answered_before(serve: Serve) -> None:
    seen: list[str] = []

    def call(texts: list[str]) -> list[str]:
        seen.extend(texts)
        time.sleep(0.2)
        return texts

    server = serve()
    server.batch(call, threads=True)
    with Wire(server.port) as wire:
        for _ in range(4):
            wire.result("call", ["learn"])
    with Wire(server.port) as wire:
        begun = time.monotonic()
        wire.send(http(request("call", ["late"]), "Ucall-Timeout-Ms: 150"))
        error = json.loads(wire.reply()[2])["error"]
        took = time.monotonic() - begun
    assert error["code"] == -32001
    assert "a batch takes" in json.dumps(error["data"])
    assert took < 0.15
    assert "late" not in seen


def _prioritised(name: str, priority: int) -> bytes:
    document = {"jsonrpc": "2.0", "method": "call", "params": [name], "id": name}
    return json.dumps({**document, "_meta": {"priority": priority}}).encode()


def test_calls_of_a_higher_priority_are_first(serve: Serve) -> None:
    busy = Busy(serve, max_size=1)
    with Wire(busy.server.port) as wire:
        busy.begin(wire)
        for name, priority in (("low", -1), ("normal", 0), ("high", 7), ("higher", 7)):
            wire.send(_prioritised(name, priority) + b"\n")
        let_read(busy.server.port)
        busy.may_end.set()
        _replies(wire, 5)
    assert busy.seen == ["first", "high", "higher", "normal", "low"]


def test_a_call_has_no_higher_priority_than_its_user(serve: Serve) -> None:
    class User:
        priority = 1

    def auth(ctx: ucall.Context) -> object:
        return User() if "x-limited" in ctx.headers else "unlimited"

    busy = Busy(serve, {"auth": auth}, max_size=1)
    port = busy.server.port
    with Wire(port) as first, Wire(port) as limited, Wire(port) as unlimited:
        first.send(http(request("call", ["first"])))
        assert eventually(lambda: busy.seen == ["first"])
        limited.send(http(_prioritised("limited", 7), "X-Limited: 1"))
        let_read(port)
        unlimited.send(http(_prioritised("unlimited", 2)))
        let_read(port)
        busy.may_end.set()
        for wire in (first, limited, unlimited):
            assert wire.reply()[0] == 200
    assert busy.seen == ["first", "unlimited", "limited"]


def test_a_batch_has_calls_up_to_a_weight(serve: Serve) -> None:
    sizes: list[list[str]] = []
    may_end = threading.Event()

    def call(texts: list[str], repeat: bool = False) -> list[int]:
        sizes.append(texts)
        assert may_end.wait(60)
        return [len(text) for text in texts]

    server = serve()
    weight = lambda text, repeat: len(text) * (1 + repeat)  # noqa: E731
    server.batch(call, threads=True, weight=weight, max_weight=10)
    with Wire(server.port) as wire:
        wire.send(request("call", ["first"], id=0))
        assert eventually(lambda: sizes == [["first"]])
        for number, text in enumerate(["a" * 6, "b" * 4, "c" * 3, "d" * 11, "e" * 3], 1):
            wire.send(request("call", [text], id=number))
        wire.send(request("call", {"texts": "f" * 6, "repeat": True}, id=6))
        refused = _replies(wire, 2)
        assert {error["code"] for error in refused.values()} == {-32602}
        assert refused.keys() == {4, 6}
        assert "max_weight" in json.dumps(refused[4]["data"])
        may_end.set()
        assert _replies(wire, 5) == {0: 5, 1: 6, 2: 4, 3: 3, 5: 3}
    assert sizes == [["first"], ["a" * 6, "b" * 4], ["c" * 3, "e" * 3]]


def test_a_weight_that_raises_fails_its_call_alone(serve: Serve) -> None:
    server = serve()
    server.batch(lambda texts: texts, name="call", weight=lambda text: 1 // len(text))
    with Wire(server.port) as wire:
        assert wire.result("call", ["a"]) == "a"
        assert wire.error("call", [""])["code"] == -32603
        assert wire.error("call", [])["code"] == -32602


def test_no_more_calls_wait_for_a_thread_than_the_option_allows(serve: Serve) -> None:
    begun: list[int] = []
    may_end = threading.Event()

    def call(number: int) -> int:
        begun.append(number)
        assert may_end.wait(60)
        return number

    server = serve(max_threads=2)
    server.add(call, threads=True, max_waiting=1)
    with Wire(server.port) as wire:
        for number in range(4):
            wire.send(request("call", [number], id=number))
        refused = _replies(wire, 1)
        assert refused[3]["code"] == -32003
        assert refused[3]["data"]["max_waiting"] == 1
        assert eventually(lambda: sorted(begun) == [0, 1])
        may_end.set()
        assert _replies(wire, 3) == {0: 0, 1: 1, 2: 2}


def test_no_more_calls_wait_for_a_process_than_the_option_allows() -> None:
    pool = Pool(1)
    try:
        submit = pool.submitter(time.sleep, max_waiting=1)
        submit(600)
        waiting = submit(600)
        with pytest.raises(ucall.RPCError) as raised:
            submit(600)
        assert raised.value.code == -32003
        assert raised.value.data["max_waiting"] == 1
        waiting.cancel()
        submit(600)
    finally:
        pool.close()


def test_limits_of_what_does_not_wait_are_refused() -> None:
    server = ucall.Server(port=0)
    with pytest.raises(TypeError, match="max_waiting"):
        server.add(len, name="call", max_waiting=1)
    with pytest.raises(TypeError, match="max_weight"):
        server.batch(lambda texts: texts, name="call", max_weight=1)


@pytest.mark.parametrize("limit", [0, -1])
def test_limits_of_waiting_calls_are_checked(limit: int) -> None:
    with pytest.raises(ValueError, match="max_waiting"):
        ucall.Server(port=0).batch(lambda texts: texts, name="call", max_waiting=limit)


def test_times_of_the_warm_up_say_when_to_retry() -> None:
    may_end = threading.Event()
    is_warm = threading.Event()

    began = threading.Event()

    def call(texts: list[str]) -> list[str]:
        if is_warm.is_set():
            began.set()
            assert may_end.wait(60)
        else:
            time.sleep(1.2)
        return texts

    server = ucall.Server(port=0)
    server.batch(call, threads=True, max_size=1, max_waiting=1, warm_up=("a text",))
    server.start()
    is_warm.set()
    try:
        with Wire(server.port) as wire, Wire(server.port) as http_wire:
            wire.send(request("call", ["a"], id=0))
            assert began.wait(60)
            wire.send(request("call", ["a"], id=1) + request("call", ["a"], id=2))
            refused = _replies(wire, 1)[2]
            assert refused["code"] == -32003
            # No batch of a caller has ended. Without a measured time it would be 100 ms.
            assert 1200 <= refused["data"]["retry_after_ms"] < 10_000
            http_wire.send(POST)
            status, head, _ = http_wire.reply()
            seconds = -(-refused["data"]["retry_after_ms"] // 1000)
            assert status == 503 and f"retry-after: {seconds}\r\n".encode() in head.lower()
            may_end.set()
            assert _replies(wire, 2) == {0: "a", 1: "a"}
    finally:
        may_end.set()
        server.stop()


POST = b"POST /call HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
POST += b'Content-Length: 13\r\n\r\n{"texts":"a"}'


@pytest.mark.parametrize("scheme", ["tcp", "http", "ws"])
def test_clients_send_priorities(serve: Serve, scheme: str) -> None:
    order: list[str] = []
    may_end = threading.Event()

    def call(texts: list[str]) -> list[str]:
        order.extend(texts)
        assert may_end.wait(60)
        return texts

    server = serve(metrics=True)
    server.batch(call, name="embed", threads=True, max_size=1)
    runs = lambda calls: value(samples(server.port), "ucall_running_calls") == calls  # noqa: E731
    with Client(f"{scheme}://{HOST}:{server.port}") as client:

        def call_batch(client: Client) -> None:
            with client.batch() as calls:
                calls.embed("batch")

        def call_one(client: Client, text: str) -> None:
            client.embed(text)

        threads = [threading.Thread(target=call_one, args=[client, "first"])]
        threads[0].start()
        assert eventually(lambda: order == ["first"])
        for priority in (-8, None, 7):
            arguments = client.with_options(priority=priority), str(priority)
            threads.append(threading.Thread(target=call_one, args=arguments))
        arguments = (client.with_options(priority=3),)
        threads.append(threading.Thread(target=call_batch, args=arguments))
        for thread in threads[1:]:
            thread.start()
        assert eventually(lambda: runs(5))
        may_end.set()
        for thread in threads:
            thread.join(60)
    assert order == ["first", "7", "batch", "None", "-8"]


def test_clients_refuse_other_priorities() -> None:
    with Client("tcp://127.0.0.1:1") as client:
        for priority in (-9, 8):
            with pytest.raises(ValueError, match="priority: expected -8 to 7"):
                client.with_options(priority=priority)
        for invalid in (1.0, True, "1"):
            with pytest.raises(TypeError, match="priority: expected int or None"):
                client.with_options(priority=invalid)  # type: ignore[arg-type]
        copied = pickle.loads(pickle.dumps(client.with_options(priority=7)))
        assert copied._options.priority == 7
