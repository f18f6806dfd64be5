"""URI templates of level 1 (RFC 6570): ``scheme://path/{name}``.

A variable stands for one segment, or a part of one. Its value is percent-decoded.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

__all__ = ["Template", "is_template"]

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]+")
_EXPRESSION = re.compile(r"\{([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SEPARATORS = re.compile(r"[/\\]")


def is_template(uri: str) -> bool:
    """Whether a URI has variables.

    Raises:
        ValueError: It is no URI, and no template.
    """
    rest = _EXPRESSION.sub("x", uri)
    if not _URI.fullmatch(rest) or "{" in rest or "}" in rest:
        raise ValueError(
            f"uri: expected a URI such as 'notes://today' or 'notes://{{day}}', got {uri!r}"
        )
    return rest != uri


class Template:
    """A URI template.

    Raises:
        ValueError: It has an expression of a higher level, or a variable twice.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.names: list[str] = _EXPRESSION.findall(uri)
        for name in self.names:
            if not _NAME.fullmatch(name):
                problem = f"uri: {{{name}}}: expected a parameter's name (RFC 6570, level 1)"
                raise ValueError(f"{problem}, in {uri!r}")
            if self.names.count(name) > 1:
                raise ValueError(f"uri: {{{name}}} is there twice, in {uri!r}")
        # Read from its end, each variable but the first is the shortest that fits, and is tried
        # once: the time is linear in the length of the URI.
        parts = [re.escape(part[::-1]) for part in reversed(_EXPRESSION.split(uri))]
        pattern = parts[0]
        for name, part in zip(reversed(self.names), parts[2::2], strict=True):
            if name == self.names[0]:
                pattern += f"(?P<{name}>[^/?#]+){part}"
            else:
                pattern += f"(?>(?P<{name}>[^/?#]+?){part})"
        self._reversed = re.compile(pattern)

    def match(self, uri: str) -> dict[str, str] | None:
        """The values of the variables; None for a URI of another form, and for values that are
        used to leave a directory."""
        found = self._reversed.fullmatch(uri[::-1])
        if found is None:
            return None
        values = {name: unquote(value[::-1]) for name, value in found.groupdict().items()}
        return None if any(map(_leaves_directory, values.values())) else values


def _leaves_directory(value: str) -> bool:
    """Whether a path that ends with a value may lead out of its directory, as ``..``, ``/etc`` and
    ``c:`` do."""
    segments = _SEPARATORS.split(value)
    is_absolute = not segments[0] or re.match(r"[A-Za-z]:", segments[0]) is not None
    return "\0" in value or ".." in segments or is_absolute
