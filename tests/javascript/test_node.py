"""`ucall.js` in Node, with a server that the tests control and with ucall's."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import programs
import pytest
from applications import PID
from node import MODULE, TOKEN, RunNode, Serve, package, system_node

import ucall.auth

ORIGIN = "https://app.example"
#: Of the module without comments. Minified it is smaller.
BYTES_MAX = 10 * 1024


def test_the_client(run_node: RunNode) -> None:
    run_node("--test", "client.test.mjs")


def test_npm_installs_the_folder_of_the_package(tmp_path: Path) -> None:
    npm, node = programs.require("npm"), system_node()
    command = [npm, "install", "--offline", "--no-audit", "--no-fund", MODULE.parent]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    program = 'import { Client } from "ucall-client"; console.log(typeof Client)'
    (tmp_path / "program.mjs").write_text(program)
    command = [node, "program.mjs"]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout == "function\n"


def test_arrays_and_bytes(run_node: RunNode) -> None:
    run_node("--test", "arrays.test.mjs")


def test_arrays_of_numpy(run_node: RunNode, tmp_path: Path) -> None:
    """Of every dtype, byte order and layout: what `decodeArray` gives, and what it is sent as."""
    numpy = pytest.importorskip("numpy")
    bits = numpy.random.default_rng(7).integers(0, 256, 16 * 24, "uint8")
    arrays = [numpy.arange(65536, dtype="uint16").view("float16")]
    for dtype in ("bool", *numpy.typecodes["AllInteger"], *"efdFD"):
        items = (bits % 2 if dtype == "bool" else bits).view(dtype)[:24]
        shapes = [items[:1].reshape(()), items[:0], items[:0].reshape(3, 0, 2), items[::2]]
        cube = items.reshape(2, 3, 4)
        for array in (*shapes, items, cube, cube.T, items.reshape(4, 6).T):
            arrays += [array, array.astype(array.dtype.newbyteorder())]
    files = []
    for array in arrays:
        file = io.BytesIO()
        numpy.save(file, array)
        files.append(base64.b64encode(file.getvalue()).decode())
    (tmp_path / "arrays.json").write_text(json.dumps(files))
    decoded = json.loads(run_node("numpy.mjs", tmp_path / "arrays.json"))
    for array, (bytes_, sent) in zip(arrays, decoded, strict=True):
        # Node has a Float16Array from version 24 on.
        wanted = array.astype(array.dtype.newbyteorder("="), order="C")
        again = numpy.load(io.BytesIO(base64.b64decode(sent)))
        if wanted.dtype == "float16" and again.dtype == "float32":
            wanted = wanted.astype("float32")
        assert (again.dtype, again.shape) == (wanted.dtype, wanted.shape)
        assert numpy.array_equal(again, wanted, equal_nan=wanted.dtype.kind in "fc")
        assert again.tobytes() == base64.b64decode(bytes_)
        assert wanted.dtype.kind in "fc" or again.tobytes() == wanted.tobytes()


def test_with_the_server(run_node: RunNode, serve: Serve) -> None:
    package("eventsource-parser")
    port = serve(allow_origins=[ORIGIN]).port
    secure_port = serve(auth=ucall.auth.bearer({TOKEN: "alice"})).port
    variables = {"PORT": port, "SECURE_PORT": secure_port, "TOKEN": TOKEN, "ORIGIN": ORIGIN}
    run_node("--test", "server.test.mjs", **variables)


def test_compressed_replies(run_node: RunNode, serve: Serve) -> None:
    server = serve(compression_min_bytes=100)
    run_node("--test", "compression.test.mjs", PORT=server.port)


def test_at_a_path(run_node: RunNode, serve: Serve) -> None:
    run_node("--test", "path.test.mjs", PORT=serve(path="/api/rpc").port)


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
