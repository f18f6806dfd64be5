"""What users of earlier versions write: the blocks of UCall's and net-queue's READMEs.

Each block works as it is written there, or fails with an error that says what to write instead. The
blocks in C and C++ are in tests/c/test_predecessors.py, those of net-queue's two programs in
queue/test_queue_example.py.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import PIL.Image
import pytest
from serving import NO_URING, Serve

import ucall
from ucall import queue as nq
from ucall.client import Client
from wire import Wire

Run = Callable[..., "subprocess.CompletedProcess[str]"]
COMMAND = Path(sys.executable).with_name("ucall")


def vectorize(description: str, photo: PIL.Image.Image) -> numpy.ndarray:
    return numpy.array([len(description), *photo.size])


def echo(data: bytes) -> bytes:
    return data


def auth(id: Any) -> str:
    return f"{type(id).__name__} {id}"


@pytest.fixture
def server(serve: Serve) -> ucall.Server:
    return serve(vectorize, echo, auth)


@pytest.fixture
def image(tmp_path: Path) -> PIL.Image.Image:
    image = PIL.Image.new("RGB", (4, 3))
    (tmp_path / "local").mkdir()
    image.save(tmp_path / "local" / "path.png")
    return image


@pytest.fixture
def call(server: ucall.Server, image: PIL.Image.Image, tmp_path: Path) -> Run:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [COMMAND, *arguments, "-p", str(server.port)]
        return subprocess.run(command, capture_output=True, cwd=tmp_path, timeout=60, text=True)

    return call


# The server.


@pytest.mark.parametrize("module", ["posix", "uring", "rich_posix", "rich_uring"])
def test_a_server_of_each_module(module: str) -> None:
    if NO_URING and "uring" in module:
        pytest.skip(NO_URING)
    server = importlib.import_module(f"ucall.{module}").Server(port=0)

    @server
    def sum(a: int, b: int):  # type: ignore[no-untyped-def]
        return a + b

    server.start()
    with Client(port=server.port) as client:
        assert client.sum(a=2, b=3).json == 5
    server.stop()


def test_bytes_are_echoed(server: ucall.Server) -> None:
    with Client(port=server.port) as client:
        assert client.echo(data=b"\0\xff").bytes == b"\0\xff"


def test_names_that_the_readme_does_not_import() -> None:
    """Its function needs `import numpy` and `import PIL.Image`, which Python's error says."""
    block = "def vectorize(description: str, photo: PIL.Image.Image) -> numpy.ndarray: ..."
    code = compile(block, "README", "exec", dont_inherit=True)
    # From 3.14 on, Python evaluates annotations when they are used.
    if sys.version_info < (3, 14):
        with pytest.raises(NameError, match="'PIL'"):
            exec(code, {})
    exec(code, {"PIL": PIL, "numpy": numpy})


def test_the_package_has_no_alias_of_its_first_name() -> None:
    """docs/coming-from-ucall.md names it: another project could take the name."""
    with pytest.raises(ModuleNotFoundError, match="'ujrpc'"):
        importlib.import_module("ujrpc.posix")


# The client. In the README the function has a param `photo`, and the client calls it `image`.

MISNAMED = "params.image: unexpected, expected description, photo"


def test_the_explicit_call(server: ucall.Server, image: PIL.Image.Image) -> None:
    def request(name: str) -> dict[str, Any]:
        params = {"description": "red", name: image}
        return {"method": "vectorize", "params": params, "jsonrpc": "2.0", "id": 100}

    with Client(port=server.port) as client:
        with pytest.raises(ucall.RPCError, match=MISNAMED):
            client(request("image")).raise_for_status()
        assert client(request("photo")).numpy.tolist() == [3, 4, 3]


def test_the_call_by_name(server: ucall.Server, image: PIL.Image.Image) -> None:
    with Client(port=server.port) as client:
        with pytest.raises(ucall.RPCError, match=MISNAMED):
            client.vectorize(description="red", image=image).raise_for_status()
        assert client.vectorize(description="red", photo=image).numpy.tolist() == [3, 4, 3]


# What the test clients of the earlier project depend on, which docs/coming-from-ucall.md lists.


def test_a_param_that_the_function_does_not_have(serve: Serve) -> None:
    def strict(a: int) -> int:
        return a

    def tolerant(a: int, **others: object) -> int:
        return a

    server = serve(strict, tolerant)
    with Client(port=server.port) as client:
        with pytest.raises(ucall.RPCError, match="text: unexpected"):
            client.strict(a=1, text="x").raise_for_status()
        assert client.tolerant(a=1, text="x").json == 1


def test_a_raw_client_that_reads_to_the_end(server: ucall.Server) -> None:
    call = b'{"jsonrpc":"2.0","method":"auth","params":{"id":1},"id":0}'
    reply = b'{"jsonrpc":"2.0","id":0,"result":"int 1"}\n'
    with Wire(server.port) as wire:
        wire.send(call)
        assert wire.take_to(b"\n") == reply
        wire.send(call)
        wire.end()
        assert wire.rest() == reply


# The command line.


@pytest.mark.parametrize("remote", [[], ["--uri", "0.0.0.0"]])
def test_an_image_from_the_shell(call: Run, tmp_path: Path, remote: list[str]) -> None:
    command = ["vectorize", "description=Product description", "-i"]
    done = call(*command, "image=./local/path.png", *remote)
    assert done.returncode == 1 and MISNAMED in done.stderr
    done = call(*command, "photo=./local/path.png", *remote, "--format=numpy", "-o", "out.npy")
    assert done.returncode == 0, done.stderr
    assert numpy.load(tmp_path / "out.npy").tolist() == [19, 4, 3]


@pytest.mark.parametrize(
    ("param", "printed"), [("id=256", "int"), ("id:int=256", "int"), ("id:str=256", "str")]
)
def test_types_from_the_shell(call: Run, param: str, printed: str) -> None:
    assert call("auth", param).stdout == f'"{printed} 256"\n'


def test_text_for_bytes_from_the_shell(call: Run) -> None:
    done = call("echo", "data=hello")
    assert done.returncode == 1
    assert done.stderr.endswith("; use data:text=TEXT or data=@FILE\n")
    assert call("echo", "data:text=hello", "--format", "bytes").stdout == "hello"


def test_the_help_has_every_option(call: Run) -> None:
    text = call("-h").stdout
    assert text.startswith("usage: ucall [-h] [--uri URI] [--port PORT] [-f [FILE ...]]")
    for option in (
        "-h, --help",
        "--uri URI",
        "--port PORT",
        "-f",
        "-i",
        "--positional",
        "--format",
    ):
        assert option in text


# net-queue's names.


def test_net_queue_has_another_name_here() -> None:
    """Its two programs run with `from ucall import queue as nq`."""
    with pytest.raises(ModuleNotFoundError, match="net_queue"):
        importlib.import_module("net_queue")


def test_net_queue_s_names() -> None:
    names = (
        "new Protocol.TCP Protocol.MQTT Protocol.GRPC Purpose.SERVER Purpose.CLIENT "
        "CommunicatorOptions ConnectionOptions SerializationOptions SecurityOptions NetworkLocation"
    )
    for name in names.split():
        found: Any = nq
        for part in name.split("."):
            found = getattr(found, part)
    assert nq.NetworkLocation() == ("127.0.0.1", 51966)


# An earlier version that is installed beside this one.


def import_of(site: Path, statement: str = "import ucall") -> str:
    """What the statement prints to standard error, with this package's files in ``site``."""
    done = subprocess.run(
        [sys.executable, "-c", statement],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture
def site(tmp_path: Path) -> Path:
    package = tmp_path / "ucall"
    package.mkdir()
    for path in Path(ucall.__path__[0]).iterdir():
        (package / path.name).symlink_to(path)
    return tmp_path


def test_no_warning_without_an_earlier_version(site: Path) -> None:
    (site / "net_queue").mkdir()
    assert import_of(site) == ""


def test_files_of_an_earlier_version_are_named(site: Path) -> None:
    extension = "posix.cpython-311-x86_64-linux-gnu.so"
    for name in ("_server.py", extension):
        (site / "ucall" / name).touch()
    printed = import_of(site, "import ucall; import ucall.client")
    assert printed.count("RuntimeWarning") == 1
    assert f"{site / 'ucall'} has files of ucall 0.4 or 0.5" in printed
    assert f": _server.py, {extension}. Run pip uninstall ucall" in printed


def test_ujrpc_is_named(site: Path) -> None:
    (site / "ujrpc").mkdir()
    (site / "ucall" / "_server.py").touch()
    printed = import_of(site)
    assert printed.count("RuntimeWarning") == 1
    assert "_server.py" in printed and "pip uninstall ujrpc" in printed


def test_the_warning_names_the_importing_line(site: Path) -> None:
    (site / "ujrpc").mkdir()
    program = textwrap.dedent("""
        import warnings

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import ucall
        assert [it.category for it in caught] == [RuntimeWarning]
        assert caught[0].filename == "<string>", caught[0].filename
    """)
    assert import_of(site, program) == ""
