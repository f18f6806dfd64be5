"""A server under test: its address, memory and descriptors."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forking

from harness import Wire, eventually, http, request

#: A call to every server before and after each case, and its reply.
CALL = request("add", [40, 2])
REPLY = {"jsonrpc": "2.0", "id": 1, "result": 42}

#: Servers differ only by their options. Times are short, so that the tests are.
OPTIONS: dict[str, dict[str, Any]] = {
    "usual": {"arrays": True},
    "timed": {
        "head_timeout_s": 0.5,
        "body_timeout_s": 0.5,
        "idle_timeout_s": 0.5,
        "send_timeout_s": 0.5,
    },
    "agents": {"mcp": True},
    "models": {"inference": True, "arrays": True},
    "mounts": {"mount": True, "timeout_ms": 5000},
    "stuck": {"send_timeout_s": 0.5},
    "tight": {
        "max_body_bytes": 20_000_000,
        "max_connections": 20,
        "max_running_calls": 4,
        "max_reply_bytes": 4_000_000,
        "max_held_bytes": 10_000_000,
        "body_timeout_s": 3,
        "allow_origins": ["https://app.example"],
        "allowed_hosts": ["box.lan"],
    },
}


@dataclass
class Target:
    """A server in a process of its own."""

    engine: str
    transport: str
    kind: str
    process: subprocess.Popen[str]
    port: int = 0
    context: ssl.SSLContext | None = None

    @classmethod
    def start(
        cls, engine: str, kind: str, certificate: dict[str, str], context: ssl.SSLContext | None
    ) -> Target:
        """Starts a server; `certificate` has the options that turn TLS on."""
        options = json.dumps(OPTIONS[kind] | certificate)
        process = forking.Python(
            [sys.executable, "-u", "-m", "served", engine, options],
            cwd=Path(__file__).parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        return cls(engine, "TLS" if context else "plain", kind, process, context=context)

    def await_start(self) -> None:
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        # It announces its port before it has opened all its descriptors.
        self.state()

    def wire(self) -> Wire:
        return Wire(self.port, context=self.context)

    def answers(self) -> bool:
        """Whether the same process still serves over HTTP and raw TCP."""
        with self.wire() as wire:
            wire.send(http(CALL))
            is_answered = json.loads(wire.reply()[2]) == REPLY
        with self.wire() as wire:
            return is_answered and wire.call("add", [40, 2]) == REPLY and self.is_alive()

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def state(self) -> dict[str, int]:
        with self.wire() as wire:
            found: dict[str, int] = wire.result("state")
            return found

    def descriptors(self) -> int:
        """Open files, and connections, which io_uring keeps in a table of its own."""
        files = len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))
        # They include the connection of this call.
        connections = self.state()["connections"] - 1
        return files if self.engine == "posix" else files + connections

    def has_descriptors_back(self, before: int) -> bool:
        def are_back() -> bool:
            if self.descriptors() <= before:
                return True
            # Each count uses a connection, which must close before the next count.
            time.sleep(0.05)
            return False

        return eventually(are_back)

    def resident_kib(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        [kib] = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
        return int(kib)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
