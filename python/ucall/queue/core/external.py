"""Communicators whose links a library of its own carries."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Protocol, Self

from ucall.queue.core.communicator import Communicator
from ucall.queue.core.options import CommunicatorOptions

__all__ = ["ExternalCommunicator", "Transport", "load_transport"]


class Transport(Protocol):
    """Opens links with a communicator's `_open_link`, and carries their bytes.

    See `ucall._core.QueueLink` for what a link asks of it.
    """

    #: Where it listens; None if it does not.
    address: tuple[str, int] | None

    def close(self) -> None:
        """Ends, once all that the links had to say is sent."""

    def close_nowait(self) -> None:
        """Ends so as well, but waits for nothing: for a communicator that nobody keeps."""


class ExternalCommunicator(Communicator):
    """A communicator that moves no bytes itself."""

    #: None where it could not be made.
    _transport: Transport | None = None

    def __new__(cls, options: CommunicatorOptions | None = None) -> Self:
        made = super().__new__(cls, options)
        try:
            made._transport = made._start_transport()
        except BaseException:
            made._close(True)
            raise
        return made

    @classmethod
    def _location(cls, options: CommunicatorOptions) -> None:
        return None

    def _start_transport(self) -> Transport:
        """Starts the transport."""
        raise NotImplementedError

    def close(self, timeout: float | None = None) -> None:
        """Ends in order: see `ucall.queue.core.Communicator.close`."""
        super().close(timeout)
        if self._transport is not None and not self._is_forked:
            self._transport.close()

    def __del__(self) -> None:
        if self._transport is not None and not self._is_forked:
            self._close(False)
            self._transport.close_nowait()

    @property
    def address(self) -> tuple[str, int] | None:
        """Where a server of its own listens; None if there is none."""
        return None if self._transport is None else self._transport.address


def load_transport(protocol: str, package: str) -> Callable[[Communicator], Transport]:
    """The transport of a protocol, which needs a library that not everybody has.

    Raises:
        ImportError: It is not installed.
    """
    try:
        module = importlib.import_module(f"ucall.queue.{protocol}.transport")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"a queue over {protocol} needs {package}: pip install {package}"
        ) from error
    transport: Callable[[Communicator], Transport] = module.Transport
    return transport
