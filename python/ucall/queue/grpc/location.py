"""Where a queue over gRPC is."""

from __future__ import annotations

from ucall.queue.core.external import ExternalCommunicator, Transport, load_transport

__all__ = ["Communicator"]


class Communicator(ExternalCommunicator):
    """Listens at, or connects to, a host and a port. Port 0 is any free one: see `address`."""

    takes_password = False

    def _start_transport(self) -> Transport:
        return load_transport("grpc", "grpcio")(self)
