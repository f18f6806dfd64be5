"""What is installed: types for checkers, licences for who hands copies on, and two commands."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import ucall


def test_checkers_find_the_types() -> None:
    folder = Path(ucall.__file__).parent
    assert (folder / "py.typed").is_file()
    assert (folder / "_core.pyi").is_file()


def test_the_licences_of_what_is_compiled_in_go_along() -> None:
    files = metadata.files("ucall") or []
    [ours] = [file for file in files if file.name == "LICENSE"]
    [others] = [file for file in files if file.name == "LICENSE-THIRD-PARTY"]
    assert "Apache License" in ours.read_text()
    for name in ("rustls", "pyo3", "simdutf", "aws-lc-sys"):
        assert name in others.read_text()


def test_the_metadata_is_that_of_this_package() -> None:
    found = metadata.metadata("ucall")
    assert found["Version"] == ucall.__version__
    assert found["License-Expression"] == "Apache-2.0"
    [command] = metadata.entry_points(group="console_scripts", name="ucall")
    assert command.value == "ucall.cli:main"
    plain = [need for need in metadata.requires("ucall") or [] if "extra ==" not in need]
    assert plain == []
