"""A server with every kind of type of docs/types.md, for typed clients."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from collections.abc import AsyncIterator, Generator, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import numpy
import PIL.Image
import pydantic
from msgspec import Meta
from numpy.typing import NDArray

import ucall

server = ucall.Server(port=0, title="Types", version="1")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    x: float
    y: float = 0.0


@dataclass
class User:
    """Somebody."""

    name: str
    age: Annotated[int, Meta(ge=0)]
    born: datetime.date | None = None
    friends: list[User] = field(default_factory=list)


class Note(TypedDict, total=False):
    text: str
    pinned: bool


class Cat(msgspec.Struct, tag=True):
    lives: int = 9


class Dog(msgspec.Struct, tag=True):
    good: bool = True


class Account(pydantic.BaseModel):
    owner: str = pydantic.Field(min_length=2)
    opened: datetime.datetime | None = None


@dataclass
class Reading:
    at: Annotated[datetime.datetime, Meta(tz=True)]
    values: NDArray[numpy.float32]
    raw: bytes = b""


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


server.register_type(
    Money,
    encode=lambda money: f"{money.cents / 100:.2f}",
    decode=lambda text: Money(round(float(text) * 100)),
)


@server
def sum(a: int, b: int = 3) -> int:
    """Adds two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


@server
def scalars(a: int, b: float, c: bool, d: str, e: None = None) -> list[Any]:
    return [a, b, c, d, e]


@server
def any_value(value):
    return value


@server
def maybe(value: int | None = None) -> int | None:
    return value


@server
def lists(values: list[int], table: dict[str, list[float]]) -> dict[str, list[int]]:
    return dict.fromkeys(table, values)


@server
def reverse(data: bytearray) -> bytearray:
    data.reverse()
    return data


@server
def scale(values: NDArray[numpy.float64], by: float = 2.0) -> NDArray[numpy.float64]:
    return values * by


@server
def any_array(values: numpy.ndarray) -> numpy.ndarray:
    return values


@server
def image(photo: PIL.Image.Image) -> PIL.Image.Image:
    return photo


@server
def user(user: User) -> User:
    return user


@server
def note(note: Note) -> Note:
    return note


@server
def pet(pet: Cat | Dog) -> Cat | Dog:
    return pet


@server
def paint(at: list[Point], colour: Colour = Colour.RED, unit: Literal["mm", 1] = "mm") -> Point:
    return at[0]


@server
def colour(value: Colour) -> Colour:
    return value


@server
def dates(
    a: datetime.datetime, b: datetime.date, c: datetime.time, d: datetime.timedelta
) -> dict[str, datetime.date]:
    return {"b": b}


@server
def at(value: Annotated[datetime.datetime, Meta(tz=True)]) -> datetime.date:
    return value


@server
def ids(a: uuid.UUID, b: decimal.Decimal) -> tuple[uuid.UUID, decimal.Decimal]:
    return a, b


@server
def sets(a: set[int], b: frozenset[str], c: tuple[int, str]) -> set[int]:
    return a


@server
def mixed(value: int | str, table: dict[int, str]) -> uuid.UUID | int:
    return 5


@server
def account(account: Account, amount: pydantic.PositiveFloat = 1.0) -> Account:
    return account


@server
def reading(reading: Reading) -> Reading:
    return reading


@server
def readings(values: dict[str, list[Reading]]) -> dict[str, list[Reading]]:
    return values


@server
def money(value: Money) -> Money:
    return value


@server(name="math.div")
def div(a: float, b: float, /) -> float:
    return a / b


@server
def joined(first: str, *others: str) -> str:
    return "".join((first, *others))


@server
def named(first: int, **others: int) -> dict[str, int]:
    return {"first": first, **others}


@server
def words(prompt: str) -> Iterator[str]:
    yield from prompt.split()


@server
async def days(start: datetime.date, count: int) -> AsyncIterator[datetime.date]:
    for day in range(count):
        yield start + datetime.timedelta(days=day)


@server
def training(epochs: int) -> Generator[float, None, dict[str, datetime.date]]:
    for epoch in range(epochs):
        yield epoch / 2
    return {"end": datetime.date(2026, 1, 31)}


@server
def nothing() -> None:
    """Does nothing."""


print("the module's own output")
