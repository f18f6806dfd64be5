"""Pages of a list: what a client gets of a long one in one reply."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from ucall._mcp.texts import invalid
from ucall.types.messages import kind_of

__all__ = ["ITEMS_MAX", "page"]

#: The items of one page.
ITEMS_MAX = 1000


def page(items: Mapping[str, Any], params: Mapping[str, Any], member: str) -> dict[str, Any]:
    """A page of items, which stay in their order, as a member of a result.

    Its cursor names the last item of the page before, and so outlives additions.

    Raises:
        RPCError: The cursor is invalid, or its item is gone.
    """
    keys = list(items)
    cursor = params.get("cursor")
    start = 0 if cursor is None else _position(cursor, keys)
    shown = keys[start : start + ITEMS_MAX]
    result: dict[str, Any] = {member: [items[key] for key in shown]}
    if start + ITEMS_MAX < len(keys):
        result["nextCursor"] = base64.urlsafe_b64encode(shown[-1].encode()).decode()
    return result


def _position(cursor: object, keys: list[str]) -> int:
    if not isinstance(cursor, str):
        raise invalid(f"cursor: expected a string, got {kind_of(cursor)}")
    try:
        return keys.index(base64.urlsafe_b64decode(cursor).decode()) + 1
    except (ValueError, binascii.Error):
        raise invalid("cursor: is not one of this list: begin without one") from None
