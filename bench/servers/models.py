"""A model behind ucall: `python -m bench.servers.models NAME DEVICE HOW ENGINE`.

HOW is `threads`, `inline` (on the server's thread), or a number of processes, which share the
device. The model is loaded where it runs.
"""

import functools
import importlib
import sys
from typing import Any

import numpy
from numpy.typing import NDArray

from bench.harness import models

name, device, how, engine = sys.argv[1:]
server = importlib.import_module(f"ucall.{engine}").Server(port=0)
numbers = numpy.dtype(models.KINDS[name].dtype).type
options: dict[str, Any] = {"max_size": models.MAX_SIZE}
if how == "threads":
    options["threads"] = True
elif how != "inline":
    options["devices"] = [device] * int(how)


@functools.cache
def model() -> models.Model:
    return models.load(name, device)


@server.batch(**options)
def predict(items: list[bytes]) -> list[bytes]:
    return models.of_bytes(name, model(), items)


def predict_arrays(items: NDArray[numbers]) -> list[numpy.ndarray]:
    return list(model()(items))


# In processes it would load the model once more.
if how == "threads":
    server.batch(predict_arrays, **options)
server.on_startup(lambda: print(f"listening on {server.port}", flush=True))
server.run()
