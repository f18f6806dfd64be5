"""``python -m ucall relay config.toml``: a gateway without functions."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import forking
import pytest
from certificates import Authority, Files, authority, files
from scripted import Peer, Scripted, answering, http_reply, result, scripted

from harness import Wire, eventually, http, request
from ucall._command.application import StartupError
from ucall._command.gateway import Configuration, build
from ucall.client import Client

__all__ = ["authority", "files"]

RELAY = "[[relay]]\nmethods = 'a'\nto = 'tcp://127.0.0.1:1'\n"


class Gateway:
    """A gateway whose configuration may change."""

    def __init__(self, folder: Path, config: str, *arguments: str) -> None:
        self.config = folder / "config.toml"
        self.config.write_text(config)
        self.process = forking.Python(
            [sys.executable, "-m", "ucall", "relay", str(self.config), *arguments],
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: list[str] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.append(line)

    def log(self) -> str:
        return "".join(list(self._lines))

    def wait_for(self, pattern: str, count: int = 1) -> re.Match[str]:
        found: list[re.Match[str]] = []

        def has_lines() -> bool:
            found[:] = re.finditer(pattern, self.log())
            return len(found) >= count

        assert eventually(has_lines), self.log()
        return found[-1]

    @property
    def port(self) -> int:
        return int(self.wait_for(r"listening on \S+?:(\d+)")[1])

    def reload(self, config: str) -> None:
        self.config.write_text(config)
        self.process.send_signal(signal.SIGHUP)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture
def upstream() -> Iterator[Scripted]:
    with scripted(answering()) as upstream:
        yield upstream


def relay_to(upstream: Scripted, methods: str = "up.*", server: str = "") -> str:
    return (
        f"[server]\nport = 0\n{server}\n"
        f"[[relay]]\nmethods = {methods!r}\nto = 'http://127.0.0.1:{upstream.port}'\n"
    )


def test_a_gateway_relays_as_its_file_says(
    tmp_path: Path, upstream: Scripted, authority: Authority, files: Files
) -> None:
    options = (
        f"tls.certfile = {str(files.certificate)!r}\ntls.keyfile = {str(files.key)!r}\n"
        "observability.metrics = true\nlimits.max_body_bytes = 1000\n\n"
        "[auth]\nbearer = {secret = 'alice'}\n"
    )
    gateway = Gateway(tmp_path, relay_to(upstream, server=options), "--workers", "2")
    try:
        gateway.wait_for("is ready", 2)
        url = f"https://localhost:{gateway.port}"
        client = Client(url, headers={"Authorization": "Bearer secret"}, verify=authority.path)
        assert client.call("up.f", 1, 2).json == [1, 2]
        with pytest.raises(Exception, match="413"):
            _ = client.call("up.f", "x" * 2000).json
        with pytest.raises(Exception, match="401"):
            _ = Client(url, verify=authority.path).call("up.f").json
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(60) == 0
    finally:
        gateway.close()


def has_only(port: int, served: str, removed: str) -> bool:
    """Whether a new connection is served by the new configuration."""
    with Wire(port) as wire:
        if "error" in wire.call(served):
            return False
        assert wire.result(served, [1]) == [1]
        return bool(wire.error(removed)["code"] == -32601)


def test_a_reload_changes_the_upstreams_and_loses_no_call(
    tmp_path: Path, upstream: Scripted
) -> None:
    has_call, go = threading.Event(), threading.Event()

    def slow(peer: Peer) -> None:
        call = json.loads(peer.http_request())
        has_call.set()
        assert go.wait(60)
        peer.send(http_reply(result("old", call["id"])))

    with scripted(slow) as old:
        gateway = Gateway(tmp_path, relay_to(old))
        try:
            gateway.wait_for("is ready")
            wire = Wire(gateway.port)
            wire.send(http(request("up.f")))
            assert has_call.wait(60)
            gateway.reload(relay_to(upstream, "new.*"))
            gateway.wait_for("is ready", 2)
            # Until its listening socket is closed, the old worker accepts connections, too.
            assert eventually(lambda: has_only(gateway.port, "new.f", "up.f"))
            go.set()
            assert json.loads(wire.reply()[2])["result"] == "old"
            wire.socket.close()
        finally:
            gateway.close()


def test_a_file_may_be_long(tmp_path: Path, upstream: Scripted) -> None:
    keys = ", ".join(f"'{number:032}'" for number in range(5000))
    auth = f"[auth]\nbearer = [{keys}]\n"
    gateway = Gateway(tmp_path, relay_to(upstream, server=auth))
    try:
        client = Client(f"http://127.0.0.1:{gateway.port}", headers=bearer(4999))
        assert client.call("up.f", 1).json == [1]
        gateway.reload(relay_to(upstream, server=auth.replace(f"{4998:032}", f"{5000:032}")))
        gateway.wait_for("is ready", 2)
        client = Client(f"http://127.0.0.1:{gateway.port}", headers=bearer(5000))
        # Until its listening socket is closed, the old worker accepts connections, too.
        assert eventually(lambda: is_served(client))
    finally:
        gateway.close()


def bearer(number: int) -> dict[str, str]:
    return {"Authorization": f"Bearer {number:032}"}


def is_served(client: Client) -> bool:
    with suppress(Exception):
        return bool(client.call("up.f", 1).json == [1])
    return False


def test_a_reload_with_a_wrong_file_keeps_the_old_one(tmp_path: Path, upstream: Scripted) -> None:
    gateway = Gateway(tmp_path, relay_to(upstream))
    try:
        pid = int(gateway.wait_for(r"worker 1 \(pid (\d+)\) is ready")[1])
        gateway.reload(relay_to(upstream).replace("http:", "htp:"))
        gateway.wait_for(r"config\.toml: relay\[0\]\.to: expected an upstream .*the workers keep")
        gateway.reload(relay_to(upstream, server="host = '127.0.0.2'"))
        gateway.wait_for(r"server\.host: a change needs a restart; the workers keep")
        # A worker that is restarted has the old configuration, too.
        os.kill(pid, signal.SIGKILL)
        gateway.wait_for("is ready", 2)
        with Wire(gateway.port) as wire:
            assert wire.result("up.f", [1]) == [1]
    finally:
        gateway.close()


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("host", "'127.0.0.1'", "'127.0.0.2'"),
        ("port", "1234", "1235"),
        ("uds", "'a.sock'", "'b.sock'"),
        ("uds_mode", "0o600", "0o660"),
    ],
)
def test_what_sockets_depend_on_changes_with_a_restart(
    tmp_path: Path, name: str, before: str, after: str
) -> None:
    path = tmp_path / "config.toml"
    configuration = Configuration(str(path))
    uds = "uds = 'a.sock'\n" if name == "uds_mode" else ""

    def write(value: str, more: str = "") -> None:
        path.write_text(f"[server]\n{uds}{name} = {value}\n{more}{RELAY}")

    write(before)
    configuration.load()
    write(before, "limits.max_body_bytes = 1000\n")
    configuration.load()
    write(after)
    with pytest.raises(StartupError, match=rf"server\.{name}: a change needs a restart"):
        configuration.load()
    path.write_text(RELAY)
    with pytest.raises(StartupError, match="a change needs a restart"):
        configuration.load()


def test_metrics_have_the_upstreams(tmp_path: Path, upstream: Scripted) -> None:
    gateway = Gateway(tmp_path, relay_to(upstream, server="observability.metrics = true"))
    try:
        gateway.wait_for("is ready")
        text = urlopen(f"http://127.0.0.1:{gateway.port}/metrics").read().decode()
        label = f'upstream="http://127.0.0.1:{upstream.port}"'
        assert f'ucall_upstream_circuits{{{label},state="closed"}} 1' in text.splitlines()
    finally:
        gateway.close()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("x", "c: "),
        ("", "relay: expected at least one table [[relay]]"),
        ("[relay]", "relay: expected at least one table [[relay]]"),
        ("[serve]\n", "serve: no such key; expected server"),
        ("server = 1\n" + RELAY, "server: expected a table, got 1"),
        ("[server]\nprot = 1\n" + RELAY, "server.prot: no such key; expected port"),
        ("[server]\nport = '1'\n" + RELAY, "server.port: expected a whole number, got '1'"),
        ("[server]\nport = true\n" + RELAY, "server.port: expected a whole number, got True"),
        ("[server]\nport = 70000\n" + RELAY, "server.port: expected"),
        (
            "[server]\nobservability.metrics = 1\n" + RELAY,
            "server.observability.metrics: expected true or false, got 1",
        ),
        (
            "[server]\nmax_headers = 1\n" + RELAY,
            "server.max_headers: no such key; expected server.limits.max_headers",
        ),
        (
            "[server.limits]\nmax_header = 1\n" + RELAY,
            "server.limits.max_header: no such key; expected max_headers",
        ),
        (
            "[server.limits]\nmax_headers = 0\n" + RELAY,
            "server.limits.max_headers: expected an int",
        ),
        ("[server]\nlimits = 1\n" + RELAY, "server.limits: expected a table, got 1"),
        ("[server.udp]\nport = 70000\n" + RELAY, "server.udp.port: expected 0 to 65535"),
        ("[server]\nauth = 'x'\n" + RELAY, "server.auth: no such key"),
        (RELAY + "return = 1", "relay[0].return: no such key"),
        ("[server]\nallowed_hosts = 'x'\n" + RELAY, "server.allowed_hosts: expected a list of"),
        ("[server.tls]\nkeyfile = 'x'\n" + RELAY, "server.tls.certfile: expected it"),
        ("[server.tls]\ncertfile = 'no.pem'\n" + RELAY, "[Errno 2] No such file or directory"),
        ("[auth]\n" + RELAY, "auth: expected either bearer or api_key"),
        ("[auth]\nbearer = 'x'\n" + RELAY, "auth.bearer: expected a list of keys"),
        ("[auth]\nbearer = []\n" + RELAY, "auth.bearer: expected at least one key"),
        ("[auth]\nbearer = ['x']\nheader = 'A'\n" + RELAY, "auth.header: expected the name"),
        ("[[relay]]\nto = 'tcp://127.0.0.1:1'\n", "relay[0].methods: expected it"),
        (RELAY + "to_ = 1", "relay[0].to_: no such key; expected to"),
        (RELAY + "[[relay]]\nmethods = 'b'\nto = 'x'", "relay[1].to: expected an upstream such"),
        (RELAY + "timeout_ms = '1'", "relay[0].timeout_ms: expected a number, got '1'"),
        (RELAY + "timeout_ms = 0", "relay[0].timeout_ms: expected"),
        (RELAY + "headers = {A = 1}", "relay[0].headers: expected a table of strings"),
        (RELAY + "headers = {A = '1'}", "relay[0].headers: expected an upstream over HTTP"),
    ],
)
def test_a_wrong_file_is_refused_by_its_key(config: str, message: str) -> None:
    with pytest.raises(StartupError, match="^c: " + re.escape(message.removeprefix("c: "))):
        build(config, "c")


def test_the_documented_file_is_valid() -> None:
    page = Path(__file__).parents[2] / "docs/relay.md"
    found = re.search(r"^```toml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    assert build(found[1], "relay.md").port == 8545


def test_a_gateway_without_its_file_does_not_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ucall", "relay", str(tmp_path / "none.toml")]
    ended = forking.run(command, text=True)
    assert ended.returncode == 1 and "none.toml" in ended.stderr and "Traceback" not in ended.stderr
