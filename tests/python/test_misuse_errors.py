"""Common mistakes: each message names the option, the expected and the actual value."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forking
import pytest

import ucall
from ucall.client import Client


def plain(a: int) -> int:
    return a


async def waiting(a: int) -> int:
    return a


MISTAKES: dict[str, tuple[Callable[[ucall.Server], object], str]] = {
    "no function": (lambda server: server(5), "expected a function to serve, got int"),
    "a lambda": (lambda server: server(lambda: 1), "give one, name='...'"),
    "a partial": (lambda server: server(functools.partial(plain, 1)), "give one, name='...'"),
    "no name": (lambda server: server.add(plain, ""), "name: expected a method's name, got ''"),
    "a count for threads": (
        lambda server: server(threads=4)(plain),
        "plain: threads: expected True or False, got 4",
    ),
    "threads for async": (
        lambda server: server(threads=True)(waiting),
        "waiting: is async, and runs as a task;",
    ),
    "threads for an async batch": (
        lambda server: server.batch(threads=True)(waiting),
        "waiting: is async, and runs as a task;",
    ),
    "threads and processes": (
        lambda server: server(threads=True, processes=2)(plain),
        "plain: expected threads or processes, not both",
    ),
    "no processes": (
        lambda server: server(processes=0)(plain),
        "processes: expected a positive number, got 0",
    ),
    "a batch of items": (
        lambda server: server.batch(plain),
        "plain: a batch needs a parameter that is a list or an array, with an item of each call",
    ),
    "no batch": (
        lambda server: server.batch(max_size=0)(plain),
        "max_size: expected a positive number, got 0",
    ),
    "a wait without end": (
        lambda server: server.batch(max_wait_ms=60_001)(plain),
        "max_wait_ms: expected 0 to 60,000, got 60001",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_invalid_functions_are_rejected(
    serve_once: Callable[..., ucall.Server], mistake: str
) -> None:
    wrong, told = MISTAKES[mistake]
    server = serve_once()
    with pytest.raises((TypeError, ValueError)) as refused:
        wrong(server)
    assert told in str(refused.value)
    server.add(plain)


OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"port": 70_000}, ValueError, "port: expected 0 to 65535, got 70000; 0 picks a free one"),
    ({"port": -1}, ValueError, "port: expected 0 to 65535, got -1"),
    ({"port": "8545"}, TypeError, "port: expected an int, got str"),
    ({"host": "no.such.host.invalid"}, OSError, "no.such.host.invalid: "),
    ({"host": "192.0.2.1"}, OSError, "this machine has no such address"),
    ({"max_headers": -1}, ValueError, "max_headers: expected an int from 1 to 2³² - 1, got -1"),
    ({"max_threads": 1.5}, ValueError, "max_threads: expected an int from 1 to 2³² - 1, got 1.5"),
    ({"idle_timeout_s": 0}, ValueError, "expected a number of seconds above 0, got 0"),
    ({"idle_timeout_s": "5"}, ValueError, "idle_timeout_s: expected a number of seconds above 0"),
    ({"allowed_hosts": "a.com"}, TypeError, "allowed_hosts: expected a list of names, such as"),
    ({"allow_origins": "*"}, TypeError, "allow_origins: expected a list of names, such as ['*']"),
    ({"lifespan": 5}, TypeError, "lifespan: expected a function of the server, got int"),
    ({"ssl_certfile": "none.pem"}, FileNotFoundError, "none.pem'"),
]


@pytest.mark.parametrize(("options", "kind", "told"), OPTIONS)
def test_invalid_options_are_rejected(
    options: dict[str, Any], kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind) as refused:
        ucall.Server(**{"port": 0, **ucall.options.arguments(options)}).start()
    assert told in str(refused.value)


def test_a_client_names_a_missing_file() -> None:
    for files in ({"verify": "none.pem"}, {"cert": "none.pem"}, {"cert": ("none.pem", "a.key")}):
        with pytest.raises(FileNotFoundError, match=r"none\.pem"):
            Client("https://localhost", **files)  # type: ignore[arg-type]


@pytest.mark.parametrize("named", ["app.py", "app.py:server", "./app.py:server", "app.py:other"])
def test_a_file_name_is_not_a_module(tmp_path: Path, named: str) -> None:
    (tmp_path / "app.py").write_text("raise SystemExit('imported')")
    command = [sys.executable, "-m", "ucall", named]
    done = forking.run(command, cwd=tmp_path, text=True)
    expected = "app:other" if named.endswith("other") else "app:server"
    assert done.returncode == 1
    assert f"{named}: expected a module, {expected}, not its file" in done.stderr
