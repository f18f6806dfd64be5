"""The functions that the tests of the explorer page call, with their OpenRPC document."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import json
from collections.abc import AsyncIterator
from typing import Any, Literal

import numpy
import PIL.Image
from numpy.typing import NDArray

import ucall


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


@dataclasses.dataclass
class User:
    name: str
    age: int
    born: datetime.date | None = None
    points: list[Point] = dataclasses.field(default_factory=list)
    labels: dict[str, int] = dataclasses.field(default_factory=dict)


def sum(a: int, b: int = 3) -> int:
    """Adds two integers."""
    return a + b


def describe(user: User, colour: Colour = Colour.RED, id: int | str | None = None) -> dict:
    """Describes a user.

    All of it is returned as the server has read it.

    Args:
        user: The user to describe.
        colour: The colour of `user`.
        id: A number or a name.
    """
    return {"user": user, "colour": colour, "id": id}


def same(value: Any) -> Any:
    """Returns its param."""
    return value


def thumbnail(photo: PIL.Image.Image, size: int = 64) -> PIL.Image.Image:
    """Makes an image smaller."""
    return photo.resize((size, size))


def scale(values: NDArray[numpy.float64], by: float = 2.0) -> NDArray[numpy.float64]:
    """Multiplies an array."""
    return values * by


def reverse(data: bytes) -> bytes:
    """Reverses bytes."""
    return data[::-1]


def at(time: datetime.datetime, unit: Literal["mm", "cm"] = "mm") -> list:
    """Returns a moment."""
    return [time, unit]


class Streams:
    """Streams, and how many of them have ended."""

    def __init__(self) -> None:
        self.ended = 0

    async def generate(self, prompt: str) -> AsyncIterator[str]:
        """Yields the words of a prompt."""
        for word in prompt.split():
            yield f"{word} "
            await asyncio.sleep(0)

    async def ticks(self) -> AsyncIterator[int]:
        """Counts until it is stopped."""
        try:
            number = 0
            while True:
                yield number
                number += 1
                await asyncio.sleep(0.005)
        finally:
            self.ended += 1

    def endings(self) -> int:
        """How many streams of `ticks` have ended."""
        return self.ended


def whoami(ctx: ucall.Context) -> Any:
    """The caller."""
    return ctx.user


def add_to(server: ucall.Server) -> None:
    """Adds all functions to a server."""
    streams = Streams()
    plain = (sum, describe, same, thumbnail, scale, reverse, at, whoami)
    for function in (*plain, streams.generate, streams.ticks, streams.endings):
        server.add(function)
    server.http("/openrpc.json")(document)


def document(request: ucall.HttpRequest) -> ucall.HttpResponse:
    return ucall.HttpResponse(json.dumps(DOCUMENT), content_type="application/json")


def _binary(type: str, media: str, **others: Any) -> dict[str, Any]:
    return {
        "type": "string",
        "contentEncoding": "base64",
        "contentMediaType": media,
        "x-ucall": {"type": type, **others},
    }


def _method(name: str, summary: str, params: list[Any], result: Any, **others: Any) -> dict:
    described = [
        {"name": key, "required": required, "schema": schema, **more}
        for key, required, schema, *rest in params
        for more in [rest[0] if rest else {}]
    ]
    return {
        "name": name,
        "summary": summary,
        "params": described,
        "result": {"name": "result", "schema": result},
        **others,
    }


_INT = {"type": "integer"}
_ARRAY = _binary("array", "application/x-npy", dtype="float64", shape=None)
_IMAGE = _binary("image", "image/*")
_BYTES = _binary("bytes", "application/octet-stream")
_USER_DOCS = {"description": "The user to describe."}
DOCUMENT = {
    "openrpc": "1.4.0",
    "info": {"title": "Sample", "version": "1.2.3", "description": "Functions to try."},
    "methods": [
        _method(
            "at",
            "Returns a moment.",
            [
                ("time", True, {"type": "string", "format": "date-time"}),
                ("unit", False, {"enum": ["mm", "cm"], "default": "mm"}),
            ],
            {"type": "array", "items": {}},
        ),
        _method(
            "describe",
            "Describes a user.",
            [
                ("user", True, {"$ref": "#/components/schemas/User"}, _USER_DOCS),
                ("colour", False, {"$ref": "#/components/schemas/Colour", "default": "red"}),
                (
                    "id",
                    False,
                    {"anyOf": [_INT, {"type": "string"}, {"type": "null"}], "default": None},
                ),
            ],
            {"type": "object"},
            description="All of it is returned as the server has read it.",
        ),
        _method("endings", "How many streams of `ticks` have ended.", [], _INT),
        _method(
            "generate",
            "Yields the words of a prompt.",
            [("prompt", True, {"type": "string"})],
            {"type": "array", "items": {"type": "string"}},
            **{"x-stream": True, "x-item": {"type": "string"}},
        ),
        _method("reverse", "Reverses bytes.", [("data", True, _BYTES)], _BYTES),
        _method("same", "Returns its param.", [("value", True, {})], {}, deprecated=True),
        _method(
            "scale",
            "Multiplies an array.",
            [("values", True, _ARRAY), ("by", False, {"type": "number", "default": 2.0})],
            _ARRAY,
        ),
        _method(
            "sum",
            "Adds two integers.",
            [("a", True, _INT), ("b", False, {**_INT, "default": 3})],
            _INT,
        ),
        _method(
            "thumbnail",
            "Makes an image smaller.",
            [("photo", True, _IMAGE), ("size", False, {**_INT, "default": 64})],
            _IMAGE,
        ),
        _method(
            "ticks",
            "Counts until it is stopped.",
            [],
            {"type": "array", "items": _INT},
            **{"x-stream": True, "x-item": _INT},
        ),
        _method("whoami", "The caller.", [], {}),
    ],
    "components": {
        "schemas": {
            "Colour": {"enum": ["blue", "red"], "title": "Colour"},
            "Point": {
                "type": "object",
                "title": "Point",
                "properties": {
                    "x": {"type": "number"},
                    "y": {"type": "number", "default": 0.0},
                },
                "required": ["x"],
            },
            "User": {
                "type": "object",
                "title": "User",
                "properties": {
                    "name": {"type": "string"},
                    "age": _INT,
                    "born": {
                        "anyOf": [{"type": "string", "format": "date"}, {"type": "null"}],
                        "default": None,
                    },
                    "points": {
                        "type": "array",
                        "items": {"$ref": "#/components/schemas/Point"},
                        "default": [],
                    },
                    "labels": {
                        "type": "object",
                        "additionalProperties": _INT,
                        "default": {},
                    },
                },
                "required": ["name", "age"],
            },
        }
    },
}
