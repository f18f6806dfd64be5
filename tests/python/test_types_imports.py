"""Lazy imports of optional packages, and the errors if they are missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ucall.posix
import ucall.rich_posix
import ucall.rich_uring
import ucall.uring

HEAVY = "[name for name in ('numpy', 'PIL', 'msgspec', 'pydantic') if name in sys.modules]"


def run(source: str) -> str:
    """The output of a program in its own process."""
    command = [sys.executable, "-c", f"import sys, ucall\n{source}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_optional_modules_are_imported_on_demand() -> None:
    source = f"""
server = ucall.Server(port=0)
@server
def plain(a: int, b: list[str], c: bytes | None = None) -> dict: ...
server.register_type(complex, str, complex)
import ucall.rich_posix, ucall.posix
print({HEAVY})
import dataclasses
@dataclasses.dataclass
class Point:
    x: int
@server
def rich(a: Point): ...
print({HEAVY})
"""
    assert run(source) == "[]\n['msgspec']"


NEEDING = """
sys.modules['msgspec'] = None
import dataclasses
@dataclasses.dataclass
class Point:
    x: int
def function(point: {annotation}): ...
try:
    ucall.Server(port=0).add(function)
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("annotation", "named"),
    [("Point", "Point"), ("list[Point]", "list[__main__.Point]"), ("int | str", "int | str")],
)
def test_a_missing_module_is_named(annotation: str, named: str) -> None:
    assert run(NEEDING.format(annotation=annotation)) == (
        f"function: parameter 'point': {named} needs msgspec, which is not installed: "
        "pip install msgspec"
    )


def test_a_result_of_a_missing_module_is_reported() -> None:
    source = """
sys.modules['msgspec'] = None
import datetime, json, socket
server = ucall.Server(port=0)
@server
def now(): return datetime.date(2026, 11, 21)
with server, socket.create_connection(("127.0.0.1", server.port)) as wire:
    wire.sendall(b'{"jsonrpc":"2.0","method":"now","id":1}')
    print(json.loads(wire.recv(9999))["error"]["data"])
"""
    expected = "result: datetime.date needs msgspec, which is not installed: "
    assert run(source) == expected + "pip install msgspec"


def test_the_rich_servers_are_importable() -> None:
    assert ucall.rich_posix.Server is ucall.posix.Server
    assert ucall.rich_uring.Server is ucall.uring.Server
