"""Bad input of more than one message: peers that are slow, many, or do not read."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from cases import CALL, Case, Scenario, chunked, codes_in, post

from harness import Wire, eventually, http, let_rest, request
from target import OPTIONS, Target


def _read_replies(wire: Wire) -> str:
    """All replies until the server closes."""
    replies = []
    while word := next_summary(wire):
        replies.append(word)
    return ", ".join([*replies, "closed"])


def next_summary(wire: Wire) -> str:
    """The next reply in a word or two; empty at the end."""
    while len(wire.received) < 5 and wire.more():
        pass
    if not wire.received:
        return ""
    if wire.received.startswith(b"HTTP/"):
        status, _, body = wire.reply()
        return f"{status} {codes_in(body)}".strip()
    return codes_in(wire.line()) or "result"


def _stopping_after(data: bytes) -> Scenario:
    """Sends these bytes and no more."""

    def scenario(target: Target) -> str:
        with target.wire() as wire:
            wire.send(data)
            return _read_replies(wire)

    return scenario


def _until(expected: str, scenario: Scenario) -> Scenario:
    """Repeats a scenario that depends on time, because a busy machine may be too slow."""

    def tried(target: Target) -> str:
        for _ in range(10):
            if (reply := scenario(target)) == expected:
                break
        return reply

    return tried


def _not_reading(target: Target) -> str:
    with target.wire() as wire:
        _narrow(wire)
        wire.send(request("text", [3_000_000]) * 4)
        # The kernel still has some of it, so the client cannot see the end; the server is asked.
        is_closed = eventually(lambda: target.state()["connections"] == 1)
    return "closed" if is_closed else "kept"


def _narrow(wire: Wire) -> None:
    """Sets a small receive buffer."""
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)


def timed() -> list[Case]:
    """Peers that do not finish. The server's limits are half a second, checked once a second."""
    group = "Time"
    head = post(f"Content-Length: {len(CALL)}", "X: " + "x" * 100)
    large = http(b" " * 1_000_000)
    scenarios: list[tuple[str, str, Scenario]] = [
        ("half a head, then nothing", "408, closed", _stopping_after(head[:60])),
        ("half a body, then nothing", "408, closed", _stopping_after(head + CALL[:10])),
        ("half a megabyte of a body", "408, closed", _stopping_after(large[:500_000])),
        ("half a chunk, then nothing", "408, closed", _stopping_after(chunked(b"9\r\n{"))),
        ("half a document, then nothing", "-32700, closed", _stopping_after(CALL[:20])),
        ("nothing at all", "closed", _stopping_after(b"")),
        ("a call, then nothing", "200, closed", _stopping_after(http(CALL))),
    ]
    return [
        *(
            Case(group, name, expected, scenario, server="timed")
            for name, expected, scenario in scenarios
        ),
        # On a server of its own, because its connections are counted.
        Case(group, "12 MB of replies not read", "closed", _not_reading, server="stuck"),
    ]


@contextmanager
def _many(target: Target, count: int) -> Iterator[list[Wire]]:
    with ExitStack() as stack:
        yield [stack.enter_context(target.wire()) for _ in range(count)]


MAX: dict[str, Any] = OPTIONS["tight"]


def _one_too_many(target: Target) -> str:
    """The maximum of connections, all idle, and one more."""
    with _many(target, MAX["max_connections"]) as wires:
        for wire in wires:
            wire.result("add", [40, 2])
        with target.wire() as new_wire:
            new_wire.result("add", [40, 2])
            longest_idle, *others = wires
            is_closed = longest_idle.rest() == b""
            are_open = all(wire.result("add", [40, 2]) == 42 for wire in others)
    return "result, the longest idle closed" if is_closed and are_open else "another closed"


def _none_idle(target: Target) -> str:
    """The maximum of connections, including the one that checks, all busy; then another.

    On a busy machine the server may accept a connection before it reads the bytes of the one
    before, and close that as an idle one. Then all begins again.
    """
    return next(filter(None, (_one_more_than_busy(target) for _ in range(100))))


def _one_more_than_busy(target: Target) -> str | None:
    with ExitStack() as stack:
        wires: list[Wire] = []
        for _ in range(MAX["max_connections"] + 1):
            # When this call returns, the other connections are busy.
            if not let_rest(target.process, *wires):
                return None
            wires.append(stack.enter_context(target.wire()))
            wires[-1].send(CALL[:20])
        if not let_rest(target.process, *wires):
            return None
        with Wire(target.port, 0.3) as new_wire:
            # Without TLS a call, with TLS a ClientHello, which every server answers.
            new_wire.send(CALL)
            if not _is_silent(new_wire):
                return "was accepted" if let_rest(target.process, *wires) else None
            new_wire.socket.settimeout(60)
            wires[5].socket.close()
            return f"waits, then {'answered' if new_wire.more() else 'closed'}"


def _is_silent(wire: Wire) -> bool:
    try:
        wire.more()
    except TimeoutError:
        return True
    return False


def _too_many_running(target: Target) -> str:
    with _many(target, MAX["max_running_calls"] + 1) as wires:
        for wire in wires[:-1]:
            wire.send(request("hold"))
        eventually(lambda: target.state()["waiting"] == MAX["max_running_calls"], 10)
        wires[-1].send(request("hold"))
        replies = next_summary(wires[-1])
        _release(target)
        later_replies = {next_summary(wire) for wire in wires[:-1]}
        return " and ".join(sorted({replies, *later_replies}, reverse=True))


def _pipelined(target: Target) -> str:
    """More calls on one connection than `max_pipeline`."""
    with target.wire() as wire:
        wire.send(request("hold") * 300)
        eventually(lambda: target.state()["waiting"] == 128, 10)
        assert let_rest(target.process, wire)
        most = target.state()["waiting"]
        replies = set()
        for _ in range(3):
            _release(target)
            replies |= {next_summary(wire) for _ in range(100)}
    return f"{most} at once, then {' '.join(replies)}"


def _release(target: Target) -> None:
    with target.wire() as wire:
        wire.result("release")


def _bodies_held(target: Target) -> str:
    """More incomplete requests than `max_held_bytes`, then new requests."""
    large = http(b" " * 16_000_000)[:8_000_000]
    with _many(target, 3) as wires:
        for wire in wires:
            wire.socket.settimeout(0.3)
            with suppress(OSError):
                wire.send(large)
        replies = _new_connections(target, (http(CALL)[:-5], CALL[:-5]))
    return _after_recovery(target, replies)


def _replies_held(target: Target) -> str:
    """More unread replies than `max_held_bytes`, then calls of other clients."""
    with _many(target, 6) as wires:
        for wire in wires:
            _narrow(wire)
        # The kernel buffers the first reply of each client, and one burst is refused in part.
        for _ in range(4):
            for wire in wires:
                wire.send(request("text", [3_900_000]))
            time.sleep(0.1)
        replies = _new_connections(target, (http(CALL), CALL))
    return _after_recovery(target, replies)


def _after_recovery(target: Target, replies: str) -> str:
    """The replies, once the server has closed the connections of clients with large requests.

    A call that is answered before is no end: what the kernel still has of another client can exceed
    the limit again, and then the next call is refused, too.
    """

    def has_recovered() -> bool:
        time.sleep(0.05)
        with target.wire() as wire:
            return bool(wire.call("state").get("result", {}).get("connections") == 1)

    return replies if eventually(has_recovered) else f"{replies}, then nothing more"


def _new_connections(target: Target, requests: tuple[bytes, ...]) -> str:
    replies = []
    for data in requests:
        with target.wire() as wire:
            wire.send(data)
            replies.append(next_summary(wire))
    return ", ".join(replies)


def _text_of(length: int) -> bytes:
    """A call whose whole reply has this length."""
    overhead = len('{"jsonrpc":"2.0","id":1,"result":""}')
    return request("text", [length - overhead])


def concurrency() -> list[Case]:
    """Limits of many peers, or many messages, together."""
    group = "Many at once"
    reply = MAX["max_reply_bytes"]
    shown = f"{reply:,}"
    batch = b"[" + b",".join([_text_of(reply // 2 + 100)] * 2) + b"]"
    first = f"{MAX['max_connections']} connections and one more"
    cases: list[tuple[str, str, bytes | Scenario]] = [
        (f"{first}, all idle", "result, the longest idle closed", _one_too_many),
        (f"{first}, none idle", "waits, then answered", _none_idle),
        ("5 calls at once with a limit of 4", "result and -32003", _too_many_running),
        (f"a reply of {shown} bytes", "200", http(_text_of(reply))),
        ("one byte more", "200 -32603", http(_text_of(reply + 1))),
        (f"a reply of {shown} bytes, raw", "result", _text_of(reply)),
        ("one byte more, raw", "-32603", _text_of(reply + 1)),
        ("a batch with larger replies", "result", batch),
        (
            "24 MB of bodies with a limit of 10, then HTTP and raw",
            "503, -32003",
            _until("503, -32003", _bodies_held),
        ),
        (
            "replies not read, above max_held_bytes, then HTTP and raw",
            "503, -32003",
            _until("503, -32003", _replies_held),
        ),
    ]
    return [Case(group, *case, server="tight") for case in cases]


def pipelines() -> list[Case]:
    name = "300 waiting calls on one connection"
    return [Case("Many at once", name, "128 at once, then result", _pipelined)]
