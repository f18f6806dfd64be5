"""`ucall.js` in Node, with a server that the tests control and with ucall's."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path

from applications import PID
from node import MODULE, TOKEN, RunNode, Serve, package

import ucall.auth

#: Of the module without comments. Minified it is smaller.
BYTES_MAX = 6 * 1024


def test_the_client(run_node: RunNode) -> None:
    run_node("--test", "client.test.mjs")


def test_with_the_server(run_node: RunNode, serve: Serve) -> None:
    package("eventsource-parser")
    port = serve().port
    secure_port = serve(auth=ucall.auth.bearer({TOKEN: "alice"})).port
    run_node("--test", "server.test.mjs", PORT=port, SECURE_PORT=secure_port, TOKEN=TOKEN)


def test_with_a_worker_that_is_replaced(run_node: RunNode, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PID)
    command = [sys.executable, "-m", "ucall", "app:server", "--workers", "1"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stderr
        log = iter(supervisor.stderr.readline, "")
        port = next(it[1] for it in (re.search(r"listening on .*:(\d+)", it) for it in log) if it)
        try:
            run_node("--test", "restart.test.mjs", PORT=port, SUPERVISOR=supervisor.pid)
        finally:
            supervisor.kill()


def test_the_module_is_small() -> None:
    text = re.sub(
        r"/\*\*.*?\*/|^ *//[^\n]*", "", MODULE.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    assert len(gzip.compress(text.encode())) < BYTES_MAX
