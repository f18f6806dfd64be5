"""What the section `models` compares: servers of a model, and the calls that load them."""

import base64
import contextlib
import http.client
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import ROOT
from bench.harness import arrays, models, processes, request
from bench.harness.ideal import Times
from bench.suite.servers import PEERS

BARE, THREADS, BEFORE = "bare loop", "ucall, threads", "before: ucall, threads"
INLINE, PROCESSES = "ucall, inline", "ucall, a process"
#: Of a model, with PyTorch and with the first run of each size of a batch.
LOAD_SECONDS_MAX = 180
#: The callers of one load have different items.
ITEMS = 8


@dataclass(frozen=True)
class Contender:
    """A server. `how` is a word of bench/servers/models.py, or the name of another project's
    server. `form` is that of its calls."""

    label: str
    how: str
    form: str = "bytes"
    has_open_loop: bool = True

    @property
    def is_ours(self) -> bool:
        return self.form in ("bytes", "arrays")


@dataclass(frozen=True)
class Field:
    """What runs the servers of one model."""

    name: str
    device: str
    engine: str
    before: Path | None
    peers: Path

    @property
    def is_exact(self) -> bool:
        """Whether a result is the same in each batch."""
        return self.name in models.TIMED

    def contenders(self, with_peers: bool) -> list[Contender]:
        found = [
            Contender(THREADS, "threads"),
            Contender(INLINE, "inline"),
            Contender(PROCESSES, "1"),
        ]
        if self.name not in ("compute", "launcher"):
            found.append(Contender("ucall, threads, arrays", "threads", "arrays", False))
        if not self.is_exact:
            found.append(Contender("ucall, two processes", "2"))
        if self.before:
            found.append(Contender(BEFORE, "threads"))
        if with_peers and self.peers.exists():
            found += [
                Contender("mosec", "mosec", "item", False),
                Contender("FastAPI, a batcher by hand", "fastapi", "item", False),
                Contender("LitServe", "litserve", "item", False),
                Contender("BentoML", "bentoml", "items", False),
            ]
        return found

    @contextlib.contextmanager
    def running(self, contender: Contender) -> Iterator[processes.Server]:
        log, how = f"models-{contender.how}", contender.how
        if contender.is_ours:
            python = self.before if contender.label == BEFORE else sys.executable
            words = ["-m", "bench.servers.models", self.name, self.device, how, self.engine]
            with processes.serving([python, *words], log, processes.MANY_CORES) as server:
                yield server
            return
        port = processes.free_port()
        words = ["-m", "model_servers", how, self.name, self.device, port]
        folders = {"PYTHONPATH": f"{PEERS / 'python'}:{ROOT}"}
        many, seconds = processes.MANY_CORES, LOAD_SECONDS_MAX
        with processes.serving_on(
            [self.peers, *words], port, log, folders, seconds, many
        ) as server:
            yield server

    def requests(self, contender: Contender, port: int) -> list[bytes]:
        """A request for each item, whose reply has been checked."""
        found = []
        for item in models.items(self.name, ITEMS):
            sent = message(contender.form, arrays.npy(item), item.tobytes())
            self.check(port, sent, item.tobytes() * 3, contender.form == "arrays")
            found.append(sent)
        return found

    def check(self, port: int, sent: bytes, result: bytes, is_raw: bool) -> None:
        status, content = request.exchange(port, sent, LOAD_SECONDS_MAX)
        within = (result if is_raw else base64.b64encode(result)) if self.is_exact else b""
        if status != http.client.OK or within not in content or b'"error"' in content:
            raise processes.LoadError(f"not the expected reply: {content[:200]!r}")

    @contextlib.contextmanager
    def bare(self) -> Iterator[Callable[[float], Times]]:
        """A loop without a server, which runs for some seconds each time that it is called."""
        command = [sys.executable, "-m", "bench.harness.models", self.name, self.device]
        how = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = processes.start_pinned(command, processes.MANY_CORES, **how)

        def run(seconds: float) -> Times:
            process.stdin.write(f"{seconds}\n")
            process.stdin.flush()
            found = json.loads(process.stdout.readline())
            return Times({int(size): took for size, took in found.items()})

        try:
            yield run
        finally:
            process.kill()
            process.communicate()


def message(form: str, npy: bytes, content: bytes) -> bytes:
    """A call with an item. Other projects get it as base64 in JSON."""
    text = base64.b64encode(content).decode()
    if form == "arrays":
        return arrays.in_parts("predict_arrays", npy).sent
    if form == "bytes":
        return request.post(request.call("predict", text))
    body = {"item": text} if form == "item" else {"items": [text]}
    return request.post(json.dumps(body).encode(), path="/predict")
