"""The command line in a pipe: its requests, output and exit status."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forking
import numpy
import pytest
from PIL import Image
from scripted import Peer, http_reply, result, scripted

import ucall
from ucall._cli.values import infer

USAGE = (
    "usage: ucall [-h] [--uri URI] [--port PORT] [-f [FILE ...]] [-i [IMAGE ...]] "
    "[--positional [POSITIONAL ...]] method [kwargs ...]"
)

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


def echo(*args: Any, **kwargs: Any) -> Any:
    return kwargs if kwargs else list(args)


def same(value: Any) -> Any:
    return value


def fail(message: str) -> None:
    raise ucall.RPCError(7, message, {"a": [1]})


def ucall_command() -> str:
    """The installed entry point."""
    return str(Path(sys.executable).with_name("ucall"))


@pytest.fixture
def server(serve_once: Callable[..., ucall.Server]) -> ucall.Server:
    server = serve_once(echo, same, fail)
    server.add(echo, name="a.b")
    return server


@pytest.fixture
def call(server: ucall.Server, tmp_path: Path) -> Run:
    def call(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = [*forking.UCALL, *arguments, "--port", str(server.port)]
        return forking.run(command, input=stdin, cwd=tmp_path, timeout=20)

    return call


@pytest.fixture
def sent(call: Run) -> Callable[..., Any]:
    """The arguments as the server received them."""

    def sent(*arguments: str, stdin: bytes = b"") -> Any:
        done = call("echo", *arguments, stdin=stdin)
        assert done.returncode == 0 and done.stderr == b"", done
        return json.loads(done.stdout)

    return sent


def png(mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.new(mode, (4, 3)).save(out, "PNG")
    return out.getvalue()


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    numpy.save(out, array)
    return out.getvalue()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("256", 256),
        ("-1", -1),
        ("0", 0),
        ("12345678901234567890123", 12345678901234567890123),
        ("007", "007"),
        ("1_000", "1_000"),
        ("+1", "+1"),
        ("1.5", 1.5),
        ("-1e3", -1000.0),
        ("1.10", 1.1),
        ("1e23", 1e23),
        ("0.10000000000000001x", "0.10000000000000001x"),
        (".5", ".5"),
        ("true", True),
        ("false", False),
        ("null", None),
        ("True", "True"),
        ("nan", "nan"),
        ("Infinity", "Infinity"),
        ("[1, 2]", [1, 2]),
        ('{"a": [1]}', {"a": [1]}),
        ("[1", "[1"),
        ("[1764228726.123456789] started", "[1764228726.123456789] started"),
        ("[NaN]", "[NaN]"),
        ('"a"', '"a"'),
        ("", ""),
        (" 1", " 1"),
        ("٣", "٣"),
        ("1" * 5000, "1" * 5000),
    ],
)
def test_inferred_types(text: str, value: Any) -> None:
    assert infer(text) == value and type(infer(text)) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "12345678901234567.89",
        "-0.10000000000000000001",
        "1e400",
        "1e-400",
        "1e9999999999999999999",
        "[1, 0.100000000000000001]",
        '{"a": [1e400]}',
    ],
)
def test_numbers_that_a_float_would_change(call: Run, sent: Callable[..., Any], text: str) -> None:
    for arguments in ([f"a={text}"], ["--positional", text]):
        done = call("echo", *arguments)
        assert (done.returncode, done.stdout) == (2, b"")
        assert b"a float cannot hold '" in done.stderr and b"; name:str= sends the" in done.stderr
    assert call("echo", f"a={text}").stderr.startswith(b"ucall: a: a float ")
    assert sent(f"a:str={text}") == {"a": text}


def test_numbers_are_rounded_on_request(sent: Callable[..., Any]) -> None:
    assert sent("a:float=0.100000000000000001") == {"a": 0.1}
    assert sent("a:json=[0.100000000000000001]") == {"a": [0.1]}


@pytest.mark.parametrize("digits", [15, 16, 17])
@pytest.mark.parametrize("value", [0.1, 1 / 3, -6.02214076e23, 5e-324])
def test_floats_as_programs_print_them_are_sent(
    sent: Callable[..., Any], value: float, digits: int
) -> None:
    text = f"{value:.{digits}g}"
    assert sent(f"a={text}") == {"a": float(text)}


def test_values_by_name(sent: Callable[..., Any]) -> None:
    assert sent("description=Product description", "id=256") == {
        "description": "Product description",
        "id": 256,
    }
    assert sent("a=b=c:d", "b=http://x:1/?y=z", "c=", "d=é") == {
        "a": "b=c:d",
        "b": "http://x:1/?y=z",
        "c": "",
        "d": "é",
    }
    assert sent("id:int=256") == {"id": 256}
    assert sent("id:str=256", "b:str=a:int=5") == {"id": "256", "b": "a:int=5"}
    assert sent("id:float=256") == {"id": 256.0}
    assert sent("a:bool=true", "b:bool=NO", "c:bool=1") == {"a": True, "b": False, "c": True}
    assert sent("""id:json={"a": [1]}""", 's:json="x"') == {"id": {"a": [1]}, "s": "x"}
    assert sent("a=1", "b=-5", "c=0.5", "d=[1,2]") == {"a": 1, "b": -5, "c": 0.5, "d": [1, 2]}
    assert sent() == []


def test_values_by_position(sent: Callable[..., Any]) -> None:
    assert sent("--positional", "2", "-3", "x=y", "a:int=5") == [2, -3, "x=y", "a:int=5"]
    assert sent("--positional", "1", "--positional", "2") == [1, 2]


def test_words_are_params_by_position(call: Run, sent: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\0\1")
    assert sent("2", "-3", "true", "hello") == [2, -3, True, "hello"]
    assert sent("[1, 2]", '{"a": "b=c"}') == [[1, 2], {"a": "b=c"}]
    assert sent("@a.bin", "x@y") == ["AAE=", "x@y"]
    assert sent("@-", "5", stdin=b"text") == ["text", 5]
    assert call("same", "5", "--timeout", "5").stdout == b"5\n"


def test_params_by_name_beside_files(sent: Callable[..., Any], tmp_path: Path) -> None:
    for name in ("pic.png", "4"):
        (tmp_path / name).write_bytes(png())
    named = sent("-i", "photo=pic.png", "bins=4", "deep=true", "size=[1, 2]", "note:str=a.png")
    assert named.pop("photo") and named == {
        "bins": 4,
        "deep": True,
        "size": [1, 2],
        "note": "a.png",
    }
    assert sent("-f", "photo=pic.png", "other=@pic.png", "more=pic.png").keys() == {
        "photo",
        "other",
        "more",
    }
    # The first word of an option is a file, and so is a path.
    assert sent("-i", "bins=4") == sent("-i", "bins=pic.png") == sent("-i", "bins=./4")
    assert sent("-i", "bins:int=4") == {"bins": 4}


def test_standard_input(sent: Callable[..., Any]) -> None:
    assert sent("text=@-", stdin=b"a\nb\n") == {"text": "a\nb\n"}
    assert sent("text=@-", stdin=b"256") == {"text": "256"}
    assert sent("n:int=@-", stdin=b"256\n") == {"n": 256}
    assert sent("n:json=@-", stdin=b"[1]\n") == {"n": [1]}
    assert sent("data=@-", stdin=b"\xff\x00") == {"data": "/wA="}
    assert sent("handle:str=@alice") == {"handle": "@alice"}
    assert sent("data:text=@-", stdin=b"hello\n") == {"data": "aGVsbG8K"}
    assert sent("--positional", "@-", stdin=b"x") == ["x"]
    assert sent("-f", "data=-", stdin=b"x") == {"data": "eA=="}


def test_text_and_files_for_bytes(call: Run, server: ucall.Server, tmp_path: Path) -> None:
    def size(data: bytes) -> int:
        return len(data)

    def show(photo: Image.Image) -> list[int]:
        return list(photo.size)

    server.add(size)
    server.add(show)
    (tmp_path / "a.bin").write_bytes(b"\xff" * 5)
    (tmp_path / "a.png").write_bytes(png())
    assert call("size", "data:text=hello").stdout == b"5\n"
    assert call("size", "data:text=é=:").stdout == b"4\n"
    assert call("size", "data=@a.bin").stdout == b"5\n"
    assert call("size", "data=aGVsbG8=").stdout == b"5\n"
    assert call("show", "photo=@a.png").stdout == b"[4,3]\n"
    for arguments, ways in (
        (["size", "data=hello"], "; use data:text=TEXT or data=@FILE"),
        (["size", "data=5"], "; use data:text=TEXT or data=@FILE"),
        (["size", "--positional", "hello"], "; use data:text=TEXT or data=@FILE"),
        (["show", "photo=a.png"], "; use photo=@FILE"),
    ):
        done = call(*arguments)
        assert (done.returncode, done.stdout) == (1, b"")
        assert done.stderr.decode().endswith(f"{ways}\n"), done.stderr


def test_files(sent: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\0\1")
    (tmp_path / "b=c.bin").write_bytes(b"x")
    (tmp_path / "d.npy").write_bytes(npy(numpy.arange(3)))
    assert sent("-f", "data=a.bin") == {"data": "AAE="}
    assert sent("a=1", "-f", f"data={tmp_path}/a.bin", "more=./a.bin") == {
        "a": 1,
        "data": "AAE=",
        "more": "AAE=",
    }
    assert sent("-f", "a.bin") == ["AAE="]
    assert sent("-f", "a.bin", "./b=c.bin", "--positional", "5", "-f", "a.bin") == [
        "AAE=",
        "eA==",
        5,
        "AAE=",
    ]


def test_images_and_arrays(call: Run, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    (tmp_path / "d.npy").write_bytes(npy(numpy.arange(3)))
    assert call("same", "-i", "value=./a.png", "--format", "image").stdout == png()
    assert call("same", "-i", "a.png", "--format", "bytes").stdout == png()
    done = call("same", "-f", "value=d.npy", "--format", "numpy")
    assert numpy.array_equal(numpy.load(io.BytesIO(done.stdout)), [0, 1, 2])
    done = call("same", "--positional", "[[1.5]]", "--format", "numpy", "-o", "out.npy")
    assert done.stdout == b"" and done.returncode == 0
    assert numpy.load(tmp_path / "out.npy").tolist() == [[1.5]]
    assert call("same", "-i", "a.png", "--format", "image", "-o", "b.png").returncode == 0
    assert (tmp_path / "b.png").read_bytes() == png()


def test_results(call: Run, tmp_path: Path) -> None:
    assert call("same", 'value:json={"é": [1, 2.0]}').stdout == '{"é":[1,2.0]}\n'.encode()
    done = call("same", "value=5", "--format", "raw")
    assert done.stdout == b'{"jsonrpc":"2.0","id":1,"result":5}'
    assert call("same", "value=aGk=", "--format", "bytes").stdout == b"hi"
    assert call("same", "value=5", "-o", "out.json").stdout == b""
    assert (tmp_path / "out.json").read_bytes() == b"5\n"


def test_options_in_any_order(call: Run, server: ucall.Server) -> None:
    port = str(server.port)
    for arguments in (
        ["--uri", "0.0.0.0", "-p", port, "echo", "a=1", "b=2"],
        ["echo", "a=1", "-p", port, "b=2", "--uri=127.0.0.1"],
        ["echo", "a=1", "b=2", "--uri", f"http://localhost:{port}"],
        ["echo", "--tcp", "a=1", "--uri", "127.0.0.1", "b=2", "--port", port],
        ["--uri", f"tcp://127.0.0.1:{port}", "echo", "--", "a=1", "b=2"],
        ["--timeout", "5", "-p", port, "-H", "X: y", "--header=Z: :", "a.b", "a=1", "b=2"],
    ):
        done = forking.run([*forking.UCALL, *arguments])
        assert (done.stdout, done.stderr) == (b'{"a":1,"b":2}\n', b""), arguments


def test_method_names_like_client_attributes(call: Run, server: ucall.Server) -> None:
    server.add(same, name="batch")
    assert call("batch", "value=1").stdout == b"1\n"
    assert json.loads(call("echo", "method=1", "self=2", "id=3").stdout) == {
        "method": 1,
        "self": 2,
        "id": 3,
    }


def test_notifications(call: Run, server: ucall.Server) -> None:
    heard: list[int] = []
    server.add(heard.append, name="hear")
    for more in ([], ["--tcp"]):
        done = call("hear", "--positional", "1", "--notify", *more)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        assert call("same", "value=1", *more).returncode == 0
    assert heard == [1, 1]


def test_verbose_shows_the_exchange(call: Run) -> None:
    done = call("same", "value=5", "-v", "-H", "X-Y: z")
    lines = done.stderr.decode().splitlines()
    assert "> POST / HTTP/1.1" in lines and "> X-Y: z" in lines
    assert '> {"jsonrpc":"2.0","method":"same","params":{"value":5},"id":1}' in lines
    assert "< HTTP/1.1 200 OK" in lines and '< {"jsonrpc":"2.0","id":1,"result":5}' in lines
    assert done.stdout == b"5\n"
    shown = call("same", f"value={'x' * 50_000}", "-v", "--tcp").stderr.decode()
    assert "bytes more" in shown and len(shown) < 40_000


def test_rpc_errors(call: Run) -> None:
    done = call("fail", "message=no\nway")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b'ucall: no way [7]: {"a": [1]}\n'
    done = call("fail", "message=\x1b]0;title\x07\x9b2Jé")
    assert done.stderr.decode() == 'ucall: \\x1b]0;title\\x07\\x9b2Jé [7]: {"a": [1]}\n'
    done = call("absent")
    expected = b'ucall: Method not found [-32601]: there is no method "absent"\n'
    assert (done.returncode, done.stderr) == (1, expected)
    done = call("same", "valve=1")
    assert done.stderr.decode().splitlines() == [
        "ucall: Invalid params [-32602]",
        "  params.valve: unexpected, expected value",
        "  params.value: missing, expected any value",
    ]
    done = call("same", "value=1", "more=2", "--format", "raw")
    assert done.returncode == 1 and b'"code":-32602' in done.stdout
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "required: method"),
        (["echo", "2", "--positional", "3"], "put the words after --positional"),
        (["echo", "2", "-f", "ok.txt"], "put the words after --positional"),
        (["echo", "2", "a=3"], "by position or by name, not both: a has a name"),
        (["echo", "@absent"], "absent: No such file or directory; --positional @absent sends the"),
        (["echo", "-f", "ok.txt", "a=absent"], "directory; a:str=absent sends the text itself"),
        (["echo", "=2"], "expected name=value"),
        (["echo", "a=1", "a=2"], "a is given twice"),
        (["echo", "a:what=1"], "expected a type of int, float, bool, str, json, text, got 'what'"),
        (["echo", "a=@alice"], "alice: No such file or directory; a:str=@alice sends the text"),
        (["echo", "a=@bad.npy"], "bad.npy: not a .npy file"),
        (["echo", "a:int=x"], "a: 'x' is not of type int"),
        (["echo", "a:int=1_0"], "is not of type int"),
        (["echo", "a:float=nan"], "is not of type float"),
        (["echo", "a:bool=maybe"], "is not of type bool"),
        (["echo", "a:json={"], "is not of type json"),
        (["echo", "a=1", "--positional", "2"], "by position or by name, not both: a has a name"),
        (["echo", "a=1", "-f", "ok.txt"], "not both"),
        (["echo", "-f", "a=absent.bin"], "absent.bin: No such file or directory"),
        (["echo", "-f", "."], "Is a directory"),
        (["echo", "-i", "a=ok.txt"], "ok.txt: no image in any of the formats PNG"),
        (["echo", "-f", "bad.npy"], "bad.npy: not a .npy file"),
        (["echo", "a=@-", "b=@-"], "only once"),
        (["echo", "-f"], "expected at least one value"),
        (["echo", "--format", "xml"], "invalid choice"),
        (["echo", "-o", "absent/x"], "absent/x: No such file"),
        (["echo", "-o", "."], "Is a directory"),
        (["echo", "-H", "X"], "expected 'Name: value'"),
        (["echo", "-H", "X y: z"], "is not a valid name of a header"),
        (["echo", "-H", "X: y", "--tcp"], "raw TCP has none"),
        (["echo", "--tcp", "--uri", "https://a"], "is not for raw TCP"),
        (["echo", "--uri", "ftp://a"], "expected http://"),
        (["echo", "--uri", "a:1"], "has a port other than"),
        (["echo", "--timeout", "0"], "expected seconds above 0"),
        (["echo", "--timeout", "x"], "expected seconds above 0, at most 9223372036, got 'x'"),
        (["echo", "--timeout", "nan"], "expected seconds above 0"),
        (["echo", "--nonsense"], "unrecognized arguments"),
        (["same", "value=5", "--format", "bytes"], "--format bytes: "),
        (["same", "value=aGk=", "--format", "image"], "the result is not an image"),
        (["same", "value=aGk=", "--format", "numpy"], "no .npy"),
    ],
)
def test_wrong_usage(call: Run, tmp_path: Path, arguments: list[str], complaint: str) -> None:
    (tmp_path / "ok.txt").write_text("text")
    (tmp_path / "bad.npy").write_text("text")
    done = call(*arguments)
    assert (done.returncode, done.stdout) == (2, b""), done
    assert done.stderr.startswith(b"ucall: ") and done.stderr.count(b"\n") == 1
    assert complaint in done.stderr.decode()


def test_no_connection_and_no_reply() -> None:
    def run(*arguments: str) -> tuple[int, bytes, str]:
        done = forking.run([*forking.UCALL, *arguments])
        assert done.stderr.count(b"\n") == 1
        return done.returncode, done.stdout, done.stderr.decode()

    for more in ([], ["--tcp"]):
        status, out, line = run("echo", "-p", "1", *more)
        assert (status, out) == (3, b"")
        assert line == "ucall: cannot connect to 127.0.0.1:1: Connection refused\n"
    assert run("echo", "--uri", "nobody.invalid")[0] == 3

    def silent(peer: Peer) -> None:
        peer.http_request()
        peer.http_request()

    with scripted(silent) as server:
        status, out, line = run("echo", "-p", str(server.port), "--timeout", "0.2")
        assert (status, out, line) == (3, b"", "ucall: timed out after 0.2 s\n")

    def page(peer: Peer) -> None:
        peer.http_request()
        peer.send(http_reply(b"<h1>\nno</h1>", status="502 Bad Gateway"))

    with scripted(page) as server:
        status, out, line = run("echo", "-p", str(server.port))
        assert (status, out, line) == (3, b"", "ucall: HTTP status 502 Bad Gateway: <h1> no</h1>\n")

    def redirect(peer: Peer) -> None:
        peer.http_request()
        peer.send(http_reply(b"", "Location: https://b.example/", status="301 Moved Permanently"))

    def nothing(peer: Peer) -> None:
        peer.http_request()
        peer.send(http_reply(b"", status="204 No Content"))

    with scripted(redirect, nothing) as server:
        status, out, line = run("echo", "-p", str(server.port))
        assert (status, out) == (3, b"")
        assert (
            "HTTP status 301 Moved Permanently: the server redirects to https://b.example/" in line
        )
        assert "HTTP status 204 without a reply" in run("echo", "-p", str(server.port))[2]


def test_a_closed_output_pipe() -> None:
    def long(peer: Peer) -> None:
        peer.http_request()
        peer.send(http_reply(result("x" * 1_000_000)))

    with scripted(long) as server:
        command = f"{ucall_command()} echo -p {server.port} | head -c 5"
        done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60)
        assert (done.stdout, done.stderr) == (b'"xxxx', b"")


WRITES = (
    ["--help"],
    ["--version"],
    ["--completion", "bash"],
    ["--list"],
    ["echo", "--help"],
    ["echo"],
    ["echo", "--stream"],
    ["stub", "http://127.0.0.1"],
    ["health"],
)


@pytest.fixture(params=WRITES, ids=" ".join)
def writer(server: ucall.Server, request: pytest.FixtureRequest) -> list[str]:
    """A command that writes to its standard output, which Python may buffer until it ends."""
    words = [*forking.UCALL, *request.param]
    if "stub" in words:
        return [*words[:-1], f"{words[-1]}:{server.port}"]
    return [*words, "--port", str(server.port)]


@pytest.fixture(params=["", "1"], ids=["buffered", "unbuffered"])
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": request.param}


def test_an_output_that_nobody_reads(writer: list[str], environment: dict[str, str]) -> None:
    reader, output = os.pipe()
    os.close(reader)
    done = forking.run(writer, stdout=output, env=environment)
    os.close(output)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full device is Linux's")
def test_an_output_that_cannot_be_written(writer: list[str], environment: dict[str, str]) -> None:
    with open("/dev/full", "wb") as full:
        done = forking.run(writer, stdout=full, env=environment)
    complaint = b": standard output: No space left on device\n"
    assert done.returncode == 2 and done.stderr.endswith(complaint)
    assert done.stderr.startswith(b"ucall") and done.stderr.count(b"\n") == 1


def test_a_closed_output_and_input(server: ucall.Server) -> None:
    words = f"{ucall_command()} echo a=@- -p {server.port}"
    closed = subprocess.run(
        ["bash", "-c", f"{words} >&-"], input=b"1", stderr=subprocess.PIPE, timeout=60
    )
    assert (closed.returncode, closed.stderr) == (0, b"")
    done = subprocess.run(["bash", "-c", f"{words} <&-"], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, b"ucall: standard input is closed\n")


def test_its_version() -> None:
    for option in ("-V", "--version"):
        done = subprocess.run([ucall_command(), option], capture_output=True, check=True, text=True)
        assert done.stdout == f"ucall {ucall.__version__}\n"


def test_help_has_the_usage() -> None:
    done = subprocess.run([ucall_command(), "-h"], capture_output=True, check=True, text=True)
    assert done.stdout.startswith(USAGE + "\n")
    for option in ("--format", "-o", "--timeout", "-H", "--notify", "--tcp", "-v", "--positional"):
        assert option in done.stdout
    for option in ("-k", "--insecure", "--cacert", "--cert", "--key"):
        assert option in done.stdout
