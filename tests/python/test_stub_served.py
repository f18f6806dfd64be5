"""The typed clients of a real server with every kind of type, imported and running."""

from __future__ import annotations

import datetime
import decimal
import importlib
import shlex
import subprocess
import sys
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import forking
import numpy
import PIL.Image
import pytest
from test_cli_described import run
from test_stub import check_types, load

import ucall
from harness import in_asyncio
from ucall import aio, schema
from ucall._openrpc import Document
from ucall._stub.typescript import typescript_declarations
from ucall.client import Client

TESTS = Path(__file__).resolve().parents[1]
COMMAND = str(Path(sys.executable).with_name("ucall"))


def ucall_command(*arguments: str, folder: Path = TESTS) -> subprocess.CompletedProcess[str]:
    return forking.run([*forking.UCALL, *arguments], cwd=folder, text=True, timeout=120)


@pytest.fixture(scope="module")
def source() -> str:
    done = ucall_command("stub", "typed_server:server")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "the module's own output\n"
    return done.stdout


@pytest.fixture(scope="module")
def server() -> Iterator[ucall.Server]:
    server: ucall.Server = importlib.import_module("typed_server").server
    with server:
        yield server


@pytest.fixture
def module(source: str, tmp_path: Path) -> ModuleType:
    return load(source, tmp_path)


def test_a_running_server_gives_the_same_client(source: str, server: ucall.Server) -> None:
    for scheme in ("http", "tcp", "ws"):
        url = f"{scheme}://127.0.0.1:{server.port}"
        done = ucall_command("stub", url)
        assert (done.returncode, done.stdout, done.stderr) == (0, source, "")


def test_the_client_is_typed(source: str, tmp_path: Path) -> None:
    (tmp_path / "stubs.py").write_text(source)
    program = Path(__file__).with_name("stub_program.py").read_text()
    (tmp_path / "program.py").write_text(program)
    check_types(tmp_path, "stubs.py", "program.py")


def test_calls(module: ModuleType, server: ucall.Server) -> None:
    with Client(port=server.port) as client:
        _check_values(module.Client(client))
        _check_binary(module.Client(client))
        typed = module.Client(client)
        assert list(typed.words("one two")) == ["one", "two"]
        start = datetime.date(2026, 1, 31)
        assert list(typed.days(start, 2)) == [start, datetime.date(2026, 2, 1)]
        with pytest.raises(ucall.RPCError):
            typed.sum("1")
        assert typed.nothing() is None
        assert _returned(typed.training(2)) == ([0.0, 0.5], {"end": datetime.date(2026, 1, 31)})
        assert _returned(typed.words("one")) == (["one"], None)


def _returned(stream: Generator[Any, None, Any]) -> tuple[list[Any], Any]:
    """The items of a stream, and what it returned."""
    items: list[Any] = []
    while True:
        try:
            items.append(next(stream))
        except StopIteration as end:
            return items, end.value


def _check_values(typed: Any) -> None:
    user = {"name": "Ada", "age": 36, "born": datetime.date(1815, 12, 10)}
    assert typed.sum(1) == 4 and typed.sum(a=1, b=1) == 2
    assert typed.scalars(1, 0.5, True, "é", None) == [1, 0.5, True, "é", None]
    assert typed.any_value({"a": [1]}) == {"a": [1]}
    assert typed.maybe() is None and typed.maybe(5) == 5
    assert typed.lists((1, 2), {"a": [0.5]}) == {"a": [1, 2]}
    assert typed.user(user) == {**user, "friends": []}
    assert typed.user({**user, "friends": [user]})["friends"][0]["born"] == user["born"]
    assert typed.note({"text": "a"}) == {"text": "a"}
    assert typed.pet({"type": "Dog"}) == {"type": "Dog", "good": True}
    assert typed.paint([(1, 2)], unit=1) == [1.0, 2.0]
    assert typed.colour("red") == "red"
    noon = datetime.datetime(2026, 1, 31, 12)
    day, time = noon.date(), noon.time()
    assert typed.dates(noon, day, time, "PT1S") == {"b": day}
    assert typed.ids(uuid.UUID(int=5), decimal.Decimal("1.5")) == [str(uuid.UUID(int=5)), "1.5"]
    assert typed.sets({1}, frozenset("a"), (1, "a")) == [1]
    assert typed.mixed("a", {"1": "b"}) == 5
    assert typed.account({"owner": "Ada"}) == {"owner": "Ada", "opened": None}
    assert typed.money("1.25") == "1.25"
    assert typed.math.div(1, 4) == 0.25
    assert typed.joined("a", "b", "c") == "abc" and typed.joined("a") == "a"
    assert typed.named(1, second=2) == {"first": 1, "second": 2}


def _check_binary(typed: Any) -> None:
    array, photo = numpy.arange(3, dtype="float32"), PIL.Image.new("RGB", (2, 1))
    assert typed.reverse(b"abc") == b"cba"
    assert typed.scale(array.astype("float64")).tolist() == [0, 2, 4]
    assert typed.any_array(array).dtype == "float32"
    assert typed.image(photo).size == (2, 1)
    now = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
    reading = {"at": now, "values": array, "raw": b"\xff"}
    for came in (typed.reading(reading), typed.readings({"a": [reading]})["a"][0]):
        assert came["at"] == now and came["values"].tolist() == [0, 1, 2] and came["raw"] == b"\xff"


@in_asyncio
async def test_calls_from_asyncio(module: ModuleType, server: ucall.Server) -> None:
    async with aio.Client(port=server.port) as client:
        typed = module.AsyncClient(client)
        assert await typed.sum(1) == 4
        assert await typed.math.div(1, 4) == 0.25
        assert await typed.joined("a", "b") == "ab"
        assert await typed.reverse(b"ab") == b"ba"
        assert [word async for word in typed.words("one two")] == ["one", "two"]
        start = datetime.date(2026, 1, 31)
        assert [day async for day in typed.days(start, 1)] == [start]
        user = {"name": "Ada", "age": 36, "born": start}
        assert (await typed.user(user))["born"] == start


def test_params_go_by_position_where_that_is_asked_for(tmp_path: Path) -> None:
    done = ucall_command("stub", "typed_server:server", "--by-position")
    sent: list[tuple[Any, ...]] = []

    class Recorder:
        stream = None

        def call(self, *params: Any, **named: Any) -> Any:
            assert not named
            sent.append(params)
            return SimpleNamespace(json=0)

    typed = load(done.stdout, tmp_path).Client(Recorder())
    typed.sum(1)
    typed.sum(1, 2)
    typed.math.div(1, 4)
    assert sent == [("sum", 1), ("sum", 1, 2), ("math.div", 1, 4)]


def test_the_types_for_a_browser_have_what_a_stream_returns(server: ucall.Server) -> None:
    text = typescript_declarations(Document(schema.describe(server).openrpc()))
    streams = text.partition("export interface Streams")[2]
    training = streams.partition('"training": {')[2].partition("  };")[0]
    assert "item: number;" in training
    assert "returned: { [name: string]: string };" in training
    words = streams.partition('"words": {')[2].partition("  };")[0]
    assert "returned: unknown;" in words


def test_leaving_a_stream_ends_it(module: ModuleType, server: ucall.Server) -> None:
    with Client(f"ws://127.0.0.1:{server.port}") as client:
        items = module.Client(client).words("one two three")
        assert next(items) == "one"
        items.close()
        assert list(items) == [] and module.Client(client).sum(1) == 4


#: Its schema accepts any value, as nothing describes a registered type.
WITHOUT_EXAMPLE = ("money",)


def test_every_method_has_help_and_its_example_works(
    server: ucall.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_bytes(b"abc")
    numpy.save(tmp_path / "array.npy", numpy.arange(3.0))
    PIL.Image.new("RGB", (2, 1)).save(tmp_path / "picture.png")
    address = ("--port", str(server.port))
    for line in run("--list", *address)[1].splitlines():
        name = line.split()[0]
        status, text, errors = run(name, "--help", *address)
        assert (status, errors) == (0, "")
        words = shlex.split(text.splitlines()[-1])[1:]
        for typed in ([], ["--typed"]):
            if name not in WITHOUT_EXAMPLE:
                status, _, errors = run(*words, *typed)
                assert (status, errors) == (0, ""), text
