"""Conformance to HTTP/1.1, on each engine, with and without TLS."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import report
from certificates import Authority, Files, authority, files
from conformance import DEMANDS, FRAGMENTS, H1SPEC, WHOLE, Demand
from serving import NO_URING

from harness import Wire
from ucall.options import arguments

__all__ = ["authority", "files"]

Connect = Callable[[], Wire]
PATIENCE_S = 0.5
#: Longer on slow machines.
LONG_TIMEOUTS = {"head_timeout_s": 3000, "body_timeout_s": 3000}
#: The replies by suite and name, the same on all engines and transports.
seen: dict[tuple[str, str], str] = {}


def add(a: int, b: int) -> int:
    return a + b


@pytest.fixture
def connects(files: Files, authority: Authority) -> Iterator[dict[str, Connect]]:
    """Connects to a server on each engine, with and without TLS."""
    secure = {"ssl_certfile": files.both}
    with ExitStack() as stack:
        connects: dict[str, Connect] = {}
        for engine in ("posix",) if NO_URING else ("posix", "uring"):
            for transport, options in {"plain": {}, "TLS": secure}.items():
                kind = importlib.import_module(f"ucall.{engine}").Server
                server = kind(port=0, **arguments(LONG_TIMEOUTS | options))
                server.add(add)
                server.start()
                stack.callback(server.stop)
                context = authority.context() if options else None
                connects[f"{engine}-{transport}"] = partial(Wire, server.port, context=context)
        yield connects


@pytest.fixture(scope="module", autouse=True)
def table(request: pytest.FixtureRequest) -> Iterator[None]:
    """Writes the table, if it was requested and all cases passed."""
    yield
    path = os.environ.get("UCALL_SECURITY_TABLE")
    if path and not request.session.testsfailed:
        report.write(Path(path), "conformance", _table())


def test_replies_match_the_demands(connects: dict[str, Connect]) -> None:
    for connect in connects.values():
        reply = {demand: _statuses(demand, connect) for demand in DEMANDS}
        assert {d.name: words for d, words in reply.items() if not _is_as_expected(d, words)} == {}
        both = {(demand.suite, demand.name): words for demand, words in reply.items()}
        assert seen in ({}, both), "not the same on all engines and transports"
        seen.update(both)


def test_the_server_waits_for_fragments(connects: dict[str, Connect]) -> None:
    with ExitStack() as stack:
        wires = [
            (begun, stack.enter_context(connect()))
            for connect in connects.values()
            for begun in FRAGMENTS.values()
        ]
        for begun, wire in wires:
            wire.send(begun)
        time.sleep(PATIENCE_S)
        for begun, wire in wires:
            wire.socket.settimeout(0.001)
            with pytest.raises(TimeoutError):
                wire.more()
            wire.socket.settimeout(60)
            wire.send(WHOLE[len(begun) :])
            assert wire.reply()[0] == 200, begun


def _statuses(demand: Demand, connect: Connect) -> str:
    """The statuses of as many replies as the first accepted answer has."""
    with connect() as wire:
        wire.send(demand.sent)
        has_body = not demand.sent.startswith(b"HEAD")
        count = 1 + demand.accepted[0].count(",")
        return ", ".join(str(wire.reply(has_body)[0] or "closed") for _ in range(count))


def _is_as_expected(demand: Demand, reply: str) -> bool:
    """Whether the suite accepts the reply or, if the case names another reply, it is that one."""
    if demand.instead:
        return reply == demand.instead and not _is_accepted(demand, reply)
    return _is_accepted(demand, reply)


def _is_accepted(demand: Demand, reply: str) -> bool:
    return any(
        len(pattern) <= len(reply)
        and all(p in ("x", c) for p, c in zip(pattern, reply, strict=False))
        for pattern in demand.accepted
    )


def _table() -> str:
    lines = [f"{len(DEMANDS) + len(FRAGMENTS)} cases. Differences:", ""]
    lines += ["| case | accepted | reply | reason |", "|---|---|---|---|"]
    for demand in DEMANDS:
        if demand.instead:
            cells = (demand.name, " or ".join(demand.accepted), demand.instead, demand.why)
            lines.append(f"| {' | '.join(map(report.plain, cells))} |")
    for suite in dict.fromkeys(demand.suite for demand in DEMANDS):
        lines += ["", f"### {suite}", "", "| case | accepted | reply | |", "|---|---|---|---|"]
        lines += [_line(demand) for demand in DEMANDS if demand.suite == suite]
        if suite == H1SPEC:
            lines += [f"| fragmented {name} | silence | silence | ✓ |" for name in FRAGMENTS]
    return "\n".join(lines)


def _line(demand: Demand) -> str:
    reply = seen[demand.suite, demand.name]
    mark = "differs" if demand.instead else "✓"
    cells = (demand.name, " or ".join(demand.accepted), reply, mark)
    return f"| {' | '.join(map(report.plain, cells))} |"
