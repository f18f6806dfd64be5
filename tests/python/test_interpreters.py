"""On unsupported interpreters the import fails with a reason."""

from __future__ import annotations

import subprocess
import sys


def printed(program: str) -> str:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


IMPORTING = """
try:
    import ucall
except ImportError as error:
    print(error, flush=True)
"""


def test_a_subinterpreter_gets_an_import_error() -> None:
    program = f"""
import os, sys
try:
    import _interpreters
except ImportError:
    import _xxsubinterpreters as _interpreters
other = _interpreters.create()
_interpreters.run_string(other, {IMPORTING!r})
_interpreters.destroy(other)
# The first one goes on as it was.
import ucall
with ucall.Server(port=0) as server:
    print(server.port > 0)
"""
    told, works = printed(program).splitlines()
    assert "subinterpreter" in told and "ucall" in told
    assert works == "True"


def test_a_free_threaded_interpreter_gets_an_import_error() -> None:
    # The answer of a free-threaded build with -X gil=0.
    program = "import sys\nsys._is_gil_enabled = lambda: False" + IMPORTING
    told = "ucall needs the GIL: leave out -X gil=0 and PYTHON_GIL=0\n"
    assert printed(program) == told
    program = "import sys\nsys._is_gil_enabled = lambda: True" + IMPORTING + "print(ucall.Server)"
    assert printed(program) == "<class 'ucall.server.Server'>\n"
