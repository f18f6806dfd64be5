"""The names of NATS: brokers, groups, and the subjects of a group's functions.

| subject | is |
|---|---|
| `models.math.sum` | the function `math.sum` of the group `models` |
| `models.$cancel` | cancels a call: the payload is its id |
| `models.$publish` | a message of `Server.publish` for the other servers |
| `$SRV.PING.models` | asks the servers of the group for their addresses (ADR-32) |

A name keeps its dots, letters, digits, `_` and `-`. Other characters are percent-encoded as UTF-8,
so that no function has a subject of the group itself; and so are all dots of a name that begins or
ends with one, or has two in a row, because a subject has no empty part.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

__all__ = [
    "CALL_ID",
    "ERROR",
    "ERROR_CODE",
    "cancel_subject",
    "check_group",
    "endpoint_name",
    "parse_brokers",
    "parse_group_uri",
    "printable",
    "publish_subject",
    "subject_of",
]

#: The headers of a call and of an error reply (ADR-32).
CALL_ID = "Ucall-Call-Id"
ERROR_CODE = "Nats-Service-Error-Code"
ERROR = "Nats-Service-Error"

_SCHEMES = ("nats", "tls", "ws", "wss")
_GROUP = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ESCAPED = re.compile(r"[^A-Za-z0-9_-]")


def subject_of(group: str, method: str) -> str:
    """The subject of a function."""
    parts = method.split(".") if all(method.split(".")) else [method]
    return ".".join([group, *(_ESCAPED.sub(_percent_encoded, part) for part in parts)])


def endpoint_name(method: str) -> str:
    """The name of a function's endpoint, for people: ADR-32 allows fewer characters in it."""
    return _ESCAPED.sub("_", method)


def cancel_subject(group: str) -> str:
    return f"{group}.$cancel"


def publish_subject(group: str) -> str:
    return f"{group}.$publish"


def check_group(group: str) -> str:
    """Raises ``ValueError`` for a name that a NATS service cannot have (ADR-32)."""
    if not isinstance(group, str) or _GROUP.fullmatch(group) is None:
        raise ValueError(f"group: expected up to 64 letters, digits, '-' and '_', got {group!r}")
    return group


def parse_brokers(text: str) -> list[str]:
    """The URLs of a list with commas; ``nats://`` may be omitted.

    Raises:
        ValueError: One of them is invalid.
    """
    found = []
    for part in text.split(","):
        url = part.strip() if "://" in part else f"nats://{part.strip()}"
        try:
            split = urlsplit(url)
            is_valid = bool(split.scheme in _SCHEMES and split.hostname and split.port != 0)
            is_valid &= "/" not in part or "://" in part
        except ValueError:
            is_valid = False
        if not is_valid or split.path not in ("", "/") or split.query:
            raise ValueError(f"broker: expected nats://host:port, got {printable(part)!r}")
        found.append(url)
    return found


def parse_group_uri(uri: str) -> tuple[str, list[str], str]:
    """The scheme of direct calls, the brokers and the group of ``nats+https://a,b/group``.

    Raises:
        ValueError: It is invalid.
    """
    scheme, _, rest = uri.partition("://")
    brokers, slash, group = rest.rpartition("/")
    if not slash or _GROUP.fullmatch(group) is None:
        raise ValueError(f"{printable(uri)!r}: expected nats://host:port/group")
    return scheme.lower().removeprefix("nats").removeprefix("+"), parse_brokers(brokers), group


def printable(text: str) -> str:
    """Text of URLs without the credentials in them."""
    return re.sub(r"(^|//|,)[^/,]*@", r"\1", text)


def _percent_encoded(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))
