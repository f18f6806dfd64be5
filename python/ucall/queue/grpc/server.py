"""The server of a queue over gRPC."""

from ucall.queue.transports import Grpc

__all__ = ["Communicator"]


class Communicator(Grpc):
    """A server over gRPC: see `ucall.queue.Communicator`."""

    is_server = True
