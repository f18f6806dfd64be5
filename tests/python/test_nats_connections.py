"""How servers connect to a broker: credentials, TLS and WebSocket."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from brokers import NatsServer, credentials_file, key_file, registered, request
from certificates import Authority, authority
from test_nats import served

import ucall
from harness import HOST, free_port
from ucall._nats.connection import cancel
from ucall.client import Client

__all__ = ["authority"]  # A fixture.


def _nkey(folder: Path) -> tuple[str, dict[str, Any]]:
    public, seed = key_file(folder)
    return f'authorization {{ users: [{{nkey: "{public}"}}] }}', {"nkeys_seed": str(seed)}


def _signed_user(folder: Path) -> tuple[str, dict[str, Any]]:
    configuration, credentials = credentials_file(folder)
    return configuration, {"user_credentials": str(credentials)}


CREDENTIALS: dict[str, Callable[[Path], tuple[str, dict[str, Any]]]] = {
    "password": lambda _: (
        'authorization { users: [{user: "ann", password: "pass"}] }',
        {"user": "ann", "password": "pass"},
    ),
    "token": lambda _: ('authorization { token: "secret" }', {"token": "secret"}),
    "nkey": _nkey,
    "JWT": _signed_user,
}


@pytest.mark.parametrize("kind", CREDENTIALS)
def test_credentials_for_the_broker(kind: str, tmp_path: Path) -> None:
    text, options = CREDENTIALS[kind](tmp_path)
    configuration = tmp_path / "nats.conf"
    configuration.write_text(text)
    with NatsServer("--config", str(configuration)) as broker:
        server = served()
        server.start(broker=ucall.Broker(url=broker.url, group="models", options=options))
        try:
            assert registered(broker, **options)
            uri = broker.uri()
            with Client(uri, broker_options=options) as client:
                assert client.call("math.add", 1).json == 2
            with pytest.raises(ucall.ConnectionError, match="uthorization"):
                Client(uri).call("math.add", 1)
        finally:
            server.stop()


def test_tls_to_the_broker(authority: Authority, tmp_path: Path) -> None:
    import ssl

    files = authority.sign(HOST, "localhost")
    tls = "--tls", "--tlscert", str(files.certificate), "--tlskey", str(files.key)
    context = ssl.create_default_context(cafile=authority.path)
    with NatsServer(*tls) as broker:
        server = served()
        server.start(broker=ucall.Broker(url=broker.url, group="models", options={"tls": context}))
        try:
            assert registered(broker, tls=context)
            with Client(broker.uri(), broker_options={"tls": context}) as client:
                assert client.call("math.add", 1).json == 2
            with pytest.raises(ucall.ConnectionError, match=r"(?i)certificate"):
                Client(broker.uri()).call("math.add", 1)
        finally:
            server.stop()


def test_a_broker_over_websocket(tmp_path: Path) -> None:
    port = free_port()
    configuration = tmp_path / "nats.conf"
    configuration.write_text(f'websocket {{ host: "{HOST}", port: {port}, no_tls: true }}\n')
    with NatsServer("--config", str(configuration)) as broker:
        server = served()
        url = f"ws://{HOST}:{port}"
        server.start(broker=ucall.Broker(url=url, group="models"))
        try:
            assert registered(broker)
            reply = request(broker, "models.math.add", b"[1]")
            assert (reply.data, reply.headers) == (b"2", None)
        finally:
            server.stop()


def test_a_task_that_loses_a_cancellation_is_cancelled_again() -> None:
    """`asyncio.wait_for` of CPython 3.11 loses one that comes with its result."""

    async def lose() -> None:
        for _ in range(2):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    async def run() -> bool:
        task = asyncio.ensure_future(lose())
        await asyncio.sleep(0)
        await cancel(task)
        return task.done()

    assert asyncio.run(run())


def test_a_missing_file_of_credentials_is_an_error_at_the_start(tmp_path: Path) -> None:
    options = {"user_credentials": str(tmp_path / "missing.creds")}
    with pytest.raises(FileNotFoundError, match=re.escape("missing.creds")):
        served().start(broker=ucall.Broker(url="a", group="b", options=options))
