"""Calls tests/inference_clients/server.py by `tritonclient`, and prints what it got as JSON.

triton.py HOST:PORT [BF16]
"""

import asyncio
import json
import sys

import ml_dtypes
import numpy
import tritonclient.http as http
import tritonclient.http.aio as aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

DTYPES = "?bhiqBHIQefd"


def tensor(name, array, *, binary=True, datatype=None):
    made = http.InferInput(name, list(array.shape), datatype or np_to_triton_dtype(array.dtype))
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def is_echoed(client, array, *, binary, datatype=None):
    wanted = [http.InferRequestedOutput(output(client, "echo"), binary_data=binary)]
    sent = tensor("values", array, binary=binary, datatype=datatype)
    found = client.infer("echo", [sent], outputs=wanted, request_id="7")
    back = found.as_numpy(wanted[0].name())
    header = found.get_response()["outputs"][0]
    is_same = back.shape == array.shape and back.tobytes() == array.tobytes()
    return is_same and ("data" not in header) is binary


def output(client, model):
    return client.get_model_metadata(model)["outputs"][0]["name"]


def problem(client, model, inputs):
    try:
        client.infer(model, inputs)
    except InferenceServerException as error:
        return [error.status(), error.message()]


def arrays():
    """One of each datatype and of several shapes."""
    for code in DTYPES:
        for shape in [(), (0,), (5,), (2, 3)]:
            count = int(numpy.prod(shape))
            yield numpy.arange(count).astype(code).reshape(shape)
    yield numpy.arange(1 << 19, dtype="f4")


def called(client):
    floats = numpy.arange(4, dtype="f4")
    integers = numpy.arange(3)
    by = numpy.array([3.0])
    scaled = client.infer("scale", [tensor("values", floats), tensor("by", by)])
    added = client.infer("add", [tensor("a", integers), tensor("b", integers)])
    totalled = client.infer("total", [tensor("values", floats.astype("f8"))])
    texts = numpy.array(["a", "é"], object)
    uppered = client.infer("upper", [tensor("texts", texts)])
    names = {it: output(client, it) for it in ("scale", "add", "total", "upper", "embed")}
    # As many as connections, so that they wait for one another.
    waiting = [client.async_infer("embed", [tensor("values", floats[1:])]) for _ in range(8)]
    embedded = [it.get_result().as_numpy(names["embed"]) for it in waiting]
    return {
        "scale": scaled.as_numpy(names["scale"]).tolist(),
        "add": added.as_numpy(names["add"]).tolist(),
        "total": totalled.as_numpy(names["total"]).tolist(),
        "upper": [it.decode() for it in uppered.as_numpy(names["upper"])],
        "embed": [float(numpy.linalg.norm(it)) for it in embedded],
    }


async def by_asyncio(url):
    async with aio.InferenceServerClient(url) as client:
        array = numpy.arange(6, dtype="f4").reshape(2, 3)
        found = await client.infer("scale", [tensor("values", array)])
        name = (await client.get_model_metadata("scale"))["outputs"][0]["name"]
        return found.as_numpy(name).tolist()


url = sys.argv[1]
client = http.InferenceServerClient(url, concurrency=8)
floats = numpy.zeros(2, "f4")
# JSON has neither NaN nor numbers of two bytes.
in_json = [it for it in arrays() if it.dtype.char != "e" and it.size < 100]
print(
    json.dumps(
        {
            "live": client.is_server_live(),
            "ready": client.is_server_ready(),
            "models ready": [client.is_model_ready(it) for it in ("echo", "embed", "none")],
            "extensions": client.get_server_metadata()["extensions"],
            "inputs": client.get_model_metadata("scale")["inputs"],
            "binary": all(is_echoed(client, it, binary=True) for it in arrays()),
            "bfloat16": "BF16" not in sys.argv
            or is_echoed(client, numpy.ones(3, ml_dtypes.bfloat16), binary=True, datatype="BF16"),
            "json": all(is_echoed(client, it, binary=False) for it in in_json),
            "called": called(client),
            "asyncio": asyncio.run(by_asyncio(url)),
            "unknown": problem(client, "none", [tensor("values", floats)]),
            "missing": problem(client, "add", [tensor("a", numpy.arange(3))]),
            "wrong": problem(client, "add", [tensor("a", floats), tensor("b", floats)]),
            "failed": problem(client, "fail", [tensor("values", floats)]),
        }
    )
)
