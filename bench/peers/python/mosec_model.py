"""Mosec with a model. A module, which its processes import."""

import base64
import os
import sys

import mosec

from bench.harness import models


class Predict(mosec.Worker):
    def __init__(self) -> None:
        self.name = os.environ["MODEL"]
        self.run = models.load(self.name, os.environ["DEVICE"])

    def deserialize(self, data: bytes) -> bytes:
        return base64.b64decode(super().deserialize(data)["item"])

    def forward(self, data: list[bytes]) -> list[bytes]:
        return models.of_bytes(self.name, self.run, data)

    def serialize(self, data: bytes) -> bytes:
        return super().serialize({"item": base64.b64encode(data).decode()})


def serve(name: str, device: str, port: int, wait_ms: int) -> None:
    os.environ |= {"MODEL": name, "DEVICE": device}
    sys.argv = ["mosec", "--address", "127.0.0.1", "--port", str(port), "--log-level", "error"]
    server = mosec.Server()
    server.append_worker(
        Predict, max_batch_size=models.MAX_SIZE, max_wait_time=wait_ms, route="/predict"
    )
    server.run()
