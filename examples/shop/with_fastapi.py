"""A shop as an application of FastAPI: `with_ucall.py` is the same one."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field


class Item(BaseModel):
    name: str = Field(min_length=1)
    price: float = Field(gt=0)


class SoldError(Exception):
    """Another one has bought the item."""


items: dict[str, Item] = {}
seen: list[str] = []
mails: list[str] = []


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    items["lamp"] = Item(name="lamp", price=20)
    yield
    items.clear()


def user(authorization: Annotated[str, Header()] = "") -> str:
    name = {"Bearer s3cret": "ada", "Bearer t0ken": "root"}.get(authorization)
    if name is None:
        raise HTTPException(401, "unknown token", {"WWW-Authenticate": "Bearer"})
    return name


def admin(name: Annotated[str, Depends(user)]) -> None:
    if name != "root":
        raise HTTPException(403, "not allowed")


app = FastAPI(lifespan=lifespan)
shop = APIRouter(prefix="/items", dependencies=[Depends(user)])
admins = APIRouter(prefix="/admin", dependencies=[Depends(admin)])


@app.middleware("http")
async def note(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    seen.append(request.url.path)
    return await call_next(request)


@app.exception_handler(SoldError)
async def sold(request: Request, error: SoldError) -> JSONResponse:
    return JSONResponse({"detail": f"{error} is sold"}, 409)


@app.get("/version")
async def version() -> str:
    return "1.2.3"


@shop.get("/{name}")
async def find(name: str) -> Item:
    if name not in items:
        raise HTTPException(404, f"no {name}")
    return items[name]


@shop.post("/{name}/buy")
async def buy(name: str, by: Annotated[str, Depends(user)], tasks: BackgroundTasks) -> Item:
    if name not in items:
        raise SoldError(name)
    tasks.add_task(mails.append, f"{by}: {name}")
    return items.pop(name)


@admins.post("/add")
async def add(item: Item) -> int:
    items[item.name] = item
    return len(items)


app.include_router(shop)
app.include_router(admins)
