"""The methods of a store in Python, without a server: what they keep, return and refuse."""

from __future__ import annotations

import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

import ucall
from harness import Wire, eventually


@pytest.fixture
def store(tmp_path: Path) -> ucall.store.Store:
    return ucall.store.open(tmp_path / "kv")


def test_the_methods(store: ucall.store.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store.get("b") is None
    assert store.cas("b", 0, "first") == 1 and store.put("b", {"ü": None}) == 2
    assert store.get("b") == ({"ü": None}, 2)
    assert store.cas("b", 1, 0) is None and store.cas("b", 2, 0) == 3
    assert store.increment("b", 7) == 7 and store.increment("b") == 8
    for buffer in [b"\0\1", bytearray(b"ab"), memoryview(b"abc"), array.array("i", [1, 2])]:
        store.put("c", buffer)
        found = store.get("c")
        assert found is not None and found.value == bytes(buffer)
    batch = [("put", "d", b"d"), ("cas", "e", 0, 1), ("increment", "e"), ("delete", "c")]
    assert store.batch(batch) == [10, 11, 2, True]
    assert store.batch([("increment", "e", 3), ("cas", "d", 10, [1])]) == [5, 14]
    assert store.get("e") == (5, 13) and store.get("d") == ([1], 14)
    assert store.batch([("put", "f", 1), ("cas", "e", 0, 1)]) is None
    assert [key for key, _ in store.scan()] == ["b", "d", "e"]
    assert list(store.scan("d")) == [("d", ([1], 14))]
    assert [key for key, _ in store.scan(keys="bytes")] == [b"b", b"d", b"e"]
    with monkeypatch.context() as patch:
        patch.setattr(ucall.store, "_PAGE", 2)
        assert [key for key, _ in store.scan()] == ["b", "d", "e"]
    assert [key for key, _ in store.scan(start="b", end="d")] == ["b"]
    assert store.delete("d") and not store.delete("d")


def test_documented_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Core:
        def __init__(self, path: Path, **options: object) -> None:
            self.path, self.options = path, options

        def open(self) -> None:
            """Opens nothing, which would reserve addresses."""

        close = open

    monkeypatch.setattr(ucall.store, "StoreCore", Core)
    core: Any = ucall.store.open(tmp_path)._core
    assert core.path == tmp_path
    assert core.options == {
        "max_bytes": 68_719_476_736,
        "max_value_bytes": 16_777_216,
        "max_watch_bytes": 67_108_864,
        "durability": "commit",
        "readonly": False,
    }


def test_json_is_stored_without_escapes_and_spaces(tmp_path: Path) -> None:
    """So more values fit."""
    store = ucall.store.open(tmp_path / "kv", max_value_bytes=10)
    store.put("a", ["é", 1.5])
    with pytest.raises(ValueError, match="value: expected at most 10 bytes, got 11"):
        store.put("a", ["é", 10.5])


@pytest.mark.parametrize("operation", [("put", "k", 1), ("cas", "k", 0, 1)])
def test_an_entry_of_a_batch_is_absent_after_its_time(
    store: ucall.store.Store, operation: tuple[Any, ...]
) -> None:
    assert store.batch([operation]) == [1]
    assert store.get("k") == (1, 1)
    store.delete("k")
    assert store.batch([(*operation, 1)]) == [2]
    assert eventually(lambda: store.get("k") is None)
    with pytest.raises(ValueError, match="ttl_ms"):
        store.batch([(*operation, 0)])


@pytest.mark.parametrize(
    "value",
    [
        numpy.float64(1.5),
        numpy.float32(0.1),
        numpy.longdouble(1.5),
        numpy.int64(-5),
        numpy.uint8(7),
        numpy.bool_(True),
        numpy.str_("é"),
        numpy.datetime64("2026-11-21"),
    ],
    ids=lambda value: value.dtype.name,
)
def test_numpy_scalars_are_stored_as_a_result_has_them(
    store: ucall.store.Store, connect_to: Callable[..., Wire], value: Any
) -> None:
    def scalar() -> Any:
        return value

    expected = connect_to(scalar).result("scalar")
    store.put("put", value)
    store.batch([("cas", "cas", 0, value)])
    assert store.get("put") == (expected, 1) and store.get("cas") == (expected, 2)
    found = store.get("put")
    assert found is not None and type(found.value) is type(expected)


def test_other_numpy_scalars(store: ucall.store.Store) -> None:
    store.put("bytes", numpy.bytes_(b"\0\1"))
    assert store.get("bytes") == (b"\0\1", 1)
    store.put("count", numpy.int64(5))
    assert store.increment("count") == 6
    for refused in (numpy.complex64(1), numpy.timedelta64(1, "s")):
        with pytest.raises(TypeError, match="cannot be written as JSON"):
            store.put("bytes", refused)
    with pytest.raises(ValueError):
        store.put("bytes", numpy.float64("nan"))


def test_wrong_arguments_in_python(store: ucall.store.Store, tmp_path: Path) -> None:
    for value in [float("nan"), object(), {1, 2}]:
        with pytest.raises((TypeError, ValueError)):
            store.put("a", value)
    for key in ["", "k" * 512]:
        with pytest.raises(ValueError, match="key: expected 1 to 511 bytes"):
            store.put(key, 1)
    with pytest.raises(ValueError, match="ttl_ms: expected a positive number, got 0"):
        store.put("a", 1, ttl_ms=0)
    for operation in [("get", "a"), (), "put"]:
        with pytest.raises(TypeError, match="expected tuples of put, cas, delete, increment"):
            store.batch([operation])
    with pytest.raises(TypeError, match=r"\('put', key, value\) or .*, got \('put', 'a'\)"):
        store.batch([("put", "a")])
    with pytest.raises(ValueError, match="durability: expected 'commit' or 'none'"):
        ucall.store.open(tmp_path / "x", durability="never")  # type: ignore[arg-type]
    small = ucall.store.open(tmp_path / "small", max_value_bytes=10)
    with pytest.raises(ValueError, match="value: expected at most 10 bytes, got 11"):
        small.put("a", bytes(11))
    store.put("a", 1)
    with pytest.raises(OSError, match="is open already, with other options"):
        ucall.store.open(tmp_path / "kv", durability="none")


def test_a_store_without_durability(tmp_path: Path) -> None:
    store = ucall.store.open(tmp_path / "kv", durability="none")
    for number in range(100):
        store.put(f"{number}", number)
    store.sync()
    assert sum(1 for _ in store.scan()) == 100
