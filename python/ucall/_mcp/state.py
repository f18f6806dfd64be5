"""Seals what a server has its caller keep for it: the ``requestState`` of MCP.

The state is text that the caller can read and cannot change: base64 of JSON, and an HMAC of it. It
holds until its time is over, for one call (method, target and arguments) by one caller. No server
remembers it: any process that has the key can open it.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Mapping
from typing import Any, Protocol

from ucall._oauth.access_token import AccessToken
from ucall._workers import process_role

__all__ = ["KEY_BYTES_MIN", "InvalidState", "identify", "open_state", "seal", "set_key"]

KEY_BYTES_MIN = 32


class InvalidState(ValueError):
    """A state that is not for this call; the message is the reason."""


class _Caller(Protocol):
    @property
    def method(self) -> str: ...

    @property
    def user(self) -> Any: ...


def _derived(secret: bytes) -> bytes:
    return hmac.digest(secret, b"ucall mcp requestState", hashlib.sha256)


# All workers of a supervisor have its secret. Children that a program forks have their parent's.
_key = _derived(process_role.tickets or secrets.token_bytes(KEY_BYTES_MIN))


def set_key(key: bytes) -> None:
    """Has this process seal with a key that other hosts have, too.

    Raises:
        TypeError: It is not bytes.
        ValueError: It is too short.
    """
    global _key
    if not isinstance(key, bytes):
        raise TypeError(f"key: expected bytes, got {type(key).__name__}")
    if len(key) < KEY_BYTES_MIN:
        raise ValueError(f"key: expected at least {KEY_BYTES_MIN} bytes, got {len(key)}")
    _key = _derived(key)


def seal(content: object, expires_s: float, caller: _Caller, params: Mapping[str, Any]) -> str:
    """Seals a value of JSON for a repetition of this call by the same caller.

    Raises:
        TypeError: The value is not of JSON, or nothing identifies the user.
    """
    sealed = [int(time.time() + expires_s), _call(caller, params), identify(caller.user), content]
    payload = _base64(json.dumps(sealed, ensure_ascii=False, separators=(",", ":")).encode())
    return f"{payload}.{_mac('state', payload)}"


def open_state(text: str, caller: _Caller, params: Mapping[str, Any]) -> Any:
    """The value that was sealed.

    Raises:
        InvalidState: It was changed, its time is over, or it belongs to another call or caller.
    """
    payload, _, mac = text.partition(".")
    expected = _mac("state", payload)
    if not hmac.compare_digest(mac.encode(errors="replace"), expected.encode()):
        raise InvalidState("was changed, or is not of this server")
    expiry, call, user, content = json.loads(_decoded(payload))
    if user != identify(caller.user):
        raise InvalidState("belongs to another caller")
    if call != _call(caller, params):
        raise InvalidState("belongs to a call with another name or other arguments")
    if time.time() >= expiry:
        raise InvalidState("has expired: call again without it")
    return content


def _call(caller: _Caller, params: Mapping[str, Any]) -> str:
    """Identifies the call: its method, what it names, and its arguments."""
    salient = [params.get("name"), params.get("uri"), params.get("arguments")]
    return _mac("call", json.dumps([caller.method, salient], sort_keys=True))


def identify(user: Any) -> str:
    """Identifies the user that the server's ``auth`` returned."""
    return _mac("user", json.dumps(_identity(user), sort_keys=True))


def _identity(user: Any) -> object:
    """What is equal for all tokens of a user: the subject of its issuer, if it has one."""
    if isinstance(user, AccessToken):
        user = user.claims
    claims = user if isinstance(user, Mapping) else getattr(user, "__dict__", {})
    subject = claims.get("sub", getattr(user, "sub", None))
    if isinstance(subject, str):
        issuer = claims.get("iss", getattr(user, "iss", None))
        return ["sub", issuer if isinstance(issuer, str) else None, subject]
    if dataclasses.is_dataclass(user) and not isinstance(user, type):
        user = dataclasses.asdict(user)
    try:
        return ["value", json.loads(json.dumps(user))]
    except (TypeError, ValueError):
        raise TypeError(
            f"the user of the call, {type(user).__name__}, has no sub and is no value of JSON: "
            "have the server's auth return one of them, so that the state is for this user alone"
        ) from None


def _mac(purpose: str, text: str) -> str:
    message = f"{purpose}\0{text}".encode(errors="surrogatepass")
    return _base64(hmac.digest(_key, message, hashlib.sha256))


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
