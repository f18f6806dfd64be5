"""Descriptions that a hostile server made: whatever reads one ends within its budget."""

from __future__ import annotations

import ast
import itertools
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis
import hypothesis.strategies as st
import pytest
import typed_server
from described import BOOLEAN, INTEGER, described, method, param

from ucall import cli, schema
from ucall._cli import completion, description
from ucall._cli.params import Params
from ucall._cli.typed import TypedParams
from ucall._cli.values import UsageError
from ucall._openrpc import DESCRIPTION_BYTES_MAX, DescriptionError, Document, Subschema
from ucall._openrpc.budget import READS_MAX, SECONDS_MAX, STEPS_MAX, Budget
from ucall._stub.python import python_client
from ucall._stub.typescript import typescript_declarations


def ref(name: str) -> Any:
    return {"$ref": f"#/components/schemas/{name}"}


def of(schema: Any, **schemas: Any) -> Any:
    """A description of a method whose param, result and item have this schema."""
    sum = method("sum", param("a", schema), result=schema)
    stream = method("items", param("a", schema), **{"x-stream": True, "x-item": schema})
    return {"methods": [sum, stream], "components": {"schemas": schemas}, **schemas}


def chain(link: Callable[[Any], Any], count: int = 40) -> dict[str, Any]:
    """Schemas of which each is made of the next one."""
    return {f"A{it}": link(ref(f"A{it + 1}")) for it in range(count)} | {f"A{count}": INTEGER}


def _wide() -> Any:
    again = {"$ref": "#/X"}
    return {"anyOf": [{"type": "array", "items": again}] * 40 + [{"additionalProperties": again}]}


def _nested(count: int) -> Any:
    schema: Any = {}
    for _ in range(count):
        schema = {"type": "array", "items": schema}
    return schema


#: A schema and the components around it.
HOSTILE: dict[str, Any] = {
    "allOf twice the next": of(ref("A0"), **chain(lambda it: {"allOf": [it, it]})),
    "anyOf twice the next": of(ref("A0"), **chain(lambda it: {"anyOf": [it, it]})),
    "a tuple twice of the next": of(
        ref("A0"), **chain(lambda it: {"type": "array", "prefixItems": [it, it]})
    ),
    "an object twice of the next": of(
        ref("A0"), **chain(lambda it: {"properties": {"a": it, "b": it}, "required": ["a", "b"]})
    ),
    "not a component": of({"$ref": "#/A0"}, **chain(lambda it: {"anyOf": [it, [it], it]})),
    "itself": of(ref("A"), A=ref("A")),
    "allOf itself": of(ref("A"), A={"allOf": [ref("A"), {}]}),
    "anyOf itself": of(ref("A"), A={"anyOf": [ref("A"), ref("A")]}),
    "itself in its items": of(ref("A"), A={"type": "array", "items": ref("A"), "minItems": 99}),
    "a wide union of itself": of({"$ref": "#/X"}, X=_wide()),
    "many allOf": of(ref("A0"), **chain(lambda it: {"allOf": [it, {}]}, 2000)),
    "deep": of(_nested(120)),
    "too deep": of(_nested(130)),
    "a pattern": of({"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"}),
    "required is a number": of({"type": "object", "properties": {"a": {}}, "required": 7}),
    "required is absent": of({"type": "object", "properties": {}, "required": ["b", {}]}),
    "a dtype in a list": of({"x-ucall": {"type": "array", "dtype": [1], "shape": 7}}),
    "a type in a list": of({"x-ucall": {"type": ["array"]}, "type": [["object"], {}]}),
    "lengths of text": of({"type": "array", "prefixItems": [{}], "minItems": "x", "maxItems": {}}),
    "a long example": of({"type": "string", "minLength": 10**12, "maxLength": 10**15}),
    "long examples": of({"type": "array", "items": INTEGER, "minItems": 10**12}),
    "great bounds": of({"type": "number", "minimum": 10**400, "maximum": -(10**400)}),
    "odd members": of(
        dict.fromkeys(("properties", "items", "enum", "anyOf", "format", "examples", "title"), 5)
    ),
    "a long word": of({"description": "-" * 100_000, "enum": ["x" * 100_000]}),
    "two params of a name": {"methods": [method("sum", param("a", {}), param("a", {}))]},
    "a name of many groups": {"methods": [method("a." * 500 + "a")]},
    "a long name": {"methods": [method("a" * 100_000)]},
    "names of one identifier": {
        "methods": [method(f"{chr(33 + it % 10)}{chr(0x100 + it)}") for it in range(500)]
    },
    "fields that are none": of(
        ref("A"), A={"properties": {"__x": {}, "ﬁ": {}, "int": BOOLEAN, "b": INTEGER, "a b": {}}}
    ),
    # A line may end between the backslashes of one that is escaped.
    "escapes in docstrings": {
        "methods": [method(f"m{it}", description="x" * it + '\\N"' * 99) for it in range(4)]
    },
}


def check_python(source: str) -> None:
    tree = ast.parse(source)
    compile(tree, "client.py", "exec", dont_inherit=True)
    check_text(source)
    for statement in tree.body:
        if isinstance(statement, ast.Expr):
            assert isinstance(statement.value, ast.Constant)


_TYPESCRIPT = re.compile(r'"(?:[^"\\\n]|\\.)*"|/\*(?:[^*]|\*(?!/))*\*/')


def check_typescript(source: str) -> None:
    rest = _TYPESCRIPT.sub("", source)
    assert not set("\"'`\\") & set(rest) and "*/" not in rest and "/*" not in rest
    check_text(source)
    for opening, closing in ("()", "[]", "{}"):
        assert rest.count(opening) == rest.count(closing)


def check_text(text: str) -> None:
    assert text.replace("\n", "").isprintable()


def check_candidates(document: Document) -> None:
    """Completes each method, param and value."""
    kept = json.loads(json.dumps(completion.kept_of(document)))
    with mock.patch.object(completion, "_methods", lambda *_: kept):
        typed = [[""]]
        for name, about in itertools.islice(kept.items(), 20):
            typed += [[name, ""], *([name, f"{param}="] for param in about["params"])]
        for words in typed:
            if words[0][:1] == "-":
                continue  # An option.
            for word, _ in completion._candidates(words, lambda *_: pytest.fail()):
                assert word.isprintable() and word[:1] != "-"
                assert word.partition("=")[2][:1] != "@"
            line = shlex.join(["ucall", *words[:-1]]) + f" {words[-1]}"
            found = completion.complete(["bash", line, "=:@"], lambda *_: pytest.fail())
            for part in found.splitlines():
                assert len(shlex.split(part)) <= 1 and part.isprintable()


def read_all(new: Callable[[], Document], methods: int = 4) -> list[str]:
    """Lets each reader read a description, and its first methods. Returns the errors."""

    def help_of(position: int) -> str:
        document = new()
        return description.help_text(document, list(document.methods.values())[position], "")

    def typed(position: int, text: str) -> None:
        document = new()
        called = list(document.methods.values())[position]
        names = [it.name for it in called.params if "=" not in it.name and ":" not in it.name]
        Params([f"{it}={text}" for it in names], [], TypedParams(document, called))
        Params([], [("positional", text)] * len(called.params), TypedParams(document, called))

    readers: list[Callable[[], object]] = [
        lambda: check_text(description.method_list(new())),
        lambda: check_python(python_client(new())),
        lambda: check_typescript(typescript_declarations(new())),
        lambda: check_candidates(new()),
    ]
    for position in range(min(len(new().methods), methods)):
        readers.append(lambda position=position: check_text(help_of(position)))
        for text in ("5", "a" * 40 + "!", "[[[[[]]]]]", '{"a": {"a": 1}}', "@/dev/null", "null"):
            readers.append(lambda position=position, text=text: typed(position, text))
    errors = []
    for reader in readers:
        try:
            reader()
        except (DescriptionError, UsageError) as error:
            errors.append(str(error))
    return errors


def read_value(value: Any) -> list[str]:
    """As `read_all`, without the clock: steps alone must end it."""
    try:
        return read_all(lambda: Document(value, clock=lambda: 0.0))
    except DescriptionError as error:
        return [str(error)]


@pytest.mark.parametrize("name", HOSTILE)
def test_every_reader_ends(name: str) -> None:
    for error in read_value(HOSTILE[name]):
        assert "\n" not in error


COMMANDS = [
    ["--list"],
    ["sum", "--help"],
    ["sum", "a=" + "a" * 40 + "!", "--typed"],
    ["sum", "a=[[[[[[]]]]]]", "--typed"],
    ["sum", "--positional", "1", "--typed"],
    ["stub"],
    ["stub", "--typescript"],
    ["__complete", "bash"],
    ["__complete", "zsh"],
    ["__complete", "fish"],
]


@pytest.mark.parametrize("name", HOSTILE)
def test_every_command_ends_with_output_or_an_error_of_one_line(
    name: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with described(HOSTILE[name]) as peer:
        uri = f"http://127.0.0.1:{peer.port}"
        for number, command in enumerate(COMMANDS):
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / str(number)))
            words = [*command, "--uri", uri]
            if command[0] == "stub":
                words = [*command, uri]
            elif command == ["__complete", "bash"]:
                words = [*command, f"ucall --uri {uri} sum ", "=:@"]
            elif command[0] == "__complete":
                words = [*command, "--uri", uri, "sum", ""]
            status = cli.main(words)
            out, errors = capfd.readouterr()
            assert status in (0, 1, 2, 3)
            assert errors.count("\n") == (status != 0) and errors[:7] in ("", "ucall: ")
            assert all(it.isprintable() or it in "\n\t" for it in out)


TEXTS = st.sampled_from(
    [
        *("sum", "a", "a.b", "__init__", "self", "int", "class", "None", "-o", "--help", "@x"),
        *(
            "a b",
            "a\nb",
            "a'b",
            'a"b',
            "a\\",
            "*/",
            "/*",
            "`$(x)`",
            "a=b",
            "a:str",
            "ﬁ",
            "ab\u2028",
        ),
        *("\ud800", "\x00\x1b[2J", '"""', "'''\\", "~1~0", "x" * 200, ". .", "x-ucall", "5", ""),
    ]
)
NUMBERS = st.sampled_from([0, 1, -1, 2**63, 10**400, -(10**400), 1.5, 1e308, -0.0, True, 10**12])
REFERENCES = st.sampled_from(
    [
        *(f"#/components/schemas/{it}" for it in ("A", "B", "C", "a b", "none")),
        *("#/methods", "#/definitions/A", "#/definitions/B", "#/components", "", "#"),
    ]
)
ANYTHING = st.recursive(
    st.one_of(st.none(), TEXTS, NUMBERS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=4,
)
TYPES = st.sampled_from(
    ["integer", "number", "boolean", "string", "null", "array", "object", "any", ["null", "array"]]
)


def _members(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, max_size=3)
    fixed = {
        "type": TYPES,
        "title": TEXTS,
        "description": TEXTS,
        "format": st.sampled_from(["date", "uuid", "decimal", "date-time", "x"]),
        "pattern": st.sampled_from(["^(a+)+$", "(", "x"]),
        "enum": st.lists(ANYTHING, max_size=3),
        "const": ANYTHING,
        "default": ANYTHING,
        "examples": st.lists(ANYTHING, max_size=2),
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), NUMBERS),
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), NUMBERS),
        **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), lists),
        "items": inner | lists,
        "properties": st.dictionaries(TEXTS, inner, max_size=4),
        "required": st.lists(TEXTS, max_size=3),
        "additionalProperties": inner | st.booleans(),
        "uniqueItems": st.booleans(),
        "contentEncoding": st.just("base64"),
        "x-ucall": st.fixed_dictionaries(
            {}, optional={"type": st.sampled_from(["array", "image", "bytes"]), "dtype": TEXTS}
        ),
    }
    # A third of the members has any other type.
    odd = {name: st.one_of(member, member, ANYTHING) for name, member in fixed.items()}
    few = st.lists(st.sampled_from(sorted(odd)), max_size=4, unique=True)
    return few.flatmap(lambda names: st.fixed_dictionaries({name: odd[name] for name in names}))


SCHEMAS = st.recursive(
    st.builds(lambda it: {"$ref": it}, REFERENCES) | ANYTHING, _members, max_leaves=8
)
PARAMS = st.fixed_dictionaries(
    {"name": TEXTS | ANYTHING, "schema": SCHEMAS},
    optional={
        "description": TEXTS,
        "required": st.booleans() | ANYTHING,
        "x-rest": st.sampled_from(["positional", "named"]) | ANYTHING,
    },
)
METHODS = st.fixed_dictionaries(
    {"name": TEXTS | ANYTHING},
    optional={
        "params": st.lists(PARAMS, max_size=3) | ANYTHING,
        "result": st.fixed_dictionaries({"schema": SCHEMAS}, optional={"description": TEXTS}),
        "summary": TEXTS | ANYTHING,
        "description": TEXTS,
        "errors": st.lists(
            st.fixed_dictionaries({"code": NUMBERS | ANYTHING, "message": TEXTS}), max_size=2
        ),
        "paramStructure": st.sampled_from(["by-position", "by-name", "either"]) | ANYTHING,
        "x-stream": st.booleans(),
        "x-item": SCHEMAS,
        "deprecated": st.booleans(),
    },
)
COMPONENTS = st.dictionaries(st.sampled_from(["A", "B", "C", "a b", "A_2", "int"]), SCHEMAS)
DOCUMENTS = st.fixed_dictionaries(
    {"methods": st.lists(METHODS, max_size=4)},
    optional={
        "info": st.fixed_dictionaries({"title": TEXTS}) | ANYTHING,
        "components": st.fixed_dictionaries({"schemas": COMPONENTS}) | ANYTHING,
        "definitions": COMPONENTS,
    },
)


@hypothesis.settings(
    max_examples=60, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)
@hypothesis.given(DOCUMENTS)
def test_readers_of_any_description(value: Any) -> None:
    for error in read_value(value):
        # The command prints errors in one line, with control characters escaped.
        assert isinstance(error, str) and error


def test_the_steps_of_a_description() -> None:
    document = of({"type": "object"})
    budget = Budget(document, lambda: 0.0)
    assert budget.steps_max > STEPS_MAX
    assert Budget({**document, "x": [0] * 100}, lambda: 0.0).steps_max == (
        budget.steps_max + READS_MAX * 101
    )
    for _ in range(budget.steps_max):
        budget.spend(0)
    with pytest.raises(DescriptionError, match=f"more than {budget.steps_max} steps"):
        budget.spend(0)


def test_the_time_of_a_description() -> None:
    now = 0.0
    document = Document(of(INTEGER), clock=lambda: now)
    schema = Subschema({"type": "integer"})
    now = SECONDS_MAX
    for _ in range(100):
        document.resolve(schema)
    now = SECONDS_MAX + 0.1
    with pytest.raises(DescriptionError, match="more than 1 s"):
        for _ in range(100):
            document.resolve(schema)


def test_the_length_of_a_description(capfd: pytest.CaptureFixture[str]) -> None:
    for extra, status in ((0, 0), (1, 3)):
        document = {"methods": [method("sum")], "x": ""}
        with described(document) as peer:
            # The length of the reply around the text.
            with cli._quiet_client(cli.parse(["sum", "-p", str(peer.port)])) as client:
                around = len(client.call("rpc.discover").text)
            document["x"] = "x" * (DESCRIPTION_BYTES_MAX - around + extra)
            assert cli.main(["--list", "-p", str(peer.port)]) == status
        errors = capfd.readouterr().err
        assert ("a description of more than 1048576 bytes" in errors) == (status == 3)


def test_a_number_that_is_none(capfd: pytest.CaptureFixture[str]) -> None:
    for text in ("1e999", "9" * 5000):
        with described({"methods": []}, text=f'{{"methods": [], "x": {text}}}') as peer:
            assert cli.main(["--list", "-p", str(peer.port)]) == 3
        assert capfd.readouterr().err.startswith("ucall: rpc.discover replied with a description ")


def test_a_large_description_of_a_good_server() -> None:
    """A description of nearly the greatest length is no hostile one."""
    user = {"type": "object", "properties": {"id": INTEGER, "of": ref("User")}, "required": ["id"]}
    methods = [
        method(
            f"group{it % 50}.method{it}",
            param("user", ref("User"), "The user."),
            param("limit", {"anyOf": [INTEGER, {"type": "null"}], "default": None}),
            result={"type": "array", "items": ref(f"User{it % 100}")},
            summary="Lists users of a group.",
        )
        for it in range(500)
    ]
    users = {"User": user, **{f"User{it}": user for it in range(100)}}
    document = {"methods": methods, "components": {"schemas": users}}
    errors = read_all(lambda: Document(document, clock=lambda: 0.0), methods=1)
    assert [it for it in errors if "expected" not in it] == []


def test_a_server_of_the_package_is_read() -> None:
    document = schema.describe(typed_server.server).openrpc()
    errors = read_value(document)
    assert document["methods"] and [it for it in errors if "expected" not in it] == []
