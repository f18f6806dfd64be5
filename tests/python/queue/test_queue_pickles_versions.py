"""Pickles that other versions of CPython and NumPy have written, in `pickles/`."""

from __future__ import annotations

import importlib.util
import pickletools
from pathlib import Path

import pytest
from pickled import load

FOLDER = Path(__file__).parent / "pickles"

specification = importlib.util.spec_from_file_location("written", FOLDER / "written.py")
assert specification and specification.loader
written = importlib.util.module_from_spec(specification)
specification.loader.exec_module(written)


def test_each_version_has_written_one() -> None:
    names = {path.stem.rpartition("-numpy-")[0] for path in FOLDER.glob("*.pickle")}
    assert names == {f"cpython-3.{minor}" for minor in range(11, 15)}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.pickle")), ids=lambda path: path.stem)
def test_pickles_of_other_versions_are_read(path: Path) -> None:
    data = path.read_bytes()
    assert any(operation.name == "STACK_GLOBAL" for operation, _, _ in pickletools.genops(data))
    # Equal arrays and exceptions do not compare as equal; their texts do.
    assert [list(map(_text, row)) for row in load(data)] == [
        list(map(_text, row)) for row in written.values()
    ]


def _text(value: object) -> str:
    """The text of a value. Equal sets may have different orders."""
    return repr(sorted(value, key=repr) if isinstance(value, set) else value)
