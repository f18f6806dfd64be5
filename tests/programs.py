"""Programs that tests use: skips a test without its program, and lists the missing ones at the end.

`tests/programs.txt` names the programs and their Debian packages.
"""

from __future__ import annotations

import collections
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

_TABLE = Path(__file__).with_name("programs.txt")
_LINES = [line.split() for line in _TABLE.read_text().splitlines() if not line.startswith("#")]
_PACKAGES = {program: package for program, package, *_ in _LINES}
_REASON = re.compile(r"(\S+) is not (?:built|installed|possible) \((.*)\)$")


def find(program: str) -> str | None:
    """The program's path, if it is installed.

    Debian installs servers in /usr/sbin, which is not in every user's PATH. A PATH without /usr/bin
    was chosen to hide programs.
    """
    path = os.environ.get("PATH", os.defpath)
    if "/usr/bin" in path.split(os.pathsep):
        path += os.pathsep + "/usr/sbin"
    return shutil.which(program, path=path)


def require(program: str) -> str:
    """The program's path; skips the test if it is not installed."""
    found = find(program)
    if found is None:
        skip(program)
    return found


def require_header(name: str) -> None:
    """Skips the test if the C compiler does not find this header."""
    command = ["cc", "-x", "c", "-fsyntax-only", "-"]
    if subprocess.run(
        command, input=f"#include <{name}>\n".encode(), capture_output=True
    ).returncode:
        skip(name)


def skip(program: str, *, allow_module_level: bool = False) -> None:
    """Skips the test, or the module, because this program is missing."""
    pytest.skip(reason(program), allow_module_level=allow_module_level)


def reason(program: str) -> str:
    """Why a test without this program is skipped; the end of the run counts these tests."""
    return f"{program} is not installed (apt-get install {_PACKAGES[program]})"


def reason_of_feature(feature: str) -> str:
    """Why a test is skipped that needs a feature of cargo, without which the package is built."""
    return f"{feature} is not built (make setup FEATURES=full)"


def unrun_blocks(passed: Iterable[Any]) -> Iterator[str]:
    """A line for each page whose examples did not all run, from the reports of passed tests."""
    for report in passed:
        for name, value in report.user_properties:
            if name == "not run":
                yield value


def summary(skipped: Iterable[Any]) -> Iterator[str]:
    """A line for each missing program or feature, from the reports of skipped tests."""
    reasons = (_REASON.search(report.longrepr[2]) for report in skipped)
    counts = collections.Counter(found.groups() for found in reasons if found)
    for (program, command), count in sorted(counts.items()):
        yield f"without {program}: {count} skipped ({command})"
