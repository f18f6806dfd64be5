"""BentoML with a model: the service that its command serves. The variables MODEL and DEVICE name
the model."""

import base64
import os
import sys

import bentoml

from bench.harness import models

NAME, DEVICE = os.environ.get("MODEL", "sleep"), os.environ.get("DEVICE", "cpu")


@bentoml.service(
    workers=1,
    traffic={"timeout": 60, "max_concurrency": 1024},
    logging={"access": {"enabled": False}},
    metrics={"enabled": False},
)
class Predict:
    def __init__(self) -> None:
        self.run = models.load(NAME, DEVICE)

    @bentoml.api(batchable=True, max_batch_size=models.MAX_SIZE)
    def predict(self, items: list[str]) -> list[str]:
        contents = list(map(base64.b64decode, items))
        return [base64.b64encode(it).decode() for it in models.of_bytes(NAME, self.run, contents)]


def serve(name: str, device: str, port: int, wait_ms: int) -> None:
    """Its dispatcher finds the wait by itself."""
    command = [sys.executable, "-m", "bentoml", "serve", "bentoml_model:Predict"]
    environment = {**os.environ, "MODEL": name, "DEVICE": device, "BENTOML_DO_NOT_TRACK": "True"}
    os.execve(sys.executable, [*command, "--host", "127.0.0.1", "--port", str(port)], environment)
