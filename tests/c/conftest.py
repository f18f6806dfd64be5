"""Fixtures of the tests: the library, built once, and programs linked to it."""

from collections.abc import Callable
from pathlib import Path

import pytest

import harness


@pytest.fixture(scope="session")
def library() -> Path:
    return harness.static_library()


@pytest.fixture(scope="session")
def checked_library() -> Path:
    """A debug build, which checks replies and overflows."""
    return harness.static_library("debug")


@pytest.fixture(scope="session")
def built(library, tmp_path_factory) -> Callable[..., Path]:
    """A function that builds a program, once for each set of flags."""
    folder = tmp_path_factory.mktemp("programs")
    done: dict[tuple, Path] = {}

    def build(source: Path, flags: tuple[str, ...] = ("-O2",), library: Path = library) -> Path:
        key = (source, flags, library)
        if key not in done:
            output = folder / f"{source.stem}-{len(done)}"
            done[key] = harness.build(source, output, library, flags)
        return done[key]

    return build


@pytest.fixture(scope="session")
def uring_refused(built) -> str:
    """The reason why this machine has no io_uring; empty if it has."""
    try:
        with harness.serving([built(harness.EXAMPLES / "sum.c"), "--port", 0, "--engine", "uring"]):
            return ""
    except harness.StartError as refused:
        return str(refused)


@pytest.fixture(params=["posix", "uring"])
def engine(request, uring_refused) -> str:
    if request.param == "uring" and uring_refused:
        pytest.skip(uring_refused)
    return request.param
