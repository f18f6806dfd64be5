"""Calls tests/inference_clients/server.py by KServe's SDK, and prints what it got as JSON.

kserve_sdk.py HOST:PORT
"""

import asyncio
import json
import sys

import numpy
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput


def request(model, array, *, binary):
    tensor = InferInput("values", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array, binary_data=binary)
    parameters = {"binary_data_output": binary}
    return InferRequest(model, [tensor], request_id="7", parameters=parameters)


async def main(url):
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    array = numpy.arange(6, dtype="f4").reshape(2, 3)
    found = {
        "live": await client.is_server_live(url),
        "ready": await client.is_server_ready(url),
        "model ready": await client.is_model_ready(url, "scale"),
    }
    for binary in (True, False):
        response = await client.infer(url, request("scale", array, binary=binary), "scale")
        found[f"binary {binary}"] = response.outputs[0].as_numpy().tolist()
        found["id"] = response.id
    chosen = request("scale", array, binary=False)
    chosen.request_outputs = [RequestedOutput(response.outputs[0].name, {"binary_data": True})]
    response = await client.infer(url, chosen, "scale")
    found["requested"] = response.outputs[0].as_numpy().tolist()
    await client.close()
    return found


print(json.dumps(asyncio.run(main(f"http://{sys.argv[1]}"))))
