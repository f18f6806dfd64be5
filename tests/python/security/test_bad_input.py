"""Every bad input, with each combination of engine and TLS in turn.

After each: the reply is the expected one, the process is the same, the next call is answered, and
memory and descriptors have returned to their earlier values.
"""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import agents
import binary
import cases
import models
import mounts
import pytest
import report
import scenarios
import trustme
from cases import Case
from serving import NO_URING

from harness import Wire, eventually, http
from target import CALL, OPTIONS, REPLY, Target

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

#: The allowed growth: glibc keeps up to twice the largest block that was freed, a body of 16 MiB.
GROWTH_MAX_KIB = 36 * 1024

ALL: list[Case] = [
    *cases.framing(),
    *cases.limits(),
    *cases.documents(),
    *cases.browsers(),
    *cases.unauthenticated(),
    *agents.mcp(),
    *binary.cases(),
    *models.cases(),
    *mounts.cases(),
    *scenarios.concurrency(),
    *scenarios.pipelines(),
    *scenarios.timed(),
]


ENGINES = ["posix"] if NO_URING else ["posix", "uring"]
TRANSPORTS = ["plain", "TLS"]
SETTINGS = [(engine, transport) for engine in ENGINES for transport in TRANSPORTS]

Setting = tuple[str, str]
Targets = dict[str, Target]
Timed = dict[str, "Future[str]"]


@pytest.fixture(
    scope="module",
    params=[pytest.param(setting, id="-".join(setting)) for setting in SETTINGS],
)
def setting(request: pytest.FixtureRequest) -> Setting:
    """An engine and a transport."""
    given: Setting = request.param
    return given


@pytest.fixture(scope="module")
def targets(setting: Setting, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Targets]:
    """Servers by kind."""
    engine, transport = setting
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    folder = tmp_path_factory.mktemp("certificates")
    certificate = {"ssl_certfile": str(folder / "cert.pem"), "ssl_keyfile": str(folder / "key.pem")}
    issued.private_key_pem.write_to_path(certificate["ssl_keyfile"])
    for blob in issued.cert_chain_pems:
        blob.write_to_path(certificate["ssl_certfile"], append=True)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    security = (certificate, context) if transport == "TLS" else ({}, None)
    started = {kind: Target.start(engine, kind, *security) for kind in OPTIONS}
    for target in started.values():
        target.await_start()
    yield started
    for target in started.values():
        target.kill()


@pytest.fixture(scope="module")
def timed(targets: Targets) -> Iterator[Timed]:
    """The replies of the cases that depend on time; all run at once."""
    cases = scenarios.timed()
    with ThreadPoolExecutor(len(cases)) as pool:
        yield {
            case.name: pool.submit(case.sent, targets[case.server])
            for case in cases
            if callable(case.sent)
        }


@pytest.fixture(scope="module", autouse=True)
def table(request: pytest.FixtureRequest) -> Iterator[None]:
    """Writes the table, if it was requested and all cases passed."""
    yield
    path = os.environ.get("UCALL_SECURITY_TABLE")
    if path and not request.session.testsfailed:
        report.write(Path(path), "table", report.table(SETTINGS))


@pytest.mark.one_of("setting")
@pytest.mark.parametrize("case", ALL, ids=lambda case: f"{case.group}: {case.name}")
def test_bad_input(case: Case, setting: Setting, targets: Targets, timed: Timed) -> None:
    target = targets[case.server]
    is_shared = case.server in ("timed", "stuck")
    before = 0 if is_shared else target.descriptors()
    resident_kib = target.resident_kib()
    if is_shared:
        reply = timed[case.name].result(200)
    elif callable(case.sent):
        reply = case.sent(target)
    else:
        reply = _answer(case, case.sent, target)
    assert reply == case.expected
    assert target.answers()
    # Cases that share a server are checked after the last of them; see below.
    assert is_shared or target.has_descriptors_back(before)
    grown = lambda: target.resident_kib() - resident_kib  # noqa: E731
    assert eventually(lambda: grown() < GROWTH_MAX_KIB), f"{grown()} KiB more than before"
    seen = report.Seen(case.group, case.name, reply, setting, grown())
    report.seen.append(seen)


def test_slow_peers_leak_nothing(targets: Targets, timed: Timed) -> None:
    for case in scenarios.timed():
        timed[case.name].result(200)
    assert eventually(lambda: targets["timed"].state()["connections"] == 1)


def _answer(case: Case, data: bytes, target: Target) -> str:
    """Sends the input, and returns the reply in the words of the case."""
    with target.wire() as wire:
        words = len(case.expected.split(", "))
        if case.behind:
            data = _before(data) + data
        # The server may close before all is sent.
        with contextlib.suppress(OSError):
            wire.send(data)
        if case.behind:
            assert scenarios.next_summary(wire) in ("200", "result")
        replies = [scenarios.next_summary(wire) or "closed" for _ in range(words)]
        if replies[-1] != "closed":
            replies += _errors_of_next_call(wire, data)
    return ", ".join(replies)


def _before(data: bytes) -> bytes:

    return CALL if data[:1] in b'{["\xb1' else http(CALL)


def _errors_of_next_call(wire: Wire, data: bytes) -> list[str]:
    """The errors of the next call on the connection: none if it is answered."""
    wire.send(_before(data))
    text = wire.line() if data[:1] in b'{["\xb1' else wire.reply()[2]
    return [] if json.loads(text) == REPLY else ["then another reply"]
