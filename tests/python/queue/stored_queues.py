"""Both sides of queues over JetStream."""

from __future__ import annotations

import uuid
from typing import Any

from brokers import NatsServer, connected

from ucall import queue as nq

WAIT_S = 60


class Queues:
    """Makes both sides of one queue, and closes them."""

    def __init__(self, broker: NatsServer) -> None:
        self.broker = broker
        self.topic = f"test.{uuid.uuid4()}"
        self._made: list[nq.StoredQueue] = []

    def options(self, **given: Any) -> nq.CommunicatorOptions:
        serialization = given.pop("serialization", nq.SerializationOptions())
        broker = {"topic": self.topic, **given.pop("broker", {})}
        id = given.pop("id", None) or uuid.uuid4()
        return nq.CommunicatorOptions(
            id=id,
            netloc=nq.NetworkLocation(port=self.broker.port),
            connection=nq.ConnectionOptions(
                # The broker waits longer than any test for a server that keeps what it has.
                # And it reserves this much of the disk for each queue.
                **{
                    "reconnect": (0.01, 0.05),
                    "expire_s": 10.0 * WAIT_S,
                    "queue_size": 1 << 26,
                    **given,
                }
            ),
            serialization=serialization,
            broker=nq.BrokerOptions(**broker),
        )

    def client(self, **given: Any) -> nq.jetstream.client.Communicator:
        made = nq.new(nq.Protocol.JETSTREAM, nq.Purpose.CLIENT, self.options(**given))
        self._made.append(made)
        return made

    def server(self, ack: str = "taken", **given: Any) -> nq.jetstream.server.Communicator:
        options = self.options(ack=ack, **given)
        made = nq.new(nq.Protocol.JETSTREAM, nq.Purpose.SERVER, options)
        self._made.append(made)
        return made

    def close(self) -> None:
        for made in self._made:
            made.close(1)


def stored(queues: Queues) -> int:
    """The messages that the broker keeps."""
    name = queues.topic.replace(".", "=2E")

    async def ask(connection: Any) -> int:
        return int((await connection.jetstream().stream_info(name)).state.messages)

    return connected(queues.broker.url, ask)
