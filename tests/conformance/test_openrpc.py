"""The OpenRPC document, judged by the official meta-schema, which npm has."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import referencing
import referencing.jsonschema
from numpy.typing import NDArray

import ucall
from ucall.schema import describe

FOLDER = Path(__file__).resolve().parents[2] / ".bench/conformance/@open-rpc/spec"
META_SCHEMA = FOLDER / "dist/1_4/schema.json"
#: The meta-schema of the schemas in a document, which is that of draft-07.
SCHEMA_URL = "https://meta.json-schema.tools"


@dataclasses.dataclass
class Node:
    value: int
    next: Node | None = None


@pytest.fixture(scope="module")
def judge() -> jsonschema.Draft7Validator:
    if not META_SCHEMA.exists():
        pytest.skip("make test-conformance gets @open-rpc/spec, by npm")
    meta = json.loads(META_SCHEMA.read_text())
    draft_07 = jsonschema.Draft7Validator.META_SCHEMA
    definitions = {"JSONSchemaObject": draft_07}
    known = draft_07 | {"definitions": draft_07["definitions"] | definitions}
    resource = referencing.jsonschema.DRAFT7.create_resource(known)
    registry = referencing.Registry().with_resource(SCHEMA_URL, resource)
    return jsonschema.Draft7Validator(
        meta, registry=registry.with_resource(SCHEMA_URL + "/", resource)
    )


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    server = ucall.Server(port=0, title="Test", version="1.0", description="All forms.")

    @server
    def sum(a: int, b: int = 3) -> int:
        """Adds two numbers.

        Args:
            a: The first.

        Raises:
            ucall.RPCError: 4001, too large.
        """
        return a + b

    @server
    def walk(node: Node, *rest: tuple[int, str]) -> Node:
        return node

    @server
    def scale(values: NDArray[np.float32], data: bytes = b"", **by: float) -> NDArray[np.float32]:
        return values

    @server
    def count(n: int) -> Iterator[Node]:
        yield Node(n)

    server.add(print)
    return describe(server).openrpc()


def test_the_document_is_valid(judge, document):
    problems = [f"{error.json_path}: {error.message}" for error in judge.iter_errors(document)]
    assert not problems


@pytest.mark.parametrize("member", ["info", "methods", "openrpc"])
def test_the_judge_refuses_a_document_that_lacks_a_member(judge, document, member):
    assert not judge.is_valid({name: it for name, it in document.items() if name != member})


def test_the_judge_refuses_an_invalid_schema_of_a_param(judge, document):
    document = json.loads(json.dumps(document))
    document["methods"][0]["params"][0]["schema"] = {"type": "no such type"}
    assert not judge.is_valid(document)
