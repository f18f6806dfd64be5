"""Generated arrays by `ucall.js` to a server and back: every dtype and layout, both transports."""

from __future__ import annotations

import base64
import importlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from generated_arrays import arrays, npy
from hypothesis import given, settings
from hypothesis import strategies as st
from node import MODULE, PACKAGES, package, system_node

#: JavaScript has no `long double`.
CODES = "?bhilqBHILQefdFD"


def same(values: numpy.ndarray) -> numpy.ndarray:
    return values


class Node:
    """Calls by `ucall.js`."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process, self._port = process, port

    def call(self, scheme: str, array: numpy.ndarray) -> numpy.ndarray:
        """What Node got back for an array."""
        assert self._process.stdin and self._process.stdout
        file = base64.b64encode(npy(array)).decode()
        self._process.stdin.write(f"{scheme}://127.0.0.1:{self._port}/ {file}\n")
        self._process.stdin.flush()
        found = json.loads(self._process.stdout.readline())
        items = numpy.frombuffer(base64.b64decode(found["bytes"]), found["dtype"])
        return items.reshape(found["shape"])


@pytest.fixture(scope="module", params=["posix", "uring"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    package("ws")
    engine: Any = importlib.import_module(f"ucall.{request.param}")
    try:
        server = engine.Server(port=0)
    except OSError as refused:
        pytest.skip(str(refused))
    server.add(same)
    server.start()
    variables = {**os.environ, "NODE_PATH": str(PACKAGES), "UCALL_JS": str(MODULE)}
    command = [system_node(), str(Path(__file__).with_name("arrays_echo.mjs"))]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, env=variables) as process:
        yield Node(process, server.port)
        assert process.stdin
        process.stdin.close()
    server.stop()
    assert process.returncode == 0


@given(arrays(CODES), st.sampled_from(["ws", "http"]))
@settings(max_examples=200, deadline=None)
def test_every_array_comes_back(node: Node, array: numpy.ndarray, scheme: str) -> None:
    back = node.call(scheme, array)
    wanted = array.astype(array.dtype.newbyteorder("="), order="C")
    # Node has a Float16Array from version 24 on.
    if array.dtype.char == "e" and back.dtype == "float32":
        wanted = wanted.astype("float32")
    assert (back.shape, back.dtype) == (wanted.shape, wanted.dtype)
    assert numpy.array_equal(back, wanted, equal_nan=wanted.dtype.kind in "fc")
