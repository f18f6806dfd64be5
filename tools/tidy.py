"""Checks the rules of style that formatters do not. Standard library only.

    python tools/tidy.py

Lines of at most 100 characters, no white space at their ends, no tabs, a newline at the end of the
file, files of at most 600 lines, a module's first line says what it does, no name that
tools/retired-names.txt lists: names that were replaced by a term of the field, no script of
tools/ in a makefile and no file in a guide that does not exist, and no Rust code that reads a
clock, but for the files that ARCHITECTURE.md names.
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
# A file of the project in a guide for those who change it. NAME stands for any.
GUIDES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "bench/NOTES.md", "bench/README.md")
FILE = re.compile(r"`((?:[\w-]+/)*(?!NAME\b)[\w-]+\.(?:c|h|md|mk|py|pyi|rs|sh|toml|txt))`")
# What reads a clock. Time is an argument of all other code.
CLOCK = re.compile(
    r"\b(?:Instant|SystemTime)::now\b|\.elapsed\(\)|\bclock_gettime\b|\bEngineClock::SYSTEM\."
)
TEST_FILE = re.compile(r"(?:.*_)?tests|harness")
RETIRED = frozenset((ROOT / "tools" / "retired-names.txt").read_text(encoding="utf-8").split())


def listed() -> list[str]:
    """Files that git tracks or would add, so none that is built or installed."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def sources() -> list[Path]:
    paths = (ROOT / line for line in listed())
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


def clock_places() -> set[str]:
    """The files of the table below `## Time`."""
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = page.partition("\n## Time\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\w-]+) \| (`.+?`) \|", section, re.MULTILINE)
    listed = ((crate, file) for crate, files in rows for file in files.split("`")[1::2])
    return {f"crates/{crate}/src/{file}" for crate, file in listed}


def clock_reads(path: Path) -> list[int]:
    """The numbers of the lines that read a clock. Tests are at the end of their file."""
    parts = path.relative_to(ROOT).parts
    if parts[0] != "crates" or parts[2] != "src" or TEST_FILE.fullmatch(path.stem):
        return []
    code = path.read_text(encoding="utf-8").partition("\n#[cfg(test)]\nmod tests {\n")[0]
    lines = code.partition("\n#[cfg(all(test, not(loom)))]\nmod tests {\n")[0].split("\n")
    return [number for number, line in enumerate(lines, start=1) if CLOCK.search(line)]


def clock_complaints(paths: list[Path]) -> Iterator[str]:
    places, why = clock_places(), "see the section Time of ARCHITECTURE.md"
    reads = {str(path.relative_to(ROOT)): clock_reads(path) for path in paths}
    for path, numbers in reads.items():
        if path not in places:
            yield from (f"{path}: {number}: reads a clock: {why}" for number in numbers)
    yield from (f"{path}: reads no clock: {why}" for path in sorted(places) if not reads.get(path))


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
    for path in (ROOT / "Makefile", *sorted(ROOT.glob("*/*.mk"))):
        for script in sorted(set(SCRIPT.findall(path.read_text(encoding="utf-8")))):
            if not (ROOT / script).is_file():
                yield f"{path.relative_to(ROOT)}: no {script}"


def guide_complaints() -> Iterator[str]:
    paths = "".join(f"/{path}\n" for path in listed())
    for guide in GUIDES:
        for number, line in enumerate((ROOT / guide).read_text(encoding="utf-8").split("\n"), 1):
            for file in FILE.findall(line):
                if f"/{file}\n" not in paths:
                    yield f"{guide}: {number}: no file {file}"


def main() -> None:
    found = sources()
    complaints = [
        f"{path.relative_to(ROOT)}: {complaint}"
        for path in found
        for complaint in file_complaints(path)
    ]
    complaints += makefile_complaints()
    complaints += guide_complaints()
    complaints += clock_complaints([path for path in found if path.suffix == ".rs"])
    if complaints:
        sys.exit("\n".join(complaints))
    print(f"tidy: {len(found)} files")


main()
