"""Checked with mypy beside the typed client of `typed_server.py`; never run."""

from __future__ import annotations

import datetime
from collections.abc import AsyncGenerator, Generator
from typing import Any, assert_type

import numpy
from numpy.typing import NDArray
from PIL.Image import Image
from stubs import AsyncClient, Client, User

import ucall.aio
import ucall.client


def calls(client: Client, photo: Image, values: NDArray[numpy.float64]) -> None:
    assert_type(client.sum(1), int)
    assert_type(client.sum(a=1, b=2), int)
    assert_type(client.math.div(1, 2), float)
    assert_type(client.reverse(b"abc"), bytes)
    assert_type(client.scale(values), NDArray[numpy.float64])
    assert_type(client.image(photo), Image)
    assert_type(client.user({"name": "Ada", "age": 36}), User)
    assert_type(client.words("a"), Generator[str, None, None])
    assert_type(client.maybe(), int | None)
    assert_type(client.joined("a", "b"), str)
    assert_type(client.any_value(1), Any)
    client.nothing()
    client.sum("1")  # type: ignore[arg-type]
    client.sum()  # type: ignore[call-arg]
    client.user({"name": "Ada"})  # type: ignore[typeddict-item]
    client.paint([(1, 2)], "green")  # type: ignore[arg-type]


async def async_calls(client: AsyncClient, start: datetime.date) -> None:
    assert_type(await client.sum(1), int)
    assert_type(client.days(start, 2), AsyncGenerator[datetime.date, None])
    client.absent()  # type: ignore[attr-defined]


with ucall.client.Client() as connection:
    calls(Client(connection), Image(), numpy.zeros(1))
AsyncClient(ucall.aio.Client())
