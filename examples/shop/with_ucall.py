"""A shop as functions of ucall: `with_fastapi.py` is the same one."""

import contextlib
from collections.abc import AsyncIterator
from typing import NamedTuple

from pydantic import BaseModel, Field

import ucall
import ucall.auth


class Item(BaseModel):
    name: str = Field(min_length=1)
    price: float = Field(gt=0)


class SoldError(Exception):
    """Another one has bought the item."""


class User(NamedTuple):
    name: str
    scopes: frozenset[str] = frozenset()


items: dict[str, Item] = {}
seen: list[str] = []
mails: list[str] = []


@contextlib.asynccontextmanager
async def lifespan(server: ucall.Server) -> AsyncIterator[None]:
    items["lamp"] = Item(name="lamp", price=20)
    yield
    items.clear()


users = {"s3cret": User("ada"), "t0ken": User("root", frozenset({"admin"}))}
server = ucall.Server(auth=ucall.auth.bearer(users), lifespan=lifespan)
shop = ucall.Group("items.")
admins = ucall.Group("admin.", scopes=["admin"])


@server.middleware
async def note(ctx: ucall.Context, call: ucall.Call) -> object:
    seen.append(call.method)
    return await call()


@server.on_exception(SoldError)
def sold(error: SoldError) -> ucall.RPCError:
    return ucall.RPCError(409, f"{error} is sold")


@server(auth=False)
async def version() -> str:
    return "1.2.3"


@shop
async def find(name: str) -> Item:
    if name not in items:
        raise ucall.RPCError(404, f"no {name}")
    return items[name]


@shop
async def buy(name: str, ctx: ucall.Context) -> Item:
    if name not in items:
        raise SoldError(name)
    ctx.background(mails.append, f"{ctx.user.name}: {name}")
    return items.pop(name)


@admins
async def add(item: Item) -> int:
    items[item.name] = item
    return len(items)


server.include(shop)
server.include(admins)
