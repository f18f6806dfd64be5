"""What the command line makes of a server's description: `--list`, `--help` and `--typed`."""

from __future__ import annotations

import base64
import contextlib
import copy
import io
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from described import BOOLEAN, DOCUMENT, INTEGER, Described, described, method, param

import ucall
from ucall import cli

Run = Callable[..., tuple[int, str, str]]

HELP = """\
usage: ucall sum a=… [b=…]

Adds two numbers.

They are exact.

params:
  a  int, required: The first.
  b  int >= 0, default 3: The second.

result: int

errors:
  7  no luck

example:
  ucall sum a=1 --port {port}
"""


def run(*arguments: str) -> tuple[int, str, str]:
    """The exit status, the output and the errors of a command."""
    out, errors = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        status = cli.main(arguments)
    out.flush()
    return status, out.buffer.getvalue().decode(), errors.getvalue()  # type: ignore[attr-defined]


@pytest.fixture
def peer() -> Iterator[Described]:
    with described() as peer:
        yield peer


@pytest.fixture
def call(peer: Described) -> Run:
    return lambda *arguments: run(*arguments, "--port", str(peer.port))


def test_a_list_of_methods(call: Run) -> None:
    status, out, _ = call("--list")
    assert status == 0
    assert out.splitlines()[:2] == ["sum       Adds two numbers.", "store     Stores."]
    assert "paint     (deprecated)" in out and "generate  Yields words. (stream)" in out
    assert [line.split()[0] for line in out.splitlines()] == [it["name"] for it in _methods()]


def test_the_list_says_how_functions_run() -> None:
    server = ucall.Server(port=0)
    server.add(lambda: 1, name="plain")
    server.add(lambda: 1, name="blocks", threads=True)
    server.add(run, name="computes", processes=2)
    server.batch(lambda texts: texts, name="embed", max_size=8, threads=True, warm_up=("a",))
    server.batch(lambda texts: texts, name="sort")
    with server:
        status, out, _ = run("--list", "--port", str(server.port))
    assert status == 0
    lines = {line.split()[0]: line.partition("(")[2] for line in out.splitlines()}
    assert lines["blocks"] == "in threads)" and lines["plain"] == ""
    assert lines["computes"] == "in 2 processes)"
    assert lines["embed"] == "in batches of up to 8, in threads, warm)"
    assert lines["sort"] == "in batches of up to 64)"


def _methods() -> list[Any]:
    found: list[Any] = DOCUMENT["methods"]
    return found


def test_help_of_a_method(call: Run, peer: Described) -> None:
    for option in ("-h", "--help"):
        assert call("sum", option) == (0, HELP.format(port=peer.port), "")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("store", "  data  bytes, required"),
        ("scale", "  values  array of float32 | list[float], required"),
        ("greet", "  user  User, required"),
        ("paint", "  unit   one of 'mm', 'cm', required"),
        ("paint", "  depth  int | None, default null"),
        ("paint", "  width  float | None, default null"),
        ("paint", "  pair   tuple[int, str]"),
        ("paint", "Deprecated."),
        ("generate", "  prompt  str of length >= 2 and matching '^[a-z]', required"),
        ("generate", "items: str"),
        ("any", "  value  any value, required"),
    ],
)
def test_types_of_params(call: Run, name: str, line: str) -> None:
    status, out, _ = call(name, "--help")
    assert status == 0 and line in out.splitlines()


@pytest.mark.parametrize("name", [it["name"] for it in DOCUMENT["methods"]])
def test_the_example_of_a_method_works(
    call: Run, peer: Described, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_bytes(b"\xff")
    _, out, _ = call(name, "--help")
    words = shlex.split(out.splitlines()[-1])[1:]
    status, _, errors = run(*words, *([] if name == "scale" else ["--typed"]))
    if name == "scale":
        assert "array.npy" in errors or status == 0
    elif name != "generate":  # The peer has no streams.
        assert (status, errors) == (0, "")
        assert [sent for sent, _ in peer.requests] == [name]


@pytest.mark.parametrize("name", ["health", "stub", "store"])
def test_the_example_of_a_method_with_the_name_of_a_command(name: str) -> None:
    document = {**DOCUMENT, "methods": [method(name, param("deep", BOOLEAN))]}
    with described(document) as peer:
        _, out, _ = run("--port", str(peer.port), name, "--help")
        words = shlex.split(out.splitlines()[-1])[1:]
        assert run(*words) == (0, "null\n", "")
        assert peer.requests == [(name, {"deep": True})]


def test_the_example_of_a_type_that_contains_itself_ends_at_another() -> None:
    tree = {"anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in ("Add", "Number")]}
    schemas = {
        "Add": {"type": "object", "properties": {"left": tree}, "required": ["left"]},
        "Number": {"type": "object", "properties": {"value": INTEGER}, "required": ["value"]},
    }
    document = {
        "methods": [method("evaluate", param("tree", tree))],
        "components": {"schemas": schemas},
    }
    with described(document) as peer:
        _, out, _ = run("--port", str(peer.port), "evaluate", "--help")
    assert """ tree='{"left": {"value": 1}}' """ in out


def test_help_of_an_unknown_method(call: Run) -> None:
    status, out, errors = call("sun", "--help")
    assert (status, out) == (1, "")
    assert errors == "ucall: the server has no method 'sun'; there is sum [-32601]\n"
    assert "ucall --list lists the methods" in call("xyz", "--help")[2]


def test_a_server_that_does_not_describe_itself() -> None:
    with ucall.Server(port=0, **_undescribed()) as server:
        for words in (["--list"], ["sum", "--help"], ["sum", "a=1", "--typed"]):
            status, out, errors = run(*words, "--port", str(server.port))
            assert (status, out) == (1, "")
            assert errors == (
                "ucall: the server does not describe its methods: it has no rpc.discover [-32601]\n"
            )


def _undescribed() -> dict[str, Any]:
    import inspect

    return {"describe": False} if "describe" in inspect.signature(ucall.Server).parameters else {}


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (None, "it has no list of methods"),
        ({"methods": [{"params": []}]}, "methods[0] has no name"),
        ({"methods": [method("a") | {"params": 5}]}, "methods[0].params is no list"),
        ({"methods": [method("a", {"schema": {}})]}, "a param of methods[0] has no name"),
        ({"methods": [{"$ref": "#/absent"}]}, "'#/absent' has no target"),
        ({"methods": [{"$ref": "#/methods/x"}], "x": 1}, "has no target"),
        (
            {"methods": [{"$ref": "#/loop"}], "loop": {"$ref": "#/loop"}},
            "'#/loop' refers to itself",
        ),
    ],
)
def test_an_invalid_description(document: Any, problem: str) -> None:
    with described(document) as peer:
        status, out, errors = run("--list", "--port", str(peer.port))
    assert (status, out) == (3, "") and errors.startswith("ucall: rpc.discover replied with no ")
    assert problem in errors


def test_control_characters_of_a_description_are_escaped() -> None:
    document = copy.deepcopy(DOCUMENT)
    document["methods"][0]["summary"] = document["methods"][0]["description"] = "\x1b[31mred"
    document["methods"][0]["params"][0]["description"] = "\x07bell"
    with described(document) as peer:
        for words in (["--list"], ["sum", "--help"]):
            out = run(*words, "--port", str(peer.port))[1]
            assert "\x1b" not in out and "\x07" not in out and "\\x1b[31mred" in out


def test_list_and_a_method(call: Run) -> None:
    with pytest.raises(SystemExit) as ended:
        call("sum", "--list")
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("words", "params"),
    [
        (["sum", "a=1"], {"a": 1}),
        (["sum", "--positional", "1", "2"], [1, 2]),
        (["store", "key=1", "data=file.bin"], {"key": "1", "data": "/wA="}),
        (["store", "key=true", "data=@file.bin"], {"key": "true", "data": "/wA="}),
        (["store", "key=@file.bin", "data:text=hi"], {"key": "@file.bin", "data": "aGk="}),
        (["store", "key=a", "-f", "data=file.bin"], {"key": "a", "data": "/wA="}),
        (["store", "--positional", "007", "file.bin"], ["007", "/wA="]),
        (["scale", "values=[1, 2.5]"], {"values": [1, 2.5]}),
        (["scale", "values=file.bin"], {"values": "/wA="}),
        (["greet", 'user={"name": "Ada", "age": 36}'], {"user": {"name": "Ada", "age": 36}}),
        (["paint", "unit=mm", "wide=yes"], {"unit": "mm", "wide": True}),
        (["paint", "unit=mm", "depth=null"], {"unit": "mm", "depth": None}),
        (["paint", "unit=mm", "depth=5", "width=2"], {"unit": "mm", "depth": 5, "width": 2.0}),
        (["paint", "unit=cm", "id=5"], {"unit": "cm", "id": 5}),
        (["paint", "unit=cm", "id=x5"], {"unit": "cm", "id": "x5"}),
        (["paint", "unit=cm", "id:str=5"], {"unit": "cm", "id": "5"}),
        (["paint", "unit=cm", 'pair=[1, "a"]'], {"unit": "cm", "pair": [1, "a"]}),
        (["math.div", "--positional", "1", "2.5"], [1.0, 2.5]),
        (["pay", "amount=1.10"], {"amount": "1.10"}),
        (["pay", "amount=12345678901234567.89"], {"amount": "12345678901234567.89"}),
        (["pay", "amount=5", "tip=null"], {"amount": "5", "tip": None}),
        (["pay", "--positional", "1.10", "-2"], ["1.10", "-2"]),
        (["math.div", "--positional", "0.100000000000000001", "1"], [0.1, 1.0]),
        (["any", "value=[1]"], {"value": [1]}),
        (["any", "value=a"], {"value": "a"}),
    ],
)
def test_params_get_the_types_of_the_description(
    call: Run,
    peer: Described,
    words: list[str],
    params: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.bin").write_bytes(base64.b64decode("/wA="))
    assert call(*words, "--typed") == (0, "null\n", "")
    assert peer.requests == [(words[0], params)]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["sum", "a=x"], "a: expected int, got 'x'"),
        (["sum", "a=1.0"], "a: expected int, got '1.0'"),
        (["sum", "a=1", "b=-1"], "b: expected int >= 0, got -1"),
        (["sum", "b=1"], "a: missing, expected int"),
        (["sum", "a=1", "c=1"], "c: sum has no such param; it has a, b"),
        (["sum", "--positional", "1", "2", "3"], "sum takes 2 params, got more"),
        (["sum", "--positional", "x"], "a: expected int, got 'x'"),
        (
            ["store", "key=a", "data=absent"],
            "data: expected bytes from a file: absent: No such file or directory",
        ),
        (["greet", 'user={"name": 0.100000000000000001}'], "user: a float cannot hold '0.1000"),
        (["any", "value=12345678901234567.89"], "value: a float cannot hold '12345678"),
        (["greet", "user=Ada"], "user: expected User, got 'Ada'"),
        (["greet", "user=[]"], "user: expected User, got list"),
        (["greet", 'user={"name": 5, "age": 1}'], "user.name: expected str, got int"),
        (["greet", 'user={"name": "A", "age": -1}'], "user.age: expected int >= 0, got -1"),
        (["greet", 'user={"name": "A"}'], "user.age: missing, expected int >= 0"),
        (["greet", 'user={"name": "A", "age": 1, "x": 1}'], "user.x: unexpected"),
        (
            ["greet", 'user={"name": "A", "age": 1, "friends": [{"name": "B", "age": "1"}]}'],
            "user.friends[0].age: expected int >= 0, got str",
        ),
        (["paint", "unit=km"], "unit: expected one of 'mm', 'cm', got 'km'"),
        (["paint", "unit=mm", "wide=5"], "wide: expected bool, got '5'"),
        (["paint", "unit=mm", "depth=x"], "depth: expected int | None, got 'x'"),
        (["paint", "unit=mm", "pair=[1, 2]"], "pair[1]: expected str, got int"),
        (["generate", "prompt=a"], "prompt: expected str of length >= 2 and matching"),
        (["scale", 'values=["a"]'], "values: expected array of float32 | list[float] from a file"),
    ],
)
def test_params_of_other_types_are_not_sent(
    call: Run, peer: Described, words: list[str], problem: str
) -> None:
    status, out, errors = call(*words, "--typed")
    assert (status, out) == (2, "") and errors.startswith(f"ucall: {problem}")
    assert peer.requests == []


def test_typed_standard_input(call: Run, peer: Described, monkeypatch: pytest.MonkeyPatch) -> None:
    for words, data, params in (
        (["sum", "a=@-"], b"5\n", {"a": 5}),
        (["store", "key=@-", "data:text="], b"5\n", {"key": "5\n", "data": ""}),
        (["store", "key=a", "data=@-"], b"\xff", {"key": "a", "data": "/w=="}),
        (["sum", "--positional", "@-"], b"5\n", [5]),
    ):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert call(*words, "--typed")[0] == 0
        assert peer.requests.pop() == (words[0], params)
