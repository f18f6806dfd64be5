"""The versions of the Model Context Protocol that a server speaks, and what tells them apart.

The specification calls those without a handshake modern, the others legacy:
https://modelcontextprotocol.io/specification/2026-07-28/basic/versioning.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ERAS", "NEWEST", "NEWEST_WITH_HANDSHAKE", "Era", "era"]


class Era(NamedTuple):
    """What a version has.

    Attributes:
        version: The date that names it.
        has_handshake: A client begins by ``initialize``, and may ``ping``. Without one, each
            request says its version, and each result its type and how long it may be kept.
    """

    version: str
    has_handshake: bool


#: By their versions, the newest first.
ERAS = {
    it.version: it
    for it in (
        Era("2026-07-28", has_handshake=False),
        Era("2025-11-25", has_handshake=True),
        Era("2025-06-18", has_handshake=True),
        Era("2025-03-26", has_handshake=True),
    )
}

NEWEST = next(iter(ERAS))

NEWEST_WITH_HANDSHAKE = next(it.version for it in ERAS.values() if it.has_handshake)


def era(version: str) -> Era:
    """The era of a request. One that names none is of an older era: over a stream of bytes, only
    its ``initialize`` has the version."""
    return ERAS.get(version, ERAS[NEWEST_WITH_HANDSHAKE])
