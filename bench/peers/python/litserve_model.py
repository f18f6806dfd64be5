"""LitServe with a model. A module, which its processes import."""

import base64

import litserve
from litserve_http import run

from bench.harness import models


class Predict(litserve.LitAPI):
    def __init__(self, name: str, wait_ms: float) -> None:
        super().__init__(max_batch_size=models.MAX_SIZE, batch_timeout=wait_ms / 1e3)
        self.name = name

    def setup(self, device):
        self.run = models.load(self.name, device)

    def decode_request(self, request):
        return base64.b64decode(request["item"])

    def batch(self, inputs):
        return inputs

    def predict(self, contents):
        return models.of_bytes(self.name, self.run, contents)

    def unbatch(self, output):
        return output

    def encode_response(self, output):
        return {"item": base64.b64encode(output).decode()}


def serve(name: str, device: str, port: int, wait_ms: float) -> None:
    api = Predict(name, wait_ms)
    kind, _, number = device.partition(":")
    # Queues of ZeroMQ, which its guide names for high rates.
    server = litserve.LitServer(
        api, accelerator=kind, devices=[int(number)] if number else 1, fast_queue=True
    )
    run(server, port)
