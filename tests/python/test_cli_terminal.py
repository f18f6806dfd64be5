"""The command line in a terminal: indented results, upload progress, one line for an error."""

from __future__ import annotations

import base64
import json
import os
import pty
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import forking
import numpy
import pexpect
import pytest
from PIL import Image
from scripted import Peer, scripted

import ucall

COMMAND = str(Path(sys.executable).with_name("ucall"))


def same(value: Any) -> Any:
    return value


def echo(*args: Any, **kwargs: Any) -> Any:
    return kwargs if kwargs else list(args)


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def port(serve_once: Callable[..., ucall.Server]) -> int:
    return serve_once(same, echo).port


@pytest.fixture
def run(port: int, tmp_path: Path) -> Run:
    def run(*arguments: str) -> tuple[int, str]:
        return in_terminal([*arguments, "-p", str(port)], tmp_path)

    return run


def in_terminal(arguments: list[str], folder: Path) -> tuple[int, str]:
    """The exit status, and all output."""
    ours, theirs = pty.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    with open(ours, "rb", buffering=0) as terminal:
        process = forking.Python([*forking.UCALL, *arguments], cwd=folder, **streams)
        os.close(theirs)
        shown = b""
        # On Linux its end is an error.
        with suppress(OSError):
            while data := terminal.read(4096):
                shown += data
        return process.wait(60), shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["text=Some words", "id=256"], '{\n  "text": "Some words",\n  "id": 256\n}\n'),
        (["id:int=256"], '{\n  "id": 256\n}\n'),
        (["id:str=256"], '{\n  "id": "256"\n}\n'),
        (["id:float=1"], '{\n  "id": 1.0\n}\n'),
        (["id:bool=yes"], '{\n  "id": true\n}\n'),
        (['id:json={"a": [1]}'], '{\n  "id": {\n    "a": [\n      1\n    ]\n  }\n}\n'),
        (["a=b=c:d"], '{\n  "a": "b=c:d"\n}\n'),
        (["--positional", "2", "-3"], "[\n  2,\n  -3\n]\n"),
        (["-f", "data=hello.txt"], '{\n  "data": "aGVsbG8="\n}\n'),
        (["-f", "hello.txt"], '[\n  "aGVsbG8="\n]\n'),
        (["--tcp", "id=1"], '{\n  "id": 1\n}\n'),
        (["id=é", "--uri", "0.0.0.0", "--timeout", "5", "-H", "X: y"], '{\n  "id": "é"\n}\n'),
    ],
)  # fmt: skip
def test_forms(run: Run, tmp_path: Path, arguments: list[str], shown: str) -> None:
    (tmp_path / "hello.txt").write_text("hello")
    assert run("echo", *arguments) == (0, shown)


def test_formats(run: Run, tmp_path: Path) -> None:
    Image.new("RGB", (4, 3)).save(tmp_path / "a.png")
    numpy.save(tmp_path / "a.npy", numpy.arange(4).reshape(2, 2))
    assert run("same", "value=5", "--format", "raw")[1] == '{"jsonrpc":"2.0","id":1,"result":5}\n'
    assert run("same", "value=aGk=", "--format", "bytes") == (0, "hi")
    shown = "int64 (2, 2)\n[[0 1]\n [2 3]]\n"
    assert run("same", "-f", "value=a.npy", "--format", "numpy") == (0, shown)
    assert run("same", "-f", "value=a.npy") == (0, shown)
    numpy.save(tmp_path / "long.npy", numpy.arange(3000, dtype="float32").reshape(3, 1000))
    status, shown = run("same", "-f", "value=long.npy")
    assert (status, shown.partition("\n")[0]) == (0, "float32 (3, 1000)")
    assert len(shown) < 300
    inner = base64.b64encode((tmp_path / "a.npy").read_bytes()).decode()
    cut = json.dumps({"a": [inner, inner[:40], "k05VTVBZ"]})
    named = ["int64 (2, 2)", inner[:40], "k05VTVBZ"]
    shown = json.dumps({"a": named}, indent=2) + "\n"
    assert run("same", "--positional", cut) == (0, shown)
    assert run("same", "-i", "a.png", "--format", "image", "-o", "b.png") == (0, "")
    assert Image.open(tmp_path / "b.png").size == (4, 3)
    assert run("same", "-f", "a.npy", "--format", "numpy", "-o", "b.npy") == (0, "")
    assert numpy.load(tmp_path / "b.npy").tolist() == [[0, 1], [2, 3]]


def test_terminal_output_is_escaped(run: Run, tmp_path: Path) -> None:
    Image.new("RGB", (4, 3)).save(tmp_path / "a.png")
    status, shown = run("same", "-i", "value=a.png", "--format", "image")
    assert (status, shown) == (2, "ucall: a terminal cannot show an image: use -o FILE\n")
    status, shown = run("same", "-i", "value=a.png", "--format", "bytes")
    assert status == 2 and "not text" in shown
    for form in ("json", "raw"):
        steering = "a\x1b[31mb\x7fc\x9bd\u202eé"
        status, shown = run("same", f"value={steering}", "-v", "--format", form)
        assert status == 0 and not set(shown) & set("\x1b\x7f\x9b\u202e")
        assert "a\\u001b[31mb\\u007fc\\u009bd\\u202eé" in shown


def test_errors_are_one_line(run: Run, tmp_path: Path) -> None:
    assert run("absent")[0] == 1
    status, shown = run("same", "-f", "value=absent.txt")
    missing = "ucall: absent.txt: No such file or directory"
    assert (status, shown) == (2, f"{missing}; value:str=absent.txt sends the text itself\n")
    status, shown = in_terminal(["same", "-p", "1"], tmp_path)
    assert (status, shown) == (3, "ucall: cannot connect to 127.0.0.1:1: Connection refused\n")


def test_verbose_shows_the_exchange(run: Run) -> None:
    status, shown = run("same", "value=5", "-v")
    assert status == 0
    assert "> POST / HTTP/1.1\n" in shown and "< HTTP/1.1 200 OK\n" in shown
    assert shown.endswith('"result":5}\n5\n')


def test_standard_input_may_be_typed(port: int) -> None:
    arguments = ["same", "value=@-", "-p", str(port)]
    child = pexpect.spawn(COMMAND, arguments, encoding="utf-8", timeout=60)
    child.sendline("typed")
    child.sendeof()
    child.expect_exact('"typed\\n"')
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_a_long_upload_has_a_bar(tmp_path: Path) -> None:
    is_shown = threading.Event()

    def slow(peer: Peer) -> None:
        while not is_shown.wait(0.1):
            peer.socket.recv(1 << 20)

    (tmp_path / "large.bin").write_bytes(bytes(30_000_000))
    with scripted(slow) as server:
        arguments = ["same", "-f", "value=large.bin", "-p", str(server.port), "--timeout", "60"]
        child = pexpect.spawn(COMMAND, arguments, cwd=tmp_path, encoding="utf-8", timeout=60)
        child.expect(r"\r\[#* *\] +\d+% \d+\.\d of 40\.0 MB")
        is_shown.set()
        child.expect_exact("\r\x1b[K")
        shown = child.read()
        child.close()
    assert child.exitstatus == 3 and "ucall: " in shown and "%" not in shown


def test_ctrl_c(tmp_path: Path) -> None:
    is_asked, is_over = threading.Event(), threading.Event()

    def silent(peer: Peer) -> None:
        peer.http_request()
        is_asked.set()
        is_over.wait()

    with scripted(silent) as server:
        child = pexpect.spawn(
            COMMAND, ["same", "-p", str(server.port)], encoding="utf-8", timeout=60
        )
        assert is_asked.wait(60)
        child.sendintr()
        shown = child.read()
        child.close()
        is_over.set()
    assert child.exitstatus == 130
    assert "Traceback" not in shown
