"""The functions that the tests of the explorer page call."""

from __future__ import annotations

import asyncio
import builtins
import dataclasses
import datetime
import enum
from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec
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


class Add(msgspec.Struct, tag=True):
    left: Add | Number
    right: Add | Number


class Number(msgspec.Struct, tag=True):
    value: float


def evaluate(tree: Add | Number) -> float:
    """Takes a type that contains itself."""
    if isinstance(tree, Number):
        return tree.value
    return evaluate(tree.left) + evaluate(tree.right)


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


def gradient(height: int, width: int) -> NDArray[numpy.uint8]:
    """Makes an image that gets redder downwards and greener to the right."""
    pixels = numpy.zeros((height, width, 3), numpy.uint8)
    pixels[..., 0] = numpy.arange(height)[:, None]
    pixels[..., 1] = numpy.arange(width)
    return pixels


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

    async def records(self, count: int) -> AsyncIterator[dict[str, Any]]:
        """Yields objects."""
        for number in range(count):
            yield {"number": number, "user": {"name": f"user {number}", "tags": ["a", "b"]}}
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


def total(*numbers: int) -> int:
    """Adds all integers."""
    return builtins.sum(numbers)


def label(text: str, data: bytes, color: str, constructor: str = "none", /) -> str:
    """Takes its params by position only; one has the name of a member of all objects."""
    return f"{text} {len(data)} {color} {constructor}"


def health(deep: bool) -> str:
    """Has the name of a command of `ucall`."""
    return f"deep {deep}"


def whoami(ctx: ucall.Context) -> Any:
    """The caller."""
    return ctx.user


def add_to(server: ucall.Server) -> None:
    """Adds all functions to a server."""
    streams = Streams()
    plain = (
        sum,
        describe,
        same,
        thumbnail,
        scale,
        gradient,
        reverse,
        at,
        total,
        label,
        health,
        evaluate,
        whoami,
    )
    for function in (*plain, streams.generate, streams.records, streams.ticks, streams.endings):
        server.add(function)
