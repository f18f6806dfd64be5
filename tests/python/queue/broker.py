"""Real brokers on ports of their own: mosquitto for MQTT, nats-server for NATS."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from brokers import NatsServer
from programs import require

from harness import free_port

START_S = 60


class Broker(Protocol):
    """A broker that can be killed and started again on its port."""

    port: int

    def start(self) -> None: ...

    def kill(self) -> None: ...

    def __enter__(self) -> Broker: ...

    def __exit__(self, *raised: object) -> None: ...


class Mosquitto:
    """Runs during the block; can be killed and started again on its port.

    Without mosquitto the test is skipped.

    Args:
        lines: More lines for its configuration.
    """

    def __init__(self, *lines: str) -> None:
        self._program = require("mosquitto")
        self.port = free_port()
        self._folder = tempfile.TemporaryDirectory()
        self._configuration = Path(self._folder.name, "mosquitto.conf")
        anonymous = (
            [] if any("password_file" in line for line in lines) else ["allow_anonymous true"]
        )
        everything = [f"listener {self.port} 127.0.0.1", "user root", *anonymous, *lines]
        self._configuration.write_text("\n".join(everything) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the broker, and waits until it listens."""
        command = [self._program, "-c", str(self._configuration)]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        give_up_at = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except ConnectionRefusedError:
                assert self._process.poll() is None, "mosquitto ended at once"
                assert time.monotonic() < give_up_at, "mosquitto does not listen"
                time.sleep(0.01)

    def kill(self) -> None:
        """Kills the broker, which then sends nothing to its clients."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        self._folder.cleanup()


#: The brokers of the protocols that have one.
BROKERS: dict[str, Callable[[], Broker]] = {"mqtt": Mosquitto, "nats": NatsServer}
#: The broker of a protocol, for all tests that do not kill it.
SharedBroker = Callable[[str], Broker]


def tls_broker(protocol: str, key: object, certificate: object) -> Broker:
    """A broker with this certificate."""
    if protocol == "nats":
        return NatsServer("--tls", "--tlscert", str(certificate), "--tlskey", str(key))
    return Mosquitto(f"keyfile {key}", f"certfile {certificate}")
