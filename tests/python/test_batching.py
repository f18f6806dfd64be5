"""Dynamic batching: calls of one turn run together, and each gets its own result."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

import ucall
from harness import HOST, Wire, eventually, http, let_read, request

Serve = Callable[..., ucall.Server]
KINDS = ["plain", "async", "threads"]


def _serve(
    serve: Serve, kind: str, function: Callable[[list[str]], Any], **rules: Any
) -> ucall.Server:
    def plain(texts: list[str]) -> Any:
        return function(texts)

    async def coroutine(texts: list[str]) -> Any:
        await asyncio.sleep(0.001)
        return function(texts)

    server = serve()
    if kind == "async":
        server.batch(coroutine, name="call", **rules)
    else:
        server.batch(plain, name="call", threads=kind == "threads", **rules)
    return server


def _calls(texts: list[str]) -> bytes:
    return b"".join(request("call", [text], id=text) for text in texts)


def _replies(wire: Wire, count: int) -> dict[str, Any]:
    replies = [json.loads(wire.line()) for _ in range(count)]
    return {reply["id"]: reply.get("result", reply.get("error")) for reply in replies}


@pytest.mark.parametrize("kind", KINDS)
def test_calls_of_one_turn_are_one_batch(serve: Serve, kind: str) -> None:
    server = _serve(serve, kind, lambda texts: [text.upper() for text in texts])
    with Wire(server.port) as wire:
        assert wire.result("call", ["a"]) == "A"
        assert wire.result("call", {"texts": "b"}) == "B"
        texts = [f"t{number}" for number in range(20)]
        wire.send(_calls(texts))
        assert _replies(wire, 20) == {text: text.upper() for text in texts}
        wire.send(b"[" + b",".join(request("call", [t], t) for t in texts) + b"]")
        assert [reply["result"] for reply in json.loads(wire.line())] == [t.upper() for t in texts]
    sizes = server.stats()["batches"]["call"]
    assert sizes[1] >= 2 and sum(size * count for size, count in sizes.items()) == 42
    assert max(sizes) >= 10


@pytest.mark.parametrize("kind", KINDS)
def test_results_of_any_length_share_a_batch(serve: Serve, kind: str) -> None:
    """Short ones share memory, which has nothing of long ones and of what could not be written."""
    lengths = [0, 4094, 4095, 1, 100_000, -1, 7, 4094, 50_000, -1, 2, -1, 4095]

    def answer(texts: list[str]) -> list[Any]:
        counts = [int(text.partition(":")[2]) for text in texts]
        return ["x" * count if count >= 0 else ["begun", object()] for count in counts]

    server = _serve(serve, kind, answer)
    texts = [f"{index}:{length}" for index, length in enumerate(lengths)]
    for order in (texts, texts[::-1]):
        with Wire(server.port) as wire:
            wire.send(_calls(order))
            replies = _replies(wire, len(order))
        for text, length in zip(texts, lengths, strict=True):
            if length >= 0:
                assert replies[text] == "x" * length
            else:
                assert replies[text]["code"] == -32603
    assert max(server.stats()["batches"]["call"]) >= 10


def echo_all(texts: list[str]) -> list[str]:
    return texts


def echo_one(text: str) -> str:
    return text


def echo_items(text: str) -> Iterator[str]:
    yield text


@pytest.mark.parametrize("kind", ["thread", "process", "batch", "process batch", "generator"])
def test_params_of_any_length(serve: Serve, kind: str) -> None:
    """Short ones lie with the texts that say who has called."""
    server = serve()
    if kind == "process batch":
        server.batch(echo_all, name="call", processes=1)
    elif kind == "batch":
        server.batch(echo_all, name="call", threads=True)
    elif kind == "generator":
        server.add(echo_items, name="call", threads=True)
    elif kind == "process":
        server.add(echo_one, name="call", processes=1)
    else:
        server.add(echo_one, name="call", threads=True)
    traced = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    with httpx.Client(base_url=f"http://{HOST}:{server.port}", timeout=60) as client:
        for headers in ({}, traced):
            for length in (0, 1, 4091, 4092, 4093, 4094, 100_000):
                text = "x" * length
                call = {"jsonrpc": "2.0", "method": "call", "params": [text], "id": 1}
                result = client.post("/", json=call, headers=headers).json()["result"]
                assert result == ([text] if kind == "generator" else text), length


def test_sizes_have_a_limit(serve: Serve) -> None:
    server = _serve(serve, "plain", lambda texts: [len(texts)] * len(texts), max_size=4)
    with Wire(server.port) as wire:
        wire.send(_calls([str(number) for number in range(10)]))
        assert sorted(_replies(wire, 10).values()) == [2, 2, 4, 4, 4, 4, 4, 4, 4, 4]


def test_a_batch_waits_only_with_max_wait_ms(serve: Serve) -> None:
    waited = _serve(serve, "plain", lambda texts: [len(texts)] * len(texts), max_wait_ms=200)
    with Wire(waited.port) as wire, Wire(waited.port) as other:

        def are_together() -> bool:
            wire.send(_calls(["a"]))
            time.sleep(0.05)
            other.send(_calls(["b"]))
            return (_replies(wire, 1), _replies(other, 1)) == ({"a": 2}, {"b": 2})

        assert eventually(are_together)
        start = time.monotonic()
        wire.result("call", ["alone"])
        assert time.monotonic() - start >= 0.19
    full = _serve(serve, "plain", lambda texts: texts, max_wait_ms=59_000, max_size=2)
    with Wire(full.port, timeout_s=50) as wire:
        wire.send(_calls(["a", "b"]))
        assert _replies(wire, 2) == {"a": "a", "b": "b"}


@pytest.mark.parametrize("kind", ["async", "threads"])
def test_the_next_batch_is_collected_while_one_runs(serve: Serve, kind: str) -> None:
    started, may_end = threading.Event(), threading.Event()

    def slow(texts: list[str]) -> list[int]:
        started.set()
        assert may_end.wait(60)
        return [len(texts)] * len(texts)

    async def slow_async(texts: list[str]) -> list[int]:
        started.set()
        while not may_end.is_set():
            await asyncio.sleep(0.001)
        return [len(texts)] * len(texts)

    def behind() -> bool:
        return True

    server = serve(behind)
    server.batch(slow_async if kind == "async" else slow, name="call", threads=kind == "threads")
    with Wire(server.port) as wire:
        wire.send(_calls(["a"]))
        assert started.wait(60)
        for text in "bcdef":
            wire.send(_calls([text]))
        # When this call returns, the server has read all bytes sent before.
        assert wire.result("behind")
        may_end.set()
        assert _replies(wire, 6) == {"a": 1} | dict.fromkeys("bcdef", 5)


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_fails_its_own_call_alone(serve: Serve, kind: str) -> None:
    def some(texts: list[str]) -> list[Any]:
        wrong = {"rpc": ucall.RPCError(5, "no", "d"), "key": KeyError("x"), "object": object()}
        return [wrong.get(text, text) for text in texts]

    server = _serve(serve, kind, some)
    with Wire(server.port) as wire:
        wire.send(_calls(["a", "rpc", "b", "key", "object"]))
        replies = _replies(wire, 5)
        assert (replies["a"], replies["b"]) == ("a", "b")
        assert replies["rpc"] == {"code": 5, "message": "no", "data": "d"}
        assert replies["key"]["code"] == replies["object"]["code"] == -32603


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", ["short", "long", "none", "text", "raises"])
def test_an_error_of_the_batch_fails_all_its_calls(serve: Serve, kind: str, wrong: str) -> None:
    def fail(texts: list[str]) -> Any:
        if wrong == "raises":
            raise ucall.RPCError(9, "all")
        results = {"short": texts[1:], "long": [*texts, ""], "none": None, "text": "ab"}
        return results[wrong]

    got = {"short": 1, "long": 3}.get(wrong)
    expected = "result: expected a list of 2 results"
    if got:
        expected = f"result: expected 2 results for a batch of 2, got {got}"
    server = _serve(serve, kind, fail)
    with Wire(server.port) as wire:
        wire.send(_calls(["a", "b"]))
        for error in _replies(wire, 2).values():
            assert error["code"] == (9 if wrong == "raises" else -32603)
            if wrong != "raises":
                assert error["data"] == expected
        wire.send(_calls(["c"]))
        assert "c" in _replies(wire, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_params_are_checked_one_by_one(serve: Serve, kind: str) -> None:
    seen: list[list[str]] = []

    def note(texts: list[str]) -> list[str]:
        seen.append(texts)
        return texts

    server = _serve(serve, kind, note)
    with Wire(server.port) as wire:
        # A batch with no other call does not run.
        assert wire.error("call", [2])["data"] == "params.texts: expected str, got int"
        assert seen == []
        wire.send(request("call", ["a"], 1) + request("call", [2], 2) + request("call", ["c"], 3))
        replies = {reply["id"]: reply for reply in (json.loads(wire.line()) for _ in range(3))}
        assert (replies[1]["result"], replies[3]["result"]) == ("a", "c")
        assert replies[2]["error"]["code"] == -32602
        assert replies[2]["error"]["data"] == "params.texts: expected str, got int"
    assert sorted(text for texts in seen for text in texts) == ["a", "c"]


def test_several_parameters_are_several_lists(serve: Serve) -> None:
    def power(bases: list[int], exponents: list[int]) -> list[int]:
        return [base**exponent for base, exponent in zip(bases, exponents, strict=True)]

    server = serve()
    assert server.batch(max_size=8)(power) is power
    with Wire(server.port) as wire:
        assert wire.result("power", [2, 10]) == 1024
        assert wire.result("power", {"exponents": 2, "bases": 3}) == 9


def test_expired_and_abandoned_calls_are_left_out(serve: Serve) -> None:
    seen: list[str] = []
    may_end = threading.Event()

    def note(texts: list[str]) -> list[str]:
        seen.extend(texts)
        may_end.wait(60)
        return texts

    server = serve()
    server.batch(note, name="call", threads=True, timeout_ms=600_000)
    with Wire(server.port) as wire, Wire(server.port) as late, Wire(server.port) as gone:
        wire.send(_calls(["first"]))
        assert eventually(lambda: seen == ["first"])
        late.send(http(request("call", ["late"]), "Ucall-Timeout-Ms: 50"))
        gone.send(http(request("call", ["gone"])))
        let_read(server.port)
        gone.socket.close()
        assert eventually(lambda: server.stats()["connections"] == 2)
        wire.send(_calls(["second"]))
        assert json.loads(late.reply()[2])["error"]["code"] == -32001
        let_read(server.port)
        may_end.set()
        assert _replies(wire, 2) == {"first": "first", "second": "second"}
    assert seen == ["first", "second"]


@pytest.mark.parametrize("kind", KINDS)
def test_replies_are_never_crossed_while_clients_disconnect(serve: Serve, kind: str) -> None:
    server = _serve(serve, kind, lambda texts: [text[::-1] for text in texts], max_size=16)
    wrong: list[Any] = []

    def call(client: int) -> None:
        chance = random.Random(client)
        for number in range(30):
            with Wire(server.port) as wire:
                texts = [f"{client}.{number}.{item}" for item in range(chance.randrange(1, 9))]
                wire.send(_calls(texts))
                if chance.random() < 0.3:
                    continue
                replies = _replies(wire, len(texts))
                if replies != {text: text[::-1] for text in texts}:
                    wrong.append(replies)

    threads = [threading.Thread(target=call, args=[client]) for client in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_arrays_are_stacked(serve: Serve) -> None:
    numpy = pytest.importorskip("numpy")
    shapes: list[Any] = []

    def norms(vectors):  # type: ignore[no-untyped-def]
        shapes.append((vectors.dtype.str, *vectors.shape))
        return numpy.abs(vectors).sum(axis=1).tolist()

    norms.__annotations__["vectors"] = numpy.ndarray
    server = serve()
    server.batch(norms)

    def encoded(length: int, dtype: str = "f8") -> str:
        file = io.BytesIO()
        numpy.save(file, numpy.arange(length, dtype=dtype))
        return base64.b64encode(file.getvalue()).decode()

    with Wire(server.port) as wire:
        lengths = [3, 4, 3, 3]
        calls = [request("norms", [encoded(length)], n) for n, length in enumerate(lengths)]
        calls.append(request("norms", [encoded(3, "f4")], len(lengths)))
        wire.send(b"[" + b",".join(calls) + b"]")
        results = [reply["result"] for reply in json.loads(wire.line())]
        assert results == [3.0, 6.0, 3.0, 3.0, 3.0]
    assert sorted(shapes) == [("<f4", 1, 3), ("<f8", 1, 4), ("<f8", 3, 3)]


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize(
    ("results", "problem"),
    [
        ([1], "expected 2 results for a batch of 2, got 1"),
        ([1, 1, 1], "expected 2 results for a batch of 2, got 3"),
        ({"labels": [1, 1], "scores": [1, 1]}, "expected a list of 2 results"),
        ("ab", "expected a list of 2 results"),
        (None, "expected a list of 2 results"),
    ],
    ids=["one", "three", "dict", "str", "none"],
)
def test_a_wrong_number_of_results_for_arrays_fails_all_calls(
    serve: Serve, caplog: pytest.LogCaptureFixture, kind: str, results: Any, problem: str
) -> None:
    numpy = pytest.importorskip("numpy")

    def plain(vectors):  # type: ignore[no-untyped-def]
        return results

    async def coroutine(vectors):  # type: ignore[no-untyped-def]
        return results

    function = coroutine if kind == "async" else plain
    function.__annotations__["vectors"] = numpy.ndarray
    server = serve()
    server.batch(function, name="call")
    with Wire(server.port) as wire:
        wire.send(b"[" + b",".join(request("call", [[1.0]], id) for id in (1, 2)) + b"]")
        data = f"result: {problem}"
        error = {"code": -32603, "message": "Internal error", "data": data}
        assert [reply["error"] for reply in json.loads(wire.line())] == [error] * 2
    [record] = caplog.records
    assert record.getMessage().startswith(f"call: {data} (2 calls, the first: ")


@pytest.mark.parametrize("kind", KINDS)
def test_contexts_belong_to_their_calls(serve: Serve, kind: str) -> None:
    def told(texts: list[str], contexts: list[ucall.Context]) -> list[Any]:
        assert len(texts) == len(contexts)
        return [
            [text, ctx.id, ctx.method, ctx.headers.get("x-caller"), (ctx.time_left or 0) > 0]
            for text, ctx in zip(texts, contexts, strict=True)
        ]

    async def told_async(texts: list[str], contexts: list[ucall.Context]) -> list[Any]:
        return told(texts, contexts)

    server = serve()
    function = told_async if kind == "async" else told
    server.batch(name="told", threads=kind == "threads", timeout_ms=600_000)(function)
    with Wire(server.port) as first, Wire(server.port) as second:
        first.send(http(request("told", ["a"], 1), "X-Caller: first") * 2)
        second.send(request("told", {"texts": "b"}, "two"))
        for _ in range(2):
            result = json.loads(first.reply()[2])["result"]
            assert result == ["a", 1, "told", "first", True]
        assert json.loads(second.line())["result"] == ["b", "two", "told", None, True]
        assert second.error("told", ["a", "b"])["code"] == -32602


def test_a_context_reports_a_disconnected_caller(serve: Serve) -> None:
    seen: dict[str, bool] = {}
    started, may_end, went_on = threading.Event(), threading.Event(), threading.Event()

    def wait(texts: list[str], contexts: list[ucall.Context]) -> list[str]:
        if "first" not in texts:
            went_on.set()
            late = time.monotonic() + 60
            while not any(ctx.cancelled for ctx in contexts) and time.monotonic() < late:
                time.sleep(0.01)
            seen.update({text: ctx.cancelled for text, ctx in zip(texts, contexts, strict=True)})
        else:
            started.set()
            assert may_end.wait(60)
        return texts

    server = serve()
    server.batch(threads=True)(wait)
    with Wire(server.port) as stays:
        leaves = Wire(server.port)
        stays.send(request("wait", ["first"]))
        assert started.wait(60)
        before = server.stats()["bytes_received"]
        second, third = request("wait", ["stays"]), http(request("wait", ["leaves"]))
        stays.send(second)
        leaves.send(third)
        come = before + len(second) + len(third)
        assert eventually(lambda: server.stats()["bytes_received"] == come)
        may_end.set()
        assert json.loads(stays.line())["result"] == "first"
        # Calls of clients that disconnect before the batch starts are left out.
        assert went_on.wait(60)
        leaves.socket.close()
        assert json.loads(stays.line())["result"] == "stays"
    assert seen == {"stays": False, "leaves": True}


@pytest.mark.parametrize("bad", ["number", "default", "rest", "none", "optional", "list"])
def test_functions_unfit_for_batching_are_rejected(bad: str) -> None:
    def number(a: int) -> None: ...

    def default(a: list[int], b: list[int] = [1, 2]) -> None: ...  # noqa: B006

    def rest(*args: list[int]) -> None: ...

    def none() -> None: ...

    def optional(a: list[int], b: list[int] | None = None) -> None: ...

    def context(a: list[int], ctx: ucall.Context) -> None: ...

    functions = {"number": number, "default": default, "rest": rest, "none": none}
    functions["optional"] = optional
    function = functions.get(bad, context)
    with pytest.raises(TypeError, match=bad):
        ucall.Server(port=0).batch(function)


@pytest.mark.parametrize("rules", [{"max_size": 0}, {"max_wait_ms": -1}, {"parallel": 0}])
def test_invalid_batch_rules_are_rejected(rules: Any) -> None:
    with pytest.raises(ValueError):
        ucall.Server(port=0).batch(**rules)


def test_batches_in_threads_go_on_while_the_server_is_held_up(serve: Serve) -> None:
    began, holding = threading.Event(), threading.Event()
    sizes: list[int] = []

    def call(texts: list[str]) -> list[str]:
        if not sizes:
            began.set()
            assert holding.wait(30)
        sizes.append(len(texts))
        return texts

    def hold() -> int:
        """Holds the server's thread until three more batches have run."""
        holding.set()
        eventually(lambda: len(sizes) == 4)
        return len(sizes)

    server = serve()
    server.batch(call, threads=True, max_size=2)
    server.add(hold)
    with Wire(server.port) as wire, Wire(server.port) as other:
        wire.send(_calls(["first"]))
        assert began.wait(30)
        wire.send(_calls([f"t{number}" for number in range(6)]))
        eventually(lambda: server.stats()["calls"] >= 7)
        assert other.result("hold") == 4
        assert len(_replies(wire, 7)) == 7
    assert sizes == [1, 2, 2, 2]


def test_batches_give_way_to_other_calls_in_threads(serve: Serve) -> None:
    order: list[str] = []
    began, waiting = threading.Event(), threading.Event()

    def call(texts: list[str]) -> list[str]:
        if not order:
            began.set()
            assert waiting.wait(30)
        order.append("batch")
        return texts

    def other() -> None:
        order.append("other")

    server = serve(max_threads=1)
    server.batch(call, threads=True, max_size=1)
    server.add(other, threads=True)
    with Wire(server.port) as wire, Wire(server.port) as second:
        wire.send(_calls(["a", "b", "c"]))
        assert began.wait(30)
        second.send(request("other", [], id=1))
        eventually(lambda: server.stats()["calls"] >= 4)
        waiting.set()
        assert len(_replies(wire, 3)) == 3
        assert json.loads(second.line())["id"] == 1
    assert order == ["batch", "other", "batch", "batch"]
