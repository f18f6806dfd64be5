"""The package as a whole: what importing it costs, and what it brings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import ucall

# The modules that an import of the package loads, and those that a bare interpreter has.
IMPORTED = """
import sys
before = set(sys.modules)
import ucall
print(*sorted(set(sys.modules) - before))
"""


def test_the_import_loads_little() -> None:
    """An import is under 40 ms as long as it does not load what is slow; times are not tested."""
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert {"ucall", "ucall._core", "ucall.server", "ucall.errors"} <= loaded, done.stderr
    slow = {
        "asyncio",
        "inspect",
        "logging",
        "msgspec",
        "numpy",
        "PIL",
        "pydantic",
        "typing_extensions",
    }
    assert not loaded & slow
    assert len(loaded) < 45


def test_it_is_typed_and_has_a_version() -> None:
    package = Path(ucall.__file__).parent
    assert (package / "py.typed").exists() and (package / "_core.pyi").exists()
    assert ucall.__version__.split(".")[0].isdecimal()


def test_everything_public_is_documented() -> None:
    for name in ucall.__all__:
        if name != "__version__":
            assert getattr(ucall, name).__doc__
    for name, member in vars(ucall.Server).items():
        if not name.startswith("_") or name in ("__call__", "__enter__", "__exit__"):
            assert member.__doc__, name


SUBINTERPRETER = """
import ucall
import _xxsubinterpreters as interpreters
interpreters.run_string(interpreters.create(isolated=False), '''
try:
    import ucall
except ImportError as error:
    import os
    os.write(1, b"refused")
''')
"""


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the private module has moved")
def test_a_subinterpreter_is_refused() -> None:
    done = subprocess.run([sys.executable, "-c", SUBINTERPRETER], capture_output=True, text=True)
    assert done.stdout == "refused", done.stderr
