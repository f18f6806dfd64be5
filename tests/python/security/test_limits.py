"""Every limit by its option: its last allowed and its first rejected value."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import limits
import pytest
from certificates import Authority, Files, authority, files
from limits import LIMITS, TIMEOUT_S, TIMEOUTS, Limit, LimitedServer
from serving import Serve

from ucall import _core

__all__ = ["authority", "files"]

Security = tuple[dict[str, Any], ssl.SSLContext | None]


@pytest.fixture(params=["plain", "TLS"])
def security(request: pytest.FixtureRequest, files: Files, authority: Authority) -> Security:
    """The server's options, and the TLS context of its clients."""
    if request.param == "plain":
        return {}, None
    return {"ssl_certfile": files.both}, authority.context()


def functions() -> list[Callable[..., Any]]:
    waiting: list[asyncio.Future[None]] = []
    texts = 0

    def echo(value: Any) -> Any:
        return value

    def text(length: int) -> str:
        nonlocal texts
        texts += 1
        return "x" * length

    async def hold() -> int:
        waiting.append(asyncio.get_running_loop().create_future())
        await waiting[-1]
        return 1

    def release() -> int:
        released = len(waiting)
        while waiting:
            future = waiting.pop()
            if not future.done():
                future.set_result(None)
        return released

    def held() -> int:
        return len(waiting)

    def served() -> int:
        return texts

    return [echo, text, hold, release, held, served]


@pytest.mark.one_of("engine", "security")
@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.python)
def test_every_limit_by_its_option(serve: Serve, security: Security, limit: Limit) -> None:
    options, context = security
    options = options | {limit.python: limit.value, "ping_interval_s": limit.ping_interval_s}
    server = serve(*functions(), **options)
    limit.check(LimitedServer(server.port, context), limit.value)


@pytest.mark.one_of("engine", "security")
def test_every_timeout_by_its_option(serve: Serve, security: Security) -> None:
    options, context = security
    times = {f"{name}_s": TIMEOUT_S for name in TIMEOUTS}
    server = serve(*functions(), **options, **times)
    limits.check_timeouts(LimitedServer(server.port, context))


def test_every_limit_is_tested() -> None:
    tried = {limit.python for limit in LIMITS} | {f"{name}_s" for name in TIMEOUTS}
    # These limit running calls and not input: test_threads, test_drain, test_loop and
    # test_health cover them.
    # test_streams covers max_stream_bytes, test_publish covers those of messages.
    others = {"max_stream_bytes", "max_threads", "drain_timeout_s", "slow_call_s"}
    others |= {"max_subscriptions", "max_topic_bytes", "shutdown_delay_s"}
    # test_shared_memory covers this one.
    others |= {"max_shared_bytes"}
    others |= {"max_waiting_messages", "max_waiting_message_bytes"}
    # test_udp covers those of UDP.
    others |= {"max_datagram_bytes", "max_dedupe_bytes", "max_source_calls", "dedupe_s"}
    # test_call_rates covers those of callers.
    others |= {"max_calls_per_s", "max_burst_calls"}
    # This one is off by default.
    tried -= {"max_connections_per_peer"}
    assert tried | others == set(_core.default_limits())
