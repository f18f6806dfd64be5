"""The keys of an issuer, which a thread reads again while the server serves.

| event | action |
|---|---|
| the server starts | reads them; an error ends the start |
| they are ``MAX_AGE_S`` old | reads them again |
| a token names an unknown key | reads them again, ``MIN_INTERVAL_S`` after the last time |
| the issuer does not answer | logs it, keeps the keys, tries again after ``MIN_INTERVAL_S`` |

So no token makes the server's thread wait, and any number of hostile tokens cause one reading in
``MIN_INTERVAL_S``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ucall import _forks

if TYPE_CHECKING:
    from ucall._oauth.issuer import Jwk

__all__ = ["MAX_AGE_S", "MIN_INTERVAL_S", "KeySet", "Keys"]

MAX_AGE_S = 300.0
MIN_INTERVAL_S = 30.0

log = logging.getLogger("ucall")


class Keys:
    """One state of an issuer's keys."""

    def __init__(self, jwks: list[Jwk]) -> None:
        self.jwks = jwks
        #: What was made of them: it holds as long as they do.
        self.cache: dict[Any, Any] = {}


class KeySet:
    """The keys as they are now.

    Args:
        read: Reads them; ``None`` if they never change.
        keys: Those that are known from the beginning.
    """

    def __init__(
        self,
        read: Callable[[], list[Jwk]] | None,
        keys: list[Jwk],
        *,
        max_age_s: float = MAX_AGE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.keys = Keys(keys)
        self._read = read
        self._max_age_s = max_age_s
        self._clock = clock
        self._lock = threading.Lock()
        self._servers = 0
        #: When they were read last, on the clock.
        self._read_at = float("-inf")
        #: Whether they are being read, or will be at once.
        self._is_reading = False
        self._wake = threading.Event()
        _forks.register(self)

    def abandon(self) -> None:
        """A forked child has the keys, and neither the servers nor the thread."""
        self._lock = threading.Lock()
        self._servers = 0
        self._is_reading = False

    def start(self) -> None:
        """Reads the keys, and keeps them fresh until `stop`. Servers may share them.

        Raises:
            ConnectionError, ValueError: As the function that reads them.
        """
        if self._read is None:
            return
        with self._lock:
            if self._servers == 0:
                self._take(self._read())
                self._wake = threading.Event()
                arguments = self._read, self._wake
                refresh = threading.Thread(target=self._refresh, args=arguments, daemon=True)
                refresh.name = "ucall-oauth-keys"
                refresh.start()
            self._servers += 1

    def stop(self) -> None:
        """Ends what `start` has begun."""
        with self._lock:
            self._servers -= self._servers > 0
            if self._servers == 0:
                self._wake.set()

    def refresh(self) -> bool:
        """Has the keys read again, as one is unknown. Whether they are being read now."""
        with self._lock:
            is_due = self._clock() - self._read_at >= MIN_INTERVAL_S
            if self._servers > 0 and is_due and not self._is_reading:
                self._is_reading = True
                self._wake.set()
            return self._is_reading

    def _refresh(self, read: Callable[[], list[Jwk]], wake: threading.Event) -> None:
        """Reads the keys again and again, until `stop`."""
        pause = self._max_age_s
        while True:
            wake.wait(pause)
            with self._lock:
                if self._servers == 0 or wake is not self._wake:
                    return
                wake.clear()
                self._is_reading = True
            try:
                self._take(read())
                pause = self._max_age_s
            except Exception as error:  # Whatever an issuer answers, the thread goes on.
                log.warning("auth: the old keys stay: %s", error)
                self._take(None)
                pause = min(MIN_INTERVAL_S, self._max_age_s)

    def _take(self, jwks: list[Jwk] | None) -> None:
        if jwks is not None and jwks != self.keys.jwks:
            self.keys = Keys(jwks)
        self._read_at = self._clock()
        self._is_reading = False
