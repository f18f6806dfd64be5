"""Generated arrays by the command `ucall` and back: as files, and through a pipe."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import forking
import numpy
import pytest
from generated_arrays import arrays, npy
from hypothesis import given, settings
from hypothesis import strategies as st

import ucall


def same(values: numpy.ndarray) -> numpy.ndarray:
    return values


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ucall.Server(port=0)
    server.add(same)
    server.start()
    yield f"127.0.0.1:{server.port}"
    server.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arrays")


@given(arrays(), st.sampled_from(["http", "ws", "tcp"]), st.booleans())
@settings(max_examples=20, deadline=None)
def test_every_array_comes_back(
    url: str, folder: Path, array: numpy.ndarray, scheme: str, pipes: bool
) -> None:
    (folder / "in.npy").write_bytes(npy(array))
    command = [*forking.UCALL, "--uri", f"{scheme}://{url}", "same"]
    command += ["-f", "values=-" if pipes else "values=in.npy", "--format", "numpy"]
    command += [] if pipes else ["-o", "out.npy"]
    sent = npy(array) if pipes else b""
    done = forking.run(command, input=sent, cwd=folder, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    back = numpy.load(io.BytesIO(done.stdout if pipes else (folder / "out.npy").read_bytes()))
    assert (back.shape, back.dtype) == (array.shape, array.dtype)
    assert back.tobytes() == array.tobytes()
