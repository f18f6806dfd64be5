"""Checks the rules of style that formatters do not. Standard library only.

    python tools/tidy.py

Lines of at most 100 characters, no white space at their ends, no tabs, a newline at the end of the
file, files of at most 600 lines, a module's first line says what it does, no name that
tools/retired-names.txt lists: names that were replaced by a term of the field, and no script of
tools/ in the Makefile that does not exist.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COLUMNS_MAX = 100
LINES_MAX = 600
#: The suffixes of public interfaces, each of which is one file for its users.
DECLARATIONS = {".h", ".pyi"}
SOURCES = {".c", ".h", ".lua", ".py", ".pyi", ".rs", ".sh", ".toml"}
# The required first line of a file, after `#!`.
OPENINGS = {
    ".c": re.compile(r"/\*"),
    ".h": re.compile(r"/\*"),
    ".lua": re.compile(r"--"),
    ".py": re.compile(r'r?"""'),
    ".rs": re.compile(r"//!"),
    ".sh": re.compile(r"#"),
}
# Examples are shown unchanged in the docs, as a user would write them.
WITHOUT_OPENING = ("deploy/", "examples/")


# Only names of the project's code: shell scripts and settings use names of others.
NAMED = {".c", ".h", ".py", ".pyi", ".rs"}
NAME = re.compile(r"[A-Za-z_]\w*")
SCRIPT = re.compile(r"\btools/[\w-]+\.(?:py|sh)\b")
RETIRED = frozenset((ROOT / "tools" / "retired-names.txt").read_text(encoding="utf-8").split())


def sources() -> list[Path]:
    """Files that git tracks or would add, so none that is built or installed."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = (ROOT / line for line in listed.splitlines())
    return sorted(path for path in paths if path.suffix in SOURCES and path.is_file())


def may_be_long(path: Path, line: str) -> bool:
    """Requests and replies in tests are written in one line, as they are sent."""
    return "tests" in path.relative_to(ROOT).parts and '"' in line


def line_complaints(path: Path, line: str) -> Iterator[str]:
    if len(line) > COLUMNS_MAX and not may_be_long(path, line):
        yield f"{len(line)} columns, more than {COLUMNS_MAX}"
    if line != line.rstrip():
        yield "white space at the end"
    if "\t" in line:
        yield "a tab"


def opening_complaints(path: Path, lines: list[str]) -> Iterator[str]:
    wanted = OPENINGS.get(path.suffix)
    if not wanted or not lines or str(path.relative_to(ROOT)).startswith(WITHOUT_OPENING):
        return
    first = lines[1] if lines[0].startswith("#!") and len(lines) > 1 else lines[0]
    if not wanted.match(first):
        yield "1: does not open with what it does"


def name_complaints(path: Path, lines: list[str]) -> Iterator[str]:
    if path.suffix not in NAMED:
        return
    for number, line in enumerate(lines, start=1):
        for name in RETIRED.intersection(NAME.findall(line)):
            yield f"{number}: `{name}` is retired: see tools/retired-names.txt"


def file_complaints(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    if text and not text.endswith("\n"):
        yield "no newline at the end"
    if text.endswith("\n\n"):
        yield "empty lines at the end"
    # The stubs of an extension module are one file, as the module is.
    if len(lines) > LINES_MAX + 1 and path.suffix not in DECLARATIONS:
        yield f"{len(lines) - 1} lines, more than {LINES_MAX}: does it hold two ideas?"
    yield from opening_complaints(path, lines)
    yield from name_complaints(path, lines)
    for number, line in enumerate(lines, start=1):
        yield from (f"{number}: {complaint}" for complaint in line_complaints(path, line))


def makefile_complaints() -> Iterator[str]:
    """No other check runs the targets of a release."""
    scripts = sorted(set(SCRIPT.findall((ROOT / "Makefile").read_text(encoding="utf-8"))))
    yield from (f"Makefile: no {script}" for script in scripts if not (ROOT / script).is_file())


def main() -> None:
    found = sources()
    complaints = [
        f"{path.relative_to(ROOT)}: {complaint}"
        for path in found
        for complaint in file_complaints(path)
    ]
    complaints += makefile_complaints()
    if complaints:
        sys.exit("\n".join(complaints))
    print(f"tidy: {len(found)} files")


main()
