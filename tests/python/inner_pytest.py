"""Runs of pytest within a test, which import few of the installed plugins."""

from __future__ import annotations

from importlib import metadata


def without_plugins(*wanted: str) -> list[str]:
    """Options that leave out what pytest would find, which doubles its time, but these plugins."""
    names = [it.name for it in metadata.entry_points(group="pytest11")]
    return [option for name in names if name not in wanted for option in ("-p", f"no:{name}")]
