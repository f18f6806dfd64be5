"""The table of limits in docs/limits.md lists every limit with its default."""

from __future__ import annotations

import re
from pathlib import Path

from ucall import UDP, Limits, Timeouts, _core

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/limits.md").read_text()
HEADER = (ROOT / "include/ucall/ucall.h").read_text()
LIST = PAGE.partition("## Every limit\n")[2].partition("\n## ")[0]
#: The cells of each row: the limit, its option, the default, and what happens past it.
ROWS = [line.strip("| ").split(" | ") for line in LIST.splitlines() if line.startswith("| ")][1:]


def _options(cell: str) -> tuple[str | None, str | None]:
    """The names of a server's option in Python and in C. Others are options of a function."""
    found = re.fullmatch(r"`(\w+)`(?:; in C `(\w+)`|, (not|only) in C)?", cell)
    if found is None:
        return None, None
    name, in_c, where = found.groups()
    return None if where == "only" else name, None if where == "not" else in_c or name


def _number(text: str) -> float | None:
    if text == "none":
        return None
    return float(re.sub(r"\D.*", "", text.replace(",", "")))


def test_every_limit_is_listed_with_its_default() -> None:
    options = {**UDP._defaults, **Timeouts._defaults, **Limits._defaults}
    options["timeout_ms"] = None
    listed = {name: _number(row[2]) for row in ROWS if (name := _options(row[1])[0])}
    assert listed == {name: options[name] for name in listed}
    # slow_call_s is not a limit.
    limits = {*_core.default_limits(), *Limits._defaults, *Timeouts._defaults} - {"slow_call_s"}
    assert limits <= set(listed)


def test_c_options_match_the_header() -> None:
    listed = [name for row in ROWS if (name := _options(row[1])[1])]
    assert len(listed) > 15
    assert [name for name in listed if f" {name};" not in HEADER] == []
