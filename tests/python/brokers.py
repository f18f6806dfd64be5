"""Real nats-server processes on ports of their own, and what any client of NATS does with them."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import nats
from programs import require

from harness import HOST, eventually, free_port

T = TypeVar("T")


class NatsServer:
    """Runs during the block; can be killed and started again on its ports.

    Without nats-server the test is skipped.

    Args:
        arguments: More arguments of its command line.
        monitors: Whether it has a port for `routes`.
        address: Where it listens.
    """

    def __init__(self, *arguments: str, monitors: bool = False, address: str = HOST) -> None:
        self._address = address
        self._program = require("nats-server")
        self.port = free_port()
        self._monitoring_port = free_port() if monitors else None
        self._arguments = arguments
        if monitors:
            self._arguments += ("--http_port", str(self._monitoring_port))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    def uri(self, group: str = "models", scheme: str = "") -> str:
        """The URI of a client."""
        return f"nats{'+' if scheme else ''}{scheme}://{HOST}:{self.port}/{group}"

    def start(self) -> None:
        """Starts it, and waits until it listens."""
        command = [
            self._program,
            "--addr",
            self._address,
            "--port",
            str(self.port),
            *self._arguments,
        ]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE)
        assert self._process.stderr is not None
        lines = iter(self._process.stderr.readline, b"")
        log = []
        for line in lines:
            log.append(line)
            if b"Server is ready" in line:
                break
        else:
            raise AssertionError(b"".join(log).decode())

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def routes(self) -> int:
        """How many other nodes of its cluster it is connected with."""
        url = f"http://{HOST}:{self._monitoring_port}/routez"
        with urllib.request.urlopen(url, timeout=60) as reply:
            found = json.load(reply)["routes"] or []
        return len({route["remote_id"] for route in found})

    def __enter__(self) -> NatsServer:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.kill()


@contextmanager
def cluster(
    count: int = 3, address: str = HOST, store: Path | None = None
) -> Iterator[list[NatsServer]]:
    """A cluster, whose nodes may be killed and started again; with a folder to store JetStream's
    messages in."""
    ports = [free_port() for _ in range(count)]
    urls = [f"nats://{HOST}:{port}" for port in ports]
    options = "--cluster_name", "test", "--routes", ",".join(urls)
    stores = [jetstream(store / f"node{number}") if store else [] for number in range(count)]
    nodes = [
        NatsServer("--cluster", url, *options, *stored, monitors=True, address=address)
        for url, stored in zip(urls, stores, strict=True)
    ]
    try:
        for node in nodes:
            node.start()
        for node in nodes:
            assert eventually(lambda node=node: node.routes() == count - 1)  # type: ignore[misc]
        yield nodes
    finally:
        for node in nodes:
            node.kill()


def version() -> tuple[int, ...]:
    """That of nats-server, as (2, 10, 27)."""
    command = [require("nats-server"), "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return tuple(map(int, printed.strip().rpartition("v")[2].split(".")))


def jetstream(folder: Path) -> list[str]:
    """Arguments of a node that stores messages in a folder."""
    return ["--jetstream", "--store_dir", str(folder), "--name", folder.name]


def connected(url: str, work: Callable[[Any], Awaitable[T]], **options: Any) -> T:
    """What a coroutine returns that gets a connection of nats-py."""

    async def main() -> T:
        connection = await nats.connect(url, **options)
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(main())


def request(
    broker: NatsServer,
    subject: str,
    payload: bytes = b"",
    headers: dict[str, str] | None = None,
    **options: Any,
) -> Any:
    """The reply to a request of a client that knows nothing of ucall."""
    return connected(
        broker.url,
        lambda it: it.request(subject, payload, timeout=60, headers=headers),
        **options,
    )


def instances(
    broker: NatsServer, group: str = "models", count: int = 0, **options: Any
) -> list[dict[str, Any]]:
    """The servers of a group, by ``$SRV.INFO``; it waits less for more than `count` of them."""

    async def ask(connection: Any) -> list[dict[str, Any]]:
        inbox = connection.new_inbox()
        subscription = await connection.subscribe(inbox)
        await connection.publish(f"$SRV.INFO.{group}", reply=inbox)
        found: list[dict[str, Any]] = []
        try:
            while True:
                is_last = 0 < count <= len(found)
                message = await subscription.next_msg(timeout=0.05 if is_last else 0.3)
                if message.data:
                    found.append(json.loads(message.data))
        except TimeoutError:
            return found

    return connected(broker.url, ask, **options)


def registered(broker: NatsServer, count: int = 1, group: str = "models", **options: Any) -> bool:
    """Waits until as many servers are registered."""
    return eventually(lambda: len(instances(broker, group, count, **options)) == count)


def key_file(folder: Path) -> tuple[str, Path]:
    """The public key of a user, and the file with its seed."""
    import nkeys

    pair, seed = _key_pair(nkeys.PREFIX_BYTE_USER)
    path = folder / "user.nk"
    path.write_bytes(seed)
    return pair.public_key.decode(), path


def credentials_file(folder: Path) -> tuple[str, Path]:
    """The configuration of a broker that trusts an operator, and the credentials of a user whom an
    account of that operator has signed."""
    import nkeys

    operator, _ = _key_pair(nkeys.PREFIX_BYTE_OPERATOR)
    account, _ = _key_pair(nkeys.PREFIX_BYTE_ACCOUNT)
    user, seed = _key_pair(nkeys.PREFIX_BYTE_USER)
    unlimited = dict.fromkeys(("subs", "data", "payload"), -1)
    places = dict.fromkeys(("conn", "leaf", "imports", "exports"), -1) | {"wildcards": True}
    tokens = [
        _signed_token(operator, operator, {"type": "operator", "version": 2}),
        _signed_token(
            account, operator, {"type": "account", "version": 2, "limits": unlimited | places}
        ),
        _signed_token(user, account, {"type": "user", "version": 2, **unlimited}),
    ]
    path = folder / "user.creds"
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\n{tokens[2]}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed.decode()}\n------END USER NKEY SEED------\n"
    )
    public = account.public_key.decode()
    configuration = (
        f"operator: {tokens[0]}\nresolver: MEMORY\nresolver_preload: {{ {public}: {tokens[1]} }}\n"
    )
    return configuration, path


def _key_pair(prefix: int) -> tuple[Any, bytes]:
    import nkeys

    seed = bytes(nkeys.encode_seed(bytes(range(prefix % 32, prefix % 32 + 32)), prefix))
    return nkeys.from_seed(bytearray(seed)), seed


def _signed_token(subject: Any, issuer: Any, claims: dict[str, Any]) -> str:
    """A JWT of NATS."""
    header = {"typ": "JWT", "alg": "ed25519-nkey"}
    body = {
        "jti": "test",
        "iat": 0,
        "iss": issuer.public_key.decode(),
        "name": "test",
        "sub": subject.public_key.decode(),
        "nats": claims,
    }
    text = ".".join(_base64(json.dumps(part).encode()) for part in (header, body))
    return f"{text}.{_base64(issuer.sign(text.encode()))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
