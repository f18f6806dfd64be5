"""Where a queue through an MQTT broker is."""

from __future__ import annotations

from ucall.queue import core

__all__ = ["Communicator"]


class Communicator(core.Communicator):
    """Meets its peers at the broker that listens at a host and a port."""

    @classmethod
    def _location(cls, options: core.CommunicatorOptions) -> tuple[str, int]:
        return options.netloc.host, options.netloc.port

    @classmethod
    def _broker(cls, options: core.CommunicatorOptions) -> tuple[str, str | None, str | None]:
        return options.broker.topic, options.broker.user, options.broker.password
