"""The table in docs/security.md, from what a run has seen."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

BEGIN = "<!-- table: made by `make security-table` -->"
END = "<!-- end of the table -->"


@dataclass(frozen=True)
class Seen:
    """One case on one engine and transport, with all that was to hold afterwards."""

    group: str
    name: str
    came_back: str
    setting: tuple[str, str]
    #: How much more memory the process held than before, once it had calmed down.
    grown_kib: int


seen: list[Seen] = []


def write(page: Path, settings: list[tuple[str, str]]) -> None:
    """Puts the table between its marks in the page."""
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{_table(settings)}\n{END}{after}")


def _table(settings: list[tuple[str, str]]) -> str:
    titles = [f"{engine}, {transport}" for engine, transport in settings]
    lines = [
        f"{len({(row.group, row.name) for row in seen})} inputs, on Linux {platform.release()}.",
    ]
    groups = dict.fromkeys(row.group for row in seen)
    for group in groups:
        lines += ["", f"### {group}", "", "| sent | came back | " + " | ".join(titles) + " |"]
        lines += ["|---" * (2 + len(titles)) + "|"]
        rows = [row for row in seen if row.group == group]
        for name in dict.fromkeys(row.name for row in rows):
            of_name = {row.setting: row for row in rows if row.name == name}
            [came_back] = {row.came_back for row in of_name.values()}
            cells = [_cell(of_name.get(setting)) for setting in settings]
            lines.append(f"| {_plain(name)} | {came_back} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row: Seen | None) -> str:
    return "not run" if row is None else f"✓ {max(row.grown_kib, 0):,} KiB"


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("_", "\\_")
