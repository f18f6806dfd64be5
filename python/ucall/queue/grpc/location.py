"""Where a queue over gRPC is."""

from __future__ import annotations

from ucall.queue.core.carried import Carried, Carrier, load_carrier

__all__ = ["Communicator"]


class Communicator(Carried):
    """Listens at, or connects to, a host and a port. Port 0 is any free one: see `address`."""

    takes_password = False

    def _carry(self) -> Carrier:
        return load_carrier("grpc", "grpcio")(self)
