"""examples/images/vectorize.py, called with the client and the command line."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from harness import Wire
from ucall.client import Client

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "images" / "vectorize.py"


@pytest.fixture
def port() -> Iterator[int]:
    """The example, served on a free port."""
    source = EXAMPLE.read_text().replace("server = Server()", "server = Server(port=0)")
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(source, str(EXAMPLE), "exec"), names)
    with names["server"] as server:
        yield server.port


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    Image.linear_gradient("L").convert("RGB").save(path)
    return path


def test_the_client_calls_the_example(port: int, photo: Path) -> None:
    client = Client(port=port)
    red, blue = Image.new("RGB", (9, 9), "red"), Image.new("RGB", (9, 9), "blue")
    one = client.vectorize(description="a red shirt", image=red).numpy
    two = client.vectorize(description="red shirt, new", image=red).numpy
    other = client.vectorize(description="trousers", image=blue).numpy
    assert (one.shape, one.dtype) == ((192,), np.float32)
    assert abs(np.linalg.norm(one) - 1) < 1e-6
    assert one @ two > one @ other
    with Image.open(photo) as opened:
        assert client.vectorize("", opened).numpy.shape == (192,)


def test_a_wrong_param_is_reported(port: int, photo: Path) -> None:
    with Wire(port) as wire:
        error = wire.error("vectorize", {"description": "x", "image": "AAAA"})
        assert error["data"].startswith("params.image: expected image in base64: no image in any")
        text = base64.b64encode(photo.read_bytes()).decode()
        result = wire.result("vectorize", ["", text])
    array = np.load(io.BytesIO(base64.b64decode(result)), allow_pickle=False)
    assert array.shape == (192,)


def test_the_command_calls_the_example(port: int, photo: Path) -> None:
    command = [sys.executable, "-c", "import sys; from ucall.cli import main; sys.exit(main())"]
    call = ["vectorize", "description=A shirt", "-i", f"image={photo}", "-p", str(port)]
    done = subprocess.run([*command, *call], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    array = np.load(io.BytesIO(base64.b64decode(result)), allow_pickle=False)
    assert array.shape == (192,)
