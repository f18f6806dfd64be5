"""How a client finds and calls the servers of a group, over a connection that a test answers."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from timing import Clock

import ucall
from ucall import _core
from ucall._client import aio_balanced, balanced, blocking
from ucall._client.address import Address, Addresses
from ucall._client.options import Options
from ucall._nats.connection import header_bytes
from ucall._nats.group import BrokerPool, Group, _silences

INFO, PING = "$SRV.INFO.models", "$SRV.PING.models"
HEADERS = {"X-Tenant": "a b", "User-Agent": "mine", "X-Empty": ""}


class NoRespondersError(Exception):
    """As of nats-py."""


def message(data: bytes, **headers: str) -> Any:
    return SimpleNamespace(data=data, headers=headers or None)


class Broker:
    """A connection to a broker.

    Args:
        replies: The messages that requests for each subject get, or what they raise; the last one
            again and again. A subject without any has no subscriber.
        answers: The messages that a discovery gets, or what it raises.
    """

    is_closed = False
    max_payload = 1000

    def __init__(self, answers: Any = (), **replies: list[Any]) -> None:
        self.answers = list(answers)
        self.replies = {name.replace("_", "."): list(texts) for name, texts in replies.items()}
        self.requests: list[tuple[str, bytes, dict[str, str]]] = []
        self.published: list[tuple[str, bytes, dict[str, Any]]] = []
        self.waits: list[float] = []
        self.is_subscribed = False

    async def request(
        self, subject: str, params: bytes, timeout: None, headers: dict[str, str]
    ) -> Any:
        self.requests.append((subject, params, headers))
        texts = self.replies.get(subject, [NoRespondersError()])
        reply = texts.pop(0) if len(texts) > 1 else texts[0]
        if callable(reply):
            reply = await reply()
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def publish(self, subject: str, data: bytes = b"", **options: Any) -> None:
        if not self.is_closed:
            self.published.append((subject, data, options))

    def new_inbox(self) -> str:
        return "inbox"

    async def subscribe(self, inbox: str) -> Broker:
        assert inbox == "inbox"
        self.is_subscribed = True
        return self

    async def unsubscribe(self) -> None:
        self.is_subscribed = False

    async def next_msg(self, timeout: float) -> Any:
        self.waits.append(timeout)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer


def group_of(broker: Any, uri: str = "nats://a/models", **options: Any) -> Group:
    made = Group(Addresses(uri), {}, 10_000, **options)
    made._connection = broker
    return made


def request(*calls: dict[str, Any], is_batch: bool = False) -> _core.Request:
    options = Options(Address("https://host"), None, HEADERS)
    if is_batch:
        return options.writer.batch(list(calls), any("id" in call for call in calls))
    [call] = calls
    return options.writer.document(call, call.get("id"))


def call(method: str = "add", **members: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "id": 1, **members}


def exchange(
    broker: Broker, *calls: dict[str, Any], timeout: float | None = 60, is_batch: bool = False
) -> Any:
    """The reply to calls, as JSON."""

    async def main() -> _core.Reply:
        group, broker.is_closed = group_of(broker), False
        group._lost = asyncio.get_running_loop().create_future()
        ids = [it["id"] for it in calls if "id" in it]
        try:
            return await group.exchange(request(*calls, is_batch=is_batch), ids, timeout)
        finally:
            # The end of the loop cancels what is left.
            broker.is_closed = True

    reply = asyncio.run(main())
    return reply.data() if reply.text else None


ANSWER = {"metadata": {"address": "10.0.0.1:8545", "transports": "http,tcp,ws"}}


def answer(**metadata: Any) -> Any:
    return message(json.dumps({"metadata": ANSWER["metadata"] | metadata}).encode())


def discover(broker: Broker, uri: str = "nats://a/models", **options: Any) -> list[str]:
    found = asyncio.run(group_of(broker, uri, **options).discover(60))
    assert not broker.is_subscribed
    return [str(it) for it in found]


def test_a_discovery_takes_each_address_once() -> None:
    one, other = answer(), answer(address="10.0.0.2:8545")
    broker = Broker([one, other, one, TimeoutError()])
    assert discover(broker, "nats+tcp://a/models") == [
        "tcp://10.0.0.1:8545",
        "tcp://10.0.0.2:8545",
    ]
    assert [it[0] for it in broker.published] == [PING]
    assert broker.published[0][2] == {"reply": "inbox"}
    assert broker.waits == [1, 0.1, 0.1, 0.1]


def test_a_discovery_ends_with_all_that_it_may_find_and_without_servers() -> None:
    answers = [answer(address=f"10.0.0.{number}:1") for number in range(9)]
    assert len(discover(Broker(answers), servers_max=4)) == 4
    nobody = message(b"", Status="503")
    assert discover(Broker([nobody])) == []


def test_a_discovery_ends_within_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though answers go on, each within the tenth of a second that the next one may take."""
    clock = Clock(monkeypatch, "ucall._nats.group")

    def after(seconds: float) -> Callable[[], Any]:
        def next_answer() -> Any:
            clock.pass_by(seconds)
            return message(b"no answer")

        return next_answer

    broker = Broker([after(0.9), *[after(0.09)] * 99])
    assert discover(broker) == []
    assert broker.waits[:2] == [1, 0.1] and len(broker.waits) == 14
    assert broker.waits[-1] == pytest.approx(2 - 0.9 - 12 * 0.09)


@pytest.mark.parametrize(
    "wrong",
    [
        message(b"no JSON"),
        message(b"[" * 100_000),
        message(b"[]"),
        message(b"{}"),
        message(b'{"metadata": null}'),
        answer(address=5),
        answer(transports=5),
        answer(transports="tcp,ws"),
        answer(address="a:b"),
    ],
)
def test_answers_without_an_address_are_ignored(wrong: Any) -> None:
    assert len(discover(Broker([wrong, answer(), TimeoutError()]))) == 1


def test_an_address_in_an_answer_has_a_limit() -> None:
    """Anybody at the broker may answer."""
    longest = "a" * 315 + ":8545"
    [found] = discover(Broker([answer(address=longest + "6"), TimeoutError()]))
    assert found.endswith(longest)


def test_a_discovery_fails_with_its_connection() -> None:
    for error, text in ((ValueError("closed"), "NATS: closed"), (ValueError(), "NATS: ValueError")):
        with pytest.raises(ucall.ConnectionError, match=text) as raised:
            discover(Broker([error]))
        assert raised.value.may_have_run is False


def test_a_call_has_its_headers_its_params_and_an_id_of_its_own() -> None:
    broker = Broker(models_math_add=[message(b"3")])
    meta = {"traceparent": "00-1", "tracestate": "b=1", "other": 1}
    calls = [call("math.add", params=["é", 2], _meta=meta), call("math.add", id="2")]
    assert exchange(broker, *calls, timeout=59.9991, is_batch=True) == [
        {"jsonrpc": "2.0", "result": 3, "id": 1},
        {"jsonrpc": "2.0", "result": 3, "id": "2"},
    ]
    [(_, params, headers), (_, no_params, others)] = broker.requests
    assert params == '["é",2]'.encode() and no_params == b""
    ids = {headers.pop("Ucall-Call-Id"), others.pop("Ucall-Call-Id")}
    assert len(ids) == 2
    assert others == {"X-Tenant": "a b", "Ucall-Timeout-Ms": "60000"}
    assert headers == others | {"traceparent": "00-1", "tracestate": "b=1"}
    broker = Broker(models_add=[message(b"")])
    assert exchange(broker, call(), timeout=None)["result"] is None
    assert "Ucall-Timeout-Ms" not in broker.requests[0][2]


def test_a_notification_is_published() -> None:
    broker = Broker()
    notification = {"jsonrpc": "2.0", "method": "add", "params": [1]}
    assert exchange(broker, notification) is None
    [(subject, params, _)] = broker.published
    assert (subject, params) == ("models.add", b"[1]") and not broker.requests


def test_params_and_headers_have_the_limit_of_the_broker() -> None:
    broker = Broker(models_add=[message(b"1")])
    exchange(broker, call())
    [(_, _, headers)] = broker.requests
    # The numbers in the ids of calls may get longer.
    broker.max_payload = header_bytes(headers) + 20
    longest = "x" * (20 - len('[""]'))
    assert exchange(broker, call(params=[longest]))["result"] == 1
    with pytest.raises(ucall.ConnectionError, match="max_payload") as raised:
        exchange(broker, call(params=[longest + "xxx"]))
    assert raised.value.may_have_run is False
    assert len(broker.requests) == 2


def endpoints(*subjects: str) -> list[Any]:
    return [message(json.dumps({"endpoints": [{"subject": it} for it in subjects]}).encode())]


def with_info(broker: Broker, info: list[Any]) -> Broker:
    broker.replies[INFO] = info
    return broker


def test_a_function_that_no_server_has() -> None:
    not_found = {"code": -32601, "message": "Method not found"}
    for info in (endpoints("models.other"), [message(b"[]")], [message(b"no JSON")]):
        broker = with_info(Broker(), info)
        reply = {"jsonrpc": "2.0", "error": not_found, "id": 1}
        assert exchange(broker, call()) == reply
        # It may have come in between.
        assert [it[0] for it in broker.requests] == ["models.add", INFO, "models.add"]


def test_a_server_that_comes_in_between_gets_the_call() -> None:
    broker = Broker(models_add=[NoRespondersError(), message(b"3")])
    assert exchange(with_info(broker, endpoints()), call())["result"] == 3


@pytest.mark.parametrize(
    ("info", "text"),
    [
        (endpoints("models.add"), "no server of models takes calls"),
        ([NoRespondersError()], "no server of the group models answers"),
        ([ValueError("closed")], "NATS: closed"),
    ],
)
def test_a_call_that_reaches_no_server(info: list[Any], text: str) -> None:
    with pytest.raises(ucall.ConnectionError, match=text) as raised:
        exchange(with_info(Broker(), info), call())
    assert raised.value.may_have_run is False


def test_a_request_that_fails_has_not_run() -> None:
    with pytest.raises(ucall.ConnectionError, match="NATS: closed") as raised:
        exchange(Broker(models_add=[ValueError("closed")]), call())
    assert raised.value.may_have_run is False


def test_a_batch_of_which_another_call_may_have_run() -> None:
    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    broker = with_info(Broker(models_slow=[never]), [NoRespondersError()])
    with pytest.raises(ucall.ConnectionError, match="no server of the group") as raised:
        exchange(broker, call(), call("slow", id=2), is_batch=True)
    assert raised.value.may_have_run is True
    # Nobody waits for the other one.
    [(subject, id, _)] = broker.published
    assert subject == "models.$cancel" and id.decode() == broker.requests[1][2]["Ucall-Call-Id"]


def test_a_call_in_its_time() -> None:
    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    broker = Broker(models_add=[never])
    with pytest.raises(ucall.TimeoutError, match=r"timed out after 0\.01 s") as raised:
        exchange(broker, call(), timeout=0.01)
    assert raised.value.may_have_run is True
    assert [it[0] for it in broker.published] == ["models.$cancel"]


def test_calls_end_with_their_connection_and_later_ones_do_not() -> None:
    async def main() -> None:
        broker = Broker(models_add=[message(b"3")])
        group = group_of(broker)
        group._handle_lost()

        async def lose() -> None:
            group._handle_lost()
            await asyncio.get_running_loop().create_future()

        broker.replies["models.slow"] = [lose]
        with pytest.raises(ucall.ConnectionError, match="has ended; the call may") as raised:
            await group.exchange(request(call("slow")), [1], 60)
        assert raised.value.may_have_run is True
        assert (await group.exchange(request(call()), [1], 60)).result() == 3

    asyncio.run(main())


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (message(b'{"code":7,"message":"m","data":[1]}'), {"code": 7, "message": "m", "data": [1]}),
        (message(b'{"code":true,"message":"m"}'), {"code": 5, "message": "text"}),
        (message(b'{"code":7,"message":8}'), {"code": 5, "message": "text"}),
        (message(b'{"code":7}'), {"code": 5, "message": "text"}),
        (message(b"[]"), {"code": 5, "message": "text"}),
        (message(b"no JSON"), {"code": 5, "message": "text"}),
        (message(b"[" * 100_000), {"code": 5, "message": "text"}),
    ],
)
def test_an_error_is_that_of_the_payload_or_of_the_headers(reply: Any, error: Any) -> None:
    reply.headers = {"Nats-Service-Error-Code": "5", "Nats-Service-Error": "text"}
    assert exchange(Broker(models_add=[reply]), call())["error"] == error
    reply.headers = {"Nats-Service-Error-Code": "five"}
    if error["code"] == 5:
        error = {"code": -32603, "message": ""}
    assert exchange(Broker(models_add=[reply]), call())["error"] == error


@pytest.mark.parametrize("data", [b'1,"id":2', b"[" * 100_000, b"\xff"])
def test_a_result_is_one_value(data: bytes) -> None:
    with pytest.raises(ucall.ConnectionError, match="is not JSON") as raised:
        exchange(Broker(models_add=[message(data)]), call())
    assert raised.value.may_have_run is True


def test_a_closed_connection_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    async def connect(brokers: Any, options: Any, name: str, **others: Any) -> Broker:
        made.append({"name": name, **others})
        return Broker([TimeoutError()] * 2)

    monkeypatch.setattr("ucall._nats.group.connect", connect)
    old = Broker()
    old.is_closed = True

    async def main() -> None:
        group = group_of(old)
        await group.discover()
        assert group._connection is not old
        await group.discover()

    asyncio.run(main())
    [options] = made
    assert options.pop("on_lost")
    assert options == {"name": "ucall client of models", "reports": False, "timeout_s": 5}


def test_calls_without_a_reply_are_repeated_after_one_two_and_then_every_four_seconds() -> None:
    assert list(itertools.islice(_silences(), 6)) == [1, 2, 4, 4, 4, 4]


def test_a_discovery_ends_in_the_time_of_the_call() -> None:
    class Silent(Group):
        async def _connected(self) -> Any:
            await asyncio.get_running_loop().create_future()

    async def run() -> None:
        silent = Silent(Addresses("nats://a/models"), {}, 1000)
        running = asyncio.ensure_future(silent.discover(0.01))
        done, _ = await asyncio.wait({running}, timeout=20)
        assert done and isinstance(running.exception(), TimeoutError)

    asyncio.run(run())


@pytest.mark.parametrize("is_async", [False, True])
def test_calls_are_not_repeated_unless_the_client_allows_it(
    monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    begun: list[int] = []
    may_reply = threading.Event()

    def silences() -> Iterator[float]:
        yield from [0.0] * 3
        may_reply.set()

    async def reply_late(*_: object) -> _core.Reply:
        begun.append(1)
        await asyncio.to_thread(may_reply.wait, 60)
        return _core.Reply.nothing()

    monkeypatch.setattr("ucall._nats.group._silences", silences)
    group = group_of(Broker())
    monkeypatch.setattr(group, "exchange", reply_late)
    servers = aio_balanced._Servers if is_async else balanced._Servers
    pool = BrokerPool(group, servers.wrap, servers.wait)
    (asyncio.run if is_async else blocking.run)(pool.exchange(request(call()), [1], 60))
    assert begun == [1]


def test_a_connection_is_closed_once_and_by_its_own_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[object] = []
    monkeypatch.setattr("ucall._nats.group.start", closed.append)
    broker: Any = SimpleNamespace(close=lambda: "closed")
    group = group_of(broker)
    group.close()
    group.close()
    assert closed == ["closed"]
    inherited = group_of(broker)
    inherited._pid = 0
    inherited.close()
    assert closed == ["closed"]


def test_streams_need_a_direct_connection() -> None:
    pool = BrokerPool(group_of(Broker()), balanced._Servers.wrap, balanced._Servers.wait)
    for method in (pool.event_connection, pool.channel, pool.connection):
        with pytest.raises(ucall.ConnectionError, match="as streams need") as raised:
            method()
        assert raised.value.may_have_run is False
