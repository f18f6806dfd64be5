"""Fixtures of the tests: the library, built once, and programs linked to it."""

from collections.abc import Callable
from pathlib import Path

import build
import pytest

import harness


@pytest.fixture(scope="session")
def library() -> Path:
    return harness.static_library()


@pytest.fixture(scope="session")
def built(library) -> Callable[..., Path]:
    """A function from a source, and a variant of its build, to the program."""
    return build.program


@pytest.fixture(scope="session")
def uring_refused(built) -> str:
    """The reason why this machine has no io_uring; empty if it has."""
    try:
        with harness.serving([built(harness.example("sum.c")), "--port", 0, "--engine", "uring"]):
            return ""
    except harness.StartError as refused:
        return str(refused)


@pytest.fixture(params=["posix", "uring"])
def engine(request, uring_refused) -> str:
    if request.param == "uring" and uring_refused:
        pytest.skip(uring_refused)
    return request.param
