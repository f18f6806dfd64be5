"""Writes the tables in docs/bad-input.md from the results of a test run."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

BEGIN = "<!-- {}: written by `make security-table` -->"
END = "<!-- end of the {} -->"


@dataclass(frozen=True)
class Seen:
    """The result of one case on one engine and transport, after all its checks passed."""

    group: str
    name: str
    reply: str
    setting: tuple[str, str]
    #: The growth of the process's memory, measured once it was idle.
    grown_kib: int


seen: list[Seen] = []


def write(page: Path, name: str, content: str) -> None:
    """Replaces the section between the marks of that name in the page."""
    begin, end = BEGIN.format(name), END.format(name)
    before, found, rest = page.read_text().partition(begin)
    _, ended, after = rest.partition(end)
    assert found and ended, f"{page} has no section for the {name}"
    page.write_text(f"{before}{begin}\n{content}\n{end}{after}")


def table(settings: list[tuple[str, str]]) -> str:
    """All results, by group."""
    titles = [f"{engine}, {transport}" for engine, transport in settings]
    # The distribution appends its own suffix to the version.
    release, _, _ = platform.release().partition("-")
    lines = [f"{len({(row.group, row.name) for row in seen})} inputs, on Linux {release}."]
    groups = dict.fromkeys(row.group for row in seen)
    for group in groups:
        lines += ["", f"### {group}", "", "| sent | reply | " + " | ".join(titles) + " |"]
        lines += ["|---" * (2 + len(titles)) + "|"]
        rows = [row for row in seen if row.group == group]
        for name in dict.fromkeys(row.name for row in rows):
            of_name = {row.setting: row for row in rows if row.name == name}
            [reply] = {row.reply for row in of_name.values()}
            cells = [_cell(of_name.get(setting)) for setting in settings]
            lines.append(f"| {plain(name)} | {reply} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row: Seen | None) -> str:
    return "not run" if row is None else f"✓ {max(row.grown_kib, 0):,} KiB"


def plain(text: str) -> str:
    """Text, escaped for a cell."""
    return text.replace("*", "\\*").replace("|", "\\|").replace("_", "\\_")
