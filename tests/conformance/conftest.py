"""The servers under test by other projects' conformance suites."""

from __future__ import annotations

import importlib
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import websocket_echo
from limits import LimitedServer

import ucall

HOST = "127.0.0.1"


def _echo(value: Any = None) -> Any:
    return value


def _each(values: list[Any]) -> Iterator[Any]:
    yield from values


def _serving(engine: str, **options: Any) -> Iterator[int]:
    server: ucall.Server = importlib.import_module(f"ucall.{engine}").Server(
        port=0, **ucall.options.arguments(options)
    )
    server.add(_echo, name="echo")
    server.add(_each, name="each")
    server.mount("/echoes", websocket_echo.app)
    server.start()
    yield server.port
    server.stop()


@pytest.fixture(scope="session", params=["posix", "uring"])
def engine(request: pytest.FixtureRequest) -> str:
    try:
        importlib.import_module(f"ucall.{request.param}").Server(port=0)
    except ucall.EngineError as refused:
        pytest.skip(str(refused))
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def peer(engine: str) -> Iterator[LimitedServer]:
    for port in _serving(engine):
        yield LimitedServer(port)


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="session")
def secure_peer(
    engine: str, authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LimitedServer]:
    path = Path(tmp_path_factory.mktemp("certificate")) / "server.pem"
    issued = authority.issue_cert(HOST, "localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(path)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    for port in _serving(engine, ssl_certfile=path):
        yield LimitedServer(port, context)
