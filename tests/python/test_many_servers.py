"""Servers that are killed, drained, stopped and restarted under load: what their callers notice."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from many_servers import load, rounds, servers

import ucall
from harness import HOST, eventually
from ucall import aio
from ucall._client import blocking
from ucall.client import Client

COUNT = 4
KINDS = pytest.mark.parametrize("kind", ["threads", "tasks"])
SCHEMES = pytest.mark.parametrize("scheme", ["http://", "tcp://", "ws://"])


@KINDS
@SCHEMES
@pytest.mark.slow
def test_killed_servers_fail_only_the_calls_on_them(tmp_path: Path, kind: str, scheme: str) -> None:
    kills: list[tuple[float, float]] = []
    with servers(tmp_path, COUNT) as running:
        with load(running.uris(scheme), kind) as made:
            for number in rounds(COUNT):
                victim = number % COUNT
                kills.append(running.kill(victim))
                running.restart(victim)
                assert made.goes_on()
        made.check(running.begun())
    made.check_failures(kills)


@KINDS
@SCHEMES
@pytest.mark.slow
def test_a_rolling_restart_fails_no_call(tmp_path: Path, kind: str, scheme: str) -> None:
    with servers(tmp_path, COUNT) as running:
        with load(running.uris(scheme), kind) as made:
            for number in rounds(COUNT):
                victim = number % COUNT
                running.signal(victim, signal.SIGTERM)
                running.restart(victim)
                assert made.goes_on()
        made.check(running.begun())
    assert made.failures == []
    assert all(count == 1 for count in running.begun().values())


@KINDS
@SCHEMES
@pytest.mark.slow
def test_calls_avoid_a_server_that_is_frozen(tmp_path: Path, kind: str, scheme: str) -> None:
    """A process that is stopped keeps its connections, and answers nothing."""
    with servers(tmp_path, COUNT) as running:
        with load(running.uris(scheme), kind, callers=16) as made:
            for number in rounds(1):
                victim = number % COUNT
                running.signal(victim, signal.SIGSTOP)
                # A caller each waits for it, at most until a probe finds that it is silent.
                for _ in range(5):
                    assert made.goes_on()
                running.signal(victim, signal.SIGCONT)
                assert made.goes_on()
        assert made.wrong == made.failures == []
        assert all(count == 1 for count in running.begun().values())


@KINDS
def test_hedged_calls_do_not_wait_for_a_frozen_server(tmp_path: Path, kind: str) -> None:
    with servers(tmp_path, COUNT) as running, Client(running.uris("http://"), hedge=True) as client:
        idempotent = client.with_options(timeout=20)
        for number in range(200):
            assert idempotent.often(number).json == number + 1
        running.signal(0, signal.SIGSTOP)
        for number in range(200):
            assert idempotent.often(number).json == number + 1
        running.signal(0, signal.SIGCONT)


def test_a_restarted_server_gets_calls_again(tmp_path: Path) -> None:
    with servers(tmp_path, 2) as running, Client(running.uris("")) as client:
        running.signal(0, signal.SIGKILL)
        assert [client.often(number).json for number in range(50)] == list(range(1, 51))
        running.restart(0)

        def is_called() -> bool:
            client.often(1000)
            log = tmp_path / f"{running.ports[0]}.log"
            return "1000" in log.read_text().split()

        assert eventually(is_called)


def test_a_name_whose_addresses_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A headless service of Kubernetes is such a name."""
    import socket

    found = ["127.0.0.1"]
    real = socket.getaddrinfo

    def resolve(host: str, port: int, *rest: object, **options: object) -> list[object]:
        if host != "models.internal":
            return real(host, port, *rest, **options)  # type: ignore[arg-type,return-value]
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with servers(tmp_path, 1, allowed_hosts=["models.internal"]) as first:
        port = first.ports[0]
        server = ucall.Server("127.0.0.2", port, allowed_hosts=["models.internal"])
        server.add(lambda number: -number, "often")
        with server, Client(f"dns://models.internal:{port}") as client:
            assert client.often(1).json == 2
            found[:] = ["127.0.0.1", "127.0.0.2"]
            blocking.run(client._pool._servers.resolve())  # type: ignore[union-attr]
            assert eventually(lambda: client.often(1).json == -1)
            # The first server ends, and is not replaced: the name is resolved again.
            found[:] = ["127.0.0.2"]
            first.kill(0)
            assert [client.often(number).json for number in range(20)] == [-it for it in range(20)]
            members = client._pool._balancer.members  # type: ignore[union-attr]
            assert eventually(lambda: client.often(1).json == -1 and len(_members(client)) == 1)
            assert len(members) == 2


@KINDS
def test_a_name_with_addresses_of_both_kinds(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Records A and AAAA."""
    import asyncio
    import socket

    real = socket.getaddrinfo

    def resolve(host: str, port: int, *rest: object, **options: object) -> list[object]:
        if host != "models.internal":
            return real(host, port, *rest, **options)  # type: ignore[arg-type,return-value]
        kind = (socket.SOCK_STREAM, 6, "")
        return [
            (socket.AF_INET, *kind, ("127.0.0.1", port)),
            (socket.AF_INET6, *kind, ("::1", port, 0, 0)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    allowed = ["models.internal"]
    with ucall.Server(port=0, allowed_hosts=allowed) as one:
        one.add(lambda: 4, "version")
        with ucall.Server("::1", one.port, allowed_hosts=allowed) as other:
            other.add(lambda: 6, "version")
            uri = f"dns://models.internal:{one.port}"

            async def main() -> set[int]:
                async with aio.Client(uri) as client:
                    return {(await client.version()).json for _ in range(60)}

            if kind == "tasks":
                assert asyncio.run(main()) == {4, 6}
                return
            with Client(uri) as client:
                assert {client.version().json for _ in range(60)} == {4, 6}


def _members(client: Client) -> list[str]:
    return [it.name for it in client._pool._balancer.members]  # type: ignore[union-attr]


def test_all_servers_down(tmp_path: Path) -> None:
    with servers(tmp_path, 2) as running, Client(running.uris("")) as client:
        for number in range(2):
            running.signal(number, signal.SIGKILL)
        errors: list[ucall.ConnectionError] = []

        def cannot_connect() -> bool:
            with pytest.raises(ucall.ConnectionError) as caught:
                client.often(1)
            errors.append(caught.value)
            return not caught.value.may_have_run

        assert eventually(cannot_connect)
        assert str(errors[-1]).startswith(f"cannot connect to {HOST}:")
        running.restart(1)
        assert client.often(1).json == 2
