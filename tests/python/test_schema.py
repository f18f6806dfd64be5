"""What `ucall.schema` and ``rpc.discover`` say of functions."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import math
import subprocess
import sys
import typing
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from typing import Annotated, Any, NamedTuple

import httpx
import msgspec
import numpy as np
import PIL.Image
import pydantic
import pytest
import typing_extensions
from numpy.typing import NDArray
from serving import Serve
from test_workers import supervised

import ucall
from harness import HOST, Wire, eventually
from ucall.schema import Description, Error, Method, Parameter, describe


class NotFound(ucall.RPCError):
    code = 4004


@dataclasses.dataclass
class Node:
    value: int
    next: Node | None = None


def _method(function: Any, **options: Any) -> Method:
    server = ucall.Server(port=0)
    server.add(function, **options)
    return describe(server).methods[0]


def _discover(server: ucall.Server) -> dict[str, Any]:
    reply = httpx.post(
        f"http://{HOST}:{server.port}/",
        json={"jsonrpc": "2.0", "id": 1, "method": "rpc.discover"},
        timeout=60,
    )
    return reply.json()["result"]


def google(a: int, b: int = 3) -> int:
    """Adds two
    numbers.

    Exactly so.

    Args:
        a: The first.
        b: The second.

    Returns:
        Their sum.

    Raises:
        NotFound: There is no such number.
        ucall.RPCError: 4001, the sum is too large.
        ValueError: Is told to no caller.
    """
    return a + b


def numpy_style(a: int, b: int = 3) -> int:
    """Adds two numbers.

    Exactly so.

    Parameters
    ----------
    a : int
        The first.
    b : int
        The second.

    Returns
    -------
    int
        Their sum.

    Raises
    ------
    NotFound
        There is no such number.
    ucall.RPCError
        4001, the sum is too large.
    """
    return a + b


def sphinx(a: int, b: int = 3) -> int:
    """Adds two numbers.

    Exactly so.

    :param a: The first.
    :param b: The second.
    :returns: Their sum.
    :raises NotFound: There is no such number.
    :raises ucall.RPCError: 4001, the sum is too large.
    """
    return a + b


@pytest.mark.parametrize("function", [google, numpy_style, sphinx])
def test_a_docstring_describes_the_method_its_params_and_its_errors(function):
    assert _method(function) == Method(
        function.__name__,
        [
            Parameter("a", {"type": "integer"}, True, "The first."),
            Parameter("b", {"type": "integer", "default": 3}, False, "The second."),
        ],
        {"type": "integer"},
        summary="Adds two numbers.",
        description="Exactly so.",
        result_description="Their sum.",
        errors=[
            Error(4004, "There is no such number."),
            Error(4001, "the sum is too large."),
        ],
    )


def test_without_docstring_parser_the_docstring_is_a_summary_and_the_rest(monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "docstring_parser" else find(name)
    )
    method = _method(google)
    assert method.summary == "Adds two numbers."
    assert method.description.startswith("Exactly so.\n\nArgs:\n    a: The first.")
    assert [param.description for param in method.params] == ["", ""]


def test_a_docstring_that_the_parser_cannot_read_is_a_summary_and_the_rest():
    def parse(head: str) -> dict:
        """Parses a head, such as

        ::

            :status: 200
        """

    method = _method(parse)
    assert method.summary == "Parses a head, such as"
    assert method.description == "::\n\n    :status: 200"


def test_a_function_without_docstring_and_annotations_takes_any_values():
    def bare(a, b=None):
        return a

    assert _method(bare) == Method(
        "bare", [Parameter("a", {}), Parameter("b", {"default": None}, False)], {}
    )


def test_a_context_is_no_param_and_deprecation_is_told():
    def old(ctx: ucall.Context, a: int) -> None:
        """Does it.

        .. deprecated:: 1.0
            Use new.
        """

    def older() -> None: ...

    assert _method(typing_extensions.deprecated("Use new.")(older)).is_deprecated
    method = _method(old)
    assert [param.name for param in method.params] == ["a"]
    assert method.is_deprecated and not _method(google).is_deprecated


def test_rest_params_and_how_params_may_be_passed():
    def either(a: int) -> None: ...
    def by_position(a: int, /, *rest: int) -> None: ...
    def by_name(*, a: int, **rest: float) -> None: ...

    assert _method(either).passing == "either"
    described = _method(by_position)
    rest = Parameter(
        "rest", {"type": "array", "items": {"type": "integer"}}, False, "", "positional"
    )
    assert described.passing == "by-position" and described.params[1] == rest
    described = _method(by_name)
    schema = {"type": "object", "additionalProperties": {"type": "number"}}
    assert described.passing == "by-name"
    assert described.params[1] == Parameter("rest", schema, False, "", "named")


def test_required_params_that_can_be_passed_in_one_way_decide():
    def by_position(a: int, /, *, late: int = 1) -> None: ...
    def by_name(early: int = 1, /, *, a: int) -> None: ...
    def among_the_rest(a: int = 1, /, **rest: int) -> None: ...
    def with_context(a: int, *, ctx: ucall.Context) -> None: ...

    assert _method(by_position).passing == "by-position"
    assert _method(by_name).passing == "by-name"
    assert _method(among_the_rest).passing == "by-position"
    assert _method(with_context).passing == "either"
    # The others cannot be passed in that way.
    listed = [_method(it).params for it in (by_position, by_name, among_the_rest)]
    assert [[param.name for param in params] for params in listed] == [["a"], ["a"], ["a"]]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (datetime.date(2026, 1, 31), "2026-01-31"),
        (Decimal("1.5"), "1.5"),
        (b"ab", "YWI="),
        (enum.Enum("Colour", {"RED": "red"}).RED, "red"),
        (Node(1, Node(2)), {"value": 1, "next": {"value": 2, "next": None}}),
        ((1, [2.5]), [1, [2.5]]),
    ],
)
def test_a_default_is_written_as_json(value, written):
    def f(a=value): ...

    assert _method(f).params[0].schema == {"default": written}


@pytest.mark.parametrize("value", [float("nan"), object(), {"a", "b"}, [1j], "\ud800"])
def test_a_default_without_json_form_is_left_out(value):
    def f(a=value): ...

    assert _method(f).params == [Parameter("a", {}, False)]


def test_a_stream_is_a_list_of_items():
    def plain(n: int) -> Iterator[str]:
        yield ""

    async def later(n: int) -> AsyncIterator[Node]:
        yield Node(1)

    def bare(n: int) -> typing.Generator:
        yield n

    assert _method(bare).result == {"type": "array", "items": {}}
    assert _method(plain).result == {"type": "array", "items": {"type": "string"}}
    assert _method(plain).item == {"type": "string"}
    assert _method(later).item == {"$ref": "#/components/schemas/Node"}
    assert _method(google).item is None


def test_a_batch_is_described_by_one_call():
    server = ucall.Server(port=0)

    @server.batch
    def embed(texts: list[str], images: NDArray[np.uint8]) -> list[float]:
        return []

    method = describe(server).methods[0]
    assert method.params[0].schema == {"type": "string"}
    assert method.params[1].schema["x-ucall"]["dtype"] == "uint8"
    assert method.result == {"type": "number"}


def test_classes_are_components_and_recursive_ones_refer_to_themselves():
    server = ucall.Server(port=0)

    @server
    def walk(node: Node) -> Node:
        return node

    described = describe(server)
    reference = {"$ref": "#/components/schemas/Node"}
    assert described.methods[0].params[0].schema == described.methods[0].result == reference
    assert list(described.components) == ["Node"]
    assert reference in described.components["Node"]["properties"]["next"]["anyOf"]


def test_two_classes_of_one_name_are_two_components():
    def made(kind: type) -> type:
        @dataclasses.dataclass
        class Same:
            x: kind
            more: list[Same]

        Same.__annotations__["more"] = list[Same]
        Same.__annotations__["x"] = kind
        return Same

    first, second = made(int), made(str)

    def f(a, b, c): ...

    f.__annotations__ = {"a": first, "b": second, "c": second}
    server = ucall.Server(port=0)
    server.add(f)
    described = describe(server)
    references = [param.schema["$ref"] for param in described.methods[0].params]
    assert references == [f"#/components/schemas/{name}" for name in ("Same", "Same_2", "Same_2")]
    assert described.components["Same"]["properties"]["x"] == {"type": "integer"}
    second = described.components["Same_2"]["properties"]
    assert second["x"] == {"type": "string"}
    assert second["more"]["items"] == {"$ref": "#/components/schemas/Same_2"}
    assert list(described.components) == ["Same", "Same_2"]


def _takes(*annotations: Any) -> Any:
    """A function with a parameter of each annotation, ``p0`` and so on."""
    names = [f"p{index}" for index in range(len(annotations))]
    function = eval(f"lambda {', '.join(names)}: None")
    function.__annotations__ = dict(zip(names, annotations, strict=True))
    return function


def test_classes_that_differ_in_a_class_that_they_refer_to_are_two_components():
    def made(kind: type) -> type:
        inner = dataclasses.make_dataclass("Inner", [("x", kind)])
        return dataclasses.make_dataclass("Outer", [("default", inner), ("examples", list[inner])])

    server = ucall.Server(port=0)
    server.add(_takes(made(int), made(str)), name="f")
    described = describe(server)
    for param, kind in zip(described.methods[0].params, ["integer", "string"], strict=True):
        members = _component(described, param.schema)["properties"]
        inner = _component(described, members["default"])
        assert inner["properties"]["x"] == {"type": kind}
        assert _component(described, members["examples"]["items"]) is inner


def _component(described: Description, reference: dict[str, Any]) -> Any:
    return described.components[reference["$ref"].removeprefix("#/components/schemas/")]


def test_the_tags_of_a_union_refer_to_its_own_classes():
    def made(kind: type) -> type:
        return msgspec.defstruct("Cat", [("x", kind)], tag="cat")

    class Dog(msgspec.Struct, tag="dog"):
        x: int

    server = ucall.Server(port=0)
    server.add(_takes(made(int) | Dog, made(str) | Dog), name="f")
    for param in describe(server).methods[0].params:
        references = [part["$ref"] for part in param.schema["anyOf"]]
        assert list(param.schema["discriminator"]["mapping"].values()) == references


def test_a_class_whose_params_and_results_differ_is_two_components():
    class Tags(msgspec.Struct):
        names: set[str]

    function = _takes(Tags)
    function.__annotations__["return"] = Tags
    server = ucall.Server(port=0)
    server.add(function, name="f")
    described = describe(server)
    method = described.methods[0]
    taken = _component(described, method.params[0].schema)["properties"]["names"]
    returned = _component(described, method.result)["properties"]["names"]
    assert "uniqueItems" not in taken and returned["uniqueItems"] is True


def test_arrays_images_and_bytes_say_what_their_base64_holds():
    def f(a: NDArray[np.float32], b: bytes, c: PIL.Image.Image) -> NDArray[np.float32]:
        return a

    method = _method(f)
    of_param, of_bytes, of_image = (param.schema for param in method.params)
    hint = {"type": "array", "dtype": "float32", "shape": None}
    assert of_param["x-ucall"] == of_param["anyOf"][0]["x-ucall"] == hint
    assert method.result == of_param["anyOf"][0]
    assert method.result["contentMediaType"] == "application/x-npy"
    assert of_bytes["contentEncoding"] == of_image["contentEncoding"] == "base64"
    assert (of_bytes["x-ucall"], of_image["x-ucall"]) == ({"type": "bytes"}, {"type": "image"})


def test_fields_that_are_arrays_have_their_dtypes_and_dimensions():
    matrix = np.ndarray[tuple[int, int], np.dtype[np.float32]]
    data = dataclasses.make_dataclass(
        "Data", [("one", matrix), ("some", dict[str, list[matrix]]), ("none", matrix | None, None)]
    )
    server = ucall.Server(port=0)
    server.add(_takes(data, NamedTuple("Pair", [("n", int), ("one", matrix)])), name="f")
    described = describe(server)
    taken, pair = (_component(described, it.schema) for it in described.methods[0].params)
    members, hint = taken["properties"], {"type": "array", "dtype": "float32", "shape": [None] * 2}
    assert members["one"]["x-ucall"] == hint
    assert members["some"]["additionalProperties"]["items"] == members["one"]
    assert members["none"] == {"anyOf": [members["one"], {"type": "null"}], "default": None}
    assert pair["prefixItems"] == [{"type": "integer"}, members["one"]]


def test_notes_and_fields_describe_params():
    class Item(pydantic.BaseModel):
        sku: str = pydantic.Field(description="The stock number.", examples=["a1"])

    def f(item, count): ...

    f.__annotations__ = {"item": Item, "count": Annotated[int, "How many."]}
    server = ucall.Server(port=0)
    server.add(f)
    described = describe(server)
    assert described.methods[0].params[1].schema == {"type": "integer", "description": "How many."}
    sku = described.components["Item"]["properties"]["sku"]
    assert (sku["description"], sku["examples"]) == ("The stock number.", ["a1"])


def test_flags_may_be_combined_also_in_models_of_pydantic():
    class Access(enum.Flag):
        READ = 1
        WRITE = 2

    class File(pydantic.BaseModel):
        access: Access

    server = ucall.Server(port=0)
    server.add(_takes(Access, File), name="check")
    found = describe(server).components
    assert found["Access"] == {"title": "Access", "type": "integer"}
    assert found["File"]["properties"]["access"] == {"$ref": "#/components/schemas/Access"}


def test_tuples_and_references_are_written_in_draft_07():
    class Point(NamedTuple):
        x: int
        y: float

    def f(at, node=None): ...

    f.__annotations__ = {"at": tuple[int, str], "node": Annotated[Node | None, "Where."]}
    server = ucall.Server(port=0)
    server.add(f)
    params = describe(server).openrpc()["methods"][0]["params"]
    at = params[0]["schema"]
    assert at["items"] == [{"type": "integer"}, {"type": "string"}] and "prefixItems" not in at


def test_a_result_that_no_library_describes_is_any_value():
    def f() -> complex:
        return 1

    def g() -> NoSuchName:  # noqa: F821
        return 1

    assert _method(f).result == _method(g).result == {}


def test_a_local_class_is_described_though_its_function_has_ended():
    def add(server: ucall.Server) -> None:
        @dataclasses.dataclass
        class Local:
            x: int

        @server
        def f(a: Local) -> Local:
            return a

    server = ucall.Server(port=0)
    add(server)
    assert describe(server).methods[0].result == {"$ref": "#/components/schemas/Local"}


def test_all_ways_to_ask_answer_the_same(serve: Serve):
    server = serve(google, title="Shop", version="2.0", description="Sells.")
    document = _discover(server)
    assert document["info"] == {"title": "Shop", "version": "2.0", "description": "Sells."}
    assert [method["name"] for method in document["methods"]] == ["google"]
    reply = httpx.get(f"http://{HOST}:{server.port}/openrpc.json", timeout=60)
    assert reply.headers["content-type"] == "application/json"
    assert reply.json() == document == describe(server).openrpc()


def test_a_function_that_is_added_later_is_in_the_next_document(serve: Serve):
    server = serve(google)
    assert len(_discover(server)["methods"]) == 1
    server.add(sphinx)
    assert [method["name"] for method in _discover(server)["methods"]] == ["google", "sphinx"]


def test_a_server_may_describe_nothing(serve: Serve):
    server = serve(google, describe=False)
    assert httpx.get(f"http://{HOST}:{server.port}/openrpc.json").status_code in (404, 405)
    reply = httpx.post(
        f"http://{HOST}:{server.port}/", json={"jsonrpc": "2.0", "id": 1, "method": "rpc.discover"}
    )
    assert reply.json()["error"]["code"] == -32601


def test_auth_is_asked_for_descriptions(serve: Serve):
    server = serve(google, auth=lambda ctx: ctx.headers.get("authorization") == "Bearer x")
    url = f"http://{HOST}:{server.port}/openrpc.json"
    assert httpx.get(url).status_code == 401
    assert httpx.get(url, headers={"Authorization": "Bearer x"}).status_code == 200
    call = {"jsonrpc": "2.0", "id": 1, "method": "rpc.discover"}
    url = url.removesuffix("openrpc.json")
    assert httpx.post(url, json=call).status_code == 401
    assert httpx.post(url, json=call, headers={"Authorization": "Bearer x"}).status_code == 200


def test_a_server_that_nobody_asks_imports_and_makes_nothing():
    program = """
import sys, ucall
server = ucall.Server(port=0)
@server
def sum(a: int, b: int) -> int: return a + b
server.start()
print([name for name in sys.modules if "schema" in name or name in ("json", "msgspec", "numpy")])
server.stop()
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert json.loads(ran.stdout.replace("'", '"')) == []


def test_all_workers_answer_with_the_same_document(tmp_path):
    source = """
import enum, os, ucall
server = ucall.Server(port=0)
class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"
@server
def pid() -> int:
    return os.getpid()
@server
def paint(colour: Colour = Colour.RED, on: set[str] | int = 5, names=frozenset("abc")) -> Colour:
    return colour
"""
    with supervised(tmp_path, "--workers", "2", source=source) as server:
        server.wait_for(2)
        documents: dict[int, Any] = {}

        def ask() -> bool:
            with Wire(server.port) as wire:
                documents[wire.result("pid", None)] = wire.result("rpc.discover", None)
            return len(documents) == 2

        assert eventually(ask)
        first, second = documents.values()
        assert json.dumps(first) == json.dumps(second)
        assert [method["name"] for method in first["methods"]] == ["pid", "paint"]


def test_a_program_without_a_version_has_not_that_of_ucall(serve: Serve):
    assert _discover(serve(google))["info"] == {"title": "ucall", "version": "0.0.0"}


@pytest.mark.parametrize("option", ["title", "version", "description"])
def test_texts_of_another_type_are_refused(option):
    with pytest.raises(TypeError, match=f"{option}: expected a str, got int"):
        ucall.Server(port=0, **{option: 1})


class Unbounded(pydantic.BaseModel):
    limit: float = math.inf
    low: Annotated[float, pydantic.Field(ge=-math.inf)] = 1.0


class Sampled(msgspec.Struct):
    value: float = math.nan
    text: str = "\ud800"


Example = Annotated[float, pydantic.Field(examples=[math.nan, 1.5])]


def test_what_json_has_not_is_left_out() -> None:
    """It would make the whole description invalid."""

    def tune(a: Unbounded, b: Sampled, c: Example, d: float = math.nan) -> Unbounded: ...

    server = ucall.Server(port=0)
    server.add(tune)
    with server, Wire(server.port) as wire:
        document = wire.result("rpc.discover")
    schemas = document["components"]["schemas"]
    for field in ("value", "text"):
        assert "default" not in schemas["Sampled"]["properties"][field]
    assert "default" not in schemas["Unbounded"]["properties"]["limit"]
    assert schemas["Unbounded"]["properties"]["low"] == {
        "title": "Low", "type": "number", "default": 1.0
    }  # fmt: skip
    (example,) = [it for it in document["methods"][0]["params"] if it["name"] == "c"]
    assert example["schema"]["examples"] == [1.5]
