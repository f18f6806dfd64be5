"""Where a queue through an MQTT broker is."""

from __future__ import annotations

from ucall.queue.core.carried import Carried, Carrier, load_carrier

__all__ = ["Communicator"]


class Communicator(Carried):
    """Meets its peers at the broker that listens at a host and a port."""

    def _carry(self) -> Carrier:
        return load_carrier("mqtt", "paho-mqtt")(self)
