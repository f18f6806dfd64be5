"""Makes identifiers of the names in a description, which may be any text."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["Identifiers", "pascal"]


class Identifiers:
    """The identifiers of one scope: each name gets one that no other name has.

    A letter that identifiers cannot have becomes ``_``, and a reserved word gets ``_`` at its end.
    """

    def __init__(self, reserved: Iterable[str]) -> None:
        self._taken = set(reserved)

    def add(self, name: str) -> str:
        """The identifier of another name."""
        base = re.sub(r"\W", "_", name, flags=re.ASCII)
        if base.startswith("__"):  # Python would mangle it.
            base = base.strip("_") or "_"
        base = f"_{base}" if base[:1].isdigit() or not base else base
        found, count = base, 1
        while found in self._taken:
            found = f"{base}_" if count == 1 else f"{base}_{count}"
            count += 1
        self._taken.add(found)
        return found


def pascal(name: str) -> str:
    """A name as that of a class: ``math.sum`` is ``MathSum``."""
    words = re.split(r"[\W_]+", name, flags=re.ASCII)
    return "".join(word[:1].upper() + word[1:] for word in words)
