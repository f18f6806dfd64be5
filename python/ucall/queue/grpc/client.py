"""The client of a queue over gRPC."""

from ucall.queue.transports import Grpc

__all__ = ["Communicator"]


class Communicator(Grpc):
    """A client over gRPC: see `ucall.queue.Communicator`."""

    is_server = False
