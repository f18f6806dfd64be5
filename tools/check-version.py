"""Checks that every file names the version of Cargo.toml. Standard library only.

    python tools/check-version.py [TAG]    with a tag: that it is this version's, such as v1.0.0

Cargo, npm and the C library write it as 1.0.0-alpha.1 (SemVer), Python as 1.0.0a1 (PEP 440). What
is built takes it from Cargo: the extension module, the package's metadata, `ucall_version`, the
files of pkg-config and CMake.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Where each file names it. Each pattern must match, and each match must be the version.
SEMANTIC = {
    "Cargo.toml": r'^ucall-.*, version = "(.*)"',
    "docs/install.md": r"ucall-c-(\S+?)-linux",
    "include/ucall/ucall.h": r'(?:^#define UCALL_VERSION |version of the library, like )"(.*)"',
    "python/ucall/static/package.json": r'"version": "(.*)"',
}
PYTHON = {"README.md": r"^Version (\S+),"}
NUMBER = r"^#define UCALL_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)"


def text_of(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def python_version(version: str) -> str:
    for semantic, python in (("-alpha.", "a"), ("-beta.", "b"), ("-rc.", "rc")):
        version = version.replace(semantic, python)
    return version


def complaints(version: str) -> Iterator[str]:
    expected = [(SEMANTIC, version), (PYTHON, python_version(version))]
    for places, wanted in expected:
        for file, pattern in places.items():
            found = set(re.findall(pattern, text_of(file), re.MULTILINE))
            if found != {wanted}:
                yield f"{file}: expected {wanted}, got {', '.join(sorted(found)) or 'no version'}"
    numbers = ".".join(re.findall(NUMBER, text_of("include/ucall/ucall.h"), re.MULTILINE))
    if numbers != version.partition("-")[0]:
        yield f"include/ucall/ucall.h: the numbers are {numbers}, those of another version"
    heading = rf"^## {re.escape(python_version(version))}\b"
    if not re.search(heading, text_of("CHANGELOG.md"), re.MULTILINE):
        yield f"CHANGELOG.md: no heading of {python_version(version)}"


def main() -> None:
    version = tomllib.loads(text_of("Cargo.toml"))["workspace"]["package"]["version"]
    found = list(complaints(version))
    for tag in sys.argv[1:]:
        if tag != f"v{version}":
            found.append(f"the tag {tag} is not that of the version: v{version}")
    if found:
        sys.exit("\n".join(found))
    print(f"version: {version}, {python_version(version)} in Python")


main()
