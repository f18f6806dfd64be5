"""Which variants of a test run: by default one, of those that differ only by the engine.

A test with the parameter `engine` runs on one engine, chosen by a hash of the test's id, so a suite
covers both engines in half the time. The marker `one_of` names the parameters to choose among:
`pytest.mark.one_of("engine", "security")` runs one combination of engine and TLS, and
`pytest.mark.one_of()`, for tests that compare engines, runs all. The option `--both-engines` runs
all combinations. So does naming a test, as in `pytest FILE::NAME`.

The option `--engines-changed`, for a change of what drives them, runs a test on both engines, each
with one combination of the other parameters. The files of `any-engine.txt` stay on one: their tests
pass bytes as those of many other files do, and promise what is decided above connections.

Of a test marked `slow`, `--first-variants` runs one variant.
"""

from __future__ import annotations

import functools
import importlib.util
import zlib
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import pytest

#: The files whose tests do not depend on the engine.
ANY_ENGINE = Path(__file__).with_name("any-engine.txt")


def pytest_addoption(parser: pytest.Parser) -> None:
    all_help = "run each test on both engines, and each limit in every combination"
    parser.addoption("--both-engines", action="store_true", help=all_help)
    changed_help = "run each test that may depend on the engine on both"
    parser.addoption("--engines-changed", action="store_true", help=changed_help)
    first_help = "run one variant of each test marked slow"
    parser.addoption("--first-variants", action="store_true", help=first_help)


# After `-k` and `-m`, so that `-k uring` runs all that it names.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Removes the variants that do not run."""
    selected = items
    is_named = any("::" in argument for argument in config.args)
    # Only the package says whether io_uring is allowed, and the C library's tests also run without.
    has_package = importlib.util.find_spec("ucall") is not None
    if has_package and not (config.getoption("--both-engines") or is_named):
        selected = one_of_each(selected, config.getoption("--engines-changed"))
    if config.getoption("--first-variants"):
        selected = first_of_slow(selected)
    kept = set(selected)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = selected


def one_of_each(items: Iterable[pytest.Item], both: bool = False) -> list[pytest.Item]:
    """One item of each group that differs only by its engine, or by what `one_of` names; if `both`,
    one for each engine, unless any does."""
    groups: dict[Hashable, list[pytest.Item]] = {}
    for item in items:
        engine = both and not _is_for_any_engine(item) and _needs_uring(item)
        groups.setdefault((_group(item), engine), []).append(item)
    kept = {_chosen(group) for group in groups.values()}
    return [item for item in items if item in kept]


def first_of_slow(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """All items but those marked slow, and of these one for each function."""
    seen, selected = set(), []
    for item in items:
        name = item.nodeid.partition("[")[0]
        is_slow = item.get_closest_marker("slow") is not None
        if not (is_slow and name in seen):
            selected.append(item)
        seen.add(name)
    return selected


def _group(item: pytest.Item) -> Hashable:
    """What an item shares with those that differ only by the parameters of `one_of`."""
    # pytest makes one object for each value, which all variants share; not all can be hashed.
    others = {name: id(value) for name, value in _params(item).items() if name not in _axes(item)}
    return item.nodeid.partition("[")[0], tuple(others.items())


def _chosen(group: list[pytest.Item]) -> pytest.Item:
    """The item that runs, which depends only on the id of the first one and on io_uring."""
    variants = group
    if len(group) > 1 and not _allows_uring():
        variants = [item for item in group if not _needs_uring(item)] or group
    return variants[zlib.crc32(group[0].nodeid.encode()) % len(variants)]


def _is_for_any_engine(item: pytest.Item) -> bool:
    """Whether its file, such as `python/test_hooks.py`, is in the list."""
    return "/".join(item.path.parts[-2:]) in listed_files()


@functools.cache
def listed_files() -> frozenset[str]:
    """The names in `any-engine.txt`, of a folder and a file each."""
    lines = ANY_ENGINE.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


def _axes(item: pytest.Item) -> tuple[str, ...]:
    marker = item.get_closest_marker("one_of")
    return marker.args if marker else ("engine",)


def _params(item: pytest.Item) -> dict[str, Any]:
    """The values of its parameters, by name."""
    variant = getattr(item, "callspec", None)
    return variant.params if variant else {}


def _needs_uring(item: pytest.Item) -> bool:
    """Whether its engine is io_uring, by any name, such as that of a module."""
    return any("uring" in str(_params(item).get(name)) for name in _axes(item))


@functools.cache
def _allows_uring() -> bool:
    from ucall import EngineError, uring

    try:
        uring.Server(port=0)
    except EngineError:
        return False
    return True
