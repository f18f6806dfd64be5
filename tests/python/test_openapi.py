"""``GET /openapi.json``: the routes of a server, and its functions at ``POST /name``."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import httpx
import jsonschema
import numpy as np
import pytest
from numpy.typing import NDArray
from openapi_spec_validator import OpenAPIV31SpecValidator
from PIL import Image

import ucall
import ucall.auth
from ucall.schema import describe

T = TypeVar("T")


@dataclasses.dataclass
class Note:
    name: str
    size: int = 0


@dataclasses.dataclass
class Boxed(Generic[T]):
    value: T


@dataclasses.dataclass
class Scan:
    pixels: np.ndarray


class SoldOut(ucall.RPCError):
    code = 409


def buy(fruit: str, count: int = 1) -> float:
    """Buys fruit.

    From a shop.

    Args:
        fruit: Its name.

    Returns:
        The price.

    Raises:
        SoldOut: There is none left.
        ucall.RPCError: 4001, the count is too large.
    """
    if fruit == "durian":
        raise SoldOut("none left")
    return 0.5 * count


def scale(values: NDArray[np.float32], by: float = 2.0) -> NDArray[np.float32]:
    return values * np.float32(by)


def matrix(values: np.ndarray) -> np.ndarray:
    return values


def resize(image: Image.Image, width: int = 2) -> Image.Image:
    return image.resize((width, width))


def scan(scan: Scan) -> Scan:
    return scan


def boxed(box: Boxed[int]) -> Boxed[str]:
    return Boxed(str(box.value))


def total(*numbers: int) -> int:
    return sum(numbers)


def placed(a: int, b: str = "", /) -> str:
    return b * a


def options(a: int, **others: bool) -> int:
    return a + len(others)


def nothing() -> None:
    return None


def count(n: int) -> Iterator[int]:
    yield from range(n)


FUNCTIONS = (buy, scale, matrix, resize, scan, boxed, total, placed, options, nothing, count)


def served(**options: Any) -> ucall.Server:
    server = ucall.Server(
        port=0, title="Shop", version="2.0.0", description="Sells fruit.", **options
    )
    for function in FUNCTIONS:
        server.add(function)
    server.add(nothing, name="a/b {c}")

    @server.http("/notes/{name}", methods=["GET", "PUT"])
    async def note(request: ucall.HttpRequest) -> Note:
        """Reads or writes a note.

        Returns:
            The note.
        """
        return Note(request.path_params["name"], len(request.body))

    @server.http("/files/*", auth=False)
    def files(request: ucall.HttpRequest) -> ucall.HttpResponse:
        return ucall.HttpResponse(request.path)

    @server.http("/text")
    def text(request: ucall.HttpRequest) -> str:
        return "text"

    @server.http("/raw")
    def raw(request: ucall.HttpRequest) -> bytes:
        return b"raw"

    return server


def document_of(server: ucall.Server) -> dict[str, Any]:
    with server:
        got = httpx.get(f"http://127.0.0.1:{server.port}/openapi.json")
    assert got.status_code == 200 and got.headers["content-type"] == "application/json"
    document: dict[str, Any] = got.json()
    return document


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return document_of(served())


def test_it_is_valid(document: dict[str, Any]) -> None:
    assert list(OpenAPIV31SpecValidator(document).iter_errors()) == []
    assert document["openapi"] == "3.1.1"
    info = {"title": "Shop", "version": "2.0.0", "description": "Sells fruit."}
    assert document["info"] == info


def test_it_is_that_of_the_description(document: dict[str, Any]) -> None:
    assert describe(served()).openapi() == document


def test_a_function_is_described(document: dict[str, Any]) -> None:
    operation = document["paths"]["/buy"]["post"]
    assert operation["operationId"] == "buy"
    assert operation["summary"] == "Buys fruit." and operation["description"] == "From a shop."
    assert operation["requestBody"] == {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "fruit": {"type": "string", "description": "Its name."},
                        "count": {"type": "integer", "default": 1},
                    },
                    "required": ["fruit"],
                    "additionalProperties": False,
                }
            }
        },
    }
    responses = operation["responses"]
    assert list(responses) == ["200", "400", "422", "500", "409", "default"]
    assert responses["200"]["description"] == "The price."
    assert responses["409"]["description"] == "409: There is none left."
    assert "4001: the count is too large." in responses["500"]["description"]


def test_params_are_an_object_or_a_list(document: dict[str, Any]) -> None:
    def schema(path: str) -> Any:
        body = document["paths"][path]["post"]["requestBody"]
        return body["content"]["application/json"]["schema"]

    assert schema("/total") == {"type": "array", "minItems": 0, "items": {"type": "integer"}}
    text = {"type": "string", "default": ""}
    assert schema("/placed") == {
        "type": "array",
        "minItems": 1,
        "prefixItems": [{"type": "integer"}, text],
        "items": False,
    }
    assert schema("/options")["additionalProperties"] == {"type": "boolean"}
    assert "requestBody" not in document["paths"]["/nothing"]["post"]


def test_files_may_be_the_body(document: dict[str, Any]) -> None:
    scaled, resized = document["paths"]["/scale"]["post"], document["paths"]["/resize"]["post"]
    forms = "application/json", "multipart/form-data"
    assert set(scaled["requestBody"]["content"]) == {*forms, "application/x-npy"}
    assert set(resized["requestBody"]["content"]) == {*forms, "image/*"}
    # Without the default, which clients would send beside the field of a form.
    assert scaled["parameters"] == [{"name": "by", "in": "query", "schema": {"type": "number"}}]
    assert set(scaled["responses"]["200"]["content"]) == {"application/json", "application/x-npy"}
    assert set(resized["responses"]["200"]["content"]) == {"application/json", "image/*"}


def test_files_have_schemas(document: dict[str, Any]) -> None:
    """Generators of clients leave out what has none."""
    file = {"type": "string", "format": "binary"}
    npy = {**file, "contentMediaType": "application/x-npy"}
    scaled = document["paths"]["/scale"]["post"]
    taken, returned = scaled["requestBody"]["content"], scaled["responses"]["200"]["content"]
    assert taken["application/x-npy"]["schema"] == npy
    assert taken["multipart/form-data"]["schema"]["properties"]["values"] == npy
    assert returned["application/x-npy"]["schema"] == npy
    put = document["paths"]["/notes/{name}"]["put"]
    # A route may read JSON or a form as well.
    assert put["requestBody"]["content"] == {
        "application/octet-stream": {"schema": file},
        "*/*": {},
    }
    raw = document["paths"]["/raw"]["get"]["responses"]["200"]
    assert raw["content"] == {"application/octet-stream": {"schema": file}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/buy", {"fruit": "apple", "count": 3}),
        ("/scale", {"values": [1, 2.5], "by": 3}),
        ("/matrix", {"values": [[1.5, 2], [3, 4]]}),
        ("/scan", {"scan": {"pixels": [[1, 2]]}}),
        ("/boxed", {"box": {"value": 5}}),
        ("/total", [1, 2, 3]),
        ("/placed", [2, "ab"]),
        ("/options", {"a": 1, "b": True}),
        ("/nothing", None),
        ("/count", {"n": 3}),
        ("/a%2Fb%20%7Bc%7D", None),
    ],
)
def test_calls_are_as_described(document: dict[str, Any], path: str, body: Any) -> None:
    """What the server takes and answers is valid by the schemas of the document."""
    operation = document["paths"][path]["post"]

    def check(value: object, content: dict[str, Any]) -> None:
        schema = content["application/json"]["schema"]
        whole = {**schema, "components": document["components"]}
        jsonschema.Draft202012Validator(whole).validate(value)

    with served() as server:
        answer = httpx.post(f"http://127.0.0.1:{server.port}{path}", json=body)
        wrong = httpx.post(f"http://127.0.0.1:{server.port}{path}", json={"unknown": []})
    assert answer.status_code == 200
    if body is not None:
        check(body, operation["requestBody"]["content"])
    check(answer.json(), operation["responses"]["200"]["content"])
    if wrong.status_code == 422 and body is not None:
        check(wrong.json(), operation["responses"]["422"]["content"])


def test_routes_are_described(document: dict[str, Any]) -> None:
    notes = document["paths"]["/notes/{name}"]
    assert set(notes) == {"get", "put"}
    assert notes["get"]["operationId"] != notes["put"]["operationId"]
    assert notes["get"]["summary"] == "Reads or writes a note."
    assert notes["get"]["parameters"] == [
        {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    ]
    assert "requestBody" in notes["put"] and "requestBody" not in notes["get"]
    response = notes["get"]["responses"]["200"]
    assert response["description"] == "The note."
    assert response["content"] == {
        "application/json": {"schema": {"$ref": "#/components/schemas/Note"}}
    }
    text = document["paths"]["/text"]["get"]["responses"]["200"]
    assert text["content"] == {"text/plain": {"schema": {"type": "string"}}}
    # The annotation says nothing of an HttpResponse.
    assert set(document["paths"]["/files/{rest}"]["get"]["responses"]) == {"default"}


def test_a_route_comes_before_a_function() -> None:
    server = served()

    @server.http("/buy", methods=["POST"])
    def own(request: ucall.HttpRequest) -> str:
        return "own"

    assert document_of(server)["paths"]["/buy"]["post"]["operationId"] == "own"


def test_a_route_with_a_star_beside_one_with_a_param_is_described() -> None:
    server = ucall.Server(port=0)

    @server.http("/a/*", methods=["GET", "PUT"])
    def rest(request: ucall.HttpRequest) -> str:
        return "rest"

    @server.http("/a/{x}")
    def one(request: ucall.HttpRequest) -> str:
        return "one"

    @server.http("/b/{rest}")
    def two(request: ucall.HttpRequest) -> str:
        return "two"

    server.http("/b/{x}/{y}")(two)
    server.http("/b/*")(rest)
    with server:
        described = describe(server).openapi()
        url = f"http://127.0.0.1:{server.port}"
        # As the server answers.
        assert [httpx.get(f"{url}/a/{it}").text for it in ("1", "1/2", "1/2/3")] == [
            "one",
            "rest",
            "rest",
        ]
        assert [httpx.put(f"{url}/a/{it}").status_code for it in ("1", "1/2")] == [405, 200]
    assert list(OpenAPIV31SpecValidator(described).iter_errors()) == []
    names = {
        path: {
            verb: [param["name"] for param in operation["parameters"]]
            for verb, operation in operations.items()
        }
        for path, operations in described["paths"].items()
    }
    assert names == {
        "/a/{segment_1}/{rest}": {"get": ["segment_1", "rest"], "put": ["segment_1", "rest"]},
        "/a/{x}": {"get": ["x"]},
        "/b/{rest}": {"get": ["rest"]},
        "/b/{x}/{y}": {"get": ["x", "y"]},
        "/b/{segment_1}/{segment_2}/{rest}": {"get": ["segment_1", "segment_2", "rest"]},
    }


class Page:
    def __call__(self, request: ucall.HttpRequest) -> str:
        return "page"


def test_routes_without_names_are_described() -> None:
    server = ucall.Server(port=0)
    server.http("/lambda")(lambda request: "page")
    server.http("/partial")(functools.partial(Page.__call__, Page()))
    server.http("/object")(Page())
    document = document_of(server)
    assert list(OpenAPIV31SpecValidator(document).iter_errors()) == []
    ids = {path: it["get"]["operationId"] for path, it in document["paths"].items()}
    assert ids == {"/lambda": "route", "/partial": "route_2", "/object": "route_3"}


def test_ids_of_operations_differ() -> None:
    server = ucall.Server(port=0)
    server.add(nothing, name="f")
    server.add(nothing, name="f_2")

    @server.http("/route")
    def f(request: ucall.HttpRequest) -> str:
        return ""

    paths = describe(server).openapi()["paths"]
    ids = [it["operationId"] for operations in paths.values() for it in operations.values()]
    assert ids == ["f", "f_2", "f_3"]


@pytest.mark.parametrize("code", [400, 401, 403, 404, 409, 422, 429, 500, 503, 505])
def test_errors_have_the_statuses_that_the_server_answers(code: int) -> None:
    def fail() -> None:
        raise ucall.RPCError(code, "no")

    fail.__doc__ = f"""Fails.

    Raises:
        ucall.RPCError: {code}, no.
    """
    server = ucall.Server(port=0)
    server.add(fail)
    responses = describe(server).openapi()["paths"]["/fail"]["post"]["responses"]
    with server:
        status = httpx.post(f"http://127.0.0.1:{server.port}/fail").status_code
    assert [key for key, it in responses.items() if f"{code}: no" in it["description"]] == [
        str(status)
    ]


@pytest.mark.parametrize(
    ("auth", "scheme"),
    [
        (ucall.auth.bearer(["s3cret"]), {"type": "http", "scheme": "bearer"}),
        (
            ucall.auth.api_key(["s3cret"], header="X-Our-Key"),
            {"type": "apiKey", "in": "header", "name": "X-Our-Key"},
        ),
    ],
)
def test_auth_is_described(auth: ucall.auth.Keys, scheme: dict[str, str]) -> None:
    server = served(auth=auth)
    server(name="public", auth=False)(nothing)
    server(name="scoped", scopes=["write"])(nothing)
    with server:
        url = f"http://127.0.0.1:{server.port}/openapi.json"
        assert httpx.get(url).status_code == 401
        named = "X-Our-Key" if "name" in scheme else "Authorization"
        key = "s3cret" if "name" in scheme else "Bearer s3cret"
        document = httpx.get(url, headers={named: key}).json()
    assert list(OpenAPIV31SpecValidator(document).iter_errors()) == []
    assert document["components"]["securitySchemes"] == {"caller": scheme}
    assert document["security"] == [{"caller": []}]
    paths = document["paths"]
    assert "security" not in paths["/buy"]["post"] and "401" in paths["/buy"]["post"]["responses"]
    assert paths["/public"]["post"]["security"] == []
    assert "401" not in paths["/public"]["post"]["responses"]
    assert paths["/files/{rest}"]["get"]["security"] == []
    assert paths["/scoped"]["post"]["security"] == [{"caller": ["write"]}]
    assert "403" in paths["/scoped"]["post"]["responses"]


@pytest.mark.parametrize("auth", [None, ucall.auth.bearer(["s3cret"])])
def test_an_auth_of_a_function_is_described(auth: ucall.auth.Keys | None) -> None:
    server = ucall.Server(port=0, auth=auth)
    server(auth=ucall.auth.api_key(["key"], header="X-Own"), scopes=["write"])(nothing)
    server(name="other", auth=ucall.auth.bearer(["own"]))(nothing)
    server(name="plain")(nothing)
    described = describe(server).openapi()
    assert list(OpenAPIV31SpecValidator(described).iter_errors()) == []
    schemes = described["components"]["securitySchemes"]
    operations = {path: it["post"] for path, it in described["paths"].items()}

    def asked(path: str) -> list[tuple[dict[str, str], list[str]]]:
        security = operations[path].get("security", described.get("security", []))
        return [(schemes[name], scopes) for it in security for name, scopes in it.items()]

    bearer = {"type": "http", "scheme": "bearer"}
    assert asked("/nothing") == [({"type": "apiKey", "in": "header", "name": "X-Own"}, ["write"])]
    assert asked("/other") == [(bearer, [])]
    assert asked("/plain") == ([] if auth is None else [(bearer, [])])
    refused = ["401" in it["responses"] for it in operations.values()]
    assert refused == [
        True,
        True,
        auth is not None,
    ]


def test_a_server_without_auth_describes_none(document: dict[str, Any]) -> None:
    assert "security" not in document and "securitySchemes" not in document["components"]
    text = str(document["paths"])
    assert "'security'" not in text and "'401'" not in text


def test_functions_and_routes_that_are_added_later_are_in_it() -> None:
    with served() as server:
        url = f"http://127.0.0.1:{server.port}/openapi.json"
        before = httpx.get(url)

        @server.http("/later")
        def later(request: ucall.HttpRequest) -> bytes:
            return b""

        server.add(nothing, name="added")
        after = httpx.get(url).json()["paths"]
        assert set(after) - set(before.json()["paths"]) == {"/later", "/added"}
        known = {"If-None-Match": before.headers["etag"]}
        assert httpx.get(url, headers=known).status_code == 200


def test_calls_at_a_path_are_described_there() -> None:
    server = served(path="/api/rpc")
    with server:
        got = httpx.get(f"http://127.0.0.1:{server.port}/api/rpc/openapi.json").json()
    assert "/api/rpc/buy" in got["paths"] and "/text" in got["paths"]


def test_names_of_components_are_those_that_openapi_allows(document: dict[str, Any]) -> None:
    names = document["components"]["schemas"]
    assert {"Note", "Scan", "Error"} <= set(names)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in names)

    Error = dataclasses.make_dataclass("Error", [("text", str)])
    Größe = dataclasses.make_dataclass("Größe", [("value", int)])
    server = ucall.Server(port=0)

    def weigh(size, error):  # type: ignore[no-untyped-def]
        return 1

    weigh.__annotations__ = {"size": Größe, "error": Error}
    server.add(weigh)
    described = describe(server).openapi()
    assert list(OpenAPIV31SpecValidator(described).iter_errors()) == []
    schema = described["paths"]["/weigh"]["post"]["requestBody"]["content"]["application/json"]
    references = [it["$ref"].rpartition("/")[2] for it in schema["schema"]["properties"].values()]
    assert references == ["Gr__e", "Error_2"]
    assert [described["components"]["schemas"][it]["required"] for it in references] == [
        ["value"],
        ["text"],
    ]
    errors = described["paths"]["/weigh"]["post"]["responses"]
    for status in ("422", "500", "default"):
        schema = errors[status]["content"]["application/json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/Error"}
    assert described["components"]["schemas"]["Error"]["required"] == ["error"]
