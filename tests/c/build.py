"""Builds the programs of the tests: python tests/c/build.py builds all, before the tests run.

Otherwise, on a busy machine, a test would wait for a compiler, and tests have a time limit.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import harness

SOURCES = [
    source
    for folder in (*harness.EXAMPLES, harness.PROGRAMS)
    for source in sorted(folder.iterdir())
    if source.suffix in (".c", ".cpp")
]
# A variant's flags, and the build of the library that it links.
VARIANTS = {
    "release": (("-O2",), "release"),
    "plain": (("-O0",), "release"),
    "debug": (("-O0",), "debug"),
    "valgrind": (("-O1", "-g"), "release"),
    "sanitized": (tuple(harness.ADDRESS_SANITIZER), "release"),
}
#: Run under valgrind and with AddressSanitizer.
MEMORY_CHECKED = {"api", "calls", "context", "deferred", "kv", "later", "libuv", "login", "loop"}
MEMORY_CHECKED |= {"raii", "stream", "sum", "values"}
USED = {
    "release": {source.stem for source in SOURCES} - {"misuse"},
    "plain": {"calls"},
    "debug": {"calls", "misuse"},
    "valgrind": MEMORY_CHECKED,
    "sanitized": MEMORY_CHECKED,
}


def program(source: Path, variant: str = "release") -> Path:
    """A program of the tests, built if it is older than what it is built from."""
    flags, profile = VARIANTS[variant]
    output = harness.TARGET / "c-tests" / variant / source.stem
    library = harness.TARGET / profile / "libucall.a"
    headers = [*(harness.INCLUDE / "ucall").iterdir(), *harness.PROGRAMS.glob("*.h")]
    inputs = [source, library, *headers, Path(__file__), Path(harness.__file__)]
    changed_at = max(path.stat().st_mtime for path in inputs)
    if not output.exists() or output.stat().st_mtime < changed_at:
        output.parent.mkdir(parents=True, exist_ok=True)
        # Renamed when it is complete, because other test processes may run it.
        incomplete = output.with_suffix(f".{os.getpid()}")
        harness.build(source, incomplete, library, flags).rename(output)
    return output


def _build(source: Path, variant: str) -> None:
    try:
        program(source, variant)
    except pytest.skip.Exception as missing:
        print(f"{source.name}: not built: {missing.msg}", file=sys.stderr)


def main() -> None:
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        jobs = [
            (source, name) for name in VARIANTS for source in SOURCES if source.stem in USED[name]
        ]
        list(threads.map(lambda job: _build(*job), jobs))


if __name__ == "__main__":
    main()
