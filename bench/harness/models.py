"""What the section `models` serves: models whose time for a batch is known, and models on a device.

`python -m bench.harness.models NAME DEVICE` loads a model. For each line with seconds it runs a
bare loop, and prints how long a batch takes, for each of `SIZES`.

Servers of other projects import this module, in environments of their own.
"""

import json
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy

MAX_SIZE = 64
#: What the bare loop runs.
SIZES = (1, 8, 16, 32, MAX_SIZE)
#: About a millisecond of a loop that holds the interpreter's lock.
STEPS_A_MS = 40_000


@dataclass(frozen=True)
class Kind:
    """The array that each item of a model is."""

    shape: tuple[int, ...]
    dtype: str


SHORT = Kind((64,), "int64")
KINDS = {
    "sleep": SHORT,
    "compute": SHORT,
    "launcher": SHORT,
    "text": SHORT,
    "image": Kind((224, 224, 3), "uint8"),
}


class Model(Protocol):
    """A model takes the arrays of a batch as one."""

    def __call__(self, values: numpy.ndarray) -> numpy.ndarray: ...


@dataclass(frozen=True)
class Timed:
    """Computes, which holds the interpreter's lock, then waits for a device, which has one batch at
    a time. The result of an item is that item, three times."""

    computing_ms: float = 0
    computing_item_ms: float = 0
    waiting_ms: float = 0
    waiting_item_ms: float = 0
    device: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, values: numpy.ndarray) -> numpy.ndarray:
        size = len(values)
        for _ in range(round(STEPS_A_MS * (self.computing_ms + self.computing_item_ms * size))):
            pass
        if waiting_ms := self.waiting_ms + self.waiting_item_ms * size:
            with self.device:
                time.sleep(waiting_ms / 1e3)
        return numpy.tile(values, (1, 3))


#: `launcher` launches kernels, and waits for them.
TIMED = {
    "sleep": Timed(waiting_ms=0.5, waiting_item_ms=0.02),
    "compute": Timed(computing_ms=1, computing_item_ms=0.05),
    "launcher": Timed(computing_ms=2, waiting_ms=3),
}


def text(device: str) -> Model:
    """As large as MiniLM, of random weights: 64 ids make 384 numbers."""
    import torch
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12}
    bert = BertModel(BertConfig(**sizes, intermediate_size=1536))
    bert = bert.to(device, precision(device)).eval()

    @torch.inference_mode()
    def run(values: numpy.ndarray) -> numpy.ndarray:
        ids = torch.from_numpy(values).to(device, non_blocking=True)
        return bert(input_ids=ids).last_hidden_state.mean(1).float().cpu().numpy()

    return run


def image(device: str) -> Model:
    """ResNet-50 of random weights: an image has 1,000 scores."""
    import torch
    from torchvision.models import resnet50

    net = resnet50(weights=None).to(device, precision(device)).eval()
    net = net.to(memory_format=torch.channels_last)

    @torch.inference_mode()
    def run(values: numpy.ndarray) -> numpy.ndarray:
        pixels = torch.from_numpy(values).to(device, non_blocking=True).permute(0, 3, 1, 2)
        return net(pixels.to(precision(device)).div_(255)).float().cpu().numpy()

    return run


def precision(device: str) -> Any:
    import torch

    return torch.float32 if device == "cpu" else torch.float16


def load(name: str, device: str) -> Model:
    """Loads a model. One on a device runs each size of a batch once."""
    if name in TIMED:
        return TIMED[name]
    run = {"text": text, "image": image}[name](device)
    for size in (1, 2, 4, 8, 16, 32, MAX_SIZE):
        run(batch(name, size))
    return run


def items(name: str, count: int) -> list[numpy.ndarray]:
    """Different items, the same each time."""
    kind, chosen = KINDS[name], numpy.random.default_rng(8545)
    return [chosen.integers(1, 255, kind.shape, kind.dtype) for _ in range(count)]


def batch(name: str, size: int) -> numpy.ndarray:
    return numpy.stack(items(name, size))


def of_bytes(name: str, run: Model, contents: list[bytes]) -> list[bytes]:
    """Runs a model with items as bytes; its results are bytes."""
    kind = KINDS[name]
    joined = bytearray().join(contents)
    values = numpy.frombuffer(joined, kind.dtype).reshape(len(contents), *kind.shape)
    return [row.tobytes() for row in run(values)]


def bare(name: str, run: Model, size: int, seconds: float) -> float:
    """The seconds of a batch, in a loop of one batch after the other."""
    contents = [it.tobytes() for it in items(name, size)]
    batches, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        of_bytes(name, run, contents)
        batches += 1
    return took / batches


def main(name: str, device: str) -> None:
    run = load(name, device)
    for line in sys.stdin:
        seconds = float(line) / len(SIZES)
        print(json.dumps({size: bare(name, run, size, seconds) for size in SIZES}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
