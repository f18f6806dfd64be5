"""Makes identifiers of the names in a description, which may be any text."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ucall._openrpc import DescriptionError

__all__ = ["Identifiers", "check_length", "pascal"]

_CHARACTERS_MAX = 100
_CLIENT_CHARACTERS_MAX = 8 << 20


class Identifiers:
    """The identifiers of one scope: each name gets one that no other name has.

    A letter that identifiers cannot have becomes ``_``, and a reserved word gets ``_`` at its end.
    """

    def __init__(self, reserved: Iterable[str]) -> None:
        self._taken = set(reserved)
        #: The last count after each base, as a description may have thousands of one base.
        self._counts: dict[str, int] = {}

    def add(self, name: str) -> str:
        """The identifier of another name."""
        base = re.sub(r"\W", "_", name, flags=re.ASCII)
        if base.startswith("__"):  # Python would mangle it.
            base = base.strip("_") or "_"
        base = f"_{base}" if base[:1].isdigit() or not base else base
        base = base[:_CHARACTERS_MAX]
        found, count = base, self._counts.get(base, 1)
        while found in self._taken:
            found = f"{base}_" if count == 1 else f"{base}_{count}"
            count += 1
        self._taken.add(found)
        self._counts[base] = count
        return found


def pascal(name: str) -> str:
    """A name as that of a class: ``math.sum`` is ``MathSum``."""
    words = re.split(r"[\W_]+", name, flags=re.ASCII)
    return "".join(word[:1].upper() + word[1:] for word in words)


def check_length(client: str) -> None:
    """Checks the length of a client that was written.

    Raises:
        DescriptionError: It is too long for a description that a client may read.
    """
    if len(client) > _CLIENT_CHARACTERS_MAX:
        problem = f"makes a client of more than {_CLIENT_CHARACTERS_MAX} characters"
        raise DescriptionError(f"a description that {problem}")
