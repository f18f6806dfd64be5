"""The typed clients of `ucall stub`: their text, their types, and their calls."""

from __future__ import annotations

import ast
import asyncio
import copy
import datetime
import importlib.util
import inspect
import io
import itertools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import PIL.Image
import pytest
from described import DOCUMENT, INTEGER, binary, described, method, param
from described_types import KINDS, KINDS_DOCUMENT, ref, text_of

from ucall import aio, cli, stubs
from ucall._openrpc import Document
from ucall._stub.python import python_client
from ucall._stub.typescript import typescript_declarations
from ucall.client import Client

ROOT = Path(__file__).parents[2]
NAMES = itertools.count()


def load(source: str, folder: Path) -> ModuleType:
    """Imports the text of a module."""
    name = f"stub_{next(NAMES)}"
    path = folder / f"{name}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_types(folder: Path, *sources: str) -> None:
    """Checks files with `mypy --strict`."""
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", *sources]
    command += ["--cache-dir", str(ROOT / ".mypy_cache" / "stubs")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout


PLAIN = """
from __future__ import annotations

import datetime
import decimal
import typing
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, assert_type

import numpy
import PIL.Image
from kinds import AsyncClient, Client, Colour, Reading, Tree
from numpy.typing import NDArray
"""


def test_types_of_params_and_results(tmp_path: Path) -> None:
    (tmp_path / "kinds.py").write_text(python_client(Document(KINDS_DOCUMENT)))
    lines = [PLAIN]
    for name, _, taken, returned, _ in KINDS:
        lines += [
            f"def sync_{name}(client: Client, value: {taken}) -> None:",
            f"    assert_type(client.{name}(value), {returned})",
            f"    assert_type(client.{name}(value=value), {returned})",
            f"async def async_{name}(client: AsyncClient, value: {taken}) -> None:",
            f"    assert_type(await client.{name}(value), {returned})",
            f"    await client.{name}(object())  # type: ignore[arg-type]"
            if taken != "Any"
            else "",
        ]
    lines += [
        "def others(client: Client, reading: Reading) -> None:",
        "    assert_type(reading['at'], datetime.datetime)",
        "    assert_type(reading['values'], NDArray[numpy.float32])",
        "    assert_type(reading['next'], Reading | None)",
        "    assert_type(client.maybe_reading(), dict[str, Any] | int)",
        "    client.nothing()",
        "    client.late(b=5)",
        "    client.late(5)  # type: ignore[call-arg]",
        "    assert_type(client.list.of.it([1]), list[int])",
        "    assert_type(client.list.of(1), int)",
        "    client.in_order(1, 2)",
        "    client.in_order(a=1)  # type: ignore[call-arg]",
        "    client.absent()  # type: ignore[attr-defined]",
    ]
    (tmp_path / "uses.py").write_text("\n".join(lines) + "\n")
    check_types(tmp_path, "kinds.py", "uses.py")


def first_param(method: str, params: Any) -> Any:
    values = params.values() if isinstance(params, dict) else params
    return next(iter(values or ()), None)


def test_calls_and_results(tmp_path: Path) -> None:
    module = load(python_client(Document(KINDS_DOCUMENT)), tmp_path)
    array, image = numpy.arange(3, dtype="float32"), PIL.Image.new("RGB", (2, 1))
    reading = {"at": datetime.datetime(2026, 1, 31), "values": array, "next": None, "id": 5}
    outer = {**reading, "next": reading}
    with described(KINDS_DOCUMENT, first_param) as peer, Client(port=peer.port) as client:
        typed = module.Client(client)
        for name, _, _, _, value in KINDS:
            if value is not None or name == "an_optional":
                result = getattr(typed, name)(value)
                assert result == value and type(result) is type(value)
        assert typed.maybe_bytes(None) is None
        assert typed.an_array(array).tolist() == [0, 1, 2]
        assert typed.an_array(array).dtype == "float32"
        assert typed.an_image(image).size == (2, 1)
        came = typed.a_reading(outer)
        assert came["at"] == outer["at"] and came["next"]["values"].tolist() == [0, 1, 2]
        assert came["next"]["next"] is None and came["id"] == 5
        assert typed.nothing() is None


def test_params_as_sent(tmp_path: Path) -> None:
    module = load(python_client(Document(KINDS_DOCUMENT)), tmp_path)
    with described(KINDS_DOCUMENT) as peer, Client(port=peer.port) as client:
        typed = module.Client(client)
        typed.late(b=1)
        typed.late(a=2, b=1)
        typed.list.of.it([1])
        typed.list.of(1)
        typed.class_(1)
        typed.import_.print(1, class_=2)
        typed.in_order(1)
        typed.in_order(1, 2)
        typed.nothing()
    assert peer.requests == [
        ("late", {"b": 1}),
        ("late", {"a": 2, "b": 1}),
        ("list.of.it", {"value": [1]}),
        ("list.of", {"value": 1}),
        ("class", {"value": 1}),
        ("import.print", {"self": 1, "class": 2}),
        ("in_order", [1]),
        ("in_order", [1, 2]),
        ("nothing", None),
    ]


def test_calls_from_asyncio(tmp_path: Path) -> None:
    module = load(python_client(Document(KINDS_DOCUMENT)), tmp_path)

    async def run(port: int) -> None:
        async with aio.Client(port=port) as client:
            typed = module.AsyncClient(client)
            assert await typed.an_int(5) == 5
            assert await typed.some_bytes(b"a") == b"a"
            assert await typed.list.of.it([1]) == [1]
            assert await typed.a_date(datetime.date(2026, 1, 31)) == datetime.date(2026, 1, 31)
            assert await typed.nothing() is None

    with described(KINDS_DOCUMENT, first_param) as peer:
        asyncio.run(run(peer.port))


def test_docstrings(tmp_path: Path) -> None:
    module = load(python_client(Document(DOCUMENT)), tmp_path)
    assert module.__doc__ == "A typed client of Sample, written by `ucall stub`."
    for client in (module.Client, module.AsyncClient):
        text = inspect.getdoc(client.sum) or ""
        assert text.startswith("Adds two numbers.\n\nThey are exact.\n\nArgs:\n")
        assert "    a: The first.\n" in text
        assert "    ucall.RPCError: 7: no luck" in text
        assert client.paint.__doc__ == "Deprecated."


@pytest.mark.parametrize("write", [python_client, typescript_declarations])
def test_the_order_of_a_description_does_not_count(write: Callable[[Document], str]) -> None:
    other = copy.deepcopy(KINDS_DOCUMENT)
    other["methods"].reverse()
    schemas = other["components"]["schemas"]
    other["components"]["schemas"] = dict(reversed(schemas.items()))
    assert write(Document(KINDS_DOCUMENT)) == write(Document(other))


HOSTILE = [
    '"""\nimport os\nos.system("x")\n"""',
    "'''\\",
    '\\"""',
    'ends with "',
    "*/ alert(1) /*",
    "a\r\nb\x00\u2028c",
    "😀 \ud800",
    "",
    "5",
    "None",
    "__init__",
    "a b\tc",
    "Client",
    "_client",
    "._.",
]


def _hostile_document(text: str) -> Any:
    name = text or "x"
    schema = {"type": "object", "description": text, "properties": {name: INTEGER}}
    params = [
        param(name, ref(name.replace("~", "~0").replace("/", "~1")), text),
        param(name + "2", {"enum": [text]}),
        param("dtype", binary("array", dtype=text)),
        param("format", text_of(text)),
    ]
    return {
        "info": {"title": text},
        "methods": [
            method(name, *params, summary=text, description=f"x {text}", result=ref("other")),
            method(f"group.{name}", *params, errors=[{"code": 1, "message": text}]),
            method(f"{name}.inner", result={"const": text}),
        ],
        "components": {"schemas": {name: schema, "other": schema}},
    }


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_a_foreign_server_stay_texts(text: str, tmp_path: Path) -> None:
    document = _hostile_document(text)
    try:
        source = python_client(Document(document))
    except ValueError as error:
        pytest.fail(str(error))
    allowed = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.AnnAssign, ast.Assign, ast.Expr)
    for statement in ast.parse(source).body:
        assert isinstance(statement, (*allowed, ast.If, ast.FunctionDef))
        if isinstance(statement, ast.Expr):
            assert isinstance(statement.value, ast.Constant)  # The docstring.
    if text.isprintable():
        client = load(source, tmp_path).Client(None)
        assert client._client is None  # No method has replaced the constructor.
    declarations = typescript_declarations(Document(document))
    assert "*/ alert" not in re.sub(r'"[^"]*"', "", declarations)
    assert "\u2028" not in declarations


def test_params_that_no_call_can_mix_are_left_out(tmp_path: Path) -> None:
    """By position the rest of them by name is, and what follows the rest by position."""
    rest = {"x-rest": "positional", "schema": {"type": "array", "items": INTEGER}}
    others = {"x-rest": "named", "schema": {"additionalProperties": INTEGER}}
    mixed = method(
        "mixed",
        param("a", INTEGER),
        {"name": "rest", **rest},
        param("b", INTEGER, required=False),
        {"name": "others", **others},
    )
    document = {"methods": [mixed, method("named", param("a", INTEGER), {"name": "r", **others})]}
    source = python_client(Document(document))
    with described(document) as peer, Client("127.0.0.1", peer.port) as client:
        typed = load(source, tmp_path).Client(client)
        typed.mixed(1, 2, 3)
        typed.named(1, b=2)
        typed.named(a=1)
        for call in (
            lambda: typed.mixed(1, b=2),
            lambda: typed.mixed(1, c=2),
            lambda: typed.mixed(a=1),
            lambda: typed.named(1, 2),
        ):
            with pytest.raises(TypeError, match="argument"):
                call()
    assert peer.requests == [
        ("mixed", [1, 2, 3]),
        ("named", {"a": 1, "b": 2}),
        ("named", {"a": 1}),
    ]
    declarations = typescript_declarations(Document(document))
    assert "params: [a: number, ...rest: Array<number>];" in declarations


def test_an_empty_description(tmp_path: Path) -> None:
    document = Document({"methods": []})
    (tmp_path / "empty.py").write_text(python_client(document))
    check_types(tmp_path, "empty.py")
    assert "TypedClient" in typescript_declarations(document)


def run(*arguments: str, capture: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = cli.main(arguments)
    out, errors = capture.readouterr()
    return status, out, errors


def test_the_command_for_a_running_server(capfd: pytest.CaptureFixture[str]) -> None:
    with described(KINDS_DOCUMENT) as peer:
        url = f"http://127.0.0.1:{peer.port}"
        assert run("stub", url, capture=capfd) == (0, python_client(Document(KINDS_DOCUMENT)), "")
        expected = typescript_declarations(Document(KINDS_DOCUMENT))
        assert run("stub", url, "--typescript", capture=capfd) == (0, expected, "")
    assert run("stub", url, capture=capfd)[0] == 3


def test_a_server_that_cannot_be_imported(capfd: pytest.CaptureFixture[str]) -> None:
    status, out, errors = run("stub", "absent_module:server", capture=capfd)
    assert (status, out) == (2, "") and "no module absent_module in" in errors


def test_decoders_refuse_other_values() -> None:
    for decode, value in (
        (stubs.bytes_of, "a"),
        (stubs.array_of, "aGk="),
        (stubs.image_of, "aGk="),
        (stubs.date_of, "today"),
    ):
        with pytest.raises(ValueError):
            decode(value)  # type: ignore[operator]
    assert stubs.array_of([[1, 2]]).tolist() == [[1, 2]]
    assert stubs.given({"a": None, "b": stubs.OMITTED}) == {"a": None}
    assert stubs.given_positions([1, stubs.OMITTED, stubs.OMITTED]) == [1]
    with pytest.raises(TypeError, match="param 1 is omitted before one that is given"):
        stubs.given_positions([1, stubs.OMITTED, 3])
    assert io.BytesIO(stubs.bytes_of("/w==")).read() == b"\xff"
