"""How a function is shown as a tool of MCP."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ToolRules", "check_header"]

#: What annotations may say. `idempotentHint` is the option `idempotent`.
HINTS = ("readOnlyHint", "destructiveHint", "openWorldHint")

#: RFC 9110, section 5.6.2: what the name of a header consists of.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_MEDIA_TYPE = re.compile(r"[!#$&^_.+0-9A-Za-z-]+/[!#$&^_.+0-9A-Za-z-]+")


@dataclass(frozen=True)
class ToolRules:
    """The options of `ucall.Server.tool`.

    Raises:
        ValueError: One of them is invalid.
    """

    title: str | None = None
    annotations: Mapping[str, bool] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    media_type: str | None = None
    input_schema: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, value in self.annotations.items():
            if name == "idempotentHint":
                raise ValueError("annotations: idempotentHint is the option idempotent=True")
            if name not in HINTS:
                raise ValueError(f"annotations: expected {', '.join(HINTS)}, got {name!r}")
            if not isinstance(value, bool):
                raise ValueError(f"annotations: {name}: expected True or False, got {value!r}")
        for header in self.headers.values():
            check_header(header)
        if self.media_type is not None and not _MEDIA_TYPE.fullmatch(self.media_type):
            expected = "expected one such as 'audio/wav'"
            raise ValueError(f"media_type: {expected}, got {self.media_type!r}")
        if self.input_schema is not None and self.input_schema.get("type") != "object":
            raise ValueError("input_schema: expected a schema with the type 'object'")


def check_header(name: object) -> str:
    """Refuses what is not the end of a header's name.

    Raises:
        ValueError: It has other characters.
    """
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise ValueError(f"headers: expected the end of a header's name, got {name!r}")
    return name
