"""Groups the methods of a document: ``math.sum`` is ``sum`` in the group ``math``."""

from __future__ import annotations

from dataclasses import dataclass, field

from ucall._openrpc import Document, Method

__all__ = ["Group", "tree_of"]


#: The dots of a name that make groups; further ones are a part of the last name.
_DOTS_MAX = 8


@dataclass
class Group:
    """The methods whose names start with `path`; `method` has the name of the group itself."""

    path: str
    method: Method | None = None
    groups: dict[str, Group] = field(default_factory=dict)


def tree_of(document: Document) -> Group:
    """The group of all methods, in the order of their names."""
    root = Group("")
    for name, method in sorted(document.methods.items()):
        group = root
        parts = name.split(".", _DOTS_MAX)
        for count, part in enumerate(parts, 1):
            group = group.groups.setdefault(part, Group(".".join(parts[:count])))
        group.method = method
    return root
