"""``python -m ucall module:server --mcp-stdio``: the protocol on standard input and output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import forking
import pytest
from serving import Serve

from harness import Wire, eventually, request
from ucall._command.settings import Settings

SUM = """
@server
def sum(a: int, b: int) -> int:
    return a + b
"""
APP = (
    """
import asyncio, os, resource, socket, subprocess, sys, threading, time
import ucall
from ucall import Limits, Timeouts, TLS, UDP

print("module prints")
os.write(1, b"C prints\\n")
server = ucall.Server(
    limits=Limits(max_body_bytes=1_000_000),
    timeouts=Timeouts(
        drain_timeout_s=float(os.environ["DRAIN_S"]), idle_timeout_s=0.01, shutdown_delay_s=600
    ),
    **{"tls": TLS(certfile="absent.pem")} if "--engine" in sys.argv else {"udp": UDP()},
)

@server
def prints() -> str:
    print("function prints")
    os.system("echo child prints")
    return sys.stdin.read()

@server
def repeat(count: int) -> str:
    return "x" * count

@server
async def sleep(seconds: float) -> str:
    print("sleeps", file=sys.stderr, flush=True)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        print("cancelled", file=sys.stderr, flush=True)
        raise
    return "slept"

@server
def block() -> None:
    print("blocks", file=sys.stderr, flush=True)
    while True:
        time.sleep(0.01)

@server
def peak_kib() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // 1024 if sys.platform == "darwin" else peak

@server
def internet_sockets() -> int:
    count = 0
    for name in os.listdir("/dev/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as it:
                count += it.family in (socket.AF_INET, socket.AF_INET6)
        except OSError:
            pass
    return count

@server
def children() -> list[int]:
    forked = os.fork()
    if not forked:
        time.sleep(1000)
        os._exit(0)
    return [forked, subprocess.Popen(["sleep", "1000"]).pid]

def report_idle():
    start = server.stats()["turns"]
    while server.stats()["turns"] < start + 3:
        time.sleep(0.01)
    print("idle", file=sys.stderr, flush=True)

@server
def watch_idle() -> None:
    threading.Thread(target=report_idle, daemon=True).start()
"""
    + SUM
)


class Host:
    """A program that runs a server and speaks with it."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        assert process.stdin and process.stdout
        self.process, self._log = process, log
        self.to: IO[bytes] = process.stdin
        self.replies: IO[bytes] = process.stdout

    def send(self, id: int, method: str, *params: Any) -> None:
        request = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        self.to.write(json.dumps(request).encode() + b"\n")
        self.to.flush()

    def reply(self) -> dict[str, Any]:
        line = self.replies.readline()
        assert line.endswith(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def result(self, method: str, *params: Any) -> Any:
        self.send(7, method, *params)
        return self.reply()["result"]

    def log(self) -> str:
        """What the program has written to standard error."""
        return self._log.read_text()

    def waits_for(self, text: str) -> bool:
        return eventually(lambda: text in self.log())

    def end(self) -> tuple[bytes, int]:
        """What the program has still written, and its status."""
        with self.replies:
            return self.replies.read(), self.process.wait(60)


@contextmanager
def serving(folder: Path, *arguments: str, drain_s: float = 600) -> Iterator[Host]:
    (folder / "app.py").write_text(APP)
    log = folder / "log"
    with log.open("wb") as errors:
        process = forking.Python(
            [sys.executable, "-m", "ucall", "app:server", "--mcp-stdio", *arguments],
            cwd=folder,
            env=os.environ | {"DRAIN_S": str(drain_s)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    try:
        yield Host(process, log)
    finally:
        process.kill()
        for stream in (process.stdin, process.stdout):
            stream.close()
        process.wait(60)


def test_only_replies_are_written_to_standard_output(tmp_path: Path, engine: str) -> None:
    with serving(tmp_path, "--engine", engine) as host:
        host.send(1, "prints")
        assert host.reply() == {"jsonrpc": "2.0", "id": 1, "result": ""}
        host.to.write(b"no JSON\n\n")
        host.send(2, "sum", 1, 2)
        replies = [host.reply(), host.reply()]
        refusal = min(replies, key=lambda it: "id" in it)
        assert refusal["error"]["code"] == -32700 and "id" not in refusal
        assert {"jsonrpc": "2.0", "id": 2, "result": 3} in replies
        assert host.result("internet_sockets") == 0
        host.send(3, "sleep", 0.05)
        host.to.write(b'{"jsonrpc":"2.0","id":4,"method":"sum","params":[3,4]}')
        host.to.close()
        output, status = host.end()
        assert sorted(json.loads(line)["result"] for line in output.splitlines()[1:]) == ["slept"]
        assert json.loads(output.splitlines()[0])["result"] == 7 and status == 0
        for line in ("module prints", "C prints", "function prints", "child prints"):
            assert f"{line}\n" in host.log()


def mcp(method: str, id: int, **params: Any) -> bytes:
    meta = {"io.modelcontextprotocol/protocolVersion": NEWEST}
    meta["io.modelcontextprotocol/clientCapabilities"] = {}
    return request(method, {"_meta": meta, **params}, id)


NEWEST = "2026-07-28"
OLDER = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test"}}
#: Messages of both eras.
MESSAGES = [
    request("initialize", OLDER, 1),
    request("notifications/initialized", None, ...),
    request("tools/list", None, 2),
    request("tools/call", {"name": "sum", "arguments": {"a": 1, "b": 2}}, 3),
    mcp("tools/list", 4),
    mcp("tools/call", 5, name="sum", arguments={"a": 1}),
    mcp("tools/call", 6, name="nowhere"),
    mcp("nothing", 7),
]


def test_mcp_is_the_same_on_standard_input_tcp_and_unix_sockets(
    tmp_path: Path, serve: Serve
) -> None:
    def sum(a: int, b: int) -> int:
        return a + b

    (tmp_path / "small.py").write_text(f"import ucall\nserver = ucall.Server()\n{SUM}")
    tcp = serve(sum, mcp=True)
    unix = serve(sum, mcp=True, uds=tmp_path / "socket")
    replies = []
    for address in (tcp.port, unix.host.removeprefix("unix:")):
        with Wire(address) as wire:
            wire.send(b"\n".join(MESSAGES))
            replies.append([json.loads(wire.line()) for _ in range(7)])
    command = [sys.executable, "-m", "ucall", "small:server", "--mcp-stdio"]
    done = forking.run(command, cwd=tmp_path, input=b"\n".join(MESSAGES))
    replies.append([json.loads(line) for line in done.stdout.splitlines()])
    assert replies[0] == replies[1] == replies[2]
    [initialized, listed, called, newest, refused, unknown, _] = replies[0]
    assert initialized["result"]["protocolVersion"] == "2025-11-25"
    assert [tool["name"] for tool in listed["result"]["tools"]] == ["sum"]
    assert called["result"]["structuredContent"] == {"result": 3}
    assert newest["result"]["resultType"] == "complete"
    assert refused["result"]["isError"] and unknown["error"]["code"] == -32602


def test_a_host_cancels_a_call(tmp_path: Path) -> None:
    with serving(tmp_path) as host:
        call = {"name": "sleep", "arguments": {"seconds": 1000}}
        host.to.write(request("tools/call", call, 1) + b"\n")
        host.to.flush()
        assert host.waits_for("sleeps\n")
        host.to.write(request("notifications/cancelled", {"requestId": 1}, ...) + b"\n")
        assert host.result("sum", 1, 2) == 3
        assert host.waits_for("cancelled\n")


def test_the_end_of_input_ends_a_program_that_was_asked_for_nothing(tmp_path: Path) -> None:
    with serving(tmp_path) as host:
        host.to.close()
        assert host.end() == (b"", 0)


def test_a_host_that_listens_does_not_delay_the_end(tmp_path: Path) -> None:
    with serving(tmp_path) as host:
        host.to.write(mcp("subscriptions/listen", 1, notifications={"toolsListChanged": True}))
        host.to.write(b"\n{}")
        host.to.close()
        output, status = host.end()
        replies = [json.loads(line) for line in output.splitlines()]
        [acknowledged] = [it["method"] for it in replies if "method" in it]
        [refused] = [it for it in replies if "error" in it]
        [ended] = [it["id"] for it in replies if "result" in it]
        assert acknowledged == "notifications/subscriptions/acknowledged"
        assert refused["error"]["code"] == -32600 and "id" not in refused
        assert ended == 1 and status == 0


def test_a_long_line_costs_no_memory_and_the_next_is_answered(tmp_path: Path) -> None:
    with serving(tmp_path) as host:
        before = host.result("peak_kib")
        for _ in range(100):
            host.to.write(b"[" * 1_000_000)
        host.to.write(b"\n")
        refused = host.reply()["error"]
        assert refused["code"] == -32600 and "max_body_bytes" in refused["data"]
        assert host.result("peak_kib") < before + 20_000
        assert len(host.result("repeat", 1_000_000)) == 1_000_000


def test_errors_do_not_interrupt_a_long_reply(tmp_path: Path) -> None:
    with serving(tmp_path) as host:
        host.send(1, "repeat", 3_000_000)
        begin = host.replies.read(1)
        host.to.write(b"no JSON\n" * 100)
        host.to.close()
        output, status = host.end()
        replies = [json.loads(line) for line in (begin + output).splitlines()]
        assert sum("result" in reply for reply in replies) == 1
        assert len(replies) == 101 and status == 0


def test_an_idle_connection_stays_open(tmp_path: Path) -> None:
    with serving(tmp_path) as host:
        host.result("watch_idle")
        assert host.waits_for("idle\n")
        assert host.result("internet_sockets") == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_calls_finish(tmp_path: Path, number: int) -> None:
    with serving(tmp_path) as host:
        host.send(1, "sleep", 0.2)
        assert host.waits_for("sleeps\n")
        host.process.send_signal(number)
        output, status = host.end()
        assert json.loads(output) == {"jsonrpc": "2.0", "id": 1, "result": "slept"}
        assert status == 0


def test_a_second_signal_ends_a_function_that_blocks(tmp_path: Path) -> None:
    with serving(tmp_path) as host:
        host.send(1, "block")
        assert host.waits_for("blocks\n")
        # One signal twice may arrive once.
        host.process.send_signal(signal.SIGTERM)
        host.process.send_signal(signal.SIGINT)
        assert host.end()[1] == 0


@pytest.mark.parametrize(("method", "params"), [("block", []), ("sleep", [1000])])
def test_calls_that_do_not_finish_are_ended(tmp_path: Path, method: str, params: list[int]) -> None:
    with serving(tmp_path, drain_s=0.3) as host:
        host.send(1, method, *params)
        host.to.close()
        output, status = host.end()
        assert status == 0
        assert b'"code":-32007' in output


def test_calls_are_cancelled_if_nobody_reads_replies(tmp_path: Path) -> None:
    with serving(tmp_path) as host:
        host.send(1, "sleep", 1000)
        assert host.waits_for("sleeps\n")
        host.replies.close()
        host.send(2, "sum", 1, 2)
        assert host.process.wait(60) == 1
        assert "cancelled\n" in host.log()
        assert "ERROR ucall: standard output: Broken pipe\n" in host.log()


def test_child_processes_do_not_keep_the_output_open(tmp_path: Path) -> None:
    with serving(tmp_path) as host:
        children = host.result("children")
        try:
            host.to.close()
            assert host.end() == (b"", 0)
            for child in children:
                os.kill(child, 0)
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("closed", [0, 1])
def test_a_closed_descriptor_is_reported(tmp_path: Path, closed: int) -> None:
    (tmp_path / "app.py").write_text(APP)
    command = [sys.executable, "-m", "ucall", "app:server", "--mcp-stdio"]
    script = f"import os, sys; os.close({closed}); os.execv(sys.executable, sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-S", "-c", script, *command], cwd=tmp_path, capture_output=True
    )
    name = b"standard output" if closed else b"standard input"
    assert done.returncode == 1
    assert b"--mcp-stdio: " + name + b" is closed; a host has to open both\n" in done.stderr


def test_keys_in_headers_are_refused_at_the_start(tmp_path: Path) -> None:
    made = "ucall.Server(auth=ucall.auth.bearer(['secret']))"
    (tmp_path / "keys.py").write_text(f"import ucall, ucall.auth\nserver = {made}\n")
    command = [sys.executable, "-m", "ucall", "keys:server", "--mcp-stdio"]
    done = forking.run(command, cwd=tmp_path)
    assert done.returncode == 1 and done.stdout == b""
    assert b"auth: keys and tokens come in headers, which standard input has not" in done.stderr


@pytest.mark.parametrize(
    "flags", [["--port", "0"], ["--workers", "2"], ["--reload"], ["--ssl-certfile", "a.pem"]]
)
def test_flags_without_an_effect_are_refused(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        Settings.read(["app:server", "--mcp-stdio", *flags])
    assert refused.value.code == 2
    assert f"{flags[0]} (or UCALL_" in capsys.readouterr().err
    assert Settings.read(["app:server", "--mcp-stdio", "--threads", "2"]).mcp_stdio
