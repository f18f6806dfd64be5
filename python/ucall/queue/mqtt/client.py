"""The client of a queue over an MQTT broker."""

from ucall.queue.transports import Mqtt

__all__ = ["Communicator"]


class Communicator(Mqtt):
    """A client over an MQTT broker: see `ucall.queue.Communicator`."""

    is_server = False
