"""The fixtures `ucall_client` and `ucall_async_client`, which pytest finds by itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from inner_pytest import without_plugins

APP = """
import asyncio

import ucall

server, other = ucall.Server(), ucall.Server()
events = []

@server
def sum(a: int, b: int) -> int:
    return a + b

@server
async def loop() -> int:
    return id(asyncio.get_running_loop())

@other
def user(ctx: ucall.Context) -> str:
    return ctx.headers.get("x-user", "")

for it in (server, other):
    it.on_startup(lambda: events.append("start"))
    it.on_shutdown(lambda: events.append("stop"))
"""


def run_pytest(folder: Path, test: str, *options: str, plugins: Sequence[str] = ()) -> str:
    """What pytest writes about a module, with the plugin `ucall` that it finds, and others."""
    (folder / "app.py").write_text(APP)
    (folder / "test_it.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [*without_plugins("ucall", *plugins), *options, "test_it.py"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
    return ran.stdout + ran.stderr


def test_a_client_that_ends_with_the_test(tmp_path: Path) -> None:
    written = run_pytest(
        tmp_path,
        """
import app

def test_two_servers(ucall_client):
    client = ucall_client(app.server)
    other = ucall_client(app.other, headers={"X-User": "ada"}, transport="http")
    assert client.sum(2, 3).json == 5 and other.user().json == "ada"
    assert app.events == ["start", "start"]

def test_they_have_stopped():
    assert app.events == ["start", "start", "stop", "stop"]

def test_again(ucall_client):
    assert ucall_client(app.server, transport="ws").sum(1, 1).json == 2
""",
    )
    assert "3 passed" in written and "warning" not in written, written


@pytest.mark.parametrize("way", ["asyncio.run", "anyio"])
def test_an_asyncio_client_in_the_loop_of_the_test(tmp_path: Path, way: str) -> None:
    test = """
import asyncio
import app

async def calls(ucall_async_client):
    client = ucall_async_client(app.server, transport="ws")
    assert app.events == [], "it runs once it is entered"
    async with client, ucall_async_client(app.other, headers={"X-User": "ada"}) as other:
        replies = await asyncio.gather(client.sum(2, 3), client.sum(4, 5))
        assert [it.json for it in replies] == [5, 9]
        assert (await other.user()).json == "ada"
        assert (await client.loop()).json == id(asyncio.get_running_loop())
    assert app.events == ["start", "start", "stop", "stop"]
"""
    if way == "anyio":
        test += """
import pytest

@pytest.fixture(params=["asyncio", pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop")])
def anyio_backend(request):
    app.events.clear()
    return request.param

@pytest.mark.anyio
async def test_it(ucall_async_client):
    await calls(ucall_async_client)
"""
    else:
        test += """
def test_it(ucall_async_client):
    asyncio.run(calls(ucall_async_client))
"""
    written = run_pytest(tmp_path, test, plugins=["anyio"] if way == "anyio" else [])
    assert f"{2 if way == 'anyio' else 1} passed" in written and "warning" not in written, written


def test_ucall_is_imported_for_the_fixture_alone(tmp_path: Path) -> None:
    written = run_pytest(
        tmp_path,
        """
import sys

def test_without():
    assert "pytest_ucall" in sys.modules and "ucall" not in sys.modules

def test_not_called(ucall_client, ucall_async_client):
    assert "ucall" not in sys.modules
""",
    )
    assert "2 passed" in written, written


def test_fixtures_of_the_same_names_are_the_user_s(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        """
import pytest

@pytest.fixture
def ucall_client():
    return "own"

@pytest.fixture
def client():
    return "client"
"""
    )
    test = """
def test_own(ucall_client, client):
    assert (ucall_client, client) == ("own", "client")
"""
    written = run_pytest(tmp_path, test)
    assert "1 passed" in written, written


def test_without_the_plugin(tmp_path: Path) -> None:
    test = """
def test_absent(ucall_client):
    pass
"""
    written = run_pytest(tmp_path, test, "-p", "no:ucall")
    assert "fixture 'ucall_client' not found" in written, written
