"""Builds the programs of the tests: python tests/c/build.py builds all, before the tests run, and
with --first-variants all that `make test` runs.

Otherwise, on a busy machine, a test would wait for a compiler, and tests have a time limit.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from programs import require

import harness

SOURCES = [
    source
    for folder in (*harness.EXAMPLES, harness.PROGRAMS)
    for source in sorted(folder.iterdir())
    if source.suffix in (".c", ".cpp")
]
GO = harness.PROGRAMS / "sum.go"
# A variant's flags.
VARIANTS = {
    "plain": ("-O2",),
    "valgrind": ("-O1", "-g"),
    "sanitized": tuple(harness.ADDRESS_SANITIZER),
}
#: Run under valgrind and with AddressSanitizer.
MEMORY_CHECKED = {"api", "calls", "context", "deferred", "kv", "later", "libuv", "login", "loop"}
MEMORY_CHECKED |= {"buffers", "raii", "stream", "sum", "values"}
USED = {
    "plain": {source.stem for source in SOURCES} - {"races"},
    "valgrind": MEMORY_CHECKED,
    "sanitized": MEMORY_CHECKED,
}


def program(source: Path, variant: str = "plain") -> Path:
    """A program of the tests, built if it is older than what it is built from."""
    output = harness.BUILT / variant / source.stem
    headers = [*(harness.INCLUDE / "ucall").iterdir(), *harness.PROGRAMS.glob("*.h")]
    inputs = [source, harness.linked_library(), *headers, Path(__file__), Path(harness.__file__)]
    changed_at = max(path.stat().st_mtime for path in inputs)
    if not output.exists() or output.stat().st_mtime < changed_at:
        output.parent.mkdir(parents=True, exist_ok=True)
        # Renamed when it is complete, because other test processes may run it.
        incomplete = output.with_suffix(f".{os.getpid()}")
        harness.build(source, incomplete, VARIANTS[variant]).rename(output)
    return output


def go_program() -> Path:
    """The program in Go, for which a busy machine takes minutes the first time."""
    go, output = require("go"), harness.BUILT / "go" / GO.stem
    library = harness.linked_library()
    environment = {
        **os.environ,
        "CGO_ENABLED": "1",
        "CGO_CFLAGS": f"-I{harness.INCLUDE}",
        "CGO_LDFLAGS": f"{library} {' '.join(harness.SYSTEM_LIBRARIES)}",
    }
    changed_at = max(path.stat().st_mtime for path in (GO, library, Path(__file__)))
    if not output.exists() or output.stat().st_mtime < changed_at:
        harness.run([go, "build", "-o", output, GO], env=environment)
    return output


def _build(source: Path, build: Callable[[], Path]) -> None:
    try:
        build()
    except pytest.skip.Exception as missing:
        print(f"{source.name}: not built: {missing.msg}", file=sys.stderr)


def main() -> None:
    harness.linked_library()  # Before threads would do so at once.
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        jobs = [(GO, go_program)]
        for name in VARIANTS:
            # Under valgrind they are slow variants.
            if name == "valgrind" and "--first-variants" in sys.argv:
                continue
            sources = [source for source in SOURCES if source.stem in USED[name]]
            jobs += [(source, partial(program, source, name)) for source in sources]
        list(threads.map(lambda job: _build(*job), jobs))


if __name__ == "__main__":
    main()
