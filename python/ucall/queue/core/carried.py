"""Communicators whose links a library of its own carries."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Protocol, Self

from ucall.queue.core.communicator import Communicator
from ucall.queue.core.options import CommunicatorOptions

__all__ = ["Carried", "Carrier", "load_carrier"]


class Carrier(Protocol):
    """Opens links with a communicator's `_open_link`, and carries their bytes.

    See `ucall._core.QueueLink` for what a link asks of it.
    """

    #: Where it listens; None if it does not.
    address: tuple[str, int] | None

    def close(self) -> None:
        """Ends, once all that the links had to say is sent."""

    def leave(self) -> None:
        """Ends so as well, but waits for nothing: for a communicator that nobody keeps."""


class Carried(Communicator):
    """A communicator that moves no bytes itself."""

    #: None where it could not be made.
    _carrier: Carrier | None = None

    def __new__(cls, options: CommunicatorOptions | None = None) -> Self:
        made = super().__new__(cls, options)
        try:
            made._carrier = made._carry()
        except BaseException:
            made._close(True)
            raise
        return made

    @classmethod
    def _location(cls, options: CommunicatorOptions) -> None:
        return None

    def _carry(self) -> Carrier:
        """Starts the carrier."""
        raise NotImplementedError

    def close(self, timeout: float | None = None) -> None:
        """Ends in order: see `ucall.queue.core.Communicator.close`."""
        super().close(timeout)
        if self._carrier is not None and not self._is_orphan:
            self._carrier.close()

    def __del__(self) -> None:
        if self._carrier is not None and not self._is_orphan:
            self._close(False)
            self._carrier.leave()

    @property
    def address(self) -> tuple[str, int] | None:
        """Where a server of its own listens; None if there is none."""
        return None if self._carrier is None else self._carrier.address


def load_carrier(protocol: str, package: str) -> Callable[[Communicator], Carrier]:
    """The carrier of a protocol, which needs a library that not everybody has.

    Raises:
        ImportError: It is not installed.
    """
    try:
        module = importlib.import_module(f"ucall.queue.{protocol}.carrier")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"a queue over {protocol} needs {package}: pip install {package}"
        ) from error
    carrier: Callable[[Communicator], Carrier] = module.Carrier
    return carrier
