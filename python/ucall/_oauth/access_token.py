"""What a checked token stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["AccessToken"]


class AccessToken(NamedTuple):
    """The ``ctx.user`` of a request with a token that `ucall.auth.oauth` has checked.

    Attributes:
        subject: The claim ``sub``: whom the token stands for.
        scopes: What the caller may do: see ``scopes`` of `ucall.Server.add`.
        claims: All claims of the token.
    """

    subject: str
    scopes: frozenset[str]
    claims: Mapping[str, Any]
